"""Level 1: bubblewrap. Own user, PID, network, IPC, UTS and mount namespaces, no /proc, nothing writable."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from ai_trains_ai.errors import boundary
from ai_trains_ai.sandbox import seccomp
from ai_trains_ai.sandbox.base import LevelUnavailable, SandboxLimits, check_start
from ai_trains_ai.sandbox.process import SandboxedProcess
from ai_trains_ai.sandbox.rlimits import rlimits
from ai_trains_ai.sandbox.runtime import Runtime, find_runtime
from ai_trains_ai.sandbox.spawn import spawn, spec
from ai_trains_ai.sandbox.uids import lease_if_root

LEVEL = "bubblewrap"
JOB_FOLDER = "/job"
SCRATCH = "/tmp"
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_NOBODY = "65534"
_NAMESPACES = (
    "--unshare-user",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
)
_SWITCHES = (
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "run: sysctl -w kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "run: sysctl -w user.max_user_namespaces=10000"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "give bwrap an AppArmor profile with `userns,`, or run: "
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
"""(switch, value at which user namespaces are closed, what opens them)."""


class Bubblewrap:
    """Run as root, it gives each sandbox a user number of its own before bwrap starts: within a user
    namespace root would keep its number, and with it root's files and freedom from RLIMIT_NPROC."""

    level = LEVEL
    trusted = True

    def __init__(self, bwrap: str | None = None, runtime: Runtime | None = None) -> None:
        """bwrap: its path, by default the first on PATH. runtime: the Python to offer, by default ours or the
        system's. Raises LevelUnavailable."""
        found = bwrap or shutil.which("bwrap")
        if sys.platform != "linux" or found is None:
            reason = "bwrap is not installed" if sys.platform == "linux" else "it needs Linux"
            raise LevelUnavailable(LEVEL, reason, "install it (Debian, Ubuntu, Fedora: package bubblewrap)")
        if not seccomp.supported():
            raise LevelUnavailable(LEVEL, "no seccomp table for this processor", "use x86_64 or 64-bit Arm")
        self._bwrap = found
        try:
            self._runtime = runtime or find_runtime()
        except LookupError as error:
            raise LevelUnavailable(
                LEVEL, str(error), "install a Python 3.11 or newer that every user can run, e.g. in /usr"
            ) from error

    def advice(self) -> str:
        """For a level that is installed but does not start: nearly always, user namespaces are switched
        off."""
        for path, closed, fix in _SWITCHES:
            try:
                if Path(path).read_text(encoding="ascii").strip() == closed:
                    return fix
            except OSError:  # this kernel has no such switch
                continue
        return "let user namespaces through (in a container: its seccomp profile blocks them)"

    @property
    def python(self) -> str:
        return self._runtime.python

    def start(
        self, argv: Sequence[str], *, files: Mapping[str, bytes], limits: SandboxLimits
    ) -> SandboxedProcess:
        check_start(argv, files)
        policy = seccomp.Policy(fork=limits.processes > 1, write=limits.scratch_bytes > 0)
        with ExitStack() as held, boundary("sandbox"):
            program = _hold(held, seccomp.program(policy))
            contents = {f"{JOB_FOLDER}/{name}": _hold(held, data) for name, data in files.items()}
            command = [self._bwrap, *_NAMESPACES, "--uid", _NOBODY, "--gid", _NOBODY, "--hostname", "sandbox"]
            command += ["--die-with-parent", "--new-session"]
            command += ["--json-status-fd", "{status}", "--seccomp", str(program)]
            command += file_system(self._runtime, contents, limits.scratch_bytes)
            command += ["--chdir", JOB_FOLDER, "--", *argv]
            lease = lease_if_root()
            stage = spec(command, supervise=False)
            stage["uid"] = lease.uid if lease else None
            stage["rlimits"] = rlimits(
                limits, own_user=lease is not None, largest_file=max(map(len, files.values()), default=0)
            )
            return spawn(
                stage, lease=lease, pass_fds=[program, *contents.values()], stderr_bytes=limits.stderr_bytes
            )


def file_system(runtime: Runtime, contents: Mapping[str, int], scratch_bytes: int) -> list[str]:
    """bwrap's arguments for everything that is to be seen: the runtime, four devices, the job's files (path
    -> descriptor to copy from), and a scratch directory if it has a size."""
    arguments = [part for target in runtime.links for part in ("--symlink", target[1], target[0])]
    for path in (*runtime.directories, *runtime.files):
        arguments += ["--ro-bind", path, path]
    for path in runtime.hidden:
        arguments += ["--tmpfs", path, "--remount-ro", path]
    for path in DEVICES:
        arguments += ["--dev-bind", path, path]
    arguments += ["--dir", JOB_FOLDER]
    for path, descriptor in contents.items():
        arguments += ["--file", str(descriptor), path]
    if scratch_bytes:
        arguments += ["--size", str(scratch_bytes), "--tmpfs", SCRATCH]
    return [*arguments, "--remount-ro", "/"]


def _hold(stack: ExitStack, data: bytes) -> int:
    """A descriptor from which `data` can be read, closed with the stack."""
    descriptor = os.memfd_create("sandbox")
    stack.callback(os.close, descriptor)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
