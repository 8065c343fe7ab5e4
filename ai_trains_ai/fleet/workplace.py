"""Everything a job needs besides itself, put together once at the edge and passed down."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ai_trains_ai.config import EvalConfig, JobLimits, RewardConfig
from ai_trains_ai.fleet.local import WorkerPool
from ai_trains_ai.fleet.versions import base_sha256, training_versions
from ai_trains_ai.inner.progress import Progress
from ai_trains_ai.rundir import Home, is_free
from ai_trains_ai.scoring.hidden_eval import EvalSecret
from ai_trains_ai.store.store import Store

KEEP_CHECKPOINTS = 50
MAX_CHECKPOINT_BYTES = 4 * 2**30

Phase = Literal["read", "cache", "probe", "train", "baseline", "score", "retry"]


@dataclass(frozen=True)
class JobEvent:
    """Where a job is. Shown to people; nothing depends on it."""

    phase: Phase
    message: str
    training: Progress | None = None


OnEvent = Callable[[JobEvent], None]


@dataclass(frozen=True)
class Workplace:
    """Shared by all jobs of a process, from as many threads as there are workers.

    trusted: False when the sandbox was switched off by hand; every result then says so.
    device: where the pool's workers run models; numbers of different devices are different numbers.
    base_hash: content hash of a base by its name.
    run_info: goes into each run's run.json (command line, commit).
    """

    home: Home
    store: Store
    pool: WorkerPool
    secret: EvalSecret
    limits: JobLimits = field(default_factory=JobLimits)
    reward: RewardConfig = field(default_factory=RewardConfig)
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    trusted: bool = True
    device: str = "cpu"
    base_hash: Callable[[str], str] = base_sha256
    run_info: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """What a result depends on besides job, seed and bases: resolved config, secret's id, versions."""
        return {
            "limits": self.limits.model_dump(mode="json"),
            "reward": self.reward.model_dump(mode="json"),
            "evaluation": self.evaluation.model_dump(mode="json"),
            "eval_secret": self.secret.id,
            "trusted": self.trusted,
            "device": self.device,
            "versions": training_versions(),
        }

    def cache_key(self, content_sha256: str, family: str, seed: int, bases: Mapping[str, str]) -> str:
        """Name of a result in the job cache. bases: name -> hash, of the job's base and those compared
        with.
        """
        parts = {
            "job": content_sha256,
            "family": family,
            "seed": seed,
            "bases": dict(bases),
            **self.settings(),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def recover(self) -> list[str]:
        """Close the runs that an earlier process, killed in mid-job, left open; return their ids."""
        left = [run for run in self.store.runs.running() if is_free(self.home.run(run).lock)]
        for run in left:
            self.store.runs.end(run, "abandoned", "the process that worked on it ended without a word")
        return left

    def tidy(self) -> None:
        """Remove old checkpoints, and record which."""
        removed = self.home.collect_checkpoints(keep=KEEP_CHECKPOINTS, max_bytes=MAX_CHECKPOINT_BYTES)
        for run in removed:
            self.store.events.add("checkpoint_removed", run)
