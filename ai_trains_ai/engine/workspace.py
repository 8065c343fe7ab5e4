"""Workspace: the buffers of one plan, and the attention that runs in them.

A decode step of a small model is many calls on small tensors, and a view costs nearly as much as a kernel. So
every buffer is allocated once for a plan, every view of it is made once, and a layer's attention is a dozen
calls on them:

    qkv ─┬─ keys, values ─> cache
         ├─ q ─ to units ─ · prompt keys ─ to places ─┐
         └─ q ─ · own keys ───────────────────────────┴─ + mask ─ softmax ─┬─ to units ─ · prompt values ─┐
                                                                           └─ · own values ───────────────┴─>

Units are the order in which the queries of a group stand together, so that they meet its prompt in one product;
see `plan`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ai_trains_ai.engine.kvcache import KVCache, round_up
from ai_trains_ai.engine.packed import PackedWeights
from ai_trains_ai.engine.plan import Plan

_COLUMN_STEP = 8
"""Own positions are read in whole multiples of this: fewer changes of shape, whole vectors."""
_LEAST_PRODUCT = 400
"""Below this many multiplications a matrix, torch's batched product takes a slow path on the CPU."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer's cache: prompt keys (group·kv, dim, P) and values (group·kv, P, dim), own keys
    (place, dim, room) and values (place, room, dim); the `read_` ones are the part that attention reads.
    """

    prefix_k: Tensor
    prefix_v: Tensor
    own_k: Tensor
    own_v: Tensor
    read_k: Tensor
    read_v: Tensor


class Workspace:
    """What the layers of one decoder call share. Nothing here survives a change of the cache's version.

    qkv:      (N, kv head, [queries, key, value], head_dim), to be filled before `attend`; `qkv_rows` and
              `turned` (queries and keys) are views of it
    attended: (N, heads · head_dim), what `attend` fills, in the products' dtype
    normed:   (N, hidden), room for a normalised input of a product
    """

    def __init__(self, plan: Plan, cache: KVCache, weights: PackedWeights) -> None:
        self.plan = plan
        shape, config = cache.shape, weights.config
        dim, kv, queries = config.head_dim, config.num_kv_heads, config.num_heads // config.num_kv_heads
        new, tokens = len(plan.positions_N), plan.tokens
        self._dim, self._per_place = dim, tokens * queries
        self._places, self._groups = len(cache.rows) * kv, len(cache.prefixes) * kv

        def empty(*sizes: int, dtype: torch.dtype = shape.dtype) -> Tensor:
            return torch.empty(sizes, dtype=dtype, device=shape.device)

        self._empty = empty
        self.normed = empty(new, config.hidden_size, dtype=weights.dtype)
        self.qkv = empty(new, kv, queries + 2, dim)
        self.qkv_rows = self.qkv.view(new, -1)
        self.turned = self.qkv[:, :, : queries + 1]
        heads = self.qkv.view(new * kv, queries + 2, dim)
        self._new_q, self._new_k, self._new_v = heads[:, :queries], heads[:, queries], heads[:, queries + 1]
        self._q_own = self._new_q
        if plan.to_padded is not None:
            self._q_padded = empty(self._places * tokens, queries, dim)
            self._q_own = self._q_padded.view(self._places, self._per_place, dim)
        units = self._groups * plan.width
        self._q_units = empty(units, self._per_place, dim)
        self._q_grouped = self._q_units.view(self._groups, -1, dim)
        self._mixed_units = empty(units, self._per_place, dim)
        self._mixed_grouped = self._mixed_units.view(self._groups, -1, dim)
        self._mixed = self._mixed_units
        if plan.to_places is not None:
            self._mixed = empty(self._places, self._per_place, dim)
        packed = self._mixed if plan.to_packed is None else empty(new * kv, queries, dim)
        self._packed, self._mixed_tokens = packed, self._mixed.view(-1, queries, dim)
        self._attended = packed.view(new, -1)
        same = weights.dtype == shape.dtype
        self.attended = self._attended if same else self._attended.to(weights.dtype)
        self._columns = 0
        self._fit(cache)

    def advance(self, cache: KVCache) -> None:
        """The same rows, one token later."""
        self.plan.advance()
        self._fit(cache)

    def _fit(self, cache: KVCache) -> None:
        """Make the score buffers wide enough for the own positions, and the mask right."""
        needed = max(self.plan.own_length, -(-_LEAST_PRODUCT // (self._per_place * self._dim)))
        columns = min(-(-needed // _COLUMN_STEP) * _COLUMN_STEP, cache.room)
        if columns == self._columns:
            self._show_new_column()
            return
        self._columns = columns
        cache.clear_to(columns)
        split = round_up(max(prefix.length for prefix in cache.prefixes))
        self._split, width, units = split, split + columns, len(self._q_units)
        self._shared_units = self._empty(units, self._per_place, split)
        self._shared_grouped = self._shared_units.view(self._groups, -1, split)
        self._shared = self._shared_units
        self._probs_units = self._empty(units, self._per_place, width)
        self._probs = self._probs_units
        if self.plan.to_places is not None:
            self._shared = self._empty(self._places, self._per_place, split)
            self._probs = self._empty(self._places, self._per_place, width)
        self._own = self._empty(self._places, self._per_place, columns)
        self._parts = [self._shared, self._own]
        self._scores = self._empty(self._places, self._per_place, width)
        rows, tokens = len(cache.rows), self.plan.tokens
        self._scores_by_row = self._scores.view(rows, self._places // rows, tokens, -1, width)
        self._probs_shared = self._probs_units.view(self._groups, -1, width)[..., :split]
        self._probs_own = self._probs[..., split:]
        self._mask = self._new_mask(cache, width)
        self._layers = self._layer_views(cache)

    def attend(self, index: int) -> Tensor:
        """Attention of the new tokens to their prompt, their row's own positions and themselves; fills the
        cache. qkv is rotated and scaled. Returns `attended`.
        """
        layer, plan = self._layers[index], self.plan
        if plan.uniform:
            layer.own_k.select(2, plan.own_length - 1).copy_(self._new_k)
            layer.own_v.select(1, plan.own_length - 1).copy_(self._new_v)
        else:
            layer.own_k[plan.stored_place, :, plan.stored_column] = self._new_k
            layer.own_v[plan.stored_place, plan.stored_column] = self._new_v
        if plan.to_padded is not None:
            torch.index_select(self._new_q, 0, plan.to_padded, out=self._q_padded)
        if plan.to_units is None or plan.to_places is None:
            self._q_units.copy_(self._q_own)
            torch.bmm(self._q_grouped, layer.prefix_k, out=self._shared_grouped)
        else:
            torch.index_select(self._q_own, 0, plan.to_units, out=self._q_units)
            torch.bmm(self._q_grouped, layer.prefix_k, out=self._shared_grouped)
            torch.index_select(self._shared_units, 0, plan.to_places, out=self._shared)
        torch.bmm(self._q_own, layer.read_k, out=self._own)
        torch.cat(self._parts, -1, out=self._scores)
        self._scores_by_row.add_(self._mask)
        torch.softmax(self._scores, -1, out=self._probs)
        if plan.to_units is None or plan.to_places is None:
            torch.bmm(self._probs_shared, layer.prefix_v, out=self._mixed_grouped)
        else:
            torch.index_select(self._probs, 0, plan.to_units, out=self._probs_units)
            torch.bmm(self._probs_shared, layer.prefix_v, out=self._mixed_grouped)
            torch.index_select(self._mixed_units, 0, plan.to_places, out=self._mixed)
        self._mixed.baddbmm_(self._probs_own, layer.read_v)
        if plan.to_packed is not None:
            torch.index_select(self._mixed_tokens, 0, plan.to_packed, out=self._packed)
        if self.attended is not self._attended:
            self.attended.copy_(self._attended)
        return self.attended

    def _layer_views(self, cache: KVCache) -> list[_Layer]:
        groups, rows, columns, split = len(cache.prefixes), len(cache.rows), self._columns, self._split
        prefix_k = cache.prefix_k[:, :groups, ..., :split].flatten(1, 2)
        prefix_v = cache.prefix_v[:, :groups, :, :split].flatten(1, 2)
        own_k, own_v = cache.own_k[:, :rows].flatten(1, 2), cache.own_v[:, :rows].flatten(1, 2)
        read_k, read_v = own_k[..., :columns], own_v[:, :, :columns]
        return [
            _Layer(*views) for views in zip(prefix_k, prefix_v, own_k, own_v, read_k, read_v, strict=True)
        ]

    def _new_mask(self, cache: KVCache, width: int) -> Tensor:
        """0 where a new token looks, -inf elsewhere: (row, 1, token, 1, width)."""
        device, split, plan = cache.shape.device, self._split, self.plan
        sizes = torch.tensor([cache.prefixes[row.group].length for row in cache.rows], device=device)
        mask = torch.full((len(sizes), 1, plan.tokens, 1, width), -torch.inf, device=device)
        mask = mask.to(cache.shape.dtype)
        prompt = torch.arange(split, device=device) < sizes[:, None]
        mask[..., :split].masked_fill_(prompt[:, None, None, None], 0.0)
        if plan.uniform:
            mask[..., split : split + plan.own_length] = 0.0
        else:
            steps = torch.arange(1, plan.tokens + 1, device=device)
            own = torch.arange(width - split, device=device) < (plan.lengths_B[:, None] + steps)[..., None]
            mask[..., split:].masked_fill_(own[:, None, :, None], 0.0)
        return mask

    def _show_new_column(self) -> None:
        """One token later, each row sees one more own column."""
        if self.plan.uniform:
            self._mask[..., self._split + self.plan.own_length - 1].zero_()
        else:
            seen = (self.plan.lengths_B + self._split).unsqueeze(1)
            self._mask.view(len(seen), -1).scatter_(1, seen, 0.0)
