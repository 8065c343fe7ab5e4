"""How long the largest everyday job takes: nano-0.8m, 256 rollouts × 20 steps, one core, on a warm worker."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ai_trains_ai.config import JobLimits
from ai_trains_ai.inner.client import Worker
from bench.inner import Plan, write_job
from bench.measure import Row, Spread

TARGET_SECONDS = 30


def run(scratch: Path, family: str, *, repeats: int) -> tuple[list[Row], Any]:
    """Seconds from handing the job over to a written checkpoint, environment process included."""
    plan = Plan(family=family, base="nano-0.8m", batch_size=256)
    job = write_job(plan, scratch / "job")
    seconds, tokens = [], []
    with Worker.start() as worker:
        worker.warm([plan.base])
        for seed in range(repeats):
            started = time.perf_counter()
            training = worker.train(job, seed=seed, out=scratch / f"out-{seed}", limits=JobLimits())
            seconds.append(time.perf_counter() - started)
            tokens.append(training.tokens)
    what = f"job, {plan.base}, {plan.batch_size} rollouts × {plan.steps} steps, warm worker"
    row = Row(what, Spread.of(seconds).text(" s", 1), target=f"≤ {TARGET_SECONDS} s")
    return [row], {"plan": asdict(plan), "seconds": seconds, "tokens": tokens}
