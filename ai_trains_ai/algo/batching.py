"""Which tasks a step trains on: whole epochs in seeded order, no task twice before all were drawn once."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ai_trains_ai.seeds import derive


def epoch_order(count: int, seed: int) -> Iterator[int]:
    """Endless indices in [0, count): each epoch is one permutation, reshuffled from `derive(seed, epoch)`.

    The order depends on (count, seed) alone, not on how many are drawn at a time. Raises ValueError for
    count < 1.
    """
    if count < 1:
        raise ValueError(f"cannot draw from {count} tasks")

    def draw() -> Iterator[int]:
        epoch = 0
        while True:
            order = list(range(count))
            random.Random(derive(seed, "epoch", epoch)).shuffle(order)
            yield from order
            epoch += 1

    return draw()
