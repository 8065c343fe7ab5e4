"""Composed transformations of four letters."""

import random

LETTERS = "abcdefghijkl"
# New order of positions 0 1 2 3.
OPS = {
    "reverse": (3, 2, 1, 0),
    "rotate left": (1, 2, 3, 0),
    "rotate right": (3, 0, 1, 2),
    "swap ends": (3, 1, 2, 0),
}


def make(rng: random.Random, level: int) -> tuple[str, str, list[str]]:
    """Return (prompt, answer, intermediate results) of a task with `level` transformations."""
    text = rng.sample(LETTERS, 4)
    parts = [f"Start with the letters {' '.join(text)}."]
    steps = []
    for k in range(1, level + 1):
        op = rng.choice(list(OPS))
        parts.append(f"{k}: {op}.")
        text = [text[i] for i in OPS[op]]
        steps.append(" ".join(text))
    parts.append('End with "Answer:" and the letters.')
    return " ".join(parts), steps[-1], steps
