"""Stateful bookkeeping over two accounts, then one balance."""

from __future__ import annotations

import random
import re

from ai_trains_ai.tasks.base import Family
from ai_trains_ai.tasks.generators import ledger as generator

_START = re.compile(r"Start: (\w+) has (\d+) and (\w+) has (\d+) coins\.")
_STEP = re.compile(r"\d+: (\w+) (deposits|withdraws|pays|fee) (?:(\w+) )?(\d+)\.")
_ASK = re.compile(r"How many coins has (\w+)\?")

Balances = tuple[int, int]
Booking = tuple[int, int, str]
"""Change of the first account, of the second, and the booking as the prompt words it."""


class Ledger(Family):
    name = "ledger"
    published_baseline = 0.242
    goal = "Teach a small model to book deposits, withdrawals, transfers and fees, and to name a balance."
    answer_form = "the balance"
    source = generator

    def parse(self, prompt: str) -> tuple[Balances, list[Booking], int] | None:
        start, steps, ask = _START.search(prompt), _STEP.findall(prompt), _ASK.search(prompt)
        if not start or not steps or not ask:
            return None
        names = [start[1], start[3]]
        if ask[1] not in names:
            return None
        bookings = []
        for who, verb, other, text in steps:
            if who not in names or (other and other not in names):
                return None
            change = [0, 0]
            amount = int(text)
            change[names.index(who)] = amount if verb == "deposits" else -amount
            if other:
                change[names.index(other)] = amount
            bookings.append((change[0], change[1], " ".join(filter(None, (who, verb, other, text)))))
        return (int(start[2]), int(start[4])), bookings, names.index(ask[1])

    def apply(self, state: Balances, operation: Booking, context: int) -> Balances:
        return _clip(state[0] + operation[0]), _clip(state[1] + operation[1])

    def explain(self, operation: Booking, before: Balances, after: Balances) -> str:
        return f"{operation[2]} ="

    def show(self, state: Balances) -> str:
        return f"{state[0]} {state[1]}"

    def conclude(self, state: Balances, context: int) -> str:
        return str(state[context])

    def random_state(self, rng: random.Random, context: int) -> Balances:
        return rng.randrange(10), rng.randrange(10)


def _clip(coins: int) -> int:
    """Only a slip leads out of 0 to 9."""
    return min(9, max(0, coins))
