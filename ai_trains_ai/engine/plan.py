"""Plan: where the new tokens of one decoder call stand, as index tensors that all layers share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ai_trains_ai.engine.kvcache import KVCache, round_up

LayerViews = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(eq=False, slots=True)
class Plan:
    """One version of a cache and one number of new tokens for each row; N new tokens in all, in row order.

    "Places" are the cache's (group, kv head, slot) triples, flattened.

    to_slots:    for each (place, new token of it), the (token, kv head) of the packed tokens; None: as they are
    to_rows:     the way back, for each (token, kv head)
    layers:      of each layer: prompt keys (group·kv, dim, P) and values (group·kv, P, dim), own keys
                 (places, dim, room) and values (places, room, dim)
    uniform:     every row has one new token and equally many own positions, so the cache is written by slices
    own_length:  columns of the own part that attention reads, the new tokens included
    lengths:     own positions of each place before this call
    """

    version: int
    counts: list[int]
    tokens: int
    to_slots: Tensor | None
    to_rows: Tensor | None
    layers: list[LayerViews]
    prefix_mask: Tensor | None
    positions_N: Tensor
    uniform: bool
    own_length: int
    lengths: Tensor
    places_of_tokens: Tensor
    columns_of_tokens: Tensor
    own_mask: Tensor | None = None
    _filler: Tensor | None = None

    def advance(self, cache: KVCache) -> None:
        """The same rows, one token later."""
        assert self.tokens == 1
        self.positions_N += 1
        self.own_length += 1
        if not self.uniform:
            self.lengths += 1
            self.columns_of_tokens += 1
            self.own_mask = _own_mask(self.lengths, 1, self.own_length, cache.shape.dtype)

    def write(self, own_k: Tensor, own_v: Tensor, heads: Tensor, queries: int) -> None:
        """Store keys and values of heads (place or (token, kv head), [queries, key, value], dim)."""
        if self.uniform:
            own_k[..., self.own_length - 1] = heads[:, queries]
            own_v[:, self.own_length - 1] = heads[:, queries + 1]
        else:
            own_k[self.places_of_tokens, :, self.columns_of_tokens] = heads[:, queries]
            own_v[self.places_of_tokens, self.columns_of_tokens] = heads[:, queries + 1]

    def filler(self, own: Tensor) -> Tensor:
        """-inf columns that fill a row of scores up to whole vectors."""
        width = self.layers[0][0].shape[2] + self.own_length
        missing = round_up(width) - width
        if self._filler is None or self._filler.shape[:2] != own.shape[:2]:
            self._filler = own.new_full((own.shape[0], own.shape[1], round_up(1)), -torch.inf)
        return self._filler[..., :missing]


def plan_tokens(cache: KVCache, counts: Sequence[int] | None) -> Plan:
    """counts: new tokens of each row, 0 allowed; None means one each. The cache has room for them."""
    rows, heads, width, device = cache.rows, cache.shape.kv_heads, cache.width, cache.shape.device
    counts = [1] * len(rows) if counts is None else list(counts)
    tokens = max(counts)
    groups = len(cache.prefixes)
    places = groups * heads * width

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    steps = tensor([t for count in counts for t in range(count)])
    repeats = tensor(counts)
    first = tensor([row.group * heads * width + row.slot for row in rows])
    own = tensor([row.length for row in rows])
    places_B_K = first[:, None] + torch.arange(heads, device=device) * width
    places_N_K = places_B_K.repeat_interleave(repeats, 0)
    to_rows = (places_N_K * tokens + steps[:, None]).flatten()
    to_slots = torch.zeros(places * tokens, dtype=torch.long, device=device)
    to_slots[to_rows] = torch.arange(len(to_rows), device=device)
    plain = len(to_rows) == len(to_slots) and bool((to_slots[:-1] < to_slots[1:]).all())
    lengths = torch.zeros(places, dtype=torch.long, device=device)
    lengths[places_B_K.flatten()] = own.repeat_interleave(heads)
    uniform = set(counts) == {1} and len({row.length for row in rows}) == 1
    own_length = max(row.length + count for row, count in zip(rows, counts, strict=True))
    return Plan(
        version=cache.version,
        counts=counts,
        tokens=tokens,
        to_slots=None if plain else to_slots,
        to_rows=None if plain else to_rows,
        layers=_layer_views(cache),
        prefix_mask=_prefix_mask(cache),
        positions_N=tensor(cache.positions).repeat_interleave(repeats) + steps,
        uniform=uniform,
        own_length=own_length,
        lengths=lengths,
        places_of_tokens=places_N_K.flatten(),
        columns_of_tokens=(own.repeat_interleave(repeats) + steps).repeat_interleave(heads),
        own_mask=None if uniform else _own_mask(lengths, tokens, own_length, cache.shape.dtype),
    )


def _layer_views(cache: KVCache) -> list[LayerViews]:
    groups = len(cache.prefixes)
    longest = max(prefix.length for prefix in cache.prefixes)
    prefix_k = cache.prefix_k[:, :groups, ..., :longest].flatten(1, 2)
    prefix_v = cache.prefix_v[:, :groups, :, :longest].flatten(1, 2)
    own_k, own_v = cache.own_k[:, :groups].flatten(1, 3), cache.own_v[:, :groups].flatten(1, 3)
    return list(zip(prefix_k, prefix_v, own_k, own_v, strict=True))


def _prefix_mask(cache: KVCache) -> Tensor | None:
    """-inf beyond each prompt's end: (group·kv, 1, P). None when all are equally long."""
    sizes = [prefix.length for prefix in cache.prefixes]
    if len(set(sizes)) == 1:
        return None
    columns = torch.arange(max(sizes), device=cache.shape.device)
    limits = torch.tensor(sizes, device=cache.shape.device).repeat_interleave(cache.shape.kv_heads)
    mask = torch.zeros(len(limits), 1, len(columns), dtype=cache.shape.dtype, device=cache.shape.device)
    return mask.masked_fill_((columns >= limits[:, None])[:, None], -torch.inf)


def _own_mask(lengths: Tensor, tokens: int, own_length: int, dtype: torch.dtype) -> Tensor:
    """-inf after each new token's own column: (places, tokens, 1, own_length)."""
    steps = torch.arange(1, tokens + 1, device=lengths.device)
    hidden = torch.arange(own_length, device=lengths.device) >= (lengths[:, None] + steps)[..., None]
    mask = torch.zeros(hidden.shape, dtype=dtype, device=lengths.device).masked_fill_(hidden, -torch.inf)
    return mask.unsqueeze(2)
