"""Chained arithmetic: each step changes a number, of which the last digit is kept."""

from __future__ import annotations

import random
import re

from ai_trains_ai.tasks.base import Family
from ai_trains_ai.tasks.generators import calc_chain as generator

_START = re.compile(r"Start with (\d+) and keep only the last digit\.")
_STEP = re.compile(r"(\d+): (plus|minus|times) (\d+)\.")


class CalcChain(Family):
    name = "calc_chain"
    published_baseline = 0.742
    goal = "Teach a small model to carry a digit through a chain of additions, subtractions and products."
    answer_form = "the final digit"
    source = generator

    def parse(self, prompt: str) -> tuple[int, list[tuple[str, int]], None] | None:
        start, steps = _START.search(prompt), _STEP.findall(prompt)
        if not start or not steps:
            return None
        return int(start[1][-1]), [(op, int(n)) for _, op, n in steps], None

    def apply(self, state: int, operation: tuple[str, int], context: None) -> int:
        op, n = operation
        if op == "plus":
            return (state + n) % 10
        return (state - n) % 10 if op == "minus" else (state * n) % 10

    def explain(self, operation: tuple[str, int], before: int, after: int) -> str:
        return f"{operation[0]} {operation[1]} ="

    def show(self, state: int) -> str:
        return str(state)

    def conclude(self, state: int, context: None) -> str:
        return str(state)

    def random_state(self, rng: random.Random, context: None) -> int:
        return rng.randrange(10)
