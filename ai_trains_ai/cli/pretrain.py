"""`ata pretrain`: build a tiny base from its recipe."""

from __future__ import annotations

from pathlib import Path

import click

from ai_trains_ai.cli.output import ProgressLine, emit_json, json_option, table
from ai_trains_ai.cli.session import home_option, services


@click.command()
@click.argument("recipe", metavar="NAME_OR_RECIPE")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to write the base (default: bases/NAME in the state folder).",
)
@home_option
@json_option
@click.pass_context
def pretrain(ctx: click.Context, recipe: str, out: Path | None, home: str | None, as_json: bool) -> int:
    """Build a tiny base: a recipe's name (nano-0.2m, nano-0.8m) or a recipe file in, a model folder out.

    Tens of minutes on one core. Interrupted, the same command goes on where it was.
    """
    from ai_trains_ai.inner.pretraining.loop import Progress
    from ai_trains_ai.inner.pretraining.recipe import load_recipe
    from ai_trains_ai.inner.pretraining.run import pretrain
    from ai_trains_ai.rundir import Home

    chosen = load_recipe(recipe)
    place = Home.find(home, services(ctx).environ)
    folder = out or place.bases / chosen.name
    line = ProgressLine()

    def report(now: Progress) -> None:
        line.show(
            f"{now.stage} {now.batch}/{now.batches}  loss {now.loss:.3f}  "
            f"{now.tokens_per_second:,.0f} tokens/s  {now.seconds_left:.0f} s left",
            always=now.batch == now.batches,
        )

    measured = pretrain(chosen, folder, place.pretraining / f"{chosen.name}-{chosen.sha256[:12]}", report)
    line.clear()
    if as_json:
        emit_json(
            {
                "base": chosen.name,
                "dir": str(folder),
                "recipe_sha256": chosen.sha256,
                "measured": [
                    {"family": name, "accuracy": found.free, "by_mode": dict(found.by_mode)}
                    for name, found in measured.items()
                ],
            }
        )
        return 0
    rows = [["family", "accuracy", "careful mode"]]
    rows += [[name, f"{got.free:.3f}", f"{got.by_mode['careful']:.3f}"] for name, got in measured.items()]
    click.echo(f"{table(rows, right=[1, 2])}\n{folder}")
    return 0
