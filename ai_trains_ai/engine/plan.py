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

    A "place" is a (row, kv head). A "unit" is a (group, kv head, number within the group): the order in which
    the rows of a group stand together, with gaps where a group has fewer than `width` rows.

    counts:      new tokens of each row; `tokens` is the largest
    to_units:    the place at each unit (any, at a gap); None when places and units are the same
    to_places:   the unit of each place
    to_padded:   for each (place, new token of it), which (token, kv head) of the packed; None when each row has
                 one new token
    to_packed:   the way back, for each (token, kv head)
    positions_N: of the new tokens
    uniform:     every row has one new token and equally many own positions: the cache is written by slices
    own_length:  own positions of the longest row, the new tokens included
    lengths_B:   own positions of each row before this call
    stored_place, stored_column: where in the cache each (token, kv head) goes
    """

    version: int
    counts: list[int]
    tokens: int
    width: int
    to_units: Tensor | None
    to_places: Tensor | None
    to_padded: Tensor | None
    to_packed: Tensor | None
    positions_N: Tensor
    uniform: bool
    own_length: int
    lengths_B: Tensor
    stored_place: Tensor
    stored_column: Tensor

    def advance(self) -> None:
        """The same rows, one token later."""
        assert self.tokens == 1
        self.positions_N += 1
        self.own_length += 1
        self.lengths_B += 1
        self.stored_column += 1


def plan_tokens(cache: KVCache, counts: Sequence[int] | None = None) -> Plan:
    """counts: new tokens of each row, 0 allowed; None means one each. The cache has room for them."""
    rows, heads, device = cache.rows, cache.shape.kv_heads, cache.shape.device
    counts = [1] * len(rows) if counts is None else list(counts)
    tokens = max(counts)

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    steps_N = tensor([t for count in counts for t in range(count)])
    repeats_B = tensor(counts)
    lengths_B = tensor([row.length for row in rows])
    places_B_K = torch.arange(len(rows) * heads, device=device).view(-1, heads)
    stored_place = places_B_K.repeat_interleave(repeats_B, 0).flatten()
    to_packed = stored_place * tokens + steps_N.repeat_interleave(heads)
    to_padded = torch.zeros(len(rows) * heads * tokens, dtype=torch.long, device=device)
    to_padded[to_packed] = torch.arange(len(to_packed), device=device)
    single = set(counts) == {1}
    width, to_units, to_places = _units(cache)
    return Plan(
        version=cache.version,
        counts=counts,
        tokens=tokens,
        width=width,
        to_units=to_units,
        to_places=to_places,
        to_padded=None if single else to_padded,
        to_packed=None if single else to_packed,
        positions_N=tensor(cache.positions).repeat_interleave(repeats_B) + steps_N,
        uniform=single and len({row.length for row in rows}) == 1,
        own_length=max(row.length + count for row, count in zip(rows, counts, strict=True)),
        lengths_B=lengths_B,
        stored_place=stored_place,
        stored_column=(lengths_B.repeat_interleave(repeats_B) + steps_N).repeat_interleave(heads),
    )


def _units(cache: KVCache) -> tuple[int, Tensor | None, Tensor | None]:
    """Width, to_units, to_places."""
    heads, device = cache.shape.kv_heads, cache.shape.device
    filled = [0] * len(cache.prefixes)
    numbers = []
    for row in cache.rows:
        numbers.append(filled[row.group])
        filled[row.group] += 1
    width = max(filled)
    first = [row.group * heads * width + number for row, number in zip(cache.rows, numbers, strict=True)]
    to_places = (
        torch.tensor(first, device=device)[:, None] + torch.arange(heads, device=device) * width
    ).flatten()
    order = torch.arange(len(to_places), device=device)
    units = len(filled) * heads * width
    if units == len(to_places) and torch.equal(to_places, order):
        return width, None, None
    to_units = torch.zeros(units, dtype=torch.long, device=device)
    to_units[to_places] = order
    return width, to_units, to_places
