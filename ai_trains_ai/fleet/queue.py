"""The job queue: what is to be run, who has it, and how it ended. One SQLite file, any number of processes.

                     lease()            start()             finish()
    put() -> queued ---------> leased ---------> running ------------> done
               ^                  |                 |
               |   retry(), release(), lease expired|    fail(), or too many retries -> failed
               +------------------+-----------------+    too many lost workers       -> poisoned

A lease is a promise with an end: its holder renews it by heartbeats, and whoever misses them has lost the
job, even if it still works on it. Each lease of a job carries a higher *token* than the one before; every
later call must show the current one, so that a worker that was given up (a partition, a suspended machine)
can't overwrite what its successor did. A result counts once, though a job may have been run twice.

Two budgets, because they mean different things. A *failure* was reported by a worker that lives (network,
full disk): retried after a growing pause, at most `max_failures` times. A *loss* is a worker that fell silent
with the job in hand: after `max_losses` of them the job is taken for the cause and poisoned, and the pool
survives. Workers are named OWNER/NAME; when an owner (an orchestrating process) is known to have died,
`reclaim` takes its leases back without holding the loss against the jobs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from ai_trains_ai.errors import UsageError
from ai_trains_ai.fleet.lease import Lease, LeaseLost, QueuedJob, QueuePolicy, State
from ai_trains_ai.store.database import Database


class JobQueue:
    """The queue in `database` (that of a `Store`, or one of its own).

    now: wall-clock seconds, the same for all processes that share the file. Every method is one transaction.
    """

    def __init__(
        self,
        database: Database,
        policy: QueuePolicy | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self.policy = policy or QueuePolicy()
        self._now = now

    def put(self, job_id: str, payload: Mapping[str, Any]) -> bool:
        """Queue a job, and say whether it is new. The same id with the same payload is the same job.

        Raises UsageError when the id is taken by another payload.
        """
        text = _encode(payload)
        now = self._now()
        with self._database.write() as connection:
            known = connection.execute("SELECT payload FROM queue WHERE id = ?", (job_id,)).fetchone()
            if known is not None:
                if known[0] != text:
                    raise UsageError(f"job {job_id} is in the queue with another content: use a new id")
                return False
            connection.execute(
                "INSERT INTO queue (id, payload, state, position, not_before, created)"
                " VALUES (?, ?, 'queued', (SELECT coalesce(max(position), 0) + 1 FROM queue), ?, ?)",
                (job_id, text, now, now),
            )
            return True

    def lease(self, worker: str) -> Lease | None:
        """The oldest job that may be tried now, for `worker` alone; None when there is none."""
        with self._database.write() as connection:
            now = self._now()
            self._expire(now)
            row = connection.execute(
                "SELECT id, token, payload FROM queue WHERE state = 'queued' AND not_before <= ?"
                " ORDER BY position LIMIT 1",
                (now,),
            ).fetchone()
            if row is None:
                return None
            job_id, token, expires = row[0], row[1] + 1, now + self.policy.lease_seconds
            connection.execute(
                "UPDATE queue SET state = 'leased', token = ?, worker = ?, expires = ? WHERE id = ?",
                (token, worker, expires, job_id),
            )
            connection.execute(
                "INSERT INTO queue_attempts (job_id, token, worker, leased) VALUES (?, ?, ?, ?)",
                (job_id, token, worker, now),
            )
            return Lease(job_id, token, worker, expires, json.loads(row[2]))

    def start(self, lease: Lease) -> None:
        """The work itself begins. Raises LeaseLost."""
        with self._database.write() as connection:
            now = self._hold(lease)
            connection.execute("UPDATE queue SET state = 'running' WHERE id = ?", (lease.job_id,))
            connection.execute(
                "UPDATE queue_attempts SET started = coalesce(started, ?) WHERE job_id = ? AND token = ?",
                (now, lease.job_id, lease.token),
            )

    def heartbeat(self, lease: Lease) -> float:
        """Renew the lease; returns when it ends now. Raises LeaseLost."""
        with self._database.write() as connection:
            expires = self._hold(lease) + self.policy.lease_seconds
            connection.execute("UPDATE queue SET expires = ? WHERE id = ?", (expires, lease.job_id))
            return expires

    def finish(self, lease: Lease, result: Mapping[str, Any]) -> None:
        """Record the result. Saying it twice changes nothing; raises LeaseLost when it came too late."""
        text = _encode(result)
        with self._database.write() as connection:
            row = connection.execute(
                "SELECT state, token, result FROM queue WHERE id = ?", (lease.job_id,)
            ).fetchone()
            if row is not None and row[0] == "done" and row[1] == lease.token:
                if row[2] != text:
                    raise UsageError(f"job {lease.job_id} has another result from the same lease already")
                return
            now = self._hold(lease)
            self._end(lease.job_id, "done", now, result=text)
            self._close_attempt(lease.job_id, lease.token, "done", now, None)

    def fail(self, lease: Lease, error: str) -> None:
        """The job itself is at fault, and would be again: no retry. Raises LeaseLost."""
        with self._database.write():
            now = self._hold(lease)
            self._end(lease.job_id, "failed", now, error=error)
            self._close_attempt(lease.job_id, lease.token, "failed", now, error)

    def retry(self, lease: Lease, error: str) -> State:
        """The machine is at fault: again later, or failed when that was the last try. Raises LeaseLost."""
        with self._database.write() as connection:
            now = self._hold(lease)
            self._close_attempt(lease.job_id, lease.token, "retry", now, error)
            (failures,) = connection.execute(
                "UPDATE queue SET failures = failures + 1 WHERE id = ? RETURNING failures", (lease.job_id,)
            ).fetchone()
            if failures >= self.policy.max_failures:
                self._end(lease.job_id, "failed", now, error=f"{error} (after {failures} tries)")
                return "failed"
            self._requeue(lease.job_id, now + self.policy.pause(lease.job_id, failures), error)
            return "queued"

    def release(self, lease: Lease) -> None:
        """Give the job back untried, e.g. because this worker shuts down. Costs the job nothing."""
        with self._database.write():
            now = self._hold(lease)
            self._close_attempt(lease.job_id, lease.token, "released", now, None)
            self._requeue(lease.job_id, now, None)

    def lost(self, lease: Lease) -> State:
        """The lease's worker is known to be dead: what its expiry would do, at once. Raises LeaseLost."""
        with self._database.write():
            now = self._hold(lease)
            return self._lose(lease.job_id, lease.token, lease.worker, now)

    def reclaim(self, owner: str) -> list[str]:
        """Free the jobs of all workers of an owner that has died; returns their ids."""
        with self._database.write():
            now = self._now()
            rows = self._database.rows(
                "SELECT id, token FROM queue WHERE state IN ('leased', 'running')"
                " AND substr(worker, 1, ?) = ? ORDER BY position",
                (len(owner) + 1, f"{owner}/"),
            )
            for row in rows:
                self._close_attempt(row["id"], row["token"], "released", now, f"{owner} died")
                self._requeue(row["id"], now, None)
            return [row["id"] for row in rows]

    def expire(self) -> list[str]:
        """Take back the jobs of holders that fell silent; returns their ids. `lease` does so by itself."""
        with self._database.write():
            return self._expire(self._now())

    def get(self, job_id: str) -> QueuedJob | None:
        row = self._database.row("SELECT * FROM queue WHERE id = ?", (job_id,))
        if row is None:
            return None
        result = row["result"]
        return QueuedJob(
            id=row["id"],
            state=row["state"],
            payload=json.loads(row["payload"]),
            token=row["token"],
            worker=row["worker"],
            expires=row["expires"],
            not_before=row["not_before"],
            failures=row["failures"],
            losses=row["losses"],
            result=None if result is None else json.loads(result),
            error=row["error"],
        )

    def counts(self) -> dict[State, int]:
        """Jobs by state; states without any are left out."""
        rows = self._database.rows("SELECT state, count(*) AS n FROM queue GROUP BY state")
        return {row["state"]: row["n"] for row in rows}

    def next_change(self) -> float | None:
        """When a queued job becomes free or a lease ends, whichever is first; None when nothing is open."""
        row = self._database.row(
            "SELECT min(CASE state WHEN 'queued' THEN not_before ELSE expires END) AS at FROM queue"
            " WHERE state IN ('queued', 'leased', 'running')"
        )
        return None if row is None else row["at"]

    def attempts(self, job_id: str) -> list[dict[str, Any]]:
        """Every lease of a job in order: token, worker, leased, started, ended, outcome, error."""
        rows = self._database.rows("SELECT * FROM queue_attempts WHERE job_id = ? ORDER BY token", (job_id,))
        return [dict(row) for row in rows]

    # Inside a transaction.

    def _hold(self, lease: Lease) -> float:
        """The present time, if the lease is good. An expired one is not, even if nobody has noticed yet: else
        a suspended worker could renew a lease after its end, and two clocks would decide who holds a job.
        """
        now = self._now()
        row = self._database.row("SELECT state, token, expires FROM queue WHERE id = ?", (lease.job_id,))
        if row is None:
            raise LeaseLost(f"job {lease.job_id} is not in the queue")
        if row["token"] != lease.token or row["state"] not in ("leased", "running"):
            raise LeaseLost(
                f"lease {lease.token} of job {lease.job_id} has ended:"
                f" the job is {row['state']} under lease {row['token']}"
            )
        if row["expires"] <= now:
            late = now - row["expires"]
            raise LeaseLost(f"lease {lease.token} of job {lease.job_id} expired {late:.1f} s ago")
        return now

    def _expire(self, now: float) -> list[str]:
        rows = self._database.rows(
            "SELECT id, token, worker FROM queue WHERE state IN ('leased', 'running') AND expires <= ?"
            " ORDER BY position",
            (now,),
        )
        for row in rows:
            self._lose(row["id"], row["token"], row["worker"], now)
        return [row["id"] for row in rows]

    def _lose(self, job_id: str, token: int, worker: str, now: float) -> State:
        error = f"worker {worker} fell silent"
        self._close_attempt(job_id, token, "lost", now, error)
        with self._database.write() as connection:
            (losses,) = connection.execute(
                "UPDATE queue SET losses = losses + 1 WHERE id = ? RETURNING losses", (job_id,)
            ).fetchone()
        if losses >= self.policy.max_losses:
            self._end(job_id, "poisoned", now, error=f"{losses} workers fell silent with it in hand")
            return "poisoned"
        self._requeue(job_id, now + self.policy.pause(job_id, losses), error)
        return "queued"

    def _requeue(self, job_id: str, not_before: float, error: str | None) -> None:
        with self._database.write() as connection:
            connection.execute(
                "UPDATE queue SET state = 'queued', worker = NULL, expires = NULL, not_before = ?,"
                " error = coalesce(?, error) WHERE id = ?",
                (not_before, error, job_id),
            )

    def _end(
        self, job_id: str, state: State, now: float, *, result: str | None = None, error: str | None = None
    ) -> None:
        with self._database.write() as connection:
            connection.execute(
                "UPDATE queue SET state = ?, worker = NULL, expires = NULL, result = ?, error = ?, ended = ?"
                " WHERE id = ?",
                (state, result, error, now, job_id),
            )

    def _close_attempt(self, job_id: str, token: int, outcome: str, now: float, error: str | None) -> None:
        with self._database.write() as connection:
            connection.execute(
                "UPDATE queue_attempts SET ended = ?, outcome = ?, error = ? WHERE job_id = ? AND token = ?",
                (now, outcome, error, job_id, token),
            )


def _encode(value: Mapping[str, Any]) -> str:
    """Equal values give equal text, so that idempotence can be checked by comparing it."""
    return json.dumps(dict(value), sort_keys=True, allow_nan=False)
