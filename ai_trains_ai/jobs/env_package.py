"""A job's environment as a package that prime-rl's environment server installs and imports.

    environment/
      pyproject.toml
      NAME/__init__.py      exports the taskset and the harness, as verifiers v1 finds plugins
      NAME/one_turn.py      the harness: one request to the model, in process
      NAME/arguments.json   [environment] of job.toml
      NAME/job/             the job's own files, untouched

The stock harness starts a Python process for each rollout, which costs more than the rollout: the sampled
text of a single-turn task needs no program around it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ai_trains_ai.types import Job

VERIFIERS = "verifiers>=0.4,<0.5"

_PYPROJECT = """\
[build-system]
requires = ["setuptools>=75"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.0.1"
requires-python = ">=3.11"
dependencies = ["{verifiers}", "httpx"]

[tool.setuptools]
packages = ["{module}"]

[tool.setuptools.package-data]
{module} = ["arguments.json", "job/**/*"]
"""

_INIT = '''\
"""The environment of one training job, and the harness that plays it."""

import importlib.util
import json
import sys
from pathlib import Path

import verifiers.v1 as vf
from verifiers.v1.utils.generic import concrete_type

from .one_turn import OneTurn

_HERE = Path(__file__).resolve().parent
_JOB = _HERE / "job"


def _load():
    """The one Taskset that the job's environment.py exports."""
    sys.path.append(str(_JOB))  # last: a job's file never hides an installed module
    spec = importlib.util.spec_from_file_location("environment", _JOB / "environment.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["environment"] = module
    spec.loader.exec_module(module)
    exported = [getattr(module, name) for name in module.__all__]
    (found,) = [c for c in exported if isinstance(c, type) and issubclass(c, vf.Taskset)]
    return found


_Taskset = _load()
_Config = concrete_type(_Taskset, vf.TasksetConfig) or vf.TasksetConfig


class JobTaskset(vf.Taskset[_Taskset.task_type(), vf.TasksetConfig]):
    """The job's tasks under the arguments of its job.toml; nothing of them stands in rl.toml."""

    def load(self):
        arguments = json.loads((_HERE / "arguments.json").read_text(encoding="utf-8"))
        yield from _Taskset(_Config(**arguments))


__all__ = ["JobTaskset", "OneTurn"]
'''

_ONE_TURN = '''\
"""A harness that asks the model once, without a process of its own."""

import asyncio
import weakref

import httpx
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.harness import Harness
from verifiers.v1.runtimes import ProgramResult

# One client for each event loop: a new one for each rollout would cost more than its request.
_clients = weakref.WeakKeyDictionary()


def _client():
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        _clients[loop] = httpx.AsyncClient(trust_env=False, timeout=600.0, limits=limits)
    return _clients[loop]


class OneTurnConfig(HarnessConfig):
    pass


class OneTurn(Harness[OneTurnConfig]):
    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
        system, prompt = self.resolve_prompt(data)
        if isinstance(prompt, str):
            messages = [{"role": "user", "content": prompt}]
        else:
            messages = [message.model_dump() for message in prompt]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        answer = await _client().post(
            f"{endpoint}/chat/completions",
            json={"model": ctx.model, "messages": messages},
            headers={"Authorization": f"Bearer {secret}"},
        )
        failed = answer.status_code != 200
        return ProgramResult(exit_code=int(failed), stdout="", stderr=answer.text if failed else "")


__all__ = ["OneTurn"]
'''


def package_id(job: Job) -> str:
    """The id under which verifiers finds the package. Another job on the same pod has another one."""
    return f"ata-env-{job.content_sha256[:16]}"


def environment_package(job: Job) -> Mapping[str, bytes]:
    """Relative path -> content of the package."""
    arguments = json.dumps(dict(job.environment_args), indent=2, allow_nan=False)
    name = package_id(job)
    module = name.replace("-", "_")
    own = {f"{module}/job/{path}": content for path, content in job.files.items() if path != "job.toml"}
    made = {
        "pyproject.toml": _PYPROJECT.format(name=name, module=module, verifiers=VERIFIERS),
        f"{module}/__init__.py": _INIT,
        f"{module}/one_turn.py": _ONE_TURN,
        f"{module}/arguments.json": arguments + "\n",
    }
    return {**own, **{path: text.encode() for path, text in made.items()}}
