"""What every sandbox level promises: the protocol, the limits, and the refusal of a level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from ai_trains_ai.errors import InfrastructureError
from ai_trains_ai.sandbox.process import SandboxedProcess

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What one sandboxed process may use. Everything is per sandbox; `memory_bytes` and `cpu_seconds` are per
    process, so that with the default of one process they are per sandbox too.

    memory_bytes:  address space.
    cpu_seconds:   processor time over its whole life; then it is killed.
    processes:     1 means that it cannot fork at all.
    threads:       threads over all its processes, about (see docs/sandbox.md for where it is not exact).
    open_files:    descriptors of one process.
    scratch_bytes: size of a writable /tmp; 0, the default, means that nothing at all is writable.
    stderr_bytes:  how much of the end of its error output is kept.
    """

    memory_bytes: int = 1024 * MIB
    cpu_seconds: int = 600
    processes: int = 1
    threads: int = 64
    open_files: int = 256
    scratch_bytes: int = 0
    stderr_bytes: int = 64 * 1024

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "cpu_seconds", "processes", "threads", "open_files", "stderr_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it has to be at least 1")
        if self.scratch_bytes < 0:
            raise ValueError(f"scratch_bytes is {self.scratch_bytes}: it cannot be negative")


class Sandbox(Protocol):
    """One level, ready to start processes. Safe to use from several threads."""

    @property
    def level(self) -> str:
        """ "bubblewrap", "container", "reduced" or "unsafe"."""
        ...

    @property
    def trusted(self) -> bool:
        """False if results that were made inside are to be marked untrusted."""
        ...

    @property
    def python(self) -> str:
        """Path, inside the sandbox, of a Python 3.11 or newer with its standard library and nothing else.
        Use it as argv[0], with `-I -S -B`."""
        ...

    def start(
        self, argv: Sequence[str], *, files: Mapping[str, bytes], limits: SandboxLimits
    ) -> SandboxedProcess:
        """Start `argv` in a directory that holds `files` (relative path -> content), read-only.

        argv[0] is an absolute path inside. Raises InfrastructureError when the sandbox cannot be started;
        when that shows only later, `SandboxedProcess.wait()` raises it.
        """
        ...


class LevelUnavailable(InfrastructureError):
    """This machine cannot offer a level. `reason` says what is missing, `fix` what a person can do about
    it."""

    def __init__(self, level: str, reason: str, fix: str) -> None:
        super().__init__(f"{level}: {reason}. Fix: {fix}")
        self.level = level
        self.reason = reason
        self.fix = fix


def check_start(argv: Sequence[str], files: Mapping[str, bytes]) -> None:
    """Refuse what no level can do. Our callers check what agents write before; so this is ValueError."""
    if not argv or not argv[0].startswith("/"):
        raise ValueError(f"argv[0] has to be an absolute path: {list(argv)!r}")
    if any("\0" in part for part in argv):
        raise ValueError("argv holds a NUL")
    for name in files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name or str(path) != name:
            raise ValueError(f"not a plain relative path: {name!r}")
