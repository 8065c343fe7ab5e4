"""What the untrained bases score: measured once for each base, eval and version, then read from the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from ai_trains_ai.scoring.evaluate import AT_ONCE, Progress, Sampler, evaluate
from ai_trains_ai.scoring.hidden_eval import HiddenEval
from ai_trains_ai.store.store import Store
from ai_trains_ai.types import EvalResult

Locked = Callable[[str], AbstractContextManager[None]]
"""Holds the named lock, against other processes too (`rundir.Home.locked`)."""


def baseline_key(hidden: HiddenEval, base_sha256: str, versions: Mapping[str, str]) -> str:
    """Name of one base's baseline in the store: another weight, item, setting or sampling code is another
    baseline.
    """
    return hidden.key({**versions, "base": base_sha256})


def recorded(
    store: Store, hidden: HiddenEval, base_sha256: str, versions: Mapping[str, str]
) -> EvalResult | None:
    """The baseline if it was measured before, else None."""
    return store.evals.baseline(baseline_key(hidden, base_sha256, versions))


def baseline(
    store: Store,
    locked: Locked,
    sampler: Sampler,
    hidden: HiddenEval,
    *,
    base: str,
    base_sha256: str,
    versions: Mapping[str, str],
    at_once: int = AT_ONCE,
    progress: Progress | None = None,
) -> EvalResult:
    """The score of the untrained base, from the store or, under a lock so that nobody measures twice, from
    sampling.
    """
    key = baseline_key(hidden, base_sha256, versions)
    known = store.evals.baseline(key)
    if known is not None:
        return known
    with locked(f"baseline-{key}"):
        known = store.evals.baseline(key)
        if known is not None:
            return known
        result = evaluate(
            sampler,
            hidden,
            model=base,
            samples=hidden.config.baseline_samples,
            at_once=at_once,
            progress=progress,
        )
        return store.evals.save_baseline(
            key,
            result,
            base_sha256=base_sha256,
            secret_id=hidden.secret_id,
            eval_config=hidden.config.model_dump_json(),
        )


def best(results: Sequence[EvalResult]) -> EvalResult:
    """The best of several bases on the same items; the first of equals."""
    assert results, "no baseline to compare with"
    return max(results, key=lambda result: result.accuracy)
