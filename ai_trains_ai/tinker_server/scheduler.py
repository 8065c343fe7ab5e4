"""One worker thread computes; the event loop hands it work and answers clients meanwhile.

    handlers ─ submit ─> queue ─ take ─> worker thread ─ outcomes ─> futures
                                  └ a sample job takes along every queued one that fits its batch

One thread, because torch is fastest with one on the small models that this server is for, and because an
adapter is attached to a base model that all clients share.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ai_trains_ai.errors import AtaError, InfrastructureError
from ai_trains_ai.tinker_server.futures import Failed, Future, Outcome

logger = logging.getLogger(__name__)

MAX_SEQUENCES = 256
"""Of one sampling batch; a single request may have more."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Work for one future, done by itself."""

    future: Future
    run: Callable[[], Outcome]


@dataclass(frozen=True, slots=True, eq=False)
class BatchJob:
    """Work that may be done together with other jobs of an equal key. size: sequences it adds."""

    future: Future
    key: Hashable
    size: int
    payload: Any
    run: Callable[[Sequence[Any]], list[Outcome]]


class Scheduler:
    def __init__(self) -> None:
        self._queue: deque[Job | BatchJob] = deque()
        self._work = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self.batches = 0
        """Computations started: fewer than the jobs when some were batched."""

    def submit(self, job: Job | BatchJob) -> None:
        self._queue.append(job)
        self._work.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._work.wait()
                taken = self._take()
                if not taken:
                    self._work.clear()
                    continue
                self.batches += 1
                outcomes = await loop.run_in_executor(self._thread, _compute, taken)
                for job, outcome in zip(taken, outcomes, strict=True):
                    if not job.future.cancelled:
                        job.future.finish(outcome)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _take(self) -> list[Job | BatchJob]:
        """The next job with its company, in the order of submission; cancelled ones are dropped."""
        live = [job for job in self._queue if not job.future.cancelled]
        if not live:
            self._queue.clear()
            return []
        first, taken = live[0], live[:1]
        if isinstance(first, BatchJob):
            size = first.size
            for job in live[1:]:
                if isinstance(job, BatchJob) and job.key == first.key and size + job.size <= MAX_SEQUENCES:
                    taken.append(job)
                    size += job.size
        chosen = set(map(id, taken))
        self._queue = deque(job for job in live if id(job) not in chosen)
        return taken


def _compute(jobs: Sequence[Job | BatchJob]) -> list[Outcome]:
    """On the worker thread. Whatever goes wrong is the answer to these requests, not the server's end."""
    try:
        first = jobs[0]
        if isinstance(first, BatchJob):
            return first.run([job.payload for job in jobs if isinstance(job, BatchJob)])
        return [first.run()]
    except InfrastructureError as error:
        return [Failed(str(error), "server")] * len(jobs)
    except AtaError as error:
        return [Failed(str(error), "user")] * len(jobs)
    except Exception as error:
        logger.exception("a request failed because of a bug in the server")
        return [Failed(f"internal error: {type(error).__name__}: {error}", "server")] * len(jobs)
