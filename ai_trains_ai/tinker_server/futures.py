"""Results that clients come back for.

    submitted ─> pending ─> done ─> fetched ─> freed, KEEP_FETCHED later (an answer can get lost on its way)
                   └─ cancelled

A session's end frees all of its futures.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

KEEP_FETCHED = 60.0
KEEP_UNFETCHED = 3600.0


@dataclass(frozen=True, slots=True)
class Json:
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Proto:
    data: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """category "user": the request is at fault and will fail again; "server": it may not."""

    error: str
    category: Literal["user", "server"]


Outcome = Json | Proto | Failed


@dataclass(slots=True, eq=False)
class Future:
    request_id: str
    session_id: str
    cancelled: bool = False
    outcome: Outcome | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)
    finished_at: float = 0.0
    fetched_at: float = 0.0

    def finish(self, outcome: Outcome) -> None:
        self.outcome, self.finished_at = outcome, time.monotonic()
        self.done.set()


class FutureStore:
    """Lives on the event loop; no method is called from elsewhere."""

    def __init__(self) -> None:
        self._futures: dict[str, Future] = {}

    def __len__(self) -> int:
        return len(self._futures)

    def get(self, request_id: str) -> Future | None:
        return self._futures.get(request_id)

    def create(self, request_id: str, session_id: str) -> Future:
        assert request_id not in self._futures, f"{request_id} is used twice"
        future = self._futures[request_id] = Future(request_id, session_id)
        return future

    async def wait(self, future: Future, seconds: float) -> Outcome | None:
        """The outcome, or None when it takes longer than that."""
        try:
            await asyncio.wait_for(future.done.wait(), seconds)
        except TimeoutError:
            return None
        future.fetched_at = time.monotonic()
        return future.outcome

    def cancel(self, request_id: str) -> None:
        """A no-op for one that is unknown, or done already."""
        future = self._futures.get(request_id)
        if future is not None and future.outcome is None:
            future.cancelled = True
            future.finish(Failed("the request was cancelled", "user"))

    def drop_session(self, session_id: str) -> None:
        """Free the session's futures; whoever waits for one is told."""
        for future in [f for f in self._futures.values() if f.session_id == session_id]:
            if future.outcome is None:
                future.cancelled = True
                future.finish(Failed("the session has ended", "user"))
            del self._futures[future.request_id]

    def sweep(self) -> None:
        """Free what was fetched some time ago, or never, for a long time."""
        now = time.monotonic()
        for future in list(self._futures.values()):
            fetched = future.fetched_at and now - future.fetched_at > KEEP_FETCHED
            if fetched or (future.outcome and now - future.finished_at > KEEP_UNFETCHED):
                del self._futures[future.request_id]
