"""SandboxLimits as resource limits."""

from __future__ import annotations

from ai_trains_ai.sandbox.base import SandboxLimits

_OWN_PROCESSES = 4
"""The stage or bwrap's three processes count too."""
_STACK_BYTES = 8 << 20


def rlimits(limits: SandboxLimits, *, own_user: bool, largest_file: int = 0) -> dict[str, int]:
    """Name of a `resource` constant -> value.

    own_user:     the sandbox has a user number to itself. RLIMIT_NPROC counts a user's tasks; without an own
                  user, those that run already are granted on top, as all tasks of the machine: an upper bound
                  that is read at once.
    largest_file: what the sandbox itself has to write, whatever the job may.
    """
    tasks = limits.threads + limits.processes + _OWN_PROCESSES
    return {
        "RLIMIT_AS": limits.memory_bytes,
        "RLIMIT_CPU": limits.cpu_seconds,
        "RLIMIT_NPROC": tasks if own_user else tasks + _tasks_on_this_machine(),
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_FSIZE": max(limits.scratch_bytes, largest_file),
        "RLIMIT_STACK": _STACK_BYTES,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_RTPRIO": 0,
    }


def _tasks_on_this_machine() -> int:
    """The number behind the slash of /proc/loadavg's fourth field."""
    with open("/proc/loadavg", encoding="ascii") as file:
        return int(file.read().split()[3].partition("/")[2])
