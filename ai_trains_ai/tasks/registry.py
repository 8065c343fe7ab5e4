"""The six families by name, in the order of every table."""

from __future__ import annotations

from ai_trains_ai.errors import UsageError
from ai_trains_ai.tasks.base import Family
from ai_trains_ai.tasks.calc_chain import CalcChain
from ai_trains_ai.tasks.dispatch import Dispatch
from ai_trains_ai.tasks.ledger import Ledger
from ai_trains_ai.tasks.multi_hop import MultiHop
from ai_trains_ai.tasks.string_pipeline import StringPipeline
from ai_trains_ai.tasks.triage import Triage

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (CalcChain(), MultiHop(), StringPipeline(), Ledger(), Dispatch(), Triage())
}
HELD_OUT = "triage"
"""Evaluated only: never in a demonstration, never in an outer update."""


def family(name: str) -> Family:
    """Return the family of that name. Raises UsageError with the known names."""
    try:
        return FAMILIES[name]
    except KeyError:
        raise UsageError(f"unknown task family {name!r}; known: {', '.join(FAMILIES)}") from None
