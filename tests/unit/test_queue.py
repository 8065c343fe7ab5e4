"""Several processes on one queue file, and what no model shows: kill -9, damage, the pauses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ai_trains_ai.errors import UsageError
from ai_trains_ai.fleet.lease import LeaseLost, QueuePolicy
from ai_trains_ai.fleet.queue import JobQueue
from ai_trains_ai.store.database import Database
from ai_trains_ai.store.store import Store

WORKER = """
import sys, time
from pathlib import Path
from ai_trains_ai.fleet.lease import LeaseLost, QueuePolicy
from ai_trains_ai.fleet.queue import JobQueue
from ai_trains_ai.store.database import Database

name, hang = sys.argv[2], sys.argv[3] == "hang"
queue = JobQueue(Database(Path(sys.argv[1])), QueuePolicy(lease_seconds=1.0, backoff_seconds=0.0))
while True:
    lease = queue.lease(f"{name}/w")
    if lease is None:
        if not any(queue.counts().get(s) for s in ("queued", "leased", "running")):
            break
        time.sleep(0.02)
        continue
    queue.start(lease)
    print("started", lease.job_id, flush=True)
    if hang:
        time.sleep(600)
    try:
        queue.finish(lease, {"by": name, "token": lease.token})
    except LeaseLost:
        print("late", lease.job_id, flush=True)
"""


def start(path: Path, name: str, mode: str = "work") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(path), name, mode], stdout=subprocess.PIPE, text=True
    )


def test_several_processes_do_every_job_once(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    queue = JobQueue(Database(path))
    for i in range(30):
        queue.put(f"job-{i}", {"i": i})
    processes = [start(path, f"p{i}") for i in range(3)]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert queue.counts() == {"done": 30}
    begun = [line.split()[1] for output in outputs for line in output.splitlines()]
    assert sorted(begun) == sorted(f"job-{i}" for i in range(30))


def test_a_killed_process_loses_its_job_to_another(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    queue = JobQueue(Database(path))
    queue.put("job", {})
    victim = start(path, "victim", "hang")
    assert victim.stdout is not None
    assert victim.stdout.readline() == "started job\n"
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate()
    heir = start(path, "heir")
    heir.communicate(timeout=60)
    job = queue.get("job")
    assert job is not None
    assert (job.state, job.losses) == ("done", 1)
    assert job.result == {"by": "heir", "token": 2}
    assert [attempt["outcome"] for attempt in queue.attempts("job")] == ["lost", "done"]


def test_a_job_that_kills_every_worker_is_poisoned_and_the_next_one_runs() -> None:
    now = [0.0]
    queue = JobQueue(Database(Path(":memory:")), QueuePolicy(max_losses=3), lambda: now[0])
    queue.put("killer", {})
    queue.put("good", {})
    seen = []
    while (lease := queue.lease(f"o/pod-{len(seen)}")) is not None:
        seen.append(lease.job_id)
        queue.start(lease)
        if lease.job_id == "killer":
            queue.lost(lease)
        else:
            queue.finish(lease, {})
        now[0] += 1000.0
    assert seen.count("killer") == 3
    killer = queue.get("killer")
    assert killer is not None
    assert killer.state == "poisoned"
    assert killer.error == "3 workers fell silent with it in hand"
    assert queue.counts() == {"poisoned": 1, "done": 1}


def test_what_a_suspended_worker_says_after_its_lease_is_refused() -> None:
    now = [0.0]
    queue = JobQueue(Database(Path(":memory:")), QueuePolicy(lease_seconds=10.0), lambda: now[0])
    queue.put("job", {})
    late = queue.lease("o/slow")
    assert late is not None
    now[0] = 100.0
    with pytest.raises(LeaseLost, match=r"expired 90\.0 s ago"):
        queue.heartbeat(late)
    assert queue.expire() == ["job"]
    now[0] = 200.0
    second = queue.lease("o/fast")
    assert second is not None
    with pytest.raises(LeaseLost, match="under lease 2"):
        queue.finish(late, {"reward": 1.0})
    queue.finish(second, {"reward": 0.5})
    done = queue.get("job")
    assert done is not None
    assert done.result == {"reward": 0.5}


def test_pauses_double_up_to_their_limit_and_are_spread() -> None:
    policy = QueuePolicy(backoff_seconds=4.0, max_backoff_seconds=30.0)
    for tries, middle in ((1, 4.0), (2, 8.0), (3, 16.0), (4, 30.0), (2000, 30.0)):
        pauses = {policy.pause(f"job-{i}", tries) for i in range(50)}
        assert len(pauses) == 50
        assert all(0.75 * middle <= pause <= 1.25 * middle for pause in pauses)


def test_policies_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="max_losses"):
        QueuePolicy(max_losses=0)
    with pytest.raises(ValueError, match="backoff_seconds"):
        QueuePolicy(backoff_seconds=10.0, max_backoff_seconds=5.0)


def test_the_queue_lives_in_the_run_store_and_survives_reopening(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with Store(path) as store:
        queue = JobQueue(store.database, now=time.time)
        queue.put("job", {"seed": 1})
        with pytest.raises(UsageError, match="another content"):
            queue.put("job", {"seed": 2})
    with Store(path) as store:
        job = JobQueue(store.database).get("job")
        assert job is not None
        assert job.payload == {"seed": 1}
