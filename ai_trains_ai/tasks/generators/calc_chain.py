"""Chained arithmetic on a last digit."""

import random

OPS = ("add", "subtract", "multiply by")


def make(rng: random.Random, level: int) -> tuple[str, str, list[str]]:
    """Return (prompt, answer, intermediate results) of a task with `level` steps."""
    value = rng.randint(10, 99)
    lines = [f"Start with {value}. Keep only the last digit after each step."]
    value %= 10
    steps = []
    for k in range(1, level + 1):
        op, n = rng.choice(OPS), rng.randint(10, 99)
        lines.append(f"{k}: {op} {n}.")
        value = {"add": value + n, "subtract": value - n, "multiply by": value * n}[op] % 10
        steps.append(str(value))
    lines.append('Which digit remains? End with "Answer:" and the digit.')
    return "\n".join(lines), steps[-1], steps
