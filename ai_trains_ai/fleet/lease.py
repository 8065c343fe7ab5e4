"""What the queue hands out and takes back: leases, jobs as they stand, and the rules of retrying."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ai_trains_ai.errors import InfrastructureError
from ai_trains_ai.seeds import derive

State = Literal["queued", "leased", "running", "done", "failed", "poisoned"]
ENDED: tuple[State, ...] = ("done", "failed", "poisoned")


class LeaseLost(InfrastructureError):
    """The caller's lease has ended: drop the work, its result belongs to nobody."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Times are in seconds."""

    lease_seconds: float = 60.0
    """A holder that sends no heartbeat for so long is taken for dead. Heartbeats: every third of it."""
    max_failures: int = 4
    max_losses: int = 3
    backoff_seconds: float = 5.0
    """Pause before the first retry; it doubles with each further one."""
    max_backoff_seconds: float = 300.0

    def __post_init__(self) -> None:
        if self.lease_seconds <= 0 or self.max_failures < 1 or self.max_losses < 1:
            raise ValueError("lease_seconds must be above 0, max_failures and max_losses at least 1")
        if not 0 <= self.backoff_seconds <= self.max_backoff_seconds:
            raise ValueError("backoff_seconds must be from 0 to max_backoff_seconds")

    def pause(self, job_id: str, tries: int) -> float:
        """Seconds before try number `tries` + 1, spread by ± 25% so that jobs that failed together part."""
        longest = min(self.max_backoff_seconds, self.backoff_seconds * 2.0 ** min(tries - 1, 30))
        return longest * (0.75 + 0.5 * derive(tries, "backoff", job_id) / 2.0**63)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a job. `payload` is what was put."""

    job_id: str
    token: int
    worker: str
    expires: float
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job as the queue has it. `result` is set when done; `error` is the last trouble there was."""

    id: str
    state: State
    payload: Mapping[str, Any]
    token: int
    worker: str | None
    expires: float | None
    not_before: float
    failures: int
    losses: int
    result: Mapping[str, Any] | None
    error: str | None
