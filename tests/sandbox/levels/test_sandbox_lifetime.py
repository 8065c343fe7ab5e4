"""Who started it dies, a thread ends, a start fails: nothing stays, and nothing is blamed on the job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_attack import running

from ai_trains_ai.errors import InfrastructureError
from ai_trains_ai.sandbox.base import SandboxLimits
from ai_trains_ai.sandbox.bubblewrap import Bubblewrap
from ai_trains_ai.sandbox.container import Container
from ai_trains_ai.sandbox.uids import COUNT, FIRST, UidLease

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
FORKING_SLEEPER = "import os; os.fork(); os.fork(); " + SLEEPER
LAUNCHER = """
import os, sys, time
from ai_trains_ai.sandbox.base import SandboxLimits
from ai_trains_ai.sandbox.pick import LEVELS
sandbox = LEVELS[sys.argv[1]]()
argv = [sandbox.python, "-I", "-S", "-B", "-c", sys.argv[2], sys.argv[3]]
process = sandbox.start(argv, files={"a.txt": b"x"}, limits=SandboxLimits(processes=8))
os.read(process.stdout.fileno(), 100)
print("up", flush=True)
time.sleep(600)
"""


def argv(sandbox, source: str, *more: str) -> list[str]:
    return [sandbox.python, "-I", "-S", "-B", "-c", source, *more]


def within(seconds: float, condition) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def temporary(monkeypatch) -> Iterator[Path]:
    """A temporary directory of this test's own: others run sandboxes on this machine too."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", name)
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_survives_the_launchers_death(sandbox, temporary, number):
    marker = uuid.uuid4().hex
    command = [sys.executable, "-c", LAUNCHER, sandbox.level, FORKING_SLEEPER, marker]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"up\n"
        inside = [pid for pid in running(marker) if pid != launcher.pid]
        assert inside, "the launcher itself and what runs inside carry the marker"
        assert sandbox.level == "bubblewrap" or os.listdir(temporary)
        launcher.send_signal(number)
    assert within(20, lambda: running(marker) == []), running(marker)
    assert within(20, lambda: os.listdir(temporary) == []), "and its files are gone too"


def test_it_outlives_the_thread_that_started_it(sandbox):
    """The kernel's parent-death signal fires when a *thread* ends."""
    started = []
    thread = threading.Thread(
        target=lambda: started.append(sandbox.start(argv(sandbox, SLEEPER), files={}, limits=SandboxLimits()))
    )
    thread.start()
    thread.join()
    with started[0] as process:
        assert os.read(process.stdout.fileno(), 100) == b"up\n"
        time.sleep(0.1)
        assert process.poll() is None


def test_many_at_once_do_not_touch_each_other(sandbox):
    """Each signals everybody whom it can reach, and none is reached by another."""
    source = """
import os, signal, sys
def reached(*_): os._exit(9)
signal.signal(signal.SIGURG, reached)
print("alive", flush=True)
sys.stdin.read(1)
try: os.kill(-1, signal.SIGURG)
except OSError: pass
sys.stdin.read(1)
"""
    processes = [sandbox.start(argv(sandbox, source), files={}, limits=SandboxLimits()) for _ in range(4)]
    for process in processes:
        assert os.read(process.stdout.fileno(), 100) == b"alive\n"
    for _ in range(2):
        for process in processes:
            process.stdin.write(b"x")
    for process in processes:
        process.stdin.close()
        assert process.wait(20) == 0
        process.kill()


def test_nothing_is_left_behind(sandbox, temporary):
    """No descriptor (a user number is held by one), no thread, no directory, after ends of every kind."""

    def use() -> None:
        with sandbox.start(
            argv(sandbox, "pass"), files={"deep/er/a": b"x"}, limits=SandboxLimits()
        ) as process:
            process.wait(20)
        with sandbox.start(argv(sandbox, SLEEPER), files={}, limits=SandboxLimits()) as process:
            process.kill()
        process = sandbox.start(["/no/such/program"], files={}, limits=SandboxLimits())
        with process, pytest.raises(InfrastructureError):
            process.wait(20)

    use()
    before = os.listdir("/proc/self/fd"), threading.active_count()
    use()
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (len(before[0]), before[1])
    assert os.listdir(temporary) == []


def test_a_program_that_is_not_there_is_our_fault(sandbox):
    process = sandbox.start(["/no/such/program"], files={}, limits=SandboxLimits())
    with process, pytest.raises(InfrastructureError, match="sandbox"):
        process.wait(20)


def test_a_bubblewrap_that_cannot_start_is_our_fault(tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    broken.chmod(0o755)
    sandbox = Bubblewrap(str(broken))
    process = sandbox.start(argv(sandbox, "pass"), files={}, limits=SandboxLimits())
    with process, pytest.raises(InfrastructureError, match="No permissions to create new namespace"):
        process.wait(20)


def test_a_bubblewrap_that_is_not_there_is_our_fault(tmp_path):
    sandbox = Bubblewrap(str(tmp_path / "bwrap"))
    process = sandbox.start(argv(sandbox, "pass"), files={}, limits=SandboxLimits())
    with process, pytest.raises(InfrastructureError, match=r"(FileNotFound|Permission)Error.*bwrap"):
        process.wait(20)


def test_waiting_has_a_limit_and_killing_can_be_repeated(sandbox):
    with sandbox.start(argv(sandbox, SLEEPER), files={}, limits=SandboxLimits()) as process:
        assert os.read(process.stdout.fileno(), 100) == b"up\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        assert process.poll() is None
        process.kill()
        process.kill()
        assert process.poll() == process.wait() == 137


def test_the_pipes_are_binary_and_go_both_ways(sandbox):
    source = (
        "import sys; data = sys.stdin.buffer.read(4); sys.stdout.buffer.write(data[::-1]); sys.stdout.flush()"
    )
    with sandbox.start(argv(sandbox, source), files={}, limits=SandboxLimits()) as process:
        process.stdin.write(b"\x00\xff\r\n")
        assert process.stdout.read() == b"\n\r\xff\x00"
        assert process.wait(20) == 0


def test_user_numbers_are_never_shared():
    leases = [UidLease() for _ in range(20)]
    numbers = {lease.uid for lease in leases}
    assert len(numbers) == 20
    assert numbers <= set(range(FIRST, FIRST + COUNT))
    for lease in leases:
        lease.release()


ENGINE = """#!/bin/sh
case "$1" in
  run) while [ "$1" != "/bin/sh" ]; do shift; done; exec "$@" ;;
  rm) exit 1 ;;
  inspect) [ -e {stuck} ] && echo 2026-01-01 ;;
esac
"""


@pytest.mark.parametrize(("stuck", "problem"), [(False, "before the job began"), (True, "could not remove")])
def test_a_container_engine_that_fails_is_our_fault_and_leaves_no_files(tmp_path, temporary, stuck, problem):
    """One that says of no container that it was started, and one that cannot remove it."""
    engine, mark = tmp_path / "docker", tmp_path / "stuck"
    engine.write_text(ENGINE.format(stuck=mark))
    engine.chmod(0o755)
    if stuck:
        mark.touch()
    process = Container(str(engine), image="any").start(
        ["/bin/sh", "-c", "exit 0"], files={"a": b""}, limits=SandboxLimits()
    )
    with process, pytest.raises(InfrastructureError, match=problem):
        process.wait(20)
    assert os.listdir(temporary) == []


def test_a_container_engine_that_vanishes_leaves_no_files(tmp_path, temporary):
    engine = tmp_path / "docker"
    engine.write_text('#!/bin/sh\n[ "$1" = run ] && rm $0\nexit 0\n')
    engine.chmod(0o755)
    process = Container(str(engine), image="any").start(["/bin/true"], files={}, limits=SandboxLimits())
    with process, pytest.raises(InfrastructureError, match="FileNotFoundError"):
        process.wait(20)
    assert os.listdir(temporary) == []
