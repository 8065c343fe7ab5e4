"""Jobs and what became of them: runs, inner steps, findings, rewards, cache hits."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Literal

from ai_trains_ai.store.database import Database
from ai_trains_ai.store.evals import EvalRecords
from ai_trains_ai.types import (
    Finding,
    InnerStep,
    Job,
    ProbeResult,
    Reward,
    Rollout,
    RunResult,
    TrainingRun,
)

Ended = Literal["missing", "interrupted", "abandoned"]
"""Ends without a result: infrastructure failed, a person stopped it, its process vanished."""


class RunRecords:
    """One run is one row from `begin` to `finish`, `end` or, after kill -9, `abandon`."""

    def __init__(self, database: Database, evals: EvalRecords) -> None:
        self._database = database
        self._evals = evals

    def save_job(self, job: Job, family: str) -> None:
        """Record the snapshot of a job directory once, whatever the number of its runs."""
        with self._database.write() as connection:
            fresh = connection.execute(
                "INSERT INTO jobs (sha256, family, base_model, environment_args, prime_rl, explicit_keys, created) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (sha256) DO NOTHING",
                (
                    job.content_sha256,
                    family,
                    job.base_model,
                    json.dumps(dict(job.environment_args), default=str),
                    json.dumps(dict(job.prime_rl)),
                    json.dumps(list(job.explicit_keys)),
                    time.time(),
                ),
            ).rowcount
            if fresh:
                connection.executemany(
                    "INSERT INTO job_files (job_sha256, path, content) VALUES (?, ?, ?)",
                    [(job.content_sha256, path, content) for path, content in sorted(job.files.items())],
                )

    def begin(
        self,
        run_id: str,
        *,
        job_sha256: str,
        family: str,
        base_model: str,
        seed: int,
        cache_key: str | None,
        trusted: bool,
    ) -> None:
        with self._database.write() as connection:
            connection.execute(
                "INSERT INTO runs (id, job_sha256, family, base_model, seed, cache_key, state, started, trusted) "
                "VALUES (?, ?, ?, ?, ?, ?, 'running', ?, ?)",
                (run_id, job_sha256, family, base_model, seed, cache_key, time.time(), trusted),
            )

    def attempt(self, run_id: str) -> int:
        """Count another try at training and return its number; earlier tries' steps stay recorded."""
        with self._database.write() as connection:
            row = connection.execute(
                "UPDATE runs SET attempts = attempts + 1 WHERE id = ? RETURNING attempts", (run_id,)
            ).fetchone()
            return int(row[0])

    def step(self, run_id: str, attempt: int, step: InnerStep) -> None:
        with self._database.write() as connection:
            connection.execute(
                "INSERT INTO inner_steps (run_id, attempt, step, inner_reward, metrics) VALUES (?, ?, ?, ?, ?)",
                (run_id, attempt, step.step, step.inner_reward, json.dumps(asdict(step))),
            )

    def finish(self, run_id: str, result: RunResult, *, submission: int, reward_config: str) -> None:
        """Record everything that came out of the run, in one transaction."""
        training = result.training
        with self._database.write() as connection:
            updated = connection.execute(
                "UPDATE runs SET state = ?, finished = ?, seconds = ?, estimated_tokens = ?, probe_seconds = ?, "
                "checkpoint = ?, weights_sha256 = ?, training_tokens = ?, training_seconds = ?, uplift_low = ?, "
                "uplift_high = ? WHERE id = ? AND state = 'running'",
                (
                    result.outcome,
                    time.time(),
                    result.seconds,
                    result.probe.estimated_tokens,
                    result.probe.seconds,
                    training.checkpoint if training else None,
                    training.weights_sha256 if training else None,
                    training.tokens if training else None,
                    training.seconds if training else None,
                    result.uplift_low,
                    result.uplift_high,
                    run_id,
                ),
            ).rowcount
            assert updated == 1, f"run {run_id} is not running: a result is recorded once"
            self._findings(connection, run_id, "probe", result.probe.findings)
            self._findings(connection, run_id, "failure", [result.failure] if result.failure else [])
            self._findings(connection, run_id, "warning", result.warnings)
            for role, outcome in (("pre", result.pre), ("best_pre", result.best_pre), ("post", result.post)):
                if outcome is not None:
                    connection.execute(
                        "INSERT INTO run_evals (run_id, role, eval_id) VALUES (?, ?, ?)",
                        (run_id, role, self._evals.add(outcome)),
                    )
            if training is not None:
                connection.executemany(
                    "INSERT INTO rollouts VALUES (?, ?, ?, ?, ?, ?)",
                    [
                        (run_id, position, r.task_index, r.prompt, r.completion, r.inner_reward)
                        for position, r in enumerate(training.rollouts)
                    ],
                )
            self._reward(connection, run_id, submission, result.reward, reward_config)

    def _findings(
        self, connection: sqlite3.Connection, run_id: str, stage: str, findings: Iterable[Finding]
    ) -> None:
        connection.executemany(
            "INSERT INTO findings (run_id, position, stage, severity, name, message, fix) VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (run_id, position, stage, finding.severity, finding.check, finding.message, finding.fix)
                for position, finding in enumerate(findings)
            ],
        )

    def _reward(
        self, connection: sqlite3.Connection, run_id: str, submission: int, reward: Reward, config: str
    ) -> None:
        connection.execute(
            "INSERT INTO rewards VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run_id, submission) DO NOTHING",
            (
                run_id,
                submission,
                reward.total,
                reward.validation,
                reward.quality,
                reward.speed,
                reward.uplift,
                config,
            ),
        )

    def end(self, run_id: str, state: Ended, error: str) -> None:
        """Close a run that has no result. A run that has one keeps it."""
        with self._database.write() as connection:
            connection.execute(
                "UPDATE runs SET state = ?, finished = ?, error = ? WHERE id = ? AND state = 'running'",
                (state, time.time(), error, run_id),
            )

    def running(self) -> list[str]:
        """Ids of runs without an end: being worked on, or left behind by a process that was killed."""
        return [row["id"] for row in self._database.rows("SELECT id FROM runs WHERE state = 'running' ORDER BY started")]

    def state(self, run_id: str) -> str:
        row = self._database.row("SELECT state FROM runs WHERE id = ?", (run_id,))
        assert row is not None, f"no run {run_id}"
        return str(row["state"])

    def cached(self, cache_key: str) -> str | None:
        """The newest run with a result under `cache_key`."""
        found = self._database.rows(
            "SELECT id FROM runs WHERE cache_key = ? AND state IN ('completed', 'rejected', 'failed') "
            "ORDER BY started DESC LIMIT 1",
            (cache_key,),
        )
        return str(found[0]["id"]) if found else None

    def cache_hit(
        self, run_id: str, cache_key: str, *, submission: int, reward: Reward, reward_config: str
    ) -> None:
        """Count a request that `run_id` answered, with the reward it gave under that submission number."""
        with self._database.write() as connection:
            connection.execute(
                "INSERT INTO cache_hits (run_id, cache_key, submission, at) VALUES (?, ?, ?, ?)",
                (run_id, cache_key, submission, time.time()),
            )
            self._reward(connection, run_id, submission, reward, reward_config)

    def steps(self, run_id: str) -> tuple[InnerStep, ...]:
        """The inner steps of the run's last try."""
        rows = self._database.rows(
            "SELECT metrics FROM inner_steps WHERE run_id = ?1 AND attempt = "
            "(SELECT max(attempt) FROM inner_steps WHERE run_id = ?1) ORDER BY step",
            (run_id,),
        )
        return tuple(InnerStep(**json.loads(row["metrics"])) for row in rows)

    def result(self, run_id: str) -> RunResult:
        """The recorded result of a finished run, equal to what `finish` was given (for its first submission)."""
        run = self._database.row("SELECT * FROM runs WHERE id = ?", (run_id,))
        assert run is not None and run["state"] in ("completed", "rejected", "failed"), f"run {run_id} has no result"
        findings: dict[str, list[Finding]] = {"probe": [], "failure": [], "warning": []}
        for row in self._database.rows("SELECT * FROM findings WHERE run_id = ? ORDER BY stage, position", (run_id,)):
            findings[row["stage"]].append(Finding(row["name"], row["message"], row["fix"], row["severity"]))
        evals = {
            row["role"]: self._evals.get(row["eval_id"])
            for row in self._database.rows("SELECT role, eval_id FROM run_evals WHERE run_id = ?", (run_id,))
        }
        reward = self._database.rows("SELECT * FROM rewards WHERE run_id = ? ORDER BY rowid LIMIT 1", (run_id,))[0]
        return RunResult(
            job_sha256=run["job_sha256"],
            seed=run["seed"],
            outcome=run["state"],
            base_model=run["base_model"],
            probe=ProbeResult(
                valid=run["state"] != "rejected",
                findings=tuple(findings["probe"]),
                seconds=run["probe_seconds"],
                estimated_tokens=run["estimated_tokens"],
            ),
            pre=evals.get("pre"),
            best_pre=evals.get("best_pre"),
            post=evals.get("post"),
            uplift_low=run["uplift_low"],
            uplift_high=run["uplift_high"],
            reward=Reward(*(reward[name] for name in ("total", "validation", "quality", "speed", "uplift"))),
            training=self._training(run),
            failure=findings["failure"][0] if findings["failure"] else None,
            warnings=tuple(findings["warning"]),
            seconds=run["seconds"],
            trusted=bool(run["trusted"]),
        )

    def _training(self, run: sqlite3.Row) -> TrainingRun | None:
        if run["weights_sha256"] is None:
            return None
        rollouts = self._database.rows("SELECT * FROM rollouts WHERE run_id = ? ORDER BY position", (run["id"],))
        return TrainingRun(
            checkpoint=run["checkpoint"],
            weights_sha256=run["weights_sha256"],
            steps=self.steps(run["id"]),
            rollouts=tuple(Rollout(r["task_index"], r["prompt"], r["completion"], r["inner_reward"]) for r in rollouts),
            tokens=run["training_tokens"],
            seconds=run["training_seconds"],
        )
