"""Plan: where the new tokens of one decoder call stand, as index tensors that all layers share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ai_trains_ai.engine.kvcache import KVCache


@dataclass(eq=False, slots=True)
class Plan:
    """For one version of a cache and one number of new tokens a row; N new tokens in all, in row order.

    "Places" are the cache's (group, kv head, slot) triples, flattened.

    counts:      new tokens of each row; `tokens` is the largest
    to_slots:    for each (place, new token of it), which packed (token, kv head); None: all as they are
    to_rows:     the way back, for each (token, kv head)
    positions_N: of the new tokens
    uniform:     every row has one new token and equally many own positions: the cache is written by slices
    own_length:  own positions of the longest row, the new tokens included
    lengths:     own positions of each place before this call
    stored_place, stored_column: where in the cache each (token, kv head) goes
    """

    version: int
    counts: list[int]
    tokens: int
    to_slots: Tensor | None
    to_rows: Tensor | None
    positions_N: Tensor
    uniform: bool
    own_length: int
    lengths: Tensor
    stored_place: Tensor
    stored_column: Tensor

    def advance(self) -> None:
        """The same rows, one token later."""
        assert self.tokens == 1
        self.positions_N += 1
        self.own_length += 1
        self.lengths += 1
        self.stored_column += 1


def plan_tokens(cache: KVCache, counts: Sequence[int] | None = None) -> Plan:
    """counts: new tokens of each row, 0 allowed; None means one each. The cache has room for them."""
    rows, heads, width, device = cache.rows, cache.shape.kv_heads, cache.width, cache.shape.device
    counts = [1] * len(rows) if counts is None else list(counts)
    tokens = max(counts)
    places = len(cache.prefixes) * heads * width

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    steps_N = tensor([t for count in counts for t in range(count)])
    repeats_B = tensor(counts)
    own_B = tensor([row.length for row in rows])
    first_B = tensor([row.group * heads * width + row.slot for row in rows])
    places_B_K = first_B[:, None] + torch.arange(heads, device=device) * width
    places_N_K = places_B_K.repeat_interleave(repeats_B, 0)
    to_rows = (places_N_K * tokens + steps_N[:, None]).flatten()
    to_slots = torch.zeros(places * tokens, dtype=torch.long, device=device)
    to_slots[to_rows] = torch.arange(len(to_rows), device=device)
    plain = len(to_rows) == len(to_slots) and bool((to_slots[:-1] < to_slots[1:]).all())
    lengths = torch.zeros(places, dtype=torch.long, device=device)
    lengths[places_B_K.flatten()] = own_B.repeat_interleave(heads)
    return Plan(
        version=cache.version,
        counts=counts,
        tokens=tokens,
        to_slots=None if plain else to_slots,
        to_rows=None if plain else to_rows,
        positions_N=tensor(cache.positions).repeat_interleave(repeats_B) + steps_N,
        uniform=set(counts) == {1} and len({row.length for row in rows}) == 1,
        own_length=max(row.length + count for row, count in zip(rows, counts, strict=True)),
        lengths=lengths,
        stored_place=places_N_K.flatten(),
        stored_column=(own_B.repeat_interleave(repeats_B) + steps_N).repeat_interleave(heads),
    )
