"""The reduced level as older kernels get it: a stricter filter makes up for what their landlock lacks."""

from __future__ import annotations

import pytest

from ai_trains_ai.sandbox import seccomp
from ai_trains_ai.sandbox.landlock import abi
from ai_trains_ai.sandbox.reduced import landlock_rules
from ai_trains_ai.sandbox.runtime import find_runtime
from ai_trains_ai.sandbox.spawn import spawn, spec

SOURCE = """
import asyncio, errno, json, os, signal, threading

def attempt(action, *arguments):
    try:
        action(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"

async def answer():
    return await asyncio.to_thread(lambda: 42)

print(json.dumps({
    "answer": asyncio.run(answer()),
    "read": len(open("own.txt").read()),
    "null": attempt(open, "/dev/null", "wb"),
    "truncate": attempt(os.open, "own.txt", os.O_RDONLY | os.O_TRUNC),
    "itself": attempt(os.kill, os.getpid(), 0),
    "group": attempt(os.killpg, 0, 0),
    "thread": attempt(signal.pthread_kill, threading.get_ident(), signal.SIGURG),
}))
"""


def test_python_works_behind_the_stricter_filter() -> None:
    if not seccomp.supported() or not abi():
        pytest.skip("no landlock, or no seccomp table for this processor")
    runtime = find_runtime()
    stage = spec([runtime.python, "-I", "-S", "-B", "-c", SOURCE], supervise=True)
    stage["files"] = {"own.txt": b"12345"}
    stage["landlock"] = landlock_rules(runtime)
    stage["seccomp"] = seccomp.program(seccomp.Policy(signals=False, open_for_writing=False))
    with spawn(stage, stderr_bytes=4096) as process:
        output = process.stdout.read().decode()
        assert process.wait(60) == 0, process.stderr()
    refused = '"null": "EPERM", "truncate": "EPERM", "itself": "EPERM", "group": "EPERM", "thread": "EPERM"'
    assert output.strip() == '{"answer": 42, "read": 5, ' + refused + "}"
