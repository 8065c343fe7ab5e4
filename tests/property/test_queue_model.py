"""The queue against a model that fits in the head: a dict of jobs, and one rule for who may do what."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from ai_trains_ai.errors import UsageError
from ai_trains_ai.fleet.lease import ENDED, Lease, LeaseLost, QueuePolicy
from ai_trains_ai.fleet.queue import JobQueue
from ai_trains_ai.store.database import Database

POLICY = QueuePolicy(
    lease_seconds=10.0, max_failures=3, max_losses=2, backoff_seconds=4.0, max_backoff_seconds=8.0
)


@dataclass
class ModelJob:
    payload: dict[str, Any]
    state: str = "queued"
    token: int = 0
    worker: str | None = None
    expires: float = 0.0
    not_before: float = 0.0
    failures: int = 0
    losses: int = 0
    result: Any = None
    outcomes: list[str] = field(default_factory=list)


class QueueMachine(RuleBasedStateMachine):
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.database = Database(Path(":memory:"))
        # Two orchestrators: what one does, the other must see.
        self.queues = [JobQueue(self.database, POLICY, lambda: self.now) for _ in range(2)]
        self.jobs: dict[str, ModelJob] = {}

    def teardown(self) -> None:
        self.database.close()

    def expire_model(self) -> list[str]:
        gone = [n for n, j in self.jobs.items() if j.worker is not None and j.expires <= self.now]
        for name in gone:
            self.lose_model(name)
        return gone

    def lose_model(self, name: str) -> None:
        job = self.jobs[name]
        job.losses += 1
        job.worker = None
        job.outcomes.append("lost")
        if job.losses >= POLICY.max_losses:
            job.state = "poisoned"
        else:
            job.state, job.not_before = "queued", self.now + POLICY.pause(name, job.losses)

    def holds(self, lease: Lease) -> bool:
        job = self.jobs[lease.job_id]
        return job.worker is not None and job.token == lease.token and job.expires > self.now

    def refused(self, call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except LeaseLost:
            return
        raise AssertionError("a lease that has ended was accepted")

    @rule(name=st.sampled_from("abcd"), payload=st.sampled_from([{"n": 1}, {"n": 2}]), q=st.integers(0, 1))
    def put(self, name: str, payload: dict[str, Any], q: int) -> None:
        known = self.jobs.get(name)
        if known is None:
            assert self.queues[q].put(name, payload)
            self.jobs[name] = ModelJob(payload, not_before=self.now)
        elif known.payload == payload:
            assert not self.queues[q].put(name, payload)
        else:
            try:
                self.queues[q].put(name, payload)
            except UsageError:
                return
            raise AssertionError("another payload under a taken id")

    @rule(seconds=st.sampled_from([0.5, 3.0, 6.0, 10.0, 25.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(target=leases, worker=st.sampled_from(["one/x", "two/y"]), q=st.integers(0, 1))
    def lease(self, worker: str, q: int) -> Any:
        lease = self.queues[q].lease(worker)
        self.expire_model()
        free = [n for n, j in self.jobs.items() if j.state == "queued" and j.not_before <= self.now]
        if lease is None:
            assert not free
            return multiple()
        assert lease.job_id == free[0]
        job = self.jobs[lease.job_id]
        assert lease.token == job.token + 1
        assert lease.payload == job.payload
        job.state, job.token, job.worker = "leased", lease.token, worker
        job.expires = self.now + POLICY.lease_seconds
        return lease

    @rule(lease=leases, q=st.integers(0, 1))
    def start(self, lease: Lease, q: int) -> None:
        if self.holds(lease):
            self.queues[q].start(lease)
            self.jobs[lease.job_id].state = "running"
        else:
            self.refused(self.queues[q].start, lease)

    @rule(lease=leases, q=st.integers(0, 1))
    def heartbeat(self, lease: Lease, q: int) -> None:
        if self.holds(lease):
            expected = self.now + POLICY.lease_seconds
            assert self.queues[q].heartbeat(lease) == expected
            self.jobs[lease.job_id].expires = expected
        else:
            self.refused(self.queues[q].heartbeat, lease)

    @rule(lease=leases, q=st.integers(0, 1))
    def finish(self, lease: Lease, q: int) -> None:
        job, result = self.jobs[lease.job_id], {"reward": 0.5, "token": lease.token}
        if self.holds(lease):
            self.queues[q].finish(lease, result)
            job.state, job.worker, job.result = "done", None, result
            job.outcomes.append("done")
        elif job.state == "done" and job.token == lease.token:
            self.queues[q].finish(lease, result)
            try:
                self.queues[q].finish(lease, {"reward": 1.0})
            except UsageError:
                return
            raise AssertionError("a second result was accepted")
        else:
            self.refused(self.queues[q].finish, lease, result)

    @rule(lease=consumes(leases), how=st.sampled_from(["fail", "retry", "release", "lost"]))
    def give_up(self, lease: Lease, how: str) -> None:
        queue, job = self.queues[0], self.jobs[lease.job_id]
        arguments = (lease, "trouble") if how in ("fail", "retry") else (lease,)
        if not self.holds(lease):
            self.refused(getattr(queue, how), *arguments)
            return
        getattr(queue, how)(*arguments)
        if how == "lost":
            self.lose_model(lease.job_id)
            return
        job.worker = None
        job.outcomes.append({"fail": "failed", "retry": "retry", "release": "released"}[how])
        if how == "fail":
            job.state = "failed"
        elif how == "release":
            job.state, job.not_before = "queued", self.now
        else:
            job.failures += 1
            over = job.failures >= POLICY.max_failures
            job.state = "failed" if over else "queued"
            job.not_before = self.now + POLICY.pause(lease.job_id, job.failures)

    @rule(owner=st.sampled_from(["one", "two", "o"]))
    def reclaim(self, owner: str) -> None:
        held = [n for n, j in self.jobs.items() if j.worker is not None and j.worker.startswith(f"{owner}/")]
        assert self.queues[1].reclaim(owner) == held
        for name in held:
            job = self.jobs[name]
            job.state, job.worker, job.not_before = "queued", None, self.now
            job.outcomes.append("released")

    @rule()
    def expire(self) -> None:
        assert self.queues[1].expire() == self.expire_model()

    @invariant()
    def same_as_the_model(self) -> None:
        for name, job in self.jobs.items():
            real = self.queues[1].get(name)
            assert real is not None
            assert (real.state, real.token, real.worker) == (job.state, job.token, job.worker)
            assert (real.failures, real.losses, real.result) == (job.failures, job.losses, job.result)
            if job.state == "queued":
                assert real.not_before == job.not_before
            ended = [a["outcome"] for a in self.queues[0].attempts(name) if a["outcome"] is not None]
            assert ended == job.outcomes
            assert ended.count("done") == (job.state == "done")
        assert sum(self.queues[0].counts().values()) == len(self.jobs)

    @invariant()
    def next_change_is_the_first_of_all(self) -> None:
        open_jobs = [j for j in self.jobs.values() if j.state not in ENDED]
        times = [j.expires if j.worker is not None else j.not_before for j in open_jobs]
        assert self.queues[0].next_change() == min(times, default=None)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
