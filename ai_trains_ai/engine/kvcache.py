"""KVCache: keys and values of a batch of sequences, shared prompts stored and attended once.

    group 0   prompt K/V  <── row 0: own K/V        rows    sequences, 0..B-1, densely stored
                          <── row 1: own K/V        groups  one a prompt; its rows share it
    group 1   prompt K/V  <── row 2: own K/V

`keep` drops finished rows; the last ones move into the holes, so the batch stays dense. `take` copies rows out
and `join` appends them, or newcomers: a server can batch requests of any age and length continuously, and an
agent's episode can wait for a tool outside the batch:

    cache, logits = decoder.prefill(prompts, samples=8)     # 8 rows a prompt
    logits = decoder.step(cache, tokens)                    # one token for every row
    waiting = cache.take([3])                               # row 3 leaves the batch ...
    order = cache.keep([0, 1, 2, 4])                        # ... and 4 has moved: order says to where
    logits_3 = decoder.extend(waiting, [observation])       # row 3 reads what its tool answered
    cache.join(waiting)                                     # and is back, as the last row

Memory: 2 · layers · kv_heads · head_dim elements a position; a prompt counts once a group.
Not covered: prompts that share only a part of their tokens, and paging (rows of very unequal length pay for
the longest).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

_ALIGN = 16


@dataclass(eq=False, slots=True)
class Prefix:
    """Identity and length of a prompt's cache: two rows share a prompt iff they hold the same object."""

    length: int


@dataclass(frozen=True, slots=True)
class CacheShape:
    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


@dataclass(slots=True)
class Row:
    """A sequence's group, and the number of its own cached positions."""

    group: int
    length: int


@dataclass(eq=False)
class KVCache:
    """See the module's text. Keys are stored (head_dim, position), values (position, head_dim).

    prefix_k: (layers, groups, kv_heads, head_dim, prefix_room)
    prefix_v: (layers, groups, kv_heads, prefix_room, head_dim)
    own_k:    (layers, rows, kv_heads, head_dim, room)
    own_v:    (layers, rows, kv_heads, room, head_dim)
    cleared:  own positions below this one hold numbers; beyond, it could be NaN (and 0 · NaN is NaN)
    version:  changes whenever rows move, so that what was derived from their places can be renewed.

    Groups and rows beyond len(prefixes) and len(rows) are spare.
    """

    shape: CacheShape
    prefix_k: Tensor
    prefix_v: Tensor
    own_k: Tensor
    own_v: Tensor
    prefixes: list[Prefix]
    rows: list[Row]
    cleared: int = 0
    version: int = 0
    scratch: object = field(default=None, repr=False)
    """The decoder's, valid for one version."""

    @classmethod
    def empty(cls, shape: CacheShape, prompts: Sequence[int], counts: Sequence[int], room: int) -> KVCache:
        """Storage for prompts of the given lengths, with so many rows each, still to be filled."""
        longest = max(prompts)
        room, columns = _round_room(room), round_up(longest)

        def storage(*sizes: int) -> Tensor:
            return torch.empty(shape.layers, *sizes, dtype=shape.dtype, device=shape.device)

        dim, heads = shape.head_dim, shape.kv_heads
        prefix_k = storage(len(prompts), heads, dim, columns)
        prefix_v = storage(len(prompts), heads, columns, dim)
        prefix_k[..., longest:].zero_()
        prefix_v[..., longest:, :].zero_()
        own_k, own_v = storage(sum(counts), heads, dim, room), storage(sum(counts), heads, room, dim)
        prefixes = [Prefix(length) for length in prompts]
        rows = [Row(group, 0) for group, count in enumerate(counts) for _ in range(count)]
        return cls(shape, prefix_k, prefix_v, own_k, own_v, prefixes, rows)

    @property
    def room(self) -> int:
        return self.own_k.shape[4]

    @property
    def positions(self) -> list[int]:
        """Of each row: how many tokens it has cached, its prompt included."""
        return [self.prefixes[row.group].length + row.length for row in self.rows]

    @property
    def longest(self) -> int:
        """Own positions of the longest row."""
        return max((row.length for row in self.rows), default=0)

    @torch.inference_mode()
    def reserve(self, tokens: int) -> None:
        """Make room for that many more positions in every row."""
        needed = self.longest + tokens
        if needed > self.room:
            room = _round_room(max(needed, self.room + self.room // 2))
            self.own_k, self.own_v = _widened(self.own_k, 4, room), _widened(self.own_v, 3, room)
            self.version += 1

    @torch.inference_mode()
    def clear_to(self, position: int) -> None:
        """Let the own positions below this one be read, whether anything was stored there or not."""
        if position > self.cleared:
            self.own_k[..., self.cleared : position].zero_()
            self.own_v[..., self.cleared : position, :].zero_()
            self.cleared = position

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> list[int]:
        """Only these rows stay. Returns which old row stands at each new place."""
        order, holes, movers = _filled(len(self.rows), set(rows))
        length = self.longest
        if movers:
            self.own_k[:, holes, ..., :length] = self.own_k[:, movers, ..., :length]
            self.own_v[:, holes, :, :length] = self.own_v[:, movers, :, :length]
        self.rows = [self.rows[row] for row in order]
        groups, holes, movers = _filled(len(self.prefixes), {row.group for row in self.rows})
        if movers:
            self.prefix_k[:, holes] = self.prefix_k[:, movers]
            self.prefix_v[:, holes] = self.prefix_v[:, movers]
        self.prefixes = [self.prefixes[group] for group in groups]
        place = {group: i for i, group in enumerate(groups)}
        for row in self.rows:
            row.group = place[row.group]
        self.version += 1
        return order

    @torch.inference_mode()
    def take(self, rows: Sequence[int]) -> KVCache:
        """A cache of its own with copies of these rows, in this order; this one stays as it is."""
        groups = sorted({self.rows[row].group for row in rows})
        place = {group: i for i, group in enumerate(groups)}
        which, from_groups = self._index(rows), self._index(groups)
        return KVCache(
            self.shape,
            self.prefix_k.index_select(1, from_groups),
            self.prefix_v.index_select(1, from_groups),
            self.own_k.index_select(1, which),
            self.own_v.index_select(1, which),
            [self.prefixes[group] for group in groups],
            [Row(place[self.rows[row].group], self.rows[row].length) for row in rows],
            cleared=self.cleared,
        )

    @torch.inference_mode()
    def join(self, other: KVCache) -> None:
        """Append `other`'s rows. Prompts that both hold (after a `take`) are shared again. Spends `other`."""
        known = {id(prefix): group for group, prefix in enumerate(self.prefixes)}
        fresh = [group for group, prefix in enumerate(other.prefixes) if id(prefix) not in known]
        self._grow_for(other, fresh)
        start, end = len(self.prefixes), len(self.prefixes) + len(fresh)
        columns, length = other.prefix_v.shape[3], other.longest
        self.prefix_k[:, start:end, ..., :columns] = other.prefix_k[:, fresh]
        self.prefix_v[:, start:end, :, :columns] = other.prefix_v[:, fresh]
        self.prefixes += [other.prefixes[group] for group in fresh]
        known = {id(prefix): group for group, prefix in enumerate(self.prefixes)}
        first, last, came = len(self.rows), len(self.rows) + len(other.rows), len(other.rows)
        self.own_k[:, first:last, ..., :length] = other.own_k[:, :came, ..., :length]
        self.own_v[:, first:last, :, :length] = other.own_v[:, :came, :, :length]
        self.rows += [Row(known[id(other.prefixes[row.group])], row.length) for row in other.rows]
        self.version += 1
        other.rows = []

    def _grow_for(self, other: KVCache, fresh: Sequence[int]) -> None:
        """Storage for `other`'s rows and `fresh` groups. Grows by half at least: most joins copy newcomers only."""
        columns = other.prefix_v.shape[3]
        if columns > self.prefix_v.shape[3]:
            self.prefix_k, self.prefix_v = (
                _widened(self.prefix_k, 4, columns),
                _widened(self.prefix_v, 3, columns),
            )
        groups, rows = len(self.prefixes) + len(fresh), len(self.rows) + len(other.rows)
        have = self.prefix_k.shape[1]
        if groups > have:
            groups = max(groups, have + have // 2)
            self.prefix_k, self.prefix_v = (
                _widened(self.prefix_k, 1, groups),
                _widened(self.prefix_v, 1, groups),
            )
        have = self.own_k.shape[1]
        if rows > have:
            rows = max(rows, have + have // 2)
            self.own_k, self.own_v = _widened(self.own_k, 1, rows), _widened(self.own_v, 1, rows)
        self.reserve(max(0, other.longest - self.longest))
        self.clear_to(other.longest)

    def _index(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.shape.device)


def round_up(length: int) -> int:
    """The next multiple of 16: rows of that length fill whole vectors."""
    return -(-length // _ALIGN) * _ALIGN


def _filled(count: int, staying: set[int]) -> tuple[list[int], list[int], list[int]]:
    """Close the holes that leaving ones of 0..count-1 make, by moving the last ones: the old index at each new
    place, the holes, and who moves into them.
    """
    kept = len(staying)
    holes = [i for i in range(kept) if i not in staying]
    movers = [i for i in range(kept, count) if i in staying]
    order = list(range(kept))
    for hole, mover in zip(holes, movers, strict=True):
        order[hole] = mover
    return order, holes, movers


def _round_room(length: int) -> int:
    """An odd multiple of 16: a power of two would map a head's elements at one position to one cache set."""
    return (-(-length // _ALIGN) | 1) * _ALIGN


def _widened(tensor: Tensor, dim: int, size: int) -> Tensor:
    shape = list(tensor.shape)
    shape[dim] = size
    wide = tensor.new_zeros(shape)
    wide.narrow(dim, 0, tensor.shape[dim]).copy_(tensor)
    return wide
