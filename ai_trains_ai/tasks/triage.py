"""Incident triage, held out: severity, service, on-call, then the action."""

from __future__ import annotations

import random
import re

from ai_trains_ai.tasks.base import Family
from ai_trains_ai.tasks.generators import triage as generator

_START = re.compile(r"Incident at (\w+), severity (\d+)\.")
_NEED = re.compile(r"(\w+) needs (\w+) plus (\d+)\.")
_OWNER = re.compile(r"(\w+) owner (\w+)\.")
_DEPTH = re.compile(r"Follow the needs for (\d+) steps")

Context = tuple[dict[str, tuple[str, int]], dict[str, str]]
"""What each service needs and adds, and who owns which."""
Cause = tuple[str, int]


class Triage(Family):
    name = "triage"
    published_baseline = 0.352
    goal = (
        "Teach a small model to trace an incident to its cause, add up its severity, and choose the action."
    )
    answer_form = "the action and the owner, like page Ann"
    source = generator

    def parse(self, prompt: str) -> tuple[Cause, list[None], Context] | None:
        start, depth = _START.search(prompt), _DEPTH.search(prompt)
        needs = {service: (cause, int(plus)) for service, cause, plus in _NEED.findall(prompt)}
        owners = dict(_OWNER.findall(prompt))
        if not start or not depth or not needs or not owners:
            return None
        return (start[1], int(start[2])), [None] * int(depth[1]), (needs, owners)

    def apply(self, state: Cause, operation: None, context: Context) -> Cause | None:
        needs, _ = context
        if state[0] not in needs:
            # Only a slip ends up at a service that needs nothing; it stays there.
            return state if any(cause == state[0] for cause, _ in needs.values()) else None
        cause, plus = needs[state[0]]
        return cause, min(9, state[1] + plus)

    def explain(self, operation: None, before: Cause, after: Cause) -> str:
        return f"{before[0]} needs {after[0]} plus {after[1] - before[1]} ="

    def opening(self, state: Cause) -> str:
        return f"{state[0]} {state[1]}"

    def show(self, state: Cause) -> str:
        return str(state[1])

    def conclude(self, state: Cause, context: Context) -> str:
        _, owners = context
        return f"{'page' if state[1] > 5 else 'email'} {_owner(state[0], owners)}"

    def closing(self, state: Cause, context: Context) -> list[str]:
        return [f"{state[0]} owner {_owner(state[0], context[1])}"]

    def random_state(self, rng: random.Random, context: Context) -> Cause:
        needs, owners = context
        return rng.choice(sorted({*owners, *(cause for cause, _ in needs.values())})), rng.randrange(10)

    def slip(self, state: Cause, rng: random.Random, context: Context) -> Cause:
        return state[0], rng.randrange(10)


def _owner(service: str, owners: dict[str, str]) -> str:
    """The owner in the facts; where only a slip could ask for one, somebody's."""
    return owners.get(service) or min(owners.values())
