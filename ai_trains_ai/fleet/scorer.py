"""Hidden evals through the worker pool: prompts go to a worker, completions come back, answers stay here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ai_trains_ai.engine.bases import BASES
from ai_trains_ai.errors import InfrastructureError
from ai_trains_ai.fleet.local import WorkerPool
from ai_trains_ai.fleet.versions import sampling_versions
from ai_trains_ai.fleet.workplace import JobEvent, OnEvent, Workplace
from ai_trains_ai.inner.client import ModelRef
from ai_trains_ai.scoring.baseline import baseline
from ai_trains_ai.scoring.evaluate import AT_ONCE, Progress, Sampler, evaluate
from ai_trains_ai.scoring.hidden_eval import HiddenEval
from ai_trains_ai.types import EvalResult, TrainingRun

LARGE_PARAMETERS = 10_000_000
AT_ONCE_LARGE = 64
"""Completions in one request to a large base: its cache fits a laptop, its answer the time limit."""

TINY_BASES = ("nano-0.2m", "nano-0.8m")
"""Always compared with: measured in seconds, once."""


def compared_bases(place: Workplace, family: str, job_base: str) -> tuple[str, ...]:
    """The untrained bases that a job's uplift is measured against, in a fixed order.

    The tiny ones, the job's own, and a slower one if its baseline was recorded before (`ata baseline`):
    measuring one takes minutes, which no job should pay for unasked. The set is part of the cache key.
    """
    known = place.store.evals.measured(family, place.secret.id, place.evaluation.model_dump_json())
    return (*TINY_BASES, *sorted({job_base, *known} - set(TINY_BASES)))


def at_once(base: str) -> int:
    """Completions to ask for in one request, of a base and of what it was trained to alike."""
    return AT_ONCE_LARGE if base in BASES and BASES[base].parameters >= LARGE_PARAMETERS else AT_ONCE


def sampler(
    pool: WorkerPool,
    model: ModelRef,
    max_tokens: int,
    on_retry: Callable[[int, InfrastructureError], None] | None = None,
) -> Sampler:
    """Sample `model` on the pool's workers; each batch is retried on a fresh worker if one dies under it."""

    def sample(prompts: Sequence[str], samples: int, seed: int) -> Sequence[Sequence[str]]:
        return pool.run(
            lambda worker: worker.sample(model, prompts, samples=samples, seed=seed, max_tokens=max_tokens),
            on_retry=on_retry,
        )

    return sample


def base_score(place: Workplace, hidden: HiddenEval, base: str, on_event: OnEvent) -> EvalResult:
    """The untrained base's score, measured once and then read from the store."""
    return baseline(
        place.store,
        place.home.locked,
        sampler(place.pool, ModelRef(base=base), hidden.config.max_completion_tokens),
        hidden,
        base=base,
        base_sha256=place.base_hash(base),
        versions={**sampling_versions(), "device": place.device},
        at_once=at_once(base),
        progress=_counting(f"measuring the untrained {base}", "baseline", on_event),
    )


def trained_score(
    place: Workplace, hidden: HiddenEval, base: str, training: TrainingRun, on_event: OnEvent
) -> EvalResult:
    """The score of what `base` was trained to; a worker loads it only if it has the reported hash."""
    model = ModelRef(checkpoint=training.checkpoint, sha256=training.weights_sha256)
    return evaluate(
        sampler(place.pool, model, hidden.config.max_completion_tokens),
        hidden,
        model=training.weights_sha256,
        samples=hidden.config.samples,
        at_once=at_once(base),
        progress=_counting("scoring the trained model", "score", on_event),
    )


def _counting(what: str, phase: str, on_event: OnEvent) -> Progress:
    assert phase in ("baseline", "score")

    def report(done: int, total: int) -> None:
        on_event(
            JobEvent("baseline" if phase == "baseline" else "score", f"{what}: {done}/{total} completions")
        )

    return report
