"""Deadlines that a busy machine moves and a hanging job does not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from ai_trains_ai.jobs.starvation import Patience, waits_of_tree
from ai_trains_ai.jobs.wire import Deadline

pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"), reason="this kernel does not count waiting times"
)
PIN = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(flush=True);"


@contextmanager
def process(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A child pinned to one processor that has started."""
    with subprocess.Popen([sys.executable, "-c", PIN + code], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            yield child
        finally:
            child.kill()


def test_a_computing_process_waits_for_its_neighbours_and_a_sleeping_one_does_not() -> None:
    with ExitStack() as stack:
        spin = [stack.enter_context(process("\nwhile True: pass")) for _ in range(4)]
        sleeper = stack.enter_context(process("import time; time.sleep(60)"))
        busy, idle = Patience(spin[0].pid, 60.0), Patience(sleeper.pid, 60.0)
        time.sleep(1.0)
        assert busy.seconds() > 0.3
        assert idle.seconds() < 0.1
        assert Patience(spin[0].pid, 0.0).seconds() == 0.0


def test_descendants_are_counted_and_the_dead_are_not() -> None:
    code = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'while True: pass'])"
    with process(code + "; time.sleep(60)") as parent:
        time.sleep(0.3)
        assert len(waits_of_tree(parent.pid)) == 2
        children = [pid for pid in waits_of_tree(parent.pid) if pid != parent.pid]
        os.kill(children[0], 9)
    assert waits_of_tree(parent.pid) == {}


def test_a_deadline_moves_only_as_far_as_its_extra() -> None:
    extra = [0.0]
    deadline = Deadline(0.05, lambda: extra[0])
    assert 0.0 < deadline.left() <= 0.05
    time.sleep(0.06)
    assert deadline.left() == 0.0
    extra[0] = 10.0
    assert 0.0 < deadline.left() <= 0.25
    extra[0] = 0.001
    assert deadline.left() == 0.0
