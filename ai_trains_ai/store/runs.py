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

_WITH_RESULT = ("completed", "rejected", "failed")


class RunRecords:
    """One run is one row, from `begin` to `finish` or `end`."""

    def __init__(self, database: Database, evals: EvalRecords) -> None:
        self._database = database
        self._evals = evals

    def save_job(self, job: Job, family: str) -> None:
        """Record the snapshot of a job directory once, whatever the number of its runs."""
        values = {
            "sha256": job.content_sha256,
            "family": family,
            "base_model": job.base_model,
            "environment_args": json.dumps(dict(job.environment_args), default=str),
            "prime_rl": json.dumps(dict(job.prime_rl)),
            "explicit_keys": json.dumps(list(job.explicit_keys)),
            "created": time.time(),
        }
        with self._database.write() as connection:
            _, fresh = self._database.insert("jobs", values, keep="sha256")
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
        values = {
            "id": run_id,
            "job_sha256": job_sha256,
            "family": family,
            "base_model": base_model,
            "seed": seed,
            "cache_key": cache_key,
            "state": "running",
            "started": time.time(),
            "trusted": trusted,
        }
        self._database.insert("runs", values)

    def attempt(self, run_id: str) -> int:
        """Count another try at training and return its number; earlier tries' steps stay recorded."""
        with self._database.write() as connection:
            row = connection.execute(
                "UPDATE runs SET attempts = attempts + 1 WHERE id = ? RETURNING attempts", (run_id,)
            ).fetchone()
            return int(row[0])

    def step(self, run_id: str, attempt: int, step: InnerStep) -> None:
        values = {
            "run_id": run_id,
            "attempt": attempt,
            "step": step.step,
            "inner_reward": step.inner_reward,
            "metrics": json.dumps(asdict(step)),
        }
        self._database.insert("inner_steps", values)

    def finish(self, run_id: str, result: RunResult, *, submission: int, reward_config: str) -> None:
        """Record everything that came out of the run, in one transaction."""
        with self._database.write() as connection:
            self._close(connection, run_id, result)
            self._findings(run_id, "probe", result.probe.findings)
            self._findings(run_id, "failure", [result.failure] if result.failure else [])
            self._findings(run_id, "warning", result.warnings)
            for role, outcome in (("pre", result.pre), ("best_pre", result.best_pre), ("post", result.post)):
                if outcome is not None:
                    eval_id = self._evals.add(outcome)
                    self._database.insert("run_evals", {"run_id": run_id, "role": role, "eval_id": eval_id})
            for position, rollout in enumerate(result.training.rollouts if result.training else ()):
                self._database.insert("rollouts", {"run_id": run_id, "position": position, **asdict(rollout)})
            self._reward(run_id, submission, result.reward, reward_config)

    def _close(self, connection: sqlite3.Connection, run_id: str, result: RunResult) -> None:
        training = result.training
        values = {
            "state": result.outcome,
            "finished": time.time(),
            "seconds": result.seconds,
            "estimated_tokens": result.probe.estimated_tokens,
            "probe_seconds": result.probe.seconds,
            "checkpoint": training.checkpoint if training else None,
            "weights_sha256": training.weights_sha256 if training else None,
            "training_tokens": training.tokens if training else None,
            "training_seconds": training.seconds if training else None,
            "early_stop": training.early_stop if training else None,
            "uplift_low": result.uplift_low,
            "uplift_high": result.uplift_high,
        }
        settings = ", ".join(f"{column} = ?" for column in values)
        updated = connection.execute(
            f"UPDATE runs SET {settings} WHERE id = ? AND state = 'running'", (*values.values(), run_id)
        ).rowcount
        assert updated == 1, f"run {run_id} is not running: a result is recorded once"

    def _findings(self, run_id: str, stage: str, findings: Iterable[Finding]) -> None:
        for position, finding in enumerate(findings):
            values = {
                "run_id": run_id,
                "position": position,
                "stage": stage,
                "severity": finding.severity,
                "name": finding.check,
                "message": finding.message,
                "fix": finding.fix,
            }
            self._database.insert("findings", values)

    def _reward(self, run_id: str, submission: int, reward: Reward, config: str) -> None:
        values = {"run_id": run_id, "submission": submission, **asdict(reward), "config": config}
        self._database.insert("rewards", values, keep="run_id, submission")

    def end(self, run_id: str, state: Ended, error: str) -> None:
        """Close a run that has no result. A run that has one keeps it."""
        with self._database.write() as connection:
            connection.execute(
                "UPDATE runs SET state = ?, finished = ?, error = ? WHERE id = ? AND state = 'running'",
                (state, time.time(), error, run_id),
            )

    def running(self) -> list[str]:
        """Ids of runs without an end: being worked on, or left behind by a process that was killed."""
        rows = self._database.rows("SELECT id FROM runs WHERE state = 'running' ORDER BY started")
        return [row["id"] for row in rows]

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
        values = {"run_id": run_id, "cache_key": cache_key, "submission": submission, "at": time.time()}
        with self._database.write():
            self._database.insert("cache_hits", values)
            self._reward(run_id, submission, reward, reward_config)

    def steps(self, run_id: str) -> tuple[InnerStep, ...]:
        """The inner steps of the run's last try."""
        rows = self._database.rows(
            "SELECT metrics FROM inner_steps WHERE run_id = ?1 AND attempt = "
            "(SELECT max(attempt) FROM inner_steps WHERE run_id = ?1) ORDER BY step",
            (run_id,),
        )
        return tuple(InnerStep(**json.loads(row["metrics"])) for row in rows)

    def result(self, run_id: str) -> RunResult:
        """The recorded result of a finished run, equal to what `finish` was given."""
        run = self._database.row("SELECT * FROM runs WHERE id = ?", (run_id,))
        assert run is not None, f"no run {run_id}"
        assert run["state"] in _WITH_RESULT, f"run {run_id} has no result, it is {run['state']}"
        findings: dict[str, list[Finding]] = {"probe": [], "failure": [], "warning": []}
        for row in self._rows_of(run_id, "findings", "position"):
            findings[row["stage"]].append(Finding(row["name"], row["message"], row["fix"], row["severity"]))
        evals = {
            row["role"]: self._evals.get(row["eval_id"]) for row in self._rows_of(run_id, "run_evals", "role")
        }
        reward = self._rows_of(run_id, "rewards", "rowid")[0]
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
            run_id=run["id"],
        )

    def _training(self, run: sqlite3.Row) -> TrainingRun | None:
        if run["weights_sha256"] is None:
            return None
        rollouts = self._rows_of(run["id"], "rollouts", "position")
        return TrainingRun(
            checkpoint=run["checkpoint"],
            weights_sha256=run["weights_sha256"],
            steps=self.steps(run["id"]),
            rollouts=tuple(
                Rollout(row["task_index"], row["prompt"], row["completion"], row["inner_reward"])
                for row in rollouts
            ),
            tokens=run["training_tokens"],
            seconds=run["training_seconds"],
            early_stop=run["early_stop"],
        )

    def _rows_of(self, run_id: str, table: str, order: str) -> list[sqlite3.Row]:
        return self._database.rows(f"SELECT * FROM {table} WHERE run_id = ? ORDER BY {order}", (run_id,))
