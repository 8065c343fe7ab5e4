"""The hidden eval's items, regenerated from a secret. Imported by `scoring` alone."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from ai_trains_ai.tasks.registry import family
from ai_trains_ai.types import Task


def hidden_items(name: str, secret: bytes, levels: Sequence[int], items_per_level: int) -> tuple[Task, ...]:
    """Return `items_per_level` tasks of each level with distinct prompts.

    Each seed is an HMAC-SHA256 under `secret`: without it the items cannot be regenerated, though anybody
    may read this file. The public examples are never among them.
    """
    if len(secret) < 16:
        raise ValueError(f"the eval secret has {len(secret)} bytes; it needs at least 16")
    chosen = family(name)
    seen = {example.prompt for example in chosen.spec().examples}
    items: list[Task] = []
    for level in levels:
        wanted, number = len(items) + items_per_level, 0
        while len(items) < wanted:
            digest = hmac.new(secret, f"{name}/{level}/{number}".encode(), hashlib.sha256).digest()
            item = chosen.generate(int.from_bytes(digest[:8], "big") >> 1, level)
            number += 1
            if item.prompt not in seen:
                seen.add(item.prompt)
                items.append(item)
    return tuple(items)
