"""Conditional routing: which desk, and how urgent."""

from __future__ import annotations

import random
import re

from ai_trains_ai.tasks.base import Family
from ai_trains_ai.tasks.generators import dispatch as generator

_START = re.compile(r"A ticket has urgency (\d+)\.")
_RULE = re.compile(r"\d+: above (\d+) (\w+) minus (\d+), else (\w+) plus (\d+)\.")

Rule = tuple[str, str, str, str, str]
Desk = tuple[str, int]


class Dispatch(Family):
    name = "dispatch"
    published_baseline = 0.323
    goal = "Teach a small model to route a ticket through conditional rules and to track its urgency."
    answer_form = "the desk and the urgency, like North 4"
    source = generator

    def parse(self, prompt: str) -> tuple[Desk, list[Rule], list[str]] | None:
        start, rules = _START.search(prompt), _RULE.findall(prompt)
        if not start or not rules:
            return None
        return ("", int(start[1])), rules, [desk for rule in rules[-1:] for desk in (rule[1], rule[3])]

    def apply(self, state: Desk, operation: Rule, context: list[str]) -> Desk:
        limit, high, down, low, up = operation
        if state[1] > int(limit):
            return high, max(0, state[1] - int(down))
        return low, min(9, state[1] + int(up))

    def explain(self, operation: Rule, before: Desk, after: Desk) -> str:
        limit, high, down, low, up = operation
        if before[1] > int(limit):
            return f"above {limit} yes {high} minus {down} ="
        return f"above {limit} no {low} plus {up} ="

    def show(self, state: Desk) -> str:
        return str(state[1])

    def conclude(self, state: Desk, context: list[str]) -> str:
        return f"{state[0]} {state[1]}"

    def random_state(self, rng: random.Random, context: list[str]) -> Desk:
        return rng.choice(context), rng.randrange(10)

    def slip(self, state: Desk, rng: random.Random, context: list[str]) -> Desk:
        return state[0], rng.randrange(10)
