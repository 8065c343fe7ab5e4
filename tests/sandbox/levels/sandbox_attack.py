"""Run a hostile program in a sandbox and tell what came of it. Also a server, for attacks on another user's
sandbox:

    python sandbox_attack.py LEVEL      one request a line on stdin, one outcome a line on stdout, as JSON
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ai_trains_ai.errors import InfrastructureError
from ai_trains_ai.sandbox.base import Sandbox, SandboxLimits
from ai_trains_ai.sandbox.pick import LEVELS

PRELUDE = '''
# Attacks are harmless where they succeed: a test that finds a hole must not break the machine that has it.
import ctypes, errno, json, os, sys
with open("facts.json") as file:
    facts = json.load(file)
libc = ctypes.CDLL(None, use_errno=True)

def attempt(action, *arguments):
    """"done", or the name of the error."""
    try:
        action(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, "OSError")
    except Exception as error:
        return type(error).__name__
    return "done"

def syscall(number, *arguments):
    result = libc.syscall(number, *arguments)
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]

def tell(**results):
    print(json.dumps(results), flush=True)
'''


@dataclass(frozen=True)
class Outcome:
    """What a program in a sandbox did. `error` is InfrastructureError's text, if that was raised."""

    stdout: str
    stderr: str
    code: int | None
    error: str | None

    @property
    def told(self) -> dict[str, Any]:
        """What the program printed with tell(), the last line of its output."""
        lines = self.stdout.splitlines()
        assert lines, f"it told nothing; code {self.code}, error {self.error}, stderr: {self.stderr}"
        result = json.loads(lines[-1])
        assert isinstance(result, dict)
        return result


@dataclass(frozen=True)
class Attack:
    source: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


SECONDS = 90.0
"""After which an attack is killed. All end by themselves; a machine under load may need long for it."""


def run(sandbox: Sandbox, attack: Attack) -> Outcome:
    """The program finds `facts` in a variable, with "launcher" for this process."""
    facts = {"launcher": os.getpid(), "level": sandbox.level, **attack.facts}
    files = {name: text.encode() for name, text in attack.files.items()}
    files["facts.json"] = json.dumps(facts).encode()
    files["attack.py"] = (PRELUDE + attack.source).encode()
    argv = [sandbox.python, "-I", "-S", "-B", "attack.py"]
    try:
        with sandbox.start(argv, files=files, limits=SandboxLimits(**attack.limits)) as process:
            process.stdin.close()
            timer = threading.Timer(SECONDS, process.kill)
            timer.start()
            stdout = process.stdout.read()
            code = process.wait(SECONDS)
            late = not timer.is_alive()
            timer.cancel()
            error = f"the attack did not end within {SECONDS:g} s" if late else None
            return Outcome(stdout.decode("utf-8", "replace"), process.stderr(), code, error)
    except InfrastructureError as error:
        return Outcome("", "", None, str(error))


def running(marker: str) -> list[int]:
    """Processes with `marker` in their command line, but for zombies, which have none."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if marker.encode() in file.read():
                    found.append(int(name))
        except OSError:
            continue
    return found


def serve(level: str) -> None:
    sandbox = LEVELS[level]()
    for line in sys.stdin:
        print(json.dumps(asdict(run(sandbox, Attack(**json.loads(line))))), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
