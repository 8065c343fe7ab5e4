"""Dependent look-ups: a person's boss's friend's … city."""

from __future__ import annotations

import random
import re

from ai_trains_ai.tasks.base import Family
from ai_trains_ai.tasks.generators import multi_hop as generator

_FACT = re.compile(r"(\w+)'s (\w+) is (\w+)\.")
_START = re.compile(r"Start at (\w+)\. (.*)")
_ASK = re.compile(r"(\d+): (\w+)\.")

Facts = dict[tuple[str, str], str]


class MultiHop(Family):
    name = "multi_hop"
    published_baseline = 0.654
    goal = "Teach a small model to follow a chain of facts about people to a city."
    answer_form = "the city"
    source = generator

    def parse(self, prompt: str) -> tuple[str, list[str], Facts] | None:
        start = _START.search(prompt)
        facts = {(who, relation): goal for who, relation, goal in _FACT.findall(prompt)}
        if not start or not facts:
            return None
        return start[1], [relation for _, relation in _ASK.findall(start[2])], facts

    def apply(self, state: str, operation: str, context: Facts) -> str | None:
        found = context.get((state, operation))
        if found is None and any(goal == state for goal in context.values()):
            # Only a slip leads to somebody without such a fact: any fact of that relation is as good.
            return next((goal for (_, relation), goal in context.items() if relation == operation), None)
        return found

    def explain(self, operation: str, before: str, after: str) -> str:
        return f"{before}'s {operation} is"

    def show(self, state: str) -> str:
        return state

    def conclude(self, state: str, context: Facts) -> str:
        return state

    def random_state(self, rng: random.Random, context: Facts) -> str:
        return rng.choice(sorted(set(context.values())))

    def guess(self, prompt: str, rng: random.Random) -> str:
        return rng.choice(generator.CITIES)
