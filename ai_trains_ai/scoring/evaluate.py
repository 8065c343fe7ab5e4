"""A model's score on the hidden eval. Prompts go out to whoever samples; answers and scoring stay here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ai_trains_ai.errors import InfrastructureError
from ai_trains_ai.scoring.hidden_eval import HiddenEval
from ai_trains_ai.scoring.stats import clustered
from ai_trains_ai.seeds import derive
from ai_trains_ai.tasks.registry import family
from ai_trains_ai.types import EvalResult

Sampler = Callable[[Sequence[str], int, int], Sequence[Sequence[str]]]
"""(prompts, samples a prompt, seed) -> completions by prompt. At temperature 1; deterministic in its
arguments.
"""

Progress = Callable[[int, int], None]
"""(completions so far, completions in all)."""

AT_ONCE = 512
"""Completions asked for in one call."""


def evaluate(
    sampler: Sampler,
    hidden: HiddenEval,
    *,
    model: str,
    samples: int,
    at_once: int = AT_ONCE,
    progress: Progress | None = None,
) -> EvalResult:
    """Score `model`, `samples` completions an item.

    at_once: completions asked for in one call, part of what a score depends on.
    Deterministic when the sampler is. Raises InfrastructureError when the sampler returns another number of
    completions than asked for; whatever the sampler raises passes through.
    """
    started = time.monotonic()
    scorer = family(hidden.family)
    items = hidden.items
    prompts_at_once = max(1, at_once // samples)
    scores: list[float] = []
    solved = 0
    for start in range(0, len(items), prompts_at_once):
        batch = items[start : start + prompts_at_once]
        completions = sampler([item.prompt for item in batch], samples, derive(hidden.seed, start))
        if [len(row) for row in completions] != [samples] * len(batch):
            raise InfrastructureError(f"the sampler of {model} did not return {samples} completions a prompt")
        for item, row in zip(batch, completions, strict=True):
            marks = [scorer.score(completion, item) for completion in row]
            scores.append(sum(marks) / samples)
            solved += any(mark >= 1.0 for mark in marks)
        if progress is not None:
            progress(len(scores) * samples, len(items) * samples)
    accuracy, low, high = clustered(scores, samples)
    return EvalResult(
        family=hidden.family,
        model=model,
        accuracy=accuracy,
        low=low,
        high=high,
        pass_k=solved / len(items),
        item_scores=tuple(scores),
        samples_per_item=samples,
        seconds=time.monotonic() - started,
    )
