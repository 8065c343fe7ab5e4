"""KVCache: keys and values of a batch of sequences, shared prompts stored and attended once.

    group 0   prompt K/V ──┬─ slot 0: own K/V of row 0          rows    what the caller counts, 0..B-1
                           └─ slot 1: own K/V of row 1          groups  one a prompt; its rows share it
    group 1   prompt K/V ──┬─ slot 0: own K/V of row 2          slots    groups × width places for rows
                           └─ slot 1: (free)

The decoder's attention runs over slots (a dense rectangle, so that all queries of a group meet their prompt
in one product); everything else runs over rows. `keep` drops finished rows and closes up once a quarter of
the slots is free. `take` splits rows off, `join` brings them back or adds newcomers, so a server can batch
requests of any age and length continuously, and an agent's episode can wait for a tool outside the batch:

    cache, logits = decoder.prefill(prompts, samples=8)     # 8 rows a prompt
    logits = decoder.step(cache, tokens)                    # one token for every row
    waiting = cache.take([3]); cache.keep([0, 1, 2, 4])     # row 3 leaves the batch
    logits_3 = decoder.extend(waiting, [observation])       # it reads what its tool answered
    cache.join(waiting)                                     # and is back, as the last row

Memory: 2 · layers · kv_heads · head_dim elements a position; a prompt counts once a group.
Not covered: prompts that share only a part of their tokens, and paging (rows of very unequal length pay for
the longest).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

_ALIGN = 16
_CLOSE_UP_BELOW = 0.75
"""Share of slots in use at which `keep` closes up: that copies the caches, but free slots cost attention."""


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


@dataclass(eq=False, slots=True)
class Row:
    """A sequence's place: group, slot inside the group, and the number of its own cached positions."""

    group: int
    slot: int
    length: int


@dataclass(eq=False)
class KVCache:
    """See the module's text. Keys are stored (head_dim, position), values (position, head_dim).

    prefix_k: (layers, groups, kv_heads, head_dim, prefix_room)
    prefix_v: (layers, groups, kv_heads, prefix_room, head_dim)
    own_k:    (layers, groups, kv_heads, width, head_dim, room)
    own_v:    (layers, groups, kv_heads, width, room, head_dim)
    cleared:  own positions below this one hold numbers; beyond, it could be NaN (and 0 · NaN is NaN)
    version:  changes whenever rows move, so that what was derived from their places can be renewed.

    The first dimensions may be larger than what is in use: groups beyond len(prefixes) are spare.
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
    """Scratch of the decoder, valid for one version."""

    @classmethod
    def empty(cls, shape: CacheShape, groups: int, width: int, prefix_room: int, room: int) -> KVCache:
        """Storage for `groups` prompts with `width` rows each; no group and no row is in use yet."""
        lead = (shape.layers, groups, shape.kv_heads)
        room, columns = _round_room(room), round_up(prefix_room)

        def storage(*tail: int) -> Tensor:
            return torch.empty(*lead, *tail, dtype=shape.dtype, device=shape.device)

        dim = shape.head_dim
        prefix_k, prefix_v = storage(dim, columns), storage(columns, dim)
        prefix_k[..., prefix_room:].zero_()
        prefix_v[..., prefix_room:, :].zero_()
        own_k, own_v = storage(width, dim, room), storage(width, room, dim)
        return cls(shape, prefix_k, prefix_v, own_k, own_v, prefixes=[], rows=[])

    @property
    def width(self) -> int:
        return self.own_k.shape[3]

    @property
    def room(self) -> int:
        return self.own_k.shape[5]

    @property
    def positions(self) -> list[int]:
        """Of each row: how many tokens it has cached, its prompt included."""
        return [self.prefixes[row.group].length + row.length for row in self.rows]

    def open_rows(self, group: int, count: int) -> None:
        """Add rows that so far consist of the group's prompt alone."""
        taken = {row.slot for row in self.rows if row.group == group}
        free = [slot for slot in range(self.width) if slot not in taken]
        assert count <= len(free), "no free slot in the group"
        self.rows.extend(Row(group, slot, 0) for slot in free[:count])
        self.version += 1

    @torch.inference_mode()
    def reserve(self, tokens: int) -> None:
        """Make room for that many more positions in every row."""
        needed = max((row.length for row in self.rows), default=0) + tokens
        if needed > self.room:
            room = _round_room(max(needed, self.room + self.room // 2))
            self.own_k = _widened(self.own_k, 5, room)
            self.own_v = _widened(self.own_v, 4, room)
            self.version += 1

    @torch.inference_mode()
    def clear_to(self, position: int) -> None:
        """Let the own positions below this one be read, whether anything was stored there or not."""
        if position > self.cleared:
            self.own_k[..., self.cleared : position].zero_()
            self.own_v[..., self.cleared : position, :].zero_()
            self.cleared = position

    @torch.inference_mode()
    def keep(self, rows: Sequence[int], *, close_up: bool = True) -> None:
        """Only these rows stay, in this order; the others' slots, and prompts without rows, become free."""
        self.rows = [self.rows[row] for row in rows]
        self.version += 1
        counts = self._counts()
        width = max(counts.values(), default=1)
        slots = len(self.prefixes) * self.width
        if close_up and len(counts) * width <= _CLOSE_UP_BELOW * slots:
            self._regroup(sorted(counts), width, max(len(counts), 1))

    @torch.inference_mode()
    def take(self, rows: Sequence[int]) -> KVCache:
        """A cache of its own with copies of these rows, in this order; this one stays as it is."""
        places = [Row(r.group, r.slot, r.length) for r in (self.rows[row] for row in rows)]
        taken = replace(self, rows=places, prefixes=list(self.prefixes), scratch=None)
        counts = taken._counts()
        taken._regroup(sorted(counts), max(counts.values(), default=1), max(len(counts), 1))
        return taken

    @torch.inference_mode()
    def join(self, other: KVCache) -> None:
        """Append `other`'s rows. Prompts that both hold (after a `take`) are shared again. Spends `other`."""
        place = self._places_for(other)
        self._grow_for(other, place)
        for group, target in place.items():
            if target < len(self.prefixes):
                continue
            assert target == len(self.prefixes)
            self.prefixes.append(other.prefixes[group])
            length = other.prefixes[group].length
            self.prefix_k[:, target, ..., :length] = other.prefix_k[:, group, ..., :length]
            self.prefix_v[:, target, :, :length] = other.prefix_v[:, group, :, :length]
        for row in other.rows:
            self.open_rows(place[row.group], 1)
            new, n = self.rows[-1], row.length
            new.length = n
            self.own_k[:, new.group, :, new.slot, :, :n] = other.own_k[:, row.group, :, row.slot, :, :n]
            self.own_v[:, new.group, :, new.slot, :n] = other.own_v[:, row.group, :, row.slot, :n]
        other.rows = []

    def _counts(self) -> dict[int, int]:
        """Rows of each group that has any."""
        counts: dict[int, int] = {}
        for row in self.rows:
            counts[row.group] = counts.get(row.group, 0) + 1
        return counts

    def _places_for(self, other: KVCache) -> dict[int, int]:
        """`other`'s groups with rows -> the group here that has their prompt, or the next new one."""
        known = {id(prefix): group for group, prefix in enumerate(self.prefixes)}
        place: dict[int, int] = {}
        following = len(self.prefixes)
        for group in sorted(other._counts()):
            found = known.get(id(other.prefixes[group]))
            place[group] = following if found is None else found
            following += found is None
        return place

    def _grow_for(self, other: KVCache, place: dict[int, int]) -> None:
        """Storage for `other`'s rows. Groups grow by half at least: most joins copy newcomers only."""
        counts = self._counts()
        for group, count in other._counts().items():
            counts[place[group]] = counts.get(place[group], 0) + count
        width = max([self.width, *counts.values()])
        groups = max([len(self.prefixes), *(target + 1 for target in place.values())])
        have: int = self.own_k.shape[1]
        if width > self.width or groups > have:
            capacity = have if groups <= have else max(groups, have + have // 2)
            self._regroup(list(range(len(self.prefixes))), width, capacity)
        longest = max((other.prefixes[group].length for group in place), default=0)
        if longest > self.prefix_v.shape[3]:
            self.prefix_k = _widened(self.prefix_k, 4, round_up(longest))
            self.prefix_v = _widened(self.prefix_v, 3, round_up(longest))
        longest = max((row.length for row in other.rows), default=0)
        self.reserve(longest)
        self.clear_to(longest)

    def _regroup(self, groups: list[int], width: int, capacity: int) -> None:
        """Copy `groups` and their rows, packed into each group's first slots, into new storage.

        capacity: groups of the new storage; the spare ones hold leftovers of group 0, never read.
        """
        heads, old_width = self.shape.kv_heads, self.width
        place = {group: i for i, group in enumerate(groups)}
        source = [[0] * width for _ in range(capacity)]
        filled = [0] * capacity
        for row in self.rows:
            group = place[row.group]
            source[group][filled[group]] = row.group * heads * old_width + row.slot
            row.group, row.slot = group, filled[group]
            filled[group] += 1
        device = self.shape.device
        first = torch.tensor(source, device=device)[:, None, :]
        flat = (first + torch.arange(heads, device=device)[None, :, None] * old_width).flatten()
        lead = (self.shape.layers, capacity, heads, width)
        self.own_k = self.own_k.flatten(1, 3).index_select(1, flat).view(*lead, *self.own_k.shape[4:])
        self.own_v = self.own_v.flatten(1, 3).index_select(1, flat).view(*lead, *self.own_v.shape[4:])
        which = torch.tensor(groups + [0] * (capacity - len(groups)), dtype=torch.long, device=device)
        self.prefix_k = self.prefix_k.index_select(1, which)
        self.prefix_v = self.prefix_v.index_select(1, which)
        self.prefixes = [self.prefixes[group] for group in groups]
        self.version += 1


def round_up(length: int) -> int:
    """The next multiple of 16: rows of that length fill whole vectors."""
    return -(-length // _ALIGN) * _ALIGN


def _round_room(length: int) -> int:
    """An odd multiple of 16: a power of two would map a head's elements at one position to one cache set."""
    return (-(-length // _ALIGN) | 1) * _ALIGN


def _widened(tensor: Tensor, dim: int, size: int) -> Tensor:
    shape = list(tensor.shape)
    shape[dim] = size
    wide = tensor.new_zeros(shape)
    wide.narrow(dim, 0, tensor.shape[dim]).copy_(tensor)
    return wide
