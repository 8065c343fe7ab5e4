"""BranchedAttention: causal attention of completions over their shared prompt and themselves, with its gradient.

For each branch the prompts' keys are multiplied once with the queries of all their completions, and each tile's
own keys with its own queries: no key is copied, nothing is computed across completions. Both score blocks go
through one softmax. The gradient is written by hand because it shares work that autograd cannot see:

    P = exp(S)                       S = q·kᵀ, the scale already in q
    o = (P·v) / l                    l = row sums of P over both blocks
    dP − δ = [do/l, −δ]·[v, 1]ᵀ      δ = Σ (do/l)·o: one product, v carries a column of ones
    dS = P ∘ (dP − δ),  dq = dS·k,  dk = dSᵀ·q,  dv = Pᵀ·(do/l)

No maximum is subtracted before exp while |q|·|k| bounds every score by SAFE_SCORE: the quotient is the same and
passes over the largest tensors are saved. Beyond the bound, row maxima are subtracted as usual. Masks are zeros
multiplied in after exp: the exponential of −inf, or of what ends below the normal numbers, is 10 to 100 times
slower on a CPU than that of an ordinary number. `heads.py` says where everything lies.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ai_trains_ai.engine.heads import Geometry, HeadLayout, Part
from ai_trains_ai.engine.layout import Layout, Segment

SAFE_SCORE = 30.0
LEAST_SCORE = -80.0
"""Scores this far below their row's maximum count as this far: e^−80 is still a normal number."""


class AttentionPlan:
    """What all layers share: rotations, masks and views of a layout's segments, made on first use.

    cis: complex (positions, dim / 2), the rotation at each position.
    keep_scores: store exponentiated scores for the backward pass instead of computing them again.
    """

    def __init__(self, layout: Layout, geometry: Geometry, cis: Tensor, *, keep_scores: bool) -> None:
        self.layout = layout
        self.geometry = geometry
        self.heads = HeadLayout(layout, geometry)
        self.gradients = HeadLayout(layout, geometry, gradients=True)
        self.cis = cis
        self.keep_scores = keep_scores
        self._rotations: dict[tuple[int, bool], Tensor] = {}
        self._causal: dict[int, Tensor] = {}
        self._real: dict[int, Tensor] = {}

    def rotation(self, segment: Segment, *, back: bool = False) -> Tensor:
        """Complex (groups or 1, 1, 1, length, 1, dim / 2)."""
        key = (segment.start, back)
        if key not in self._rotations:
            same = len(set(segment.first)) == 1
            first = torch.tensor(segment.first[:1] if same else segment.first)
            positions = (first[:, None] + torch.arange(segment.length)).clamp_(max=self.cis.shape[0] - 1)
            cis = self.cis[positions.to(self.cis.device)][:, None, None, :, None]
            self._rotations[key] = cis.conj().resolve_conj() if back else cis
        return self._rotations[key]

    def real_keys(self, prefix: Segment) -> Tensor | None:
        """(groups, 1, 1, length − shortest): 1 on a prompt's rows, 0 on its padding; None without padding."""
        shortest = min(prefix.lengths)
        if shortest == prefix.length:
            return None
        if prefix.start not in self._real:
            real = torch.arange(shortest, prefix.length) < torch.tensor(prefix.lengths)[:, None]
            self._real[prefix.start] = real[:, None, None].to(self.cis.device, torch.float32)
        return self._real[prefix.start]

    def causal(self, steps: int) -> Tensor:
        """(steps × shared, steps): 1 where a query may look, 0 above."""
        if steps not in self._causal:
            mask = torch.ones(steps, steps, device=self.cis.device).tril_()
            self._causal[steps] = mask.repeat_interleave(self.geometry.shared, 0)
        return self._causal[steps]


@dataclass(slots=True)
class _Sums:
    """Of a part, for the backward pass: 1 / l, (group, kv head, sequence, time, queries per kv head, 1), and P."""

    inverse: Tensor
    scores: Tensor | None


class BranchedAttention:
    """One layer's attention over a layout; `forward` once, then `backward` once.

    trims: nobody reads what the prompts' rows attend to, as in the last layer when they predict nothing.
    """

    def __init__(self, plan: AttentionPlan, *, trims: bool) -> None:
        self.plan = plan
        self.geometry = plan.geometry
        self.trims = trims
        self.stabilise = True
        self.heads = torch.empty(0)
        self.sums: dict[int, list[_Sums]] = {}

    def forward(self, qkv_R: Tensor, *, keep: bool) -> Tensor:
        """Attend. qkv_R: (R, queries + 2 keys), q scaled, unrotated, contiguous.

        Returns (R, queries), or when it trims the predicting rows: (M, queries).
        """
        plan = self.plan
        self.stabilise = not self._scores_are_safe(qkv_R)
        self.heads = plan.heads.new_buffer(qkv_R)
        rows, heads = _pairs(qkv_R), _pairs(self.heads)
        out_R = qkv_R.new_empty(
            plan.layout.predicting if self.trims else plan.layout.rows, self.geometry.queries
        )
        for branch in plan.layout.branches:
            if branch.prefix is not None:
                self._split(branch.prefix, qkv_R, rows, heads)
                if not self.trims:
                    self._attend(branch.prefix, None, out_R, keep=keep)
            for tile in branch.tiles:
                self._split(tile, qkv_R, rows, heads)
                self._attend(tile, branch.prefix, out_R, keep=keep)
        return out_R

    def backward(self, dout_R: Tensor, out_R: Tensor) -> Tensor:
        """From the gradient of `forward`'s result to that of qkv_R."""
        plan, g = self.plan, self.geometry
        delta_R = (dout_R * out_R).view(out_R.shape[0], -1, g.dim).sum(-1).neg_()
        dqkv_R = dout_R.new_empty(plan.layout.tokens_R.shape[0], g.width)
        dheads = dout_R.new_zeros(plan.gradients.size)
        rows, heads = _pairs(dqkv_R), _pairs(dheads)
        for branch in plan.layout.branches:
            for tile in branch.tiles:
                self._differentiate(tile, branch.prefix, dout_R, delta_R, dheads)
                self._unsplit(tile, dheads, dqkv_R, rows, heads)
            if branch.prefix is not None:
                if not self.trims:
                    self._differentiate(branch.prefix, None, dout_R, delta_R, dheads)
                self._unsplit(branch.prefix, dheads, dqkv_R, rows, heads)
        self.heads = torch.empty(0)
        return dqkv_R

    def _scores_are_safe(self, qkv_R: Tensor) -> bool:
        """Whether max |q| · max |k| bounds every score by SAFE_SCORE. Reads back a number: CPU only."""
        if qkv_R.device.type != "cpu":
            return False
        g = self.geometry
        heads = qkv_R[:, : g.queries + g.keys].view(qkv_R.shape[0], -1, g.dim)
        largest = torch.linalg.vector_norm(heads, dim=-1).amax(0).tolist()
        return bool(max(largest[: g.kv * g.shared]) * max(largest[g.kv * g.shared :]) <= SAFE_SCORE)

    def _split(self, segment: Segment, qkv_R: Tensor, rows: Tensor, heads: Tensor) -> None:
        """Rotate a segment's rows and regroup them by head. rows, heads: both buffers as complex numbers."""
        views = self.plan.heads.segments[segment.start]
        cis = self.plan.rotation(segment)
        torch.mul(views.q_rows.of(rows), cis, out=views.q.of(heads))
        torch.mul(views.k_rows.of(rows), cis, out=views.k.of(heads))
        views.v.of(self.heads).copy_(views.v_rows.of(qkv_R))

    def _unsplit(self, segment: Segment, dheads: Tensor, dqkv_R: Tensor, rows: Tensor, heads: Tensor) -> None:
        """Gradients by head back to rows. rows, heads: both buffers as complex numbers."""
        views = self.plan.gradients.segments[segment.start]
        cis = self.plan.rotation(segment, back=True)
        torch.mul(views.q.of(heads), cis, out=views.q_rows.of(rows))
        torch.mul(views.k.of(heads), cis, out=views.k_rows.of(rows))
        views.v_rows.of(dqkv_R).copy_(views.v.of(dheads))

    def _attend(self, segment: Segment, prefix: Segment | None, out_R: Tensor, *, keep: bool) -> None:
        kept = []
        for part in self.plan.heads.segments[segment.start].parts:
            buffer, first, second = self._exponentials(part, prefix)
            sums = second.sum(-1)
            mixed = torch.bmm(second, part.own.v.of(self.heads))
            if part.prompt is not None:
                sums += first.sum(-1).view(sums.shape)
                mixed.view(*first.shape[:2], -1).baddbmm_(first, part.prompt.v.of(self.heads))
            inverse = sums.reciprocal_().view(part.sums.size)
            torch.mul(mixed.view(part.rows.size), inverse, out=part.rows.of(out_R))
            kept.append(_Sums(inverse, buffer if self.plan.keep_scores else None))
        if keep:
            self.sums[segment.start] = kept

    def _exponentials(self, part: Part, prefix: Segment | None) -> tuple[Tensor, Tensor, Tensor]:
        """exp(scores) of a part: one buffer, and its views (lanes, rows, keys) over prompt keys and own keys."""
        heads = self.heads
        buffer, first, second = _score_views(part, heads)
        torch.bmm(part.q_own.of(heads), part.own.k_transposed.of(heads), out=second)
        if part.prompt is not None:
            torch.bmm(part.q_prompt.of(heads), part.prompt.k_transposed.of(heads), out=first)
        causal = self.plan.causal(part.stop - part.start)
        newest = second if part.start == 0 else second[..., part.start :]
        real = None if prefix is None else self.plan.real_keys(prefix)
        padded = first
        if real is not None:
            real = real[part.groups]
            padded = first.view(real.shape[0], -1, *first.shape[1:])[..., -real.shape[-1] :]
        if self.stabilise:
            newest.masked_fill_(causal == 0.0, float("-inf"))
            if real is not None:
                padded.masked_fill_(real == 0.0, float("-inf"))
            _subtract_maxima(first, second)
        buffer.exp_()
        newest *= causal
        if real is not None:
            padded *= real
        return buffer, first, second

    def _differentiate(
        self, segment: Segment, prefix: Segment | None, dout_R: Tensor, delta_R: Tensor, dheads: Tensor
    ) -> None:
        """Add a segment's gradients to `dheads`: its own queries, keys and values, and its prompts' keys."""
        parts = self.plan.heads.segments[segment.start].parts
        gradients = self.plan.gradients.segments[segment.start].parts
        for part, gradient, sums in zip(parts, gradients, self.sums.pop(segment.start), strict=True):
            self._differentiate_part(part, gradient, prefix, sums, dout_R, delta_R, dheads)

    def _differentiate_part(
        self,
        part: Part,
        gradient: Part,
        prefix: Segment | None,
        sums: _Sums,
        dout_R: Tensor,
        delta_R: Tensor,
        dheads: Tensor,
    ) -> None:
        heads, dim = self.heads, self.geometry.dim
        scaled = dout_R.new_empty(*part.rows.size[:-1], dim + 1)
        torch.mul(part.rows.of(dout_R), sums.inverse, out=scaled[..., :dim])
        torch.mul(part.sums.of(delta_R), sums.inverse, out=scaled[..., dim:])
        p, p_first, p_second = (
            self._exponentials(part, prefix)
            if sums.scores is None
            else _score_views(part, sums.scores, sums.scores)
        )
        d, d_first, d_second = _score_views(part, heads)
        s_own = scaled.view(*part.q_own.size[:2], dim + 1)
        torch.bmm(s_own, part.own.v_sums.of(heads), out=d_second)
        s_prompt = scaled
        if part.prompt is not None:
            s_prompt = scaled.view(*part.q_prompt.size[:2], dim + 1)
            torch.bmm(s_prompt, part.prompt.v_sums.of(heads), out=d_first)
        d *= p
        gradient.own.v.of(dheads).baddbmm_(p_second.transpose(1, 2), s_own[..., :dim])
        gradient.own.k.of(dheads).baddbmm_(d_second.transpose(1, 2), part.q_own.of(heads))
        gradient.q_own.of(dheads).baddbmm_(d_second, part.own.k.of(heads))
        if part.prompt is not None and gradient.prompt is not None:
            gradient.prompt.v.of(dheads).baddbmm_(p_first.transpose(1, 2), s_prompt[..., :dim])
            gradient.prompt.k.of(dheads).baddbmm_(d_first.transpose(1, 2), part.q_prompt.of(heads))
            gradient.q_prompt.of(dheads).baddbmm_(d_first, part.prompt.k.of(heads))


def _pairs(buffer: Tensor) -> Tensor:
    """Adjacent pairs of a contiguous buffer as complex numbers."""
    return torch.view_as_complex(buffer.view(-1, 2))


def _score_views(part: Part, like: Tensor, buffer: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """A buffer for a part's scores, new unless given, and its views over prompt keys (maybe none) and own keys."""
    own = part.own_scores
    split = 0
    if part.prompt is not None:
        prompt = part.prompt_scores
        split = prompt[0] * prompt[1] * prompt[2]
    if buffer is None:
        buffer = like.new_empty(split + own[0] * own[1] * own[2])
    second = buffer.as_strided(own, (own[1] * own[2], own[2], 1), split)
    if part.prompt is None:
        return buffer, buffer, second
    return buffer, buffer.as_strided(prompt, (prompt[1] * prompt[2], prompt[2], 1), 0), second


def _subtract_maxima(first: Tensor, second: Tensor) -> None:
    """Scores minus their row's maximum over both blocks, in place, none below LEAST_SCORE."""
    top = second.amax(-1, keepdim=True)
    if first.ndim == 3:
        top = torch.maximum(top, first.amax(-1, keepdim=True).view(top.shape))
        first.sub_(top.view(*first.shape[:2], 1)).clamp_min_(LEAST_SCORE)
    second.sub_(top).clamp_min_(LEAST_SCORE)
