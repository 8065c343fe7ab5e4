"""Recall drills: many look-ups a sequence, so that looking up is learned before it is needed.

A small transformer learns to match a key with the same key in its prompt only after thousands of examples of
each key, and the families' tasks hold few look-ups each. A drill lists facts and then quotes all of
them in another order. Without drills the loss stays for thousands of batches at "one of those in the prompt".
"""

from __future__ import annotations

import random

from ai_trains_ai.tasks.generators.multi_hop import CITIES, NAMES, RELATIONS
from ai_trains_ai.tasks.generators.string_pipeline import LETTERS
from ai_trains_ai.tasks.generators.triage import SERVICES


def drill(rng: random.Random) -> tuple[str, str]:
    """Return (prompt, completion) of a random drill."""
    return rng.choice((_people, _services, _letters))(rng)


def _people(rng: random.Random) -> tuple[str, str]:
    pairs = rng.sample([(who, relation) for who in NAMES for relation in (*RELATIONS, "city")], 8)
    facts = [
        f"{who}'s {relation} is {rng.choice(CITIES if relation == 'city' else NAMES)}."
        for who, relation in pairs
    ]
    return f"Facts: {' '.join(facts)}", _shuffled(facts, rng)


def _services(rng: random.Random) -> tuple[str, str]:
    needs = [
        f"{service} needs {rng.choice(SERVICES)} plus {rng.randint(0, 3)}."
        for service in rng.sample(SERVICES, 7)
    ]
    owners = [f"{service} owner {rng.choice(NAMES)}." for service in rng.sample(SERVICES, 3)]
    return f"Facts: {' '.join(needs + owners)}", _shuffled(needs + owners, rng)


def _letters(rng: random.Random) -> tuple[str, str]:
    lines = [f"{number}: {' '.join(rng.sample(LETTERS, 4))}." for number in rng.sample(range(10), 6)]
    return f"Facts: {' '.join(lines)}", _shuffled(lines, rng)


def _shuffled(facts: list[str], rng: random.Random) -> str:
    return "Recall: " + " ".join(rng.sample(facts, len(facts)))
