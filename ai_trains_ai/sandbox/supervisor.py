"""The trusted parent of a job where no PID namespace of ours contains it (reduced, container, unsafe).

    waits for: the job's end | SIGTERM from the launcher | the launcher's death
    then:      kills the job's process group and every orphan, runs the engine's clean-up, removes the
               job's directory, and reports the exit code if the job ended by itself

SIGKILL of the launcher reaches it as SIGTERM through PR_SET_PDEATHSIG; SIGKILL of the supervisor reaches the
job as SIGKILL the same way.
"""

from __future__ import annotations

import os
import select
import signal
import sys

from ai_trains_ai.sandbox.stage import FAILED, change_user, limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ai_trains_ai.sandbox.landlock import Ruleset
    from ai_trains_ai.sandbox.spawn import StageSpec

_LINUX = sys.platform == "linux"
_POLL_SECONDS = 1.0
"""How often it looks whether its launcher lives, where the kernel does not tell."""
_ENGINE_SECONDS = 60
_NEVER_STARTED = "0001-"
"""A container's start time, before it has one: Go's zero time."""


def supervise(spec: StageSpec) -> int:
    # Blocked first: a signal that comes before the loop waits for it instead of killing the supervisor.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP})
    if _LINUX:
        from ai_trains_ai.sandbox import prctl

        prctl.prctl(prctl.SET_PDEATHSIG, signal.SIGTERM)
        prctl.prctl(prctl.SET_DUMPABLE, 0)
        if not spec["cleanup"]:  # a container engine's helpers are not ours to adopt and kill
            prctl.prctl(prctl.SET_CHILD_SUBREAPER, 1)
    folder = _make_folder(spec)
    try:
        code = _run(spec, folder)
    finally:
        try:
            _remove_container(spec, folder)
        finally:
            _remove_folder(folder)
    if code is None:
        return FAILED
    os.write(spec["status_fd"], b'{"exit-code": %d}\n' % code)
    return code


def _run(spec: StageSpec, folder: str) -> int | None:
    """Start the job, wait for its end, leave nothing behind. Returns None if it was ended from outside."""
    job, started = _fork_job(spec, folder)
    try:
        # Otherwise the pipes would never show their end to either side.
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        with open(started, "rb") as file:
            problem = file.read()
        if problem:
            raise OSError(problem.decode("utf-8", "replace"))
        code = _wait(spec, job)
    finally:
        _kill_everything(job)
    if code is not None and spec["check_started"]:
        answer = _engine(spec, spec["check_started"], folder)
        if answer is None or answer.startswith(_NEVER_STARTED):
            raise OSError(f"the container engine ended with code {code} before the job began")
    return code


def _wait(spec: StageSpec, job: int) -> int | None:
    """Return the job's exit code (128 + n for signal n), or None once the launcher is gone or wants the
    end."""
    ended: list[int] = []
    wake_up, written = os.pipe()
    for fd in (wake_up, written):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(written)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGCHLD})
    while True:
        # Orphans are reaped too: a zombie counts against the limit of processes.
        while (result := os.waitpid(-1, os.WNOHANG))[0]:
            if result[0] == job:
                code = os.waitstatus_to_exitcode(result[1])
                return 128 - code if code < 0 else code
        if ended or os.getppid() != spec["launcher"]:
            return None
        if select.select([wake_up], [], [], _POLL_SECONDS)[0]:
            os.read(wake_up, 512)


def _fork_job(spec: StageSpec, folder: str) -> tuple[int, int]:
    """Fork the job. The returned pipe ends empty once it has been executed, else it carries the reason."""
    readable, writable = os.pipe()
    ruleset = _ruleset(spec, folder)
    supervisor = os.getpid()
    job = os.fork()
    if job == 0:
        try:
            _be_job(spec, folder, supervisor, ruleset, writable)
        except BaseException as error:  # noqa: BLE001 - reported through the pipe, then the process ends
            os.write(writable, f"{type(error).__name__}: {error}".encode("utf-8", "replace")[:4000])
        os._exit(FAILED)
    os.close(writable)
    return job, readable


def _be_job(spec: StageSpec, folder: str, supervisor: int, ruleset: Ruleset | None, writable: int) -> None:
    """Between fork and exec. The order is forced: each step takes away what an earlier one needs."""
    _close_all_but(writable, *([ruleset.fd] if ruleset is not None else []))
    os.setsid()
    os.chdir(f"{folder}/job")
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    limit(spec)
    change_user(spec)
    if _LINUX:
        from ai_trains_ai.sandbox import prctl

        prctl.prctl(prctl.SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which clears it
    if os.getppid() != supervisor:
        raise ProcessLookupError("the supervisor is gone")
    if ruleset is not None:
        ruleset.enforce()
    if spec["seccomp"] is not None:
        prctl.install_filter(spec["seccomp"])
    argv = [part.replace("{folder}", folder) for part in spec["argv"]]
    os.execve(argv[0], argv, spec["environment"])


def _close_all_but(*kept: int) -> None:
    previous = 2
    for fd in sorted(kept):
        os.closerange(previous + 1, fd)
        previous = fd
    os.closerange(previous + 1, 1 << 16)


def _ruleset(spec: StageSpec, folder: str) -> Ruleset | None:
    if spec["landlock"] is None:
        return None
    from ai_trains_ai.sandbox import landlock

    ruleset = landlock.Ruleset()
    for path, rights in spec["landlock"]:
        ruleset.allow(path, rights)
    ruleset.allow(f"{folder}/job", landlock.READ_FILE | landlock.READ_DIR)
    return ruleset


def _make_folder(spec: StageSpec) -> str:
    """TEMP/NAME/job with the job's files, TEMP/NAME with ours. The job's user reads it and cannot change
    it: by ownership where it is another user, else by landlock and seccomp."""
    folder = f"{spec['temporary']}/ai-trains-ai-{os.getpid()}-{os.urandom(8).hex()}"
    os.umask(0o022)
    os.mkdir(folder, 0o711)
    os.mkdir(f"{folder}/job", 0o755)
    for base, files in ((f"{folder}/job", spec["files"]), (folder, spec["own_files"])):
        for name, content in files.items():
            path = f"{base}/{name}"
            os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
            with open(path, "xb") as file:
                file.write(content)
    return folder


def _remove_folder(folder: str) -> None:
    for base, directories, names in os.walk(folder, topdown=False):
        for name in names:
            os.unlink(f"{base}/{name}")
        for name in directories:
            path = f"{base}/{name}"
            (os.unlink if os.path.islink(path) else os.rmdir)(path)
    os.rmdir(folder)


def _kill_everything(job: int) -> None:
    """Kill the job's process group, which seccomp lets nobody leave, and adopted orphans until none is
    left."""
    while True:
        _kill(os.killpg, job)
        for child in _children():
            _kill(os.kill, child)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _kill(how: Callable[[int, int], None], target: int) -> None:
    try:
        how(target, signal.SIGKILL)
    except ProcessLookupError:
        return


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:  # no such list on this system: the process group has to do
        return []


def _remove_container(spec: StageSpec, folder: str) -> None:
    """A removal that fails is fine if there is no such container: it never came to be."""
    if not spec["cleanup"] or _engine(spec, spec["cleanup"], folder) is not None:
        return
    if _engine(spec, spec["check_started"], folder) is not None:
        raise OSError("the container engine could not remove the job's container")


def _engine(spec: StageSpec, argv: list[str], folder: str) -> str | None:
    """What one command of the container engine prints, None if it failed."""
    import subprocess  # slow to import, and needed with containers alone

    argv = [part.replace("{folder}", folder) for part in argv]
    result = subprocess.run(
        argv,
        env=spec["environment"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_ENGINE_SECONDS,
        check=False,
    )
    return result.stdout.decode("utf-8", "replace") if result.returncode == 0 else None
