"""Composed string transformations of four letters."""

from __future__ import annotations

import random
import re

from ai_trains_ai.tasks.base import Family
from ai_trains_ai.tasks.generators import string_pipeline as generator

_START = re.compile(r"Start with the letters ((?:[a-z] ){3}[a-z])\.")
_STEP = re.compile(r"(\d+): (reverse|rotate left|rotate right|swap ends)\.")


class StringPipeline(Family):
    name = "string_pipeline"
    published_baseline = 0.545
    goal = "Teach a small model to apply several transformations to four letters, one after the other."
    answer_form = "the four letters, separated by spaces"
    source = generator

    def parse(self, prompt: str) -> tuple[str, list[str], str] | None:
        start, steps = _START.search(prompt), _STEP.findall(prompt)
        if not start or not steps:
            return None
        letters = start[1].replace(" ", "")
        return letters, [op for _, op in steps], letters

    def apply(self, state: str, operation: str, context: str) -> str:
        a, b, c, d = list(state)
        if operation == "reverse":
            return state[::-1]
        if operation == "rotate left":
            return state[1:] + state[:1]
        if operation == "rotate right":
            return state[-1:] + state[:-1]
        return d + b + c + a

    def explain(self, operation: str, before: str, after: str) -> str:
        return f"{operation} ="

    def show(self, state: str) -> str:
        return " ".join(state)

    def conclude(self, state: str, context: str) -> str:
        return " ".join(state)

    def random_state(self, rng: random.Random, context: str) -> str:
        return "".join(rng.sample(context, 4))
