"""Dependent look-ups among people."""

import random

NAMES = "Ann Bob Cid Dan Eve Fay Gus Hal Ivy Jon Kim Lea".split()
CITIES = "Rome Oslo Lima Bern Cork Doha Kyiv Nice Riga Bonn Pisa York".split()
RELATIONS = ("boss", "friend", "coach")


def make(rng: random.Random, level: int) -> tuple[str, str, list[str]]:
    """Return (prompt, answer, intermediate results) of a task with `level` look-ups, the last one a city."""
    people = rng.sample(NAMES, level + 3)
    chain, others = people[:level], people[level:]
    relations = [rng.choice(RELATIONS) for _ in range(level - 1)]
    city = rng.choice(CITIES)
    facts = [f"{chain[i]}'s {relations[i]} is {chain[i + 1]}." for i in range(level - 1)]
    facts.append(f"{chain[-1]}'s city is {city}.")
    for _ in range(3):
        i = rng.randrange(level)
        free = [r for r in (*RELATIONS, "city") if r != ([*relations, "city"])[i]]
        relation = rng.choice(free)
        goal = rng.choice(CITIES) if relation == "city" else rng.choice(others)
        if not any(fact.startswith(f"{chain[i]}'s {relation} is") for fact in facts):
            facts.append(f"{chain[i]}'s {relation} is {goal}.")
    rng.shuffle(facts)
    asks = [f"{k}: {relation}." for k, relation in enumerate([*relations, "city"], start=1)]
    prompt = f"Facts: {' '.join(facts)} Start at {chain[0]}. {' '.join(asks)} "
    prompt += 'End with "Answer:" and the city.'
    return prompt, city, [*chain[1:], city]
