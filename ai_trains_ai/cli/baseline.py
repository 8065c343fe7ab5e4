"""`ata baseline`: what the untrained bases score, beside the published table."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from ai_trains_ai.cli.output import ProgressLine, emit_json, json_option, table
from ai_trains_ai.cli.session import device_option, home_option, listener, services
from ai_trains_ai.errors import UsageError
from ai_trains_ai.types import EvalResult


@click.command()
@click.option("--family", "families", multiple=True, metavar="FAMILY", help="Only this one; repeatable.")
@click.option("--base", "bases", multiple=True, metavar="BASE", help="Only this one; repeatable.")
@click.option(
    "--eval-seed",
    type=click.IntRange(0),
    help="Items from a public seed, for a table that others shall reproduce; default: your own secret.",
)
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 64), help="Worker processes.")
@device_option
@home_option
@json_option
@click.pass_context
def baseline(
    ctx: click.Context,
    families: tuple[str, ...],
    bases: tuple[str, ...],
    eval_seed: int | None,
    workers: int,
    device: str,
    home: str | None,
    as_json: bool,
) -> int:
    """Measure pass@1 and pass@8 of the untrained bases on the hidden eval; each is measured once and kept.

    A tiny base takes seconds a family, smollm2-135m many minutes.
    """
    from ai_trains_ai.engine.bases import BASES
    from ai_trains_ai.tasks.registry import FAMILIES, family

    chosen = [family(name) for name in families or FAMILIES]
    for base in bases:
        if base not in BASES:
            raise UsageError(f"unknown base {base!r}; known: {', '.join(BASES)}")
    pairs = [(member.name, base) for member in chosen for base in bases or BASES]
    line = ProgressLine()
    with services(ctx).workplace(home=home, workers=workers, device=device, eval_seed=eval_seed) as place:
        results = _measure(place, pairs, workers, line)
    line.clear()
    published = {member.name: member.published_baseline for member in chosen}
    if as_json:
        emit_json([_row(result, published[result.family]) for result in results])
    else:
        click.echo(_table(results, published))
    return 0


def _measure(place: Any, pairs: list[tuple[str, str]], workers: int, line: ProgressLine) -> list[EvalResult]:
    from ai_trains_ai.fleet.scorer import base_score
    from ai_trains_ai.scoring.hidden_eval import HiddenEval

    def one(pair: tuple[str, str]) -> EvalResult:
        name, base = pair
        hidden = HiddenEval.of(name, place.secret, place.evaluation)
        return base_score(place, hidden, base, listener(line))

    threads = ThreadPoolExecutor(workers)
    try:
        return list(threads.map(one, pairs))
    except BaseException:
        # Closing the pool first lets the threads that wait for a worker's answer end.
        place.pool.close()
        raise
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


def _row(result: EvalResult, published: float) -> dict[str, Any]:
    return {
        "family": result.family,
        "base": result.model,
        "pass1": result.accuracy,
        "pass1_low": result.low,
        "pass1_high": result.high,
        "pass8": result.pass_k,
        "published": published,
    }


def _table(results: list[EvalResult], published: dict[str, float]) -> str:
    rows = [["family", "base", "pass@1", "95% interval", "pass@8", "published best"]]
    for result in results:
        rows.append(
            [
                result.family,
                result.model,
                f"{result.accuracy:.3f}",
                f"[{result.low:.3f}, {result.high:.3f}]",
                f"{result.pass_k:.3f}",
                f"{published[result.family]:.3f}",
            ]
        )
    return table(rows, right=[2, 4, 5])
