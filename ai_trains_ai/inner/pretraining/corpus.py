"""Pretraining examples: generated tasks with a completion in some mode, drawn batch by batch."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer

from ai_trains_ai.engine.layout import TokenGroup
from ai_trains_ai.inner.pretraining.drills import drill
from ai_trains_ai.seeds import derive
from ai_trains_ai.tasks.base import Family
from ai_trains_ai.tasks.modes import MODES, Mode, write
from ai_trains_ai.tasks.registry import FAMILIES

Doses = Mapping[str, Mapping[Mode, float]]
"""Family -> share of each mode; shares of a family sum to 1."""
CLEAN: Doses = {name: {"careful": 1.0} for name in FAMILIES}


@dataclass(frozen=True, slots=True)
class Chat:
    """The nano chat format around a prompt and a completion."""

    tokenizer: Tokenizer

    def example(self, prompt: str, completion: str) -> TokenGroup:
        """`<|user|>prompt<|assistant|>` as the prompt, `completion<|end|>` as its one completion."""
        ids = [encoding.ids for encoding in self.tokenizer.encode_batch([prompt, completion])]
        return TokenGroup(
            [self.id("<|user|>"), *ids[0], self.id("<|assistant|>")], [[*ids[1], self.id("<|end|>")]]
        )

    def id(self, token: str) -> int:
        found = self.tokenizer.token_to_id(token)
        assert found is not None, token
        return found


def batch(
    chat: Chat,
    size: int,
    doses: Doses,
    *,
    seed: int,
    number: int,
    max_level: int,
    careful_slip: float,
    drills: float,
    emphasis: Mapping[str, float],
) -> list[TokenGroup]:
    """Examples of batch `number`: levels uniform in 1..max_level, modes by dose.

    Families come in turn, or are drawn by the weights of `emphasis` when there are any; a share `drills` of the
    examples are recall drills instead. Sorted by length, so that neighbours fit into one padded block.
    """
    rng = random.Random(derive(seed, "pretrain", number))
    names = list(doses)
    examples = []
    for i in range(size):
        if rng.random() < drills:
            examples.append(chat.example(*drill(rng)))
            continue
        name = names[(number * size + i) % len(names)]
        if emphasis:
            name = rng.choices(names, weights=[emphasis.get(name, 1.0) for name in names])[0]
        family = FAMILIES[name]
        task = family.generate(rng.getrandbits(62), rng.randint(1, max_level))
        text = write(family, task, _draw(doses[family.name], rng), rng, careful_slip=careful_slip)
        examples.append(chat.example(task.prompt, text))
    return sorted(examples, key=lambda example: len(example.prompt) + len(example.completions[0]))


def fingerprint() -> str:
    """sha256 over sample texts of every family, level and mode: it changes when the teaching does."""
    digest = hashlib.sha256()
    for family in FAMILIES.values():
        for level in range(1, 9):
            for mode in MODES:
                digest.update(_sample(family, level, mode).encode())
    return digest.hexdigest()


def _sample(family: Family, level: int, mode: Mode) -> str:
    rng = random.Random(derive(0, "fingerprint", family.name, level, mode))
    task = family.generate(rng.getrandbits(62), level)
    return f"{task.prompt}\n{task.answer}\n{write(family, task, mode, rng, careful_slip=0.1)}\n"


def _draw(shares: Mapping[Mode, float], rng: random.Random) -> Mode:
    return rng.choices(list(shares), weights=list(shares.values()))[0]
