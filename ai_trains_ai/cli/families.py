"""`ata families`."""

from __future__ import annotations

import click

from ai_trains_ai.cli.output import emit_json, json_option, table
from ai_trains_ai.tasks.registry import FAMILIES, HELD_OUT


@click.command()
@json_option
def families(as_json: bool) -> int:
    """List the task families, with an example of each."""
    if as_json:
        emit_json(
            [
                {
                    "family": family.name,
                    "goal": family.goal,
                    "published": family.published_baseline,
                    "held_out": family.name == HELD_OUT,
                    "example": {
                        "prompt": family.spec().examples[0].prompt,
                        "answer": family.spec().examples[0].answer,
                    },
                }
                for family in FAMILIES.values()
            ]
        )
        return 0
    rows = [["family", "published", "goal"]]
    for family in FAMILIES.values():
        goal = family.goal + (" (held out: evaluated only)" if family.name == HELD_OUT else "")
        rows.append([family.name, f"{family.published_baseline:.3f}", goal])
    click.echo(table(rows, right=[1]))
    for family in FAMILIES.values():
        example = family.spec().examples[0]
        click.echo(f"\n{family.name}\n  {example.prompt}\n  -> {example.answer}")
    return 0
