"""Two accounts: deposits, withdrawals, transfers and fees, then a balance."""

import random

NAMES = (
    "Ann Bob Cid Dan Eve Fay Gus Hal Ivy Jon Kim Lea Max Ned Oli Pam Ray Sam Tom Una Vic Wes Yan Zoe".split()
)


def make(rng: random.Random, level: int) -> tuple[str, str, list[str]]:
    """Return (prompt, answer, balances after each step) of a task with `level` bookings.

    Balances stay within 10 and 99.
    """
    first, second = rng.sample(NAMES, 2)
    money = {first: rng.randint(20, 89), second: rng.randint(20, 89)}
    parts = [f"Start: {first} has {money[first]} and {second} has {money[second]}."]
    steps: list[str] = []
    while len(steps) < level:
        who, other = rng.sample([first, second], 2)
        amount = rng.randint(1, 9)
        text, change_who, change_other = rng.choice(
            [
                (f"{who} deposits {amount}.", amount, 0),
                (f"{who} withdraws {amount}.", -amount, 0),
                (f"{who} pays {other} {amount}.", -amount, amount),
                (f"{who} is charged a fee of {amount}.", -amount, 0),
            ]
        )
        if not (10 <= money[who] + change_who <= 99 and 10 <= money[other] + change_other <= 99):
            continue
        money[who] += change_who
        money[other] += change_other
        steps.append(f"{money[first]} {money[second]}")
        parts.append(f"{len(steps)}: {text}")
    asked = rng.choice([first, second])
    parts.append(f'How much does {asked} have? End with "Answer:" and the amount.')
    return " ".join(parts), str(money[asked]), steps
