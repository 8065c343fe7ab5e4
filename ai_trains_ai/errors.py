"""The error tree, and `boundary()`, which says whose fault a failure is.

    AtaError
    ├── UsageError            the person at the keyboard: wrong arguments or config (exit code 2)
    ├── AgentError            the job's own fault: data, with a message its author can act on (exit code 1)
    └── InfrastructureError   a machine, a process, a disk, a network: retried, never a zero (exit code 3)

Anything else that escapes is a bug of ours and crashes loudly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class AtaError(Exception):
    """Base of every failure that has an owner."""


class UsageError(AtaError):
    """Wrong arguments or configuration. The message names the fix."""


class AgentError(AtaError):
    """The job is at fault.

    check:   short name of the probe or stage that found it, e.g. "toml" or "reward_bounds".
    message: what is wrong, in terms of the job's own files.
    fix:     what to change.
    """

    def __init__(self, check: str, message: str, fix: str = "") -> None:
        super().__init__(f"{check}: {message}" + (f" Fix: {fix}" if fix else ""))
        self.check = check
        self.message = message
        self.fix = fix


class InfrastructureError(AtaError):
    """Nobody's job is at fault; the caller retries, and what stays broken is missing, not zero."""


@contextmanager
def boundary(layer: str) -> Iterator[None]:
    """Attribute operating-system failures inside the block to infrastructure; let everything else through.

    Used where our code touches processes, pipes, disks and networks. A `TypeError` in here is still our bug.
    """
    try:
        yield
    except (ConnectionError, TimeoutError, OSError, MemoryError) as error:
        raise InfrastructureError(f"{layer}: {type(error).__name__}: {error}") from error
