"""Workspace: the buffers of one plan, and the attention that runs in them.

A decode step of a small model is many calls on small tensors, and a view costs nearly as much as a kernel. So
every buffer is allocated once for a plan, every view of it is made once, and a layer's attention is a dozen
calls on them:

    packed qkv ─ to slots ─┬─ keys, values ─> cache
                           └─ q ─┬─ · prompt keys ─┐
                                 └─ · own keys ────┴─ + mask ─ softmax ─ · values ─ to rows ─> attended
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
        new, groups = len(plan.positions_N), len(cache.prefixes)
        self.dim, self.queries, self.tokens = dim, queries, plan.tokens
        self.groups, self.places = groups * kv, groups * kv * cache.width

        def empty(*sizes: int, dtype: torch.dtype = shape.dtype) -> Tensor:
            return torch.empty(sizes, dtype=dtype, device=shape.device)

        self.empty = empty
        self.qkv = empty(new, kv, queries + 2, dim)
        self.qkv_rows = self.qkv.view(new, -1)
        self.turned = self.qkv[:, :, : queries + 1]
        self._packed = self.qkv.view(new * kv, -1)
        self._slots = self._packed
        if plan.to_slots is not None:
            self._slots = empty(self.places * self.tokens, self._packed.shape[1])
        heads, stored = (t.view(-1, queries + 2, dim) for t in (self._slots, self._packed))
        self._q_part = heads[:, :queries]
        kept = heads if plan.uniform else stored
        self._new_k, self._new_v = kept[:, queries], kept[:, queries + 1]
        self._q = empty(self.places * self.tokens, queries, dim)
        self._q_grouped, self._q_own = self._q.view(self.groups, -1, dim), self._q.view(self.places, -1, dim)
        self._mixed = empty(self.places, self.tokens * queries, dim)
        self._mixed_grouped = self._mixed.view(self.groups, -1, dim)
        self._mixed_rows = self._mixed.view(-1, queries * dim)
        self._rows = self._mixed_rows
        if plan.to_rows is not None:
            self._rows = empty(new * kv, queries * dim)
        attended = self._rows.view(new, -1)
        self._attended = attended
        self.attended = attended if weights.dtype == shape.dtype else attended.to(weights.dtype)
        self.normed = empty(new, config.hidden_size, dtype=weights.dtype)
        self._columns = 0
        self.fit(cache)

    def advance(self, cache: KVCache) -> None:
        """The same rows, one token later."""
        self.plan.advance()
        self.fit(cache)

    def fit(self, cache: KVCache) -> None:
        """Make the score buffers wide enough for the own positions, and the mask right."""
        least = -(-_LEAST_PRODUCT // (self.tokens * self.queries * self.dim))
        needed = max(self.plan.own_length, least)
        columns = min(-(-needed // _COLUMN_STEP) * _COLUMN_STEP, cache.room)
        if columns == self._columns:
            self._show_new_columns()
            return
        self._columns = columns
        cache.clear_to(columns)
        per_place = self.tokens * self.queries
        split = round_up(max(prefix.length for prefix in cache.prefixes))
        self._split, width = split, split + columns
        self._shared = self.empty(self.groups, self.places // self.groups * per_place, split)
        self._own = self.empty(self.places, per_place, columns)
        self._parts = [self._shared.view(self.places, per_place, split), self._own]
        self._scores = self.empty(self.places, per_place, width)
        by_token = (self.places, self.tokens, self.queries, width)
        self._masked = self._scores.view((self.groups, -1, width) if self.plan.uniform else by_token)
        self._probs = self.empty(self.places, per_place, width)
        self._probs_shared = self._probs.view(self.groups, -1, width)[..., :split]
        self._probs_own = self._probs[..., split:]
        self._mask = self._new_mask(cache, width)
        self.layers = self._layer_views(cache)

    def attend(self, index: int) -> Tensor:
        """Attention of the new tokens to their prompt, their row's own positions and themselves; fills the
        cache. qkv is rotated and scaled. Returns `attended`.
        """
        layer, plan = self.layers[index], self.plan
        if plan.to_slots is not None:
            torch.index_select(self._packed, 0, plan.to_slots, out=self._slots)
        self._q.copy_(self._q_part)
        if plan.uniform:
            layer.own_k.select(2, plan.own_length - 1).copy_(self._new_k)
            layer.own_v.select(1, plan.own_length - 1).copy_(self._new_v)
        else:
            layer.own_k[plan.stored_place, :, plan.stored_column] = self._new_k
            layer.own_v[plan.stored_place, plan.stored_column] = self._new_v
        torch.bmm(self._q_grouped, layer.prefix_k, out=self._shared)
        torch.bmm(self._q_own, layer.read_k, out=self._own)
        torch.cat(self._parts, -1, out=self._scores)
        self._masked.add_(self._mask)
        torch.softmax(self._scores, -1, out=self._probs)
        torch.bmm(self._probs_shared, layer.prefix_v, out=self._mixed_grouped)
        self._mixed.baddbmm_(self._probs_own, layer.read_v)
        if plan.to_rows is not None:
            torch.index_select(self._mixed_rows, 0, plan.to_rows, out=self._rows)
        if self.attended is not self._attended:
            self.attended.copy_(self._attended)
        return self.attended

    def _layer_views(self, cache: KVCache) -> list[_Layer]:
        groups, columns, split = len(cache.prefixes), self._columns, self._split
        prefix_k = cache.prefix_k[:, :groups, ..., :split].flatten(1, 2)
        prefix_v = cache.prefix_v[:, :groups, :, :split].flatten(1, 2)
        own_k, own_v = cache.own_k[:, :groups].flatten(1, 3), cache.own_v[:, :groups].flatten(1, 3)
        read_k, read_v = own_k[..., :columns], own_v[:, :, :columns]
        return [
            _Layer(*views) for views in zip(prefix_k, prefix_v, own_k, own_v, read_k, read_v, strict=True)
        ]

    def _new_mask(self, cache: KVCache, width: int) -> Tensor:
        """0 where a new token looks, -inf elsewhere: (group·kv, 1, width) when all rows look at equally many
        own positions, else (place, token, 1, width).
        """
        device, split, plan = cache.shape.device, self._split, self.plan
        sizes = torch.tensor([prefix.length for prefix in cache.prefixes], device=device)
        sizes = sizes.repeat_interleave(self.groups // len(sizes))
        mask = torch.full((self.groups, 1, width), -torch.inf, dtype=cache.shape.dtype, device=device)
        mask[..., :split].masked_fill_((torch.arange(split, device=device) < sizes[:, None])[:, None], 0.0)
        if plan.uniform:
            mask[..., split : split + plan.own_length] = 0.0
            return mask
        mask = mask.repeat(1, self.places // self.groups * self.tokens, 1)
        mask = mask.view(self.places, self.tokens, 1, width)
        steps = torch.arange(1, self.tokens + 1, device=device)
        seen = torch.arange(width - split, device=device) < (plan.lengths[:, None] + steps)[..., None]
        mask[..., split:].masked_fill_(seen.unsqueeze(2), 0.0)
        return mask

    def _show_new_columns(self) -> None:
        """One token later, each row sees one more own column."""
        if self.plan.uniform:
            self._mask[..., self._split + self.plan.own_length - 1].zero_()
        else:
            seen = (self.plan.lengths + self._split).unsqueeze(1)
            self._mask.view(self.places, -1).scatter_(1, seen, 0.0)
