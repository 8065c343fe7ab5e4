"""Chained arithmetic on a last digit."""

import random

OPS = ("plus", "minus", "times")


def make(rng: random.Random, level: int) -> tuple[str, str, list[str]]:
    """Return (prompt, answer, intermediate results) of a task with `level` steps."""
    value = rng.randint(10, 99)
    parts = [f"Start with {value} and keep only the last digit."]
    value %= 10
    steps = []
    for k in range(1, level + 1):
        op, n = rng.choice(OPS), rng.randint(2, 9)
        parts.append(f"{k}: {op} {n}.")
        value = {"plus": value + n, "minus": value - n, "times": value * n}[op] % 10
        steps.append(str(value))
    parts.append('End with "Answer:" and the digit.')
    return " ".join(parts), steps[-1], steps
