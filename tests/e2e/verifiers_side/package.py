"""Load a rendered environment package as verifiers' plugin loader does, and say what it found.

    python package.py FOLDER ID ENVIRONMENT ARGUMENTS

Writes one JSON document: the tasks by way of the package, and those that ENVIRONMENT (the job's own file) gives
directly under ARGUMENTS (JSON); the plugins' classes; the config class that rl.toml's taskset table becomes.
"""

from __future__ import annotations

import json
import sys

from library import load
from verifiers.v1.configs.env import EnvConfig
from verifiers.v1.utils.loaders import default_harness_id, harness_class, load_taskset


def main(folder: str, ident: str, environment: str, arguments: str) -> None:
    sys.path.insert(0, folder)
    config = EnvConfig.model_validate({"taskset": {"id": ident}})
    tasks = list(load_taskset(config.taskset))
    direct = load(environment, json.loads(arguments), 0)
    answer = {
        "tasks": [task.data.model_dump(mode="json") for task in tasks],
        "direct": [task.data.model_dump(mode="json") for task in direct],
        "rewards": sorted(name for name in dir(type(tasks[0])) if hasattr(getattr(tasks[0], name), "reward")),
        "harness": harness_class(ident).__name__,
        "default_harness": default_harness_id(ident),
        "config": type(config.taskset).__name__,
    }
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
