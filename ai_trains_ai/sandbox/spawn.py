"""Starting the stage (see stage.py) with everything that a sandbox needs, and wrapping what comes of it."""

from __future__ import annotations

import marshal
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, TypedDict, cast

import ai_trains_ai
from ai_trains_ai.errors import boundary
from ai_trains_ai.sandbox.process import GRACE_SECONDS, SandboxedProcess
from ai_trains_ai.sandbox.uids import UidLease

_BOOT = "import sys; sys.path.append(sys.argv[2]); from ai_trains_ai.sandbox.stage import main; main()"
_ROOT = str(Path(ai_trains_ai.__file__).resolve().parent.parent)


class StageSpec(TypedDict):
    """What the stage is told: plain data, because it reads it with `marshal`. `spec()` gives the defaults.

    supervise:     fork the job and watch it, instead of turning into argv.
    argv:          absolute program and arguments; "{folder}" stands for the supervisor's directory.
    environment:   of argv and of the engine's commands.
    rlimits:       name of a resource.RLIMIT_* constant -> value, soft and hard.
    uid:           user and group of argv; None keeps the launcher's.
    files:         the job's, for {folder}/job. own_files: ours, for {folder}.
    temporary:     where the folder is made.
    landlock:      (path, rights) pairs; None applies no landlock.
    seccomp:       the filter's program; None applies none.
    cleanup:       run at the end, whatever happened. check_started: prints when the container began.
    """

    supervise: bool
    launcher: int
    status_fd: int
    argv: list[str]
    environment: dict[str, str]
    rlimits: dict[str, int]
    uid: int | None
    files: dict[str, bytes]
    own_files: dict[str, bytes]
    temporary: str
    landlock: list[tuple[str, int]] | None
    seccomp: bytes | None
    cleanup: list[str]
    check_started: list[str]


def spec(argv: Sequence[str], *, supervise: bool) -> StageSpec:
    return StageSpec(
        supervise=supervise,
        launcher=os.getpid(),
        status_fd=-1,
        argv=list(argv),
        environment={},
        rlimits={},
        uid=None,
        files={},
        own_files={},
        temporary=os.path.realpath(tempfile.gettempdir()),
        landlock=None,
        seccomp=None,
        cleanup=[],
        check_started=[],
    )


def spawn(
    spec: StageSpec,
    *,
    lease: UidLease | None = None,
    pass_fds: Sequence[int] = (),
    stderr_bytes: int,
    grace_seconds: float = GRACE_SECONDS,
) -> SandboxedProcess:
    """Start the stage. `lease` is released when nothing of it runs any more, or if it does not start;
    `pass_fds` stay the caller's. "{status}" in argv becomes the number of the status pipe.

    Raises InfrastructureError if no process can be started.
    """
    release = lease.release if lease is not None else lambda: None
    with ExitStack() as on_failure, ExitStack() as always, boundary("sandbox"):
        on_failure.callback(release)
        status, writable = os.pipe()
        on_failure.callback(os.close, status)
        always.callback(os.close, writable)
        spec["status_fd"] = writable
        spec["argv"] = [str(writable) if part == "{status}" else part for part in spec["argv"]]
        file = always.enter_context(tempfile.TemporaryFile())
        marshal.dump(cast(Any, spec), file)
        file.seek(0)
        popen = _forker(os.getpid()).submit(_popen, file.fileno(), [writable, *pass_fds]).result()
        on_failure.pop_all()
    return SandboxedProcess(
        popen,
        status,
        stop_signal=signal.SIGTERM if spec["supervise"] else signal.SIGKILL,
        stderr_bytes=stderr_bytes,
        grace_seconds=grace_seconds,
        on_gone=release,
    )


@cache
def _forker(pid: int) -> ThreadPoolExecutor:
    """One thread that does all the forking of process `pid`. PR_SET_PDEATHSIG fires when the *thread* that
    forked
    ends: a sandbox started by a short-lived thread would die with it. (Keyed by pid: a fork has no
    threads.)"""
    return ThreadPoolExecutor(1, thread_name_prefix=f"sandbox-forker-{pid}")


def _popen(spec_fd: int, pass_fds: Sequence[int]) -> subprocess.Popen[bytes]:
    # The base interpreter: a virtual environment's would look for and read its configuration first.
    interpreter = getattr(sys, "_base_executable", None) or sys.executable
    return subprocess.Popen(
        [interpreter, "-I", "-S", "-c", _BOOT, str(spec_fd), _ROOT],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        cwd="/",
        pass_fds=[spec_fd, *pass_fds],
        start_new_session=True,
    )
