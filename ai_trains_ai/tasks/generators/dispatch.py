"""Conditional routing: rules decide which desk a ticket goes to, and how urgent it is there."""

import random

DESKS = "North South East West Red Blue Green Gold".split()


def make(rng: random.Random, level: int) -> tuple[str, str, list[str]]:
    """Return (prompt, answer, urgency after each rule) of a task with `level` rules.

    Urgency stays within 0 and 9.
    """
    urgency, desk = rng.randint(0, 9), ""
    parts = [f"A ticket has urgency {urgency}."]
    steps: list[str] = []
    for k in range(1, level + 1):
        limit = rng.randint(2, 6)
        high, low = rng.sample(DESKS, 2)
        down, up = rng.randint(0, limit + 1), rng.randint(0, 9 - limit)
        parts.append(f"{k}: above {limit} {high} minus {down}, else {low} plus {up}.")
        desk, urgency = (high, urgency - down) if urgency > limit else (low, urgency + up)
        steps.append(str(urgency))
    parts.append('End with "Answer:", the desk and the urgency.')
    return " ".join(parts), f"{desk} {urgency}", steps
