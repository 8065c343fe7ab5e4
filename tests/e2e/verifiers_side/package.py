"""Load a rendered environment package as verifiers' plugin loader does, and say what it found.

    python package.py FOLDER ID ENVIRONMENT ARGUMENTS

Writes one JSON document: the tasks by way of the package, and those that ENVIRONMENT (the job's own file)
gives directly under ARGUMENTS (JSON); the harness; the rewards of whole rollouts that the package's harness
plays against a stub model, one that knows the answer and one that does not.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from http.server import ThreadingHTTPServer

import verifiers.v1 as vf
from library import KEY, Stub, load, rollout
from verifiers.v1.configs.env import EnvConfig
from verifiers.v1.utils.loaders import default_harness_id, harness_class, load_taskset


async def play(task: vf.Task, ident: str) -> list[dict]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ[KEY] = "none"
    client = {"type": "eval", "base_url": f"http://127.0.0.1:{server.server_port}/v1", "api_key_var": KEY}
    agent = vf.AgentConfig(harness={"id": ident}, runtime={"type": "subprocess"}, model="stub", client=client)
    return [await rollout(task, text, agent) for text in (task.data.answer, "no idea")]


def main(folder: str, ident: str, environment: str, arguments: str) -> None:
    sys.path.insert(0, folder)
    config = EnvConfig.model_validate({"taskset": {"id": ident}})
    tasks = list(load_taskset(config.taskset))
    direct = load(environment, json.loads(arguments), 0)
    answer = {
        "tasks": [task.data.model_dump(mode="json") for task in tasks],
        "direct": [task.data.model_dump(mode="json") for task in direct],
        "harness": harness_class(ident).__name__,
        "default_harness": default_harness_id(ident),
        "rollouts": asyncio.run(play(tasks[0], ident)),
    }
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
