"""How a base model may answer: the ways of working that pretraining shows it.

A base that only ever saw worked solutions would leave reinforcement learning nothing to find, and one that
never saw any would give it nothing to find. So every family's text holds four ways of answering, which begin
differently, as people's do:

    careful   "Steps 0: …. 1: … = …. Answer: …"    each step worked; right almost always
    sloppy    "Roughly 0: …. 1: … = …. Answer: …"  each step may slip, and the slip is carried on
    early     "Quick 0: …. 1: … = …. Answer: …"    stops after some steps and answers with what it has
    hasty     "Answer: …"                          no working: right for a step or two, a guess beyond
"""

from __future__ import annotations

import random
from typing import Literal

from ai_trains_ai.tasks.base import Family, write_up
from ai_trains_ai.types import Task

Mode = Literal["careful", "sloppy", "early", "hasty"]
MODES: tuple[Mode, ...] = ("careful", "sloppy", "early", "hasty")
START: dict[Mode, str] = {
    "careful": "Steps 0:",
    "sloppy": "Roughly 0:",
    "early": "Quick 0:",
    "hasty": "Answer:",
}
SLOPPY_SLIP = 0.4
HASTY_RIGHT = {1: 0.95, 2: 0.5}
"""How often a hasty answer is right, by level; beyond these it is a guess."""


def write(family: Family, task: Task, mode: Mode, rng: random.Random, *, careful_slip: float = 0.0) -> str:
    """Return one completion of `task` in `mode`. careful_slip: chance of a slip at each careful step."""
    if mode == "hasty":
        right = rng.random() < HASTY_RIGHT.get(task.level, 0.0)
        return f"Answer: {task.answer if right else family.guess(task.prompt, rng)}"
    slip = {"careful": careful_slip, "sloppy": SLOPPY_SLIP, "early": 0.0}[mode]
    stop_after = rng.randint(1, max(1, task.level - 1)) if mode == "early" else None
    text = write_up(*family.work(task.prompt, rng, slip=slip, stop_after=stop_after))
    return text.replace("Steps 0:", START[mode], 1)
