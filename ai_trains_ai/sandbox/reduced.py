"""Level 3: landlock, seccomp, resource limits and, as root, a user of its own. Needs no namespaces, so it
works in most containers; docs/sandbox.md says what it does not cover."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from ai_trains_ai.errors import InfrastructureError
from ai_trains_ai.sandbox import seccomp
from ai_trains_ai.sandbox.base import LevelUnavailable, SandboxLimits, check_start
from ai_trains_ai.sandbox.process import SandboxedProcess
from ai_trains_ai.sandbox.rlimits import rlimits
from ai_trains_ai.sandbox.runtime import Runtime, find_runtime
from ai_trains_ai.sandbox.spawn import spawn, spec
from ai_trains_ai.sandbox.uids import lease_if_root

LEVEL = "reduced"


class Reduced:
    level = LEVEL
    trusted = True

    def __init__(self, runtime: Runtime | None = None) -> None:
        """runtime: the Python to offer, by default ours or the system's. Raises LevelUnavailable."""
        if sys.platform != "linux":
            raise LevelUnavailable(LEVEL, "it needs Linux", "use a container engine")
        if not seccomp.supported():
            raise LevelUnavailable(LEVEL, "no seccomp table for this processor", "use x86_64 or 64-bit Arm")
        from ai_trains_ai.sandbox import landlock  # its import needs Linux's C library

        self._abi = landlock.abi()
        if not self._abi:
            raise LevelUnavailable(
                LEVEL,
                "the kernel offers no landlock to us",
                "use Linux 5.13 or newer with landlock among its security modules (boot parameter "
                "lsm=landlock,...); in a container, a seccomp profile that lets the landlock calls through",
            )
        try:
            self._runtime = runtime or find_runtime()
        except LookupError as error:
            raise LevelUnavailable(
                LEVEL, str(error), "install a Python 3.11 or newer that every user can run, e.g. in /usr"
            ) from error
        self._landlock = landlock_rules(self._runtime)

    def advice(self) -> str:
        """For a level that starts but does not hold."""
        return "install bubblewrap, or docker or podman; or use a newer kernel"

    @property
    def python(self) -> str:
        return self._runtime.python

    def start(
        self, argv: Sequence[str], *, files: Mapping[str, bytes], limits: SandboxLimits
    ) -> SandboxedProcess:
        """As `Sandbox.start`. Scratch space is refused: nothing here could bound its size."""
        from ai_trains_ai.sandbox import landlock

        check_start(argv, files)
        if limits.scratch_bytes:
            raise InfrastructureError(
                "sandbox: the reduced level has no scratch directory: use scratch_bytes=0"
            )
        lease = lease_if_root()
        policy = seccomp.Policy(
            fork=limits.processes > 1,
            signals=lease is not None or self._abi >= landlock.SIGNALS_SINCE,
            open_for_writing=self._abi >= landlock.TRUNCATE_SINCE,
        )
        stage = spec(argv, supervise=True)
        stage["files"] = dict(files)
        stage["landlock"] = self._landlock
        stage["seccomp"] = seccomp.program(policy)
        stage["uid"] = lease.uid if lease else None
        stage["rlimits"] = rlimits(limits, own_user=lease is not None)
        return spawn(stage, lease=lease, stderr_bytes=limits.stderr_bytes)


def landlock_rules(runtime: Runtime) -> list[tuple[str, int]]:
    """(path, rights): the runtime to read and, the interpreter and its loader, to execute. In the standard
    library every entry but the third-party directories can be read; the names in those can be listed, for
    landlock's rights only ever grow on the way down and Python lists the directories that it imports
    from."""
    from ai_trains_ai.sandbox.landlock import EXECUTE, READ_DIR, READ_FILE, TRUNCATE, WRITE_FILE

    programs = (runtime.python, runtime.loader)
    rules = [(path, READ_FILE | EXECUTE if path in programs else READ_FILE) for path in runtime.files]
    for directory in runtime.directories:
        rules.append((directory, READ_DIR))
        rules += [(path, READ_FILE) for path in _entries(directory) if path not in runtime.hidden]
    rules.append(("/dev/null", READ_FILE | WRITE_FILE | TRUNCATE))
    return [*rules, *((path, READ_FILE) for path in ("/dev/zero", "/dev/random", "/dev/urandom"))]


def _entries(directory: str) -> list[str]:
    # A link could lead anywhere; what it leads to inside the library has its own entry.
    with os.scandir(directory) as entries:
        return sorted(entry.path for entry in entries if not entry.is_symlink())
