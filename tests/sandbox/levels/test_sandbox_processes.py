"""Forks, daemons, signals, threads, exit codes: nothing reaches outside, nothing outlives its job."""

from __future__ import annotations

import os
import time
import uuid

import pytest
from sandbox_attack import running

from ai_trains_ai.sandbox.base import SandboxLimits

FORKS = 6
FORKING = {"processes": FORKS, "threads": 1}


def test_one_process_cannot_become_two(box):
    result = box.run(
        """
import subprocess
tell(fork=attempt(os.fork), vfork=syscall(58) if os.uname().machine == "x86_64" else "EPERM",
     run=attempt(subprocess.run, [sys.executable, "-c", ""]),
     spawn=attempt(os.posix_spawn, sys.executable, ["x"], {}),
     shell=attempt(os.popen, "true"))
"""
    ).told
    assert set(result.values()) <= {"EPERM"}, result


def test_a_fork_bomb_is_bounded(box):
    """Every process forks as fast as it can; the pipe's other end tells how many there were."""
    at_most = _tasks_at_most(box)
    result = box.run(
        """
import resource, time
if resource.getrlimit(resource.RLIMIT_NPROC)[0] > facts["at_most"]:
    sys.exit("nothing bounds the bomb: not set off")
readable, writable = os.pipe()
os.set_blocking(readable, False)
first, refused = os.getpid(), 0
deadline = time.monotonic() + 30
while not refused and time.monotonic() < deadline:
    try:
        if os.fork() == 0:
            os.write(writable, b"x")
    except OSError:
        refused += 1
if os.getpid() != first:
    time.sleep(60)
time.sleep(0.2)
tell(born=len(os.read(readable, 1 << 16)), refused=refused)
""",
        limits=FORKING,
        facts={"at_most": at_most},
    ).told
    assert result["refused"] > 0
    assert 1 <= result["born"] <= at_most, result


def test_a_thread_bomb_is_bounded(box):
    at_most = _tasks_at_most(box)
    result = box.run(
        """
import resource, threading
if resource.getrlimit(resource.RLIMIT_NPROC)[0] > facts["at_most"]:
    sys.exit("nothing bounds the bomb: not set off")
threading.stack_size(32768)
stop, alive, error = threading.Event(), 0, None
try:
    for alive in range(20000):
        threading.Thread(target=stop.wait, daemon=True).start()
except RuntimeError as problem:
    error = str(problem)
tell(alive=alive, error=error)
os._exit(0)
""",
        limits={"threads": 16, "memory_bytes": 4 << 30},
        facts={"at_most": at_most},
    ).told
    assert result["error"] is not None
    assert 8 <= result["alive"] <= at_most, result


def _tasks_at_most(box) -> int:
    """Without a user number of its own, a sandbox is granted as many tasks as the machine has, on top."""
    own_user = box.level == "container" or (os.geteuid() == 0 and not box.other_user)
    with open("/proc/loadavg", encoding="ascii") as file:
        machine = int(file.read().split()[3].partition("/")[2])
    return 32 if own_user else 2 * machine + 100


def test_nobody_outside_can_be_signalled(box):
    """Not the launcher, its parent, or whoever else there is. SIGURG is ignored unless somebody waits for
    it."""
    result = box.run(
        """
import signal
targets = [facts["launcher"], facts["parent"], 1]
if facts["level"] != "reduced":
    targets = targets[:2]  # process 1 is one of its own
tell(probe=[attempt(os.kill, target, 0) for target in targets],
     urgent=[attempt(os.kill, target, signal.SIGURG) for target in targets],
     priority=attempt(os.setpriority, os.PRIO_PROCESS, facts["launcher"], 19),
     affinity=attempt(os.sched_setaffinity, facts["launcher"], [0]))
""",
        facts={"parent": os.getppid()},
    ).told
    assert set(result["probe"] + result["urgent"]) <= {"EPERM", "ESRCH"}, result
    assert {result["priority"], result["affinity"]} <= {"EPERM", "ESRCH"}, result


def test_limits_of_others_cannot_be_set(box):
    """prlimit() asks for the same user only: without a filter, a job could make its launcher run out of
    time."""
    result = box.run(
        """
import resource
tell(other=attempt(resource.prlimit, facts["launcher"], resource.RLIMIT_CPU, (1, 1)),
     more=attempt(resource.setrlimit, resource.RLIMIT_CPU, (1 << 30, 1 << 30)))
"""
    ).told
    assert result["other"] in ("EPERM", "ESRCH")
    assert result["more"] == "ValueError"


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_daemons_end_with_their_job(sandbox, end):
    """They leave the process group if they can, ignore signals and hold all pipes open."""
    marker = uuid.uuid4().hex
    source = f"""
import os, signal, sys, time
for _ in range(3):
    if os.fork() == 0:
        try: os.setsid()
        except OSError: pass
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            time.sleep(600)
        os._exit(0)
time.sleep(0.1)
print("up", flush=True)
if {end == "kill"}: time.sleep(600)
sys.exit(3)
"""
    argv = [sandbox.python, "-I", "-S", "-B", "-c", source, marker]
    with sandbox.start(argv, files={}, limits=SandboxLimits(processes=16)) as process:
        assert os.read(process.stdout.fileno(), 100) == b"up\n"
        assert sandbox.level == "container" or len(running(marker)) >= 3
        if end == "kill":
            process.kill()
        assert process.wait(20) == (137 if end == "kill" else 3)
        assert running(marker) == []
        assert process.stdout.read() == b"", "the pipe is at its end once nobody is left"


def test_job_that_stops_itself_can_be_killed(sandbox):
    source = "import os, time; print('up', flush=True); os.kill(os.getpid(), 19); time.sleep(600)"
    argv = [sandbox.python, "-I", "-S", "-B", "-c", source]
    with sandbox.start(argv, files={}, limits=SandboxLimits()) as process:
        assert os.read(process.stdout.fileno(), 100) == b"up\n"
        time.sleep(0.05)
        process.kill()
        assert process.wait(10) == 137


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("sys.exit(0)", 0),
        ("os._exit(7)", 7),
        ("raise ValueError", 1),
        ("os.kill(os.getpid(), 9) or __import__('time').sleep(9)", 137),
    ],
)
def test_exit_codes_are_the_jobs_own(box, statement, code):
    if box.level == "container" and code == 137:
        pytest.skip("there it is process 1, which cannot kill itself")
    assert box.run(statement).code == code


def test_a_job_cannot_pass_its_failure_off_as_ours(box):
    """Whatever it prints or returns, wait() gives its exit code: it ran, so its end is its own."""
    outcome = box.run(
        """
print('{"failed": "no space left"}', file=sys.stderr)
print("bwrap: Can't mount proc: Operation not permitted", file=sys.stderr, flush=True)
for fd in range(3, 64):
    attempt(os.write, fd, b'{"failed": "forged"}\\n')
os._exit(125)
"""
    )
    assert (outcome.code, outcome.error) == (125, None)


def test_there_is_no_terminal_to_type_into(box):
    result = box.run(
        """
import fcntl
tell(tty=attempt(os.open, "/dev/tty", os.O_RDWR), sti=attempt(fcntl.ioctl, 0, 0x5412, b"x"),
     session=os.getsid(0) != 0)
"""
    ).told
    assert result["tty"] in ("ENOENT", "EACCES", "ENXIO")
    assert result["sti"] == "EPERM"


def test_the_death_signal_cannot_be_cleared(box):
    """With PR_SET_PDEATHSIG 0 a job would outlive whoever started it."""
    assert box.run("tell(result=libc.prctl(1, 0, 0, 0, 0))").told["result"] == -1
