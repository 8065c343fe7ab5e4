"""Which sandbox this machine gets: the first level that, really started, keeps what it promises."""

from __future__ import annotations

import json
import os
import select
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ai_trains_ai import errors
from ai_trains_ai.errors import InfrastructureError, UsageError
from ai_trains_ai.sandbox.base import MIB, LevelUnavailable, Sandbox, SandboxLimits
from ai_trains_ai.sandbox.bubblewrap import Bubblewrap
from ai_trains_ai.sandbox.container import Container
from ai_trains_ai.sandbox.process import SandboxedProcess
from ai_trains_ai.sandbox.reduced import Reduced
from ai_trains_ai.sandbox.unsafe import Unsafe

LEVELS: dict[str, Callable[[], Bubblewrap | Container | Reduced]] = {
    "bubblewrap": Bubblewrap,
    "container": Container,
    "reduced": Reduced,
}
"""Strongest first."""

PROPERTIES = frozenset(
    [
        *("files", "writing", "environment", "descriptors", "network"),
        *("processes", "forking", "memory", "limits", "privileges"),
    ]
)
"""What checks.py tries inside, one function each."""

_PROBE_LIMITS = SandboxLimits(memory_bytes=512 * MIB, cpu_seconds=20)
_PROBE_SECONDS = 30.0
_UNSAFE_FLAG = "--unsafe-no-sandbox"


@dataclass(frozen=True, slots=True)
class LevelReport:
    """What became of one level. `sandbox` is None if it cannot be used; then `reason` and `fix` say why."""

    level: str
    sandbox: Sandbox | None
    reason: str
    fix: str
    seconds: float


def pick_sandbox(*, unsafe: bool = False, only: str | None = None) -> Sandbox:
    """Return the strongest level that holds here. Takes a fraction of a second; the result can be kept.

    unsafe: no sandbox at all, whatever could be had; results are then marked untrusted. Never picked
    otherwise.
    only:   accept no other level.

    Raises InfrastructureError with every level's reason and fix if none holds, UsageError for an unknown
    level.
    """
    if unsafe:
        return Unsafe()
    if only is not None and only not in LEVELS:
        raise UsageError(f"no sandbox level {only!r}: use one of {', '.join(LEVELS)}, or {_UNSAFE_FLAG}")
    reports = []
    for level in LEVELS if only is None else (only,):
        report = examine(level)
        if report.sandbox is not None:
            return report.sandbox
        reports.append(report)
    lines = [f"  {report.level}: {report.reason}. Fix: {report.fix}" for report in reports]
    raise InfrastructureError(
        "no sandbox works on this machine, and a job's code is not run without one:\n"
        + "\n".join(lines)
        + f"\nOr run it with all of your own rights, results marked untrusted: {_UNSAFE_FLAG}"
    )


def examine(level: str) -> LevelReport:
    """Try one level of LEVELS."""
    began = time.monotonic()
    try:
        sandbox = LEVELS[level]()
    except LevelUnavailable as error:
        return LevelReport(level, None, error.reason, error.fix, time.monotonic() - began)
    try:
        broken = probe(sandbox)
    except InfrastructureError as error:
        broken = [str(error)]
    seconds = time.monotonic() - began
    if broken:
        return LevelReport(level, None, "; ".join(broken), sandbox.advice(), seconds)
    return LevelReport(level, sandbox, "", "", seconds)


def probe(sandbox: Sandbox) -> list[str]:
    """Run checks.py inside and return what it could do that it must not, empty if every property holds.

    Raises InfrastructureError if it cannot be run, or cannot be killed.
    """
    with _bait() as facts:
        files = {
            "checks.py": (Path(__file__).parent / "checks.py").read_bytes(),
            "facts.json": json.dumps(facts).encode(),
        }
        argv = [sandbox.python, "-I", "-S", "-B", "checks.py"]
        with sandbox.start(argv, files=files, limits=_PROBE_LIMITS) as process:
            line = _read_line(process, _PROBE_SECONDS)
            if not line:
                process.wait(_PROBE_SECONDS)
                problem = process.stderr().strip()[-500:]
                raise InfrastructureError(f"sandbox: its checks did not run: {problem}")
    results = json.loads(line)
    broken = [f"{name}: {problem}" for name, problem in results.items() if problem is not None]
    return broken + [f"{name}: not checked" for name in sorted(PROPERTIES - results.keys())]


@contextmanager
def _bait() -> Iterator[dict[str, object]]:
    """Things that anybody on this machine may use and a sandboxed process must not reach."""
    with (
        tempfile.TemporaryDirectory(prefix="ai-trains-ai-bait-") as folder,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        os.chmod(folder, 0o777)
        bait = Path(folder, "readable")
        bait.write_text("bait", encoding="ascii")
        bait.chmod(0o644)
        yield {
            "unreadable": [str(bait), errors.__file__, f"/proc/{os.getpid()}/maps"],
            "folders": [folder],
            "port": server.getsockname()[1],
            "launcher": os.getpid(),
            "memory_bytes": 2 * _PROBE_LIMITS.memory_bytes,
        }


def _read_line(process: SandboxedProcess, seconds: float) -> bytes:
    """One line of output without its end, b"" if none comes."""
    line = b""
    deadline = time.monotonic() + seconds
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            return b""
        data = os.read(process.stdout.fileno(), 1 << 16)
        if not data:
            return b""
        line += data
    return line[:-1]
