"""HeadLayout: where the queries, keys and values of a layout's segments lie, as strided views.

Projections come as rows of tokens (R, width); attention wants, for each segment, matrices by head. Both are
described once a layout by sizes and strides, and every layer takes its views from there with one call each:
at a few thousand tokens, chains of `view`, `permute` and slices would take longer than the arithmetic.

Heads lie in one flat buffer: all queries, then all keys, then all values, and inside each, segment by segment,

    (group, kv head, sequence, time, queries per kv head, dim)      keys and values without the fifth

so that groups × kv heads, or those times sequences, are one dimension for a batched product. Values are dim + 2
wide: column dim holds 1, for sums inside products, and the last keeps rows even, as complex views need.
Rotary pairs are adjacent, and a rotation is a product of complex numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ai_trains_ai.engine.layout import Layout, Segment

CELLS = 1 << 19
"""Scores computed at a time (all heads): 2 MB in float32, about a core's second-level cache."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Head counts: `kv` key-value heads, `shared` query heads for each, `dim` elements a head (even)."""

    kv: int
    shared: int
    dim: int

    @property
    def queries(self) -> int:
        return self.kv * self.shared * self.dim

    @property
    def keys(self) -> int:
        return self.kv * self.dim

    @property
    def width(self) -> int:
        """Columns of a qkv row."""
        return self.queries + 2 * self.keys


@dataclass(frozen=True, slots=True)
class Strided:
    """A view into a flat buffer."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, base: Tensor) -> Tensor:
        return base.as_strided(self.size, self.stride, self.offset)

    @property
    def pairs(self) -> Strided:
        """The same place in units of complex numbers."""
        return Strided(
            (*self.size[:-1], self.size[-1] // 2),
            (*(stride // 2 for stride in self.stride[:-1]), 1),
            self.offset // 2,
        )

    @property
    def transposed(self) -> Strided:
        *sizes, rows, columns = self.size
        *strides, down, across = self.stride
        return Strided((*sizes, columns, rows), (*strides, across, down), self.offset)

    def columns(self, count: int) -> Strided:
        """The first `count` of the last dimension."""
        return Strided((*self.size[:-1], count), self.stride, self.offset)


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys and values of a part by lane: (lanes, keys, dim); `sums` are transposed values with their ones."""

    k: Strided
    k_transposed: Strided
    v: Strided
    v_sums: Strided


@dataclass(frozen=True, slots=True)
class Part:
    """Scores computed at a time: some groups of a segment, and all its time steps [start, stop).

    Fewer than all time steps only for a segment of one sequence a group, one group at a time; `stop` own keys
    are then visible. Lanes are (group, kv head) toward the prompts' keys, (group, kv head, sequence) toward own.
    q_prompt (lanes, rows, dim), q_own (lanes, rows, dim): the same queries.
    rows: of the result (group, kv head, sequence, time, queries per kv head, dim) inside (R, queries);
    sums: likewise (…, 1) inside (R, heads).
    """

    groups: slice
    start: int
    stop: int
    q_prompt: Strided
    q_own: Strided
    own: Keys
    prompt: Keys | None
    rows: Strided
    sums: Strided

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.size

    @property
    def own_scores(self) -> tuple[int, int, int]:
        return self.q_own.size[0], self.q_own.size[1], self.stop

    @property
    def prompt_scores(self) -> tuple[int, int, int]:
        assert self.prompt is not None
        return self.q_prompt.size[0], self.q_prompt.size[1], self.prompt.k.size[1]


@dataclass(frozen=True, slots=True)
class SegmentHeads:
    """A segment's views: q, k, v in the flat heads buffer, q_rows, k_rows, v_rows in (R, width); parts.

    q, k, q_rows and k_rows count in complex numbers, one a rotary pair.
    """

    segment: Segment
    q: Strided
    k: Strided
    v: Strided
    q_rows: Strided
    k_rows: Strided
    v_rows: Strided
    parts: tuple[Part, ...]


class HeadLayout:
    """Views of every segment of a layout, by the segment's first row; `size` elements make a heads buffer.

    gradients: the buffer holds gradients, values without their two extra columns, so that products can be
    written to it directly.
    """

    def __init__(self, layout: Layout, geometry: Geometry, *, gradients: bool = False) -> None:
        self.geometry = geometry
        rows = int(layout.tokens_R.shape[0])
        self.keys_offset = rows * geometry.queries
        self.values_offset = self.keys_offset + rows * geometry.keys
        self.values_width = geometry.dim + (0 if gradients else 2)
        self.size = self.values_offset + rows * geometry.kv * self.values_width
        self.segments: dict[int, SegmentHeads] = {}
        for branch in layout.branches:
            if branch.prefix is not None:
                self.segments[branch.prefix.start] = self._segment(branch.prefix, None)
            for tile in branch.tiles:
                self.segments[tile.start] = self._segment(tile, branch.prefix)

    def new_buffer(self, like: Tensor) -> Tensor:
        """A heads buffer with the values' ones in place."""
        buffer = like.new_empty(self.size)
        buffer[self.values_offset :].view(-1, self.values_width)[:, self.geometry.dim] = 1.0
        return buffer

    def _segment(self, segment: Segment, prefix: Segment | None) -> SegmentHeads:
        g = self.geometry
        length, dim, shared = segment.length, g.dim, g.shared
        lanes = (segment.groups, g.kv, segment.count)
        per_row = segment.count * length
        group_rows = g.width * per_row

        def rows(column: int, heads: int) -> Strided:
            return Strided(
                (*lanes, length, heads, dim),
                (group_rows, heads * dim, length * g.width, g.width, dim, 1),
                segment.start * g.width + column,
            )

        def by_head(offset: int, row_size: int, heads: int, width: int) -> Strided:
            one = length * row_size
            return Strided(
                (*lanes, length, heads, dim),
                (g.kv * segment.count * one, segment.count * one, one, row_size, width, 1),
                offset + segment.start * g.kv * row_size,
            )

        return SegmentHeads(
            segment=segment,
            q=by_head(0, shared * dim, shared, dim).pairs,
            k=by_head(self.keys_offset, dim, 1, dim).pairs,
            v=by_head(self.values_offset, self.values_width, 1, self.values_width),
            q_rows=rows(0, shared).pairs,
            k_rows=rows(g.queries, 1).pairs,
            v_rows=rows(g.queries + g.keys, 1),
            parts=tuple(
                self._part(segment, prefix, groups, start, stop)
                for groups, start, stop in _parts(segment, prefix, g)
            ),
        )

    def _part(self, segment: Segment, prefix: Segment | None, groups: slice, start: int, stop: int) -> Part:
        g = self.geometry
        steps, count, length = stop - start, segment.count, segment.length
        chosen = groups.stop - groups.start
        row_size = g.shared * g.dim
        offset = (segment.start + groups.start * count * length) * g.kv * row_size + start * row_size
        one = length * row_size
        first_row = segment.start + groups.start * count * length + start

        def result(width: int, last: int) -> Strided:
            return Strided(
                (chosen, g.kv, count, steps, g.shared, last),
                (count * length * width, g.shared * last, length * width, width, last, 1),
                first_row * width,
            )

        return Part(
            groups=groups,
            start=start,
            stop=stop,
            q_prompt=Strided(
                (chosen * g.kv, count * steps * g.shared, g.dim), (count * one, g.dim, 1), offset
            ),
            q_own=Strided((chosen * g.kv * count, steps * g.shared, g.dim), (one, g.dim, 1), offset),
            own=self._keys(segment, groups, stop),
            prompt=None if prefix is None else self._keys(prefix, groups, prefix.length),
            rows=result(g.queries, g.dim),
            sums=result(g.kv * g.shared, 1),
        )

    def _keys(self, segment: Segment, groups: slice, visible: int) -> Keys:
        g = self.geometry
        lanes = (groups.stop - groups.start) * g.kv * segment.count
        before = (segment.start + groups.start * segment.count * segment.length) * g.kv
        length, width = segment.length, self.values_width
        k = Strided((lanes, visible, g.dim), (length * g.dim, g.dim, 1), self.keys_offset + before * g.dim)
        v = Strided(
            (lanes, visible, g.dim + 1), (length * width, width, 1), self.values_offset + before * width
        )
        return Keys(k, k.transposed, v.columns(g.dim), v.transposed)


def _parts(segment: Segment, prefix: Segment | None, g: Geometry) -> list[tuple[slice, int, int]]:
    """Groups and time steps to do at once, so that their scores fit the cache."""
    keys = segment.length + (prefix.length if prefix is not None else 0)
    heads = g.kv * g.shared
    at_once = CELLS // (heads * segment.count * segment.length * keys)
    if at_once >= 1 or segment.count > 1:
        step = max(1, at_once)
        starts = range(0, segment.groups, step)
        return [(slice(i, min(i + step, segment.groups)), 0, segment.length) for i in starts]
    steps = max(32, CELLS // (heads * keys))
    return [
        (slice(i, i + 1), start, min(start + steps, segment.length))
        for i in range(segment.groups)
        for start in range(0, segment.length, steps)
    ]
