"""The process that runs a job's environment.py: answer `load` once, then `score` until the pipe closes.

Standard library only; `jobs.env_host` starts it inside the sandbox, with this package in `env_child/` and the
job's files in `job/` under the working directory.
"""

from __future__ import annotations

import os
import random
import sys
import types
from typing import Any

from .channel import open_channel
from .environment import Environment, JobError


def main() -> None:
    """Serve until the host closes the pipe. Never returns to code of the job."""
    channel = open_channel()
    sys.modules["__main__"] = types.ModuleType("__main__")  # the job may have it, and clear it
    folder, process, leave = os.path.join(os.getcwd(), "job"), os.getpid(), os._exit
    sys.path[:] = [entry for entry in sys.path if entry not in ("", ".", os.getcwd())]
    random.seed(0)  # unseeded draws of the job repeat from run to run
    environment: Environment | None = None
    while request := channel.receive():
        try:
            if request["op"] == "load":
                environment = Environment(folder, request["arguments"], request["limits"])
                answer: dict[str, Any] = environment.describe(request["limits"])
            else:
                assert environment is not None
                answer = {"results": environment.score(request["items"], request["parts"])}
        except JobError as error:
            check, message, fix = error.args
            answer = {"error": {"check": check, "message": message, "fix": fix}}
        except MemoryError:
            answer = {"error": {"check": "memory", "message": "out of memory", "fix": "use less memory"}}
        except BaseException as error:  # noqa: BLE001 - only code of the job can make ours fail
            text = f"{type(error).__name__}: {error}"[:1000]
            answer = {"error": {"check": "environment", "message": text, "fix": "keep to the interface"}}
        if os.getpid() != process:
            leave(0)  # a copy that the job forked must not answer in our place
        channel.send(answer)
    leave(0)  # without waiting for threads that the job left running
