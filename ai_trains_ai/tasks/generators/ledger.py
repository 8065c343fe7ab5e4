"""Two accounts: deposits, withdrawals, transfers and fees, then a balance."""

import random

NAMES = "Ann Bob Cid Dan Eve Fay Gus Hal Ivy Jon Kim Lea".split()


def make(rng: random.Random, level: int) -> tuple[str, str, list[str]]:
    """Return (prompt, answer, balances after each step) of a task with `level` bookings.

    Balances are coins, 0 to 9 of them.
    """
    first, second = rng.sample(NAMES, 2)
    money = {first: rng.randint(0, 9), second: rng.randint(0, 9)}
    parts = [f"Start: {first} has {money[first]} and {second} has {money[second]} coins."]
    steps: list[str] = []
    while len(steps) < level:
        who, other = rng.sample([first, second], 2)
        amount = rng.randint(1, 6)
        text, change_who, change_other = rng.choice(
            [
                (f"{who} deposits {amount}.", amount, 0),
                (f"{who} withdraws {amount}.", -amount, 0),
                (f"{who} pays {other} {amount}.", -amount, amount),
                (f"{who} fee {amount}.", -amount, 0),
            ]
        )
        if not (0 <= money[who] + change_who <= 9 and 0 <= money[other] + change_other <= 9):
            continue
        money[who] += change_who
        money[other] += change_other
        steps.append(f"{money[first]} {money[second]}")
        parts.append(f"{len(steps)}: {text}")
    asked = rng.choice([first, second])
    parts.append(f'How many coins has {asked}? End with "Answer:" and the number.')
    return " ".join(parts), str(money[asked]), steps
