"""The worker pool over fake workers, each of which is a process that can really be killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ai_trains_ai.errors import AgentError, InfrastructureError
from ai_trains_ai.fleet.local import InnerWorker, PoolClosed, WorkerPool
from ai_trains_ai.inner.client import ModelRef
from ai_trains_ai.testing.workers import Script


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script()
    yield made
    assert not [worker for worker in made.started if worker.alive], "a worker outlived its pool"


def sample(worker: InnerWorker) -> int:
    worker.sample(ModelRef(base="nano-0.2m"), [], samples=1, seed=0, max_tokens=1)
    return worker.pid


def test_workers_stay_warm(script: Script) -> None:
    with WorkerPool(2, script.start) as pool:
        assert pool.run(sample) == pool.run(sample)
    assert len(script.started) == 1


def test_no_more_workers_than_asked_for(script: Script) -> None:
    busy, most, lock = [0], [0], threading.Lock()

    def work(worker: InnerWorker) -> int:
        with lock:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
        time.sleep(0.02)
        with lock:
            busy[0] -= 1
        return sample(worker)

    with WorkerPool(2, script.start) as pool, ThreadPoolExecutor(6) as threads:
        pids = list(threads.map(lambda _: pool.run(work), range(12)))
    assert most == [2]
    assert len(set(pids)) == 2


def test_a_dead_worker_is_replaced_and_the_work_done_again(script: Script) -> None:
    calls: list[int] = []
    retries: list[str] = []

    def work(worker: InnerWorker) -> int:
        calls.append(worker.pid)
        if len(calls) < 3:
            os.kill(worker.pid, signal.SIGKILL)
            script.started[-1]._process.wait()
        return sample(worker)

    with WorkerPool(1, script.start) as pool:
        assert pool.run(work, on_retry=lambda attempt, error: retries.append(f"{attempt}")) == calls[2]
    assert len(set(calls)) == 3
    assert retries == ["1", "2"]


def test_a_worker_that_died_while_idle_is_not_handed_out(script: Script) -> None:
    with WorkerPool(1, script.start) as pool:
        pid = pool.run(sample)
        os.kill(pid, signal.SIGKILL)
        script.started[0]._process.wait()
        assert pool.run(sample, attempts=1) != pid


def test_tries_are_bounded(script: Script) -> None:
    calls: list[int] = []

    def work(worker: InnerWorker) -> None:
        calls.append(worker.pid)
        raise InfrastructureError("the disk")

    with WorkerPool(1, script.start) as pool, pytest.raises(InfrastructureError, match="the disk"):
        pool.run(work, attempts=3)
    assert len(set(calls)) == 3


def test_the_jobs_fault_is_not_retried(script: Script) -> None:
    calls: list[int] = []

    def work(worker: InnerWorker) -> None:
        calls.append(worker.pid)
        raise AgentError("reward_value", "nan")

    with WorkerPool(1, script.start) as pool:
        with pytest.raises(AgentError):
            pool.run(work)
        # The worker is as good as before.
        assert pool.run(sample) == calls[0]
    assert len(calls) == 1


def test_a_worker_that_cannot_start_is_tried_again(script: Script) -> None:
    failures = [InfrastructureError("no memory"), InfrastructureError("no memory")]

    def start() -> InnerWorker:
        if failures:
            raise failures.pop()
        return script.start()

    with WorkerPool(1, start) as pool:
        assert pool.run(sample) == script.started[0].pid
        # A slot is not lost by a failed start.
        assert pool.run(sample) == script.started[0].pid


def test_close_ends_work_under_way(script: Script) -> None:
    begun = threading.Event()

    def work(worker: InnerWorker) -> int:
        begun.set()
        while True:
            time.sleep(0.01)
            sample(worker)

    pool = WorkerPool(1, script.start)
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(pool.run, work)
        begun.wait(5)
        waiting = threads.submit(pool.run, sample)
        pool.close()
        for future in (running, waiting):
            with pytest.raises(PoolClosed):
                future.result(timeout=5)
    with pytest.raises(PoolClosed):
        pool.run(sample)
    assert len(script.started) == 1


def test_the_starter_thread_outlives_the_thread_that_asked(script: Script) -> None:
    """Linux sends the parent-death signal when the starting *thread* ends."""
    started_by: list[str] = []

    def start() -> InnerWorker:
        started_by.append(threading.current_thread().name)
        return script.start()

    with WorkerPool(1, start) as pool:
        thread = threading.Thread(target=pool.run, args=(sample,), name="short-lived")
        thread.start()
        thread.join()
        assert [thread.name for thread in threading.enumerate() if thread.name in started_by]


def test_an_empty_pool_is_refused(script: Script) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        WorkerPool(0, script.start)
