"""BranchedAttention: causal attention of completions over their shared prompt and themselves, with its gradient.

For each branch the prompt's keys are multiplied once with the queries of all its completions, and each tile's own
keys with its own queries: no key is copied, nothing is computed across completions. Both score blocks go through
one softmax. The gradient is written by hand because it shares work that autograd cannot see:

    P = exp(S)                       S = q·kᵀ, the scale already in q
    o = (P·v) / l                    l = row sums of P over both blocks
    dP − δ = [do/l, −δ]·[v, 1]ᵀ      δ = Σ (do/l)·o: one product, v carries a column of ones
    dS = P ∘ (dP − δ),  dq = dS·k,  dk = dSᵀ·q,  dv = Pᵀ·(do/l)

No maximum is subtracted before exp while |q|·|k| bounds every score by SAFE_SCORE: the quotient is the same and
a pass over the largest tensors is saved. Beyond the bound, row maxima are subtracted as usual.

Heads are laid out as (kv head, sequence, time × queries per kv head): grouped queries are extra rows. Rotary
pairs are adjacent (`fused.py` permutes the projection's rows), so rotation is one complex product that writes
straight into this layout.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ai_trains_ai.engine.layout import Branch, Layout, Segment

SAFE_SCORE = 30.0
CELLS = 1 << 18
"""Scores computed at a time (all heads): 1 MB in float32, so a block stays in a core's second-level cache."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Head counts: `kv` key-value heads, `shared` query heads for each, `dim` elements a head."""

    kv: int
    shared: int
    dim: int

    @property
    def queries(self) -> int:
        return self.kv * self.shared * self.dim

    @property
    def keys(self) -> int:
        return self.kv * self.dim


@dataclass(slots=True)
class _Heads:
    """One segment's projections: q (kv, count, T × shared, dim), k (kv, count, T, dim), v (…, dim + 1)."""

    q: Tensor | None
    k: Tensor
    v: Tensor
    dk: Tensor | None = None
    dv: Tensor | None = None


@dataclass(slots=True)
class _Block:
    """A run of a segment's time steps [start, stop) and what the backward pass needs of it."""

    start: int
    stop: int
    negative_inverse_sum: Tensor
    scores: Tensor | None


@dataclass(slots=True)
class _Saved:
    heads: _Heads
    blocks: list[_Block] = field(default_factory=list)


class BranchedAttention:
    """One layer's attention over a layout; `forward` once, then `backward` once.

    cis: complex (positions, dim / 2), the rotation at each position.
    keep_scores: store the exponentiated scores for the backward pass instead of computing them again.
    """

    def __init__(self, geometry: Geometry, layout: Layout, cis: Tensor, *, keep_scores: bool, last: bool) -> None:
        self.geometry = geometry
        self.layout = layout
        self.cis = cis
        self.keep_scores = keep_scores
        self.last = last
        """In the last layer nobody reads what the prompts' rows attend to."""
        self.saved: dict[int, _Saved] = {}
        self.stabilise = True

    def forward(self, qkv_R: Tensor, out_R: Tensor) -> None:
        """Attend. qkv_R: (R, queries + 2 keys) with q scaled, unrotated; out_R: (R or M, queries), written."""
        self.stabilise = not self._scores_are_safe(qkv_R)
        for branch in self.layout.branches:
            prefix = None
            if branch.prefix is not None:
                prefix = self._split(branch.prefix, qkv_R, with_queries=not self.last)
                self._attend(branch.prefix, prefix, None, out_R)
            for tile in branch.tiles:
                self._attend(tile, self._split(tile, qkv_R), prefix, out_R)

    def backward(self, dout_R: Tensor, out_R: Tensor, dqkv_R: Tensor) -> None:
        """From the gradient of `out_R` to that of `qkv_R`, written to dqkv_R (all of it)."""
        geometry = self.geometry
        products = (dout_R * out_R).view(out_R.shape[0], -1, geometry.dim)
        delta_R = products.sum(-1)
        for branch in self.layout.branches:
            for tile in branch.tiles:
                self._differentiate(tile, branch, dout_R, delta_R, dqkv_R)
            if branch.prefix is not None:
                self._differentiate(branch.prefix, branch, dout_R, delta_R, dqkv_R)

    def _scores_are_safe(self, qkv_R: Tensor) -> bool:
        """Whether max |q| · max |k| bounds every score by SAFE_SCORE. Reads back a number: CPU only."""
        if qkv_R.device.type != "cpu":
            return False
        geometry = self.geometry
        heads = qkv_R[:, : geometry.queries + geometry.keys].view(qkv_R.shape[0], -1, geometry.dim)
        norms = torch.linalg.vector_norm(heads, dim=-1)
        queries = geometry.kv * geometry.shared
        return float(norms[:, :queries].max() * norms[:, queries:].max()) <= SAFE_SCORE

    def _split(self, segment: Segment, qkv_R: Tensor, *, with_queries: bool = True) -> _Heads:
        """Rotate and regroup a segment's rows by head."""
        g = self.geometry
        count, length = segment.count, segment.length
        rows = qkv_R[segment.rows].view(count, length, -1)
        cis = self.cis[segment.position : segment.position + length]
        q = None
        if with_queries:
            q = rows.new_empty(g.kv, count, length * g.shared, g.dim)
            torch.mul(
                _pairs(rows[..., : g.queries].view(count, length, g.kv, g.shared, g.dim)),
                cis[:, None, None],
                out=_pairs(q.view(g.kv, count, length, g.shared, g.dim)).permute(1, 2, 0, 3, 4),
            )
        k = rows.new_empty(g.kv, count, length, g.dim)
        keys = rows[..., g.queries : g.queries + g.keys].view(count, length, g.kv, g.dim)
        torch.mul(_pairs(keys), cis[:, None], out=_pairs(k).permute(1, 2, 0, 3))
        v = rows.new_empty(g.kv, count, length, g.dim + 1)
        v[..., g.dim] = 1.0
        v[..., : g.dim] = rows[..., g.queries + g.keys :].view(count, length, g.kv, g.dim).permute(2, 0, 1, 3)
        heads = _Heads(q, k, v)
        self.saved[segment.start] = _Saved(heads)
        return heads

    def _attend(self, segment: Segment, own: _Heads, prefix: _Heads | None, out_R: Tensor) -> None:
        if own.q is None:
            return
        g = self.geometry
        out = out_R[segment.rows].view(segment.count, segment.length, g.kv, g.shared, g.dim)
        out = out.permute(2, 0, 1, 3, 4)
        for start, stop in self._runs(segment, prefix):
            q_all, q_own = _queries(own.q, g.shared, start, stop, segment)
            buffer, first, second = self._exponentials(segment, own, prefix, start, stop)
            sums = second.sum(-1).view(g.kv, segment.count, stop - start, g.shared, 1)
            mixed = torch.bmm(second, own.v.flatten(0, 1)[:, :stop, : g.dim])
            if prefix is not None and first is not None:
                sums += first.sum(-1).view(sums.shape)
                mixed = mixed.view(q_all.shape)
                mixed.baddbmm_(first, prefix.v[:, 0, :, : g.dim])
            inverse = sums.reciprocal_()
            torch.mul(mixed.view(out[:, :, start:stop].shape), inverse, out=out[:, :, start:stop])
            kept = buffer if self.keep_scores else None
            self.saved[segment.start].blocks.append(_Block(start, stop, inverse.neg_(), kept))

    def _runs(self, segment: Segment, prefix: _Heads | None) -> list[tuple[int, int]]:
        """Time steps to do at once: all of them, or a few when one sequence alone has too many scores."""
        g = self.geometry
        keys = segment.length + (prefix.k.shape[2] if prefix is not None else 0)
        at_once = max(32, CELLS // (g.kv * g.shared * keys))
        if segment.count > 1 or segment.length <= at_once:
            return [(0, segment.length)]
        return [(s, min(s + at_once, segment.length)) for s in range(0, segment.length, at_once)]

    def _exponentials(
        self, segment: Segment, own: _Heads, prefix: _Heads | None, start: int, stop: int
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """exp(scores) of time steps [start, stop): one buffer, and its views over prompt keys and own keys."""
        assert own.q is not None
        g = self.geometry
        q_all, q_own = _queries(own.q, g.shared, start, stop, segment)
        rows = segment.count * (stop - start) * g.shared
        before = prefix.k.shape[2] if prefix is not None else 0
        split = g.kv * rows * before
        buffer = q_all.new_empty(split + g.kv * rows * stop)
        second = buffer[split:].view(g.kv * segment.count, -1, stop)
        torch.bmm(q_own, own.k.flatten(0, 1)[:, :stop].transpose(1, 2), out=second)
        second[:, :, start:] += _causal_mask(stop - start, g.shared, buffer)
        first = None
        if prefix is not None:
            first = buffer[:split].view(g.kv, rows, before)
            torch.bmm(q_all, prefix.k[:, 0].transpose(1, 2), out=first)
        if self.stabilise:
            top = second.amax(-1, keepdim=True)
            if first is not None:
                top = torch.maximum(top, first.amax(-1, keepdim=True).view(top.shape))
                first -= top.view(g.kv, rows, 1)
            second -= top
        buffer.exp_()
        return buffer, first, second

    def _differentiate(
        self, segment: Segment, branch: Branch, dout_R: Tensor, delta_R: Tensor, dqkv_R: Tensor
    ) -> None:
        """Gradient of one segment; tiles add to their prefix's dk and dv, so the prefix comes last."""
        g = self.geometry
        saved = self.saved.pop(segment.start)
        own = saved.heads
        prefix = None
        if branch.prefix is not None and segment is not branch.prefix:
            prefix = self.saved[branch.prefix.start].heads
            if prefix.dk is None:
                prefix.dk, prefix.dv = torch.zeros_like(prefix.k), torch.zeros_like(prefix.k)
        dk, dv = own.dk, own.dv
        if dk is None or dv is None:
            dk, dv = torch.zeros_like(own.k), torch.zeros_like(own.k)
        rows = dqkv_R[segment.rows].view(segment.count, segment.length, -1)
        cis = self.cis[segment.position : segment.position + segment.length].conj()
        if own.q is not None:
            dq = torch.empty_like(own.q)
            for block in saved.blocks:
                self._differentiate_block(segment, block, own, prefix, dout_R, delta_R, dq, dk, dv)
            torch.mul(
                _pairs(dq.view(g.kv, segment.count, segment.length, g.shared, g.dim)).permute(1, 2, 0, 3, 4),
                cis[:, None, None],
                out=_pairs(
                    rows[..., : g.queries].view(segment.count, segment.length, g.kv, g.shared, g.dim)
                ),
            )
        else:
            rows[..., : g.queries] = 0.0
        keys = rows[..., g.queries : g.queries + g.keys].view(segment.count, segment.length, g.kv, g.dim)
        torch.mul(_pairs(dk).permute(1, 2, 0, 3), cis[:, None], out=_pairs(keys))
        values = rows[..., g.queries + g.keys :].view(segment.count, segment.length, g.kv, g.dim)
        values.copy_(dv.permute(1, 2, 0, 3))

    def _differentiate_block(
        self,
        segment: Segment,
        block: _Block,
        own: _Heads,
        prefix: _Heads | None,
        dout_R: Tensor,
        delta_R: Tensor,
        dq: Tensor,
        dk: Tensor,
        dv: Tensor,
    ) -> None:
        g = self.geometry
        start, stop = block.start, block.stop
        steps = (segment.count, segment.length, g.kv, g.shared)
        assert own.q is not None
        q_all, q_own = _queries(own.q, g.shared, start, stop, segment)
        dq_all, dq_own = _queries(dq, g.shared, start, stop, segment)
        negative = block.negative_inverse_sum
        scaled = dout_R.new_empty(g.kv, segment.count, stop - start, g.shared, g.dim + 1)
        dout = dout_R[segment.rows].view(*steps, g.dim).permute(2, 0, 1, 3, 4)[:, :, start:stop]
        delta = delta_R[segment.rows].view(*steps).permute(2, 0, 1, 3)[:, :, start:stop]
        torch.mul(dout, negative.neg(), out=scaled[..., : g.dim])
        torch.mul(delta, negative[..., 0], out=scaled[..., g.dim])
        s_all, s_own = scaled.view(*q_all.shape[:2], -1), scaled.view(*q_own.shape[:2], -1)
        if block.scores is None:
            p_buffer, _, _ = self._exponentials(segment, own, prefix, start, stop)
        else:
            p_buffer = block.scores
        split = 0 if prefix is None else g.kv * q_all.shape[1] * prefix.k.shape[2]
        p_own = p_buffer[split:].view(*q_own.shape[:2], stop)
        d_buffer = torch.empty_like(p_buffer)
        d_own = d_buffer[split:].view(p_own.shape)
        torch.bmm(s_own, own.v.flatten(0, 1)[:, :stop].transpose(1, 2), out=d_own)
        if prefix is not None:
            p_all = p_buffer[:split].view(*q_all.shape[:2], -1)
            d_all = d_buffer[:split].view(p_all.shape)
            torch.bmm(s_all, prefix.v[:, 0].transpose(1, 2), out=d_all)
        d_buffer *= p_buffer
        dv.flatten(0, 1)[:, :stop].baddbmm_(p_own.transpose(1, 2), s_own[..., : g.dim])
        dk.flatten(0, 1)[:, :stop].baddbmm_(d_own.transpose(1, 2), q_own)
        torch.bmm(d_own, own.k.flatten(0, 1)[:, :stop], out=dq_own)
        if prefix is not None:
            assert prefix.dk is not None
            assert prefix.dv is not None
            prefix.dv[:, 0].baddbmm_(p_all.transpose(1, 2), s_all[..., : g.dim])
            prefix.dk[:, 0].baddbmm_(d_all.transpose(1, 2), q_all)
            dq_all.baddbmm_(d_all, prefix.k[:, 0])


def _pairs(x: Tensor) -> Tensor:
    """Adjacent pairs of the last dimension as complex numbers: a view."""
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


def _queries(q: Tensor, shared: int, start: int, stop: int, segment: Segment) -> tuple[Tensor, Tensor]:
    """Queries of time steps [start, stop) for the prompt's keys (kv, rows, dim) and own keys (kv × count, …).

    A partial run of time steps exists only for segments of one sequence, where both are the same slice.
    """
    if stop - start == segment.length:
        return q.flatten(1, 2), q.flatten(0, 1)
    part = q[:, 0, start * shared : stop * shared]
    return part, part


_MASKS: dict[tuple[int, int, torch.device, torch.dtype], Tensor] = {}


def _causal_mask(steps: int, shared: int, like: Tensor) -> Tensor:
    """(steps × shared, steps): 0 where a query may look, −inf above. Cached: small and few."""
    key = (steps, shared, like.device, like.dtype)
    if key not in _MASKS:
        mask = torch.full((steps, steps), float("-inf"), device=like.device, dtype=like.dtype).triu(1)
        _MASKS[key] = mask.repeat_interleave(shared, 0)
        if len(_MASKS) > 512:
            _MASKS.pop(next(iter(_MASKS)))
    return _MASKS[key]
