"""A pool of warm worker processes on this machine.

    job threads --lease()--> idle workers        a worker is leased to one thread at a time
         |                       ^
         |  alive: back to idle  |  dead, or of unknown state: thrown away; the next lease starts a fresh one
         +-----------------------+

Workers are started by threads that live as long as the pool: the kernel's parent-death signal is tied to the
thread that started a process, and would reach a worker when a job's thread ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

from ai_trains_ai.config import JobLimits
from ai_trains_ai.errors import InfrastructureError
from ai_trains_ai.inner.client import ModelRef
from ai_trains_ai.types import Finding, InnerStep, Job, TrainingRun

Result = TypeVar("Result")

ATTEMPTS = 3
"""Tries at one piece of work before an infrastructure failure is final."""


class InnerWorker(Protocol):
    """What the pool needs of a worker: `inner.client.Worker`, or `testing.workers.FakeWorker`."""

    @property
    def pid(self) -> int: ...

    @property
    def alive(self) -> bool: ...

    def probe(self, job: Job, *, family: str | None, seed: int, limits: JobLimits) -> tuple[Finding, ...]: ...

    def train(
        self,
        job: Job,
        *,
        seed: int,
        out: Path,
        limits: JobLimits,
        on_step: Callable[[InnerStep], None] | None = None,
    ) -> TrainingRun: ...

    def sample(
        self, model: ModelRef, prompts: Sequence[str], *, samples: int, seed: int, max_tokens: int
    ) -> list[list[str]]: ...

    def close(self) -> None: ...

    def kill(self) -> None: ...


class PoolClosed(InfrastructureError):
    """The pool was closed while work was under way; not worth a retry."""


class WorkerPool:
    """`size` workers at most, started when first needed and kept warm.

    start: makes a ready worker. Thread-safe. Close it, or use it as a context manager: no process outlives
    it.
    """

    def __init__(self, size: int, start: Callable[[], InnerWorker]) -> None:
        if size < 1:
            raise ValueError(f"a pool of {size} workers does nothing: use 1 or more")
        self.size = size
        self._start = start
        self._starter = ThreadPoolExecutor(size, thread_name_prefix="ata-worker-starter")
        self._changed = threading.Condition()
        self._idle: list[InnerWorker] = []
        self._leased: set[InnerWorker] = set()
        self._starting = 0
        self._closed = False

    @contextlib.contextmanager
    def lease(self) -> Iterator[InnerWorker]:
        """A worker for the block alone. Waits while all are in use; raises PoolClosed after `close`."""
        worker = self._take()
        try:
            yield worker
        finally:
            self._give_back(worker)

    def run(
        self,
        work: Callable[[InnerWorker], Result],
        *,
        attempts: int = ATTEMPTS,
        on_retry: Callable[[int, InfrastructureError], None] | None = None,
    ) -> Result:
        """Do `work` on a worker; after an infrastructure failure, again from its start on a fresh one.

        on_retry(attempt that failed, its error) is called before each new try. Raises the last try's error.
        What is none (an AgentError, a bug) is raised at once.
        """
        attempt = 1
        while True:
            try:
                return self._once(work)
            except InfrastructureError as error:
                if self._closed:
                    raise PoolClosed("stopped: the worker pool was closed") from error
                if attempt >= attempts:
                    raise
                if on_retry is not None:
                    on_retry(attempt, error)
            attempt += 1

    def close(self) -> None:
        """End every worker; work under way fails with PoolClosed in its own thread. Safe to call twice."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            for worker in self._leased:
                # Only the leasing thread may touch a worker's pipes: it sees end-of-file and cleans up.
                with contextlib.suppress(ProcessLookupError):
                    if worker.alive:
                        os.killpg(worker.pid, signal.SIGKILL)
            self._changed.notify_all()
        for worker in idle:
            worker.close()
        self._starter.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _once(self, work: Callable[[InnerWorker], Result]) -> Result:
        with self.lease() as worker:
            try:
                return work(worker)
            except InfrastructureError:
                # Its state is unknown even if it still answers.
                worker.kill()
                raise

    def _take(self) -> InnerWorker:
        with self._changed:
            while True:
                if self._closed:
                    raise PoolClosed("the worker pool is closed")
                while self._idle:
                    worker = self._idle.pop()
                    if worker.alive:
                        self._leased.add(worker)
                        return worker
                    worker.kill()
                if len(self._leased) + self._starting < self.size:
                    self._starting += 1
                    break
                self._changed.wait()
        return self._begin()

    def _begin(self) -> InnerWorker:
        future = self._starter.submit(self._start)
        try:
            worker = future.result()
        except BaseException:
            # Interrupted while waiting: what still gets started must not be forgotten.
            future.add_done_callback(_kill_started)
            with self._changed:
                self._starting -= 1
                self._changed.notify()
            raise
        with self._changed:
            self._starting -= 1
            if not self._closed:
                self._leased.add(worker)
                return worker
        worker.kill()
        raise PoolClosed("the worker pool is closed")

    def _give_back(self, worker: InnerWorker) -> None:
        with self._changed:
            self._leased.discard(worker)
            keep = worker.alive and not self._closed
            if keep:
                self._idle.append(worker)
            self._changed.notify()
        if not keep:
            worker.kill()


def _kill_started(future: Future[InnerWorker]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().kill()
