"""Incident triage: follow what a service needs, add up severity, then the owner and the action."""

import random

SERVICES = "web auth cart mail disk mesh feed sync bill gate logs dash".split()
NAMES = "Ann Bob Cid Dan Eve Fay Gus Hal Ivy Jon Kim Lea".split()


def make(rng: random.Random, level: int) -> tuple[str, str, list[str]]:
    """Return (prompt, answer, severity after each step) of an incident `level` services deep."""
    names = rng.sample(SERVICES, level + 3)
    chain, others = names[: level + 1], names[level + 1 :]
    severity = rng.randint(0, 9 - level) if level < 9 else 0
    head = f"Incident at {chain[0]}, severity {severity}."
    needs, steps = [], []
    for service, cause in zip(chain[:-1], chain[1:], strict=True):
        plus = rng.randint(0, min(3, 9 - severity))
        severity += plus
        needs.append(f"{service} needs {cause} plus {plus}.")
        steps.append(str(severity))
    needs.append(f"{others[0]} needs {others[1]} plus {rng.randint(0, 3)}.")
    owner, *rest = rng.sample(NAMES, 3)
    owners = [f"{chain[-1]} owner {owner}.", f"{chain[0]} owner {rest[0]}.", f"{others[1]} owner {rest[1]}."]
    rng.shuffle(needs)
    rng.shuffle(owners)
    answer = f"{'page' if severity > 5 else 'email'} {owner}"
    prompt = f"{head} Facts: {' '.join(needs)} {' '.join(owners)} Follow the needs for {level} steps. "
    prompt += (
        'Above severity 5 page the owner there, else email. End with "Answer:", the action and the owner.'
    )
    return prompt, answer, steps
