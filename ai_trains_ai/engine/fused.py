"""FusedDecoder: the decoder's forward and backward pass over a layout, written by hand.

Computes what `model.py` computes, a few large operations a layer instead of many small ones. It exists because
at a fraction of a million parameters autograd's bookkeeping and passes over memory cost more than the arithmetic:

    n = x / rms(x)                       gain folded into the next projection; only n and 1/rms are kept
    x += o(attention(qkv(n)))            residual added inside the product, in place
    x += down(silu(gate) · up)           gate_up(n); silu's derivative is made while the row is in cache

Prompt rows that predict nothing leave after the last layer's keys and values. Gradients are checked against
autograd of `model.py` in the tests.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ai_trains_ai.engine.attention import AttentionPlan, BranchedAttention
from ai_trains_ai.engine.heads import Geometry
from ai_trains_ai.engine.layout import Layout
from ai_trains_ai.engine.matrix import Fold, FoldedMatrix, Gradients, Precision, rounded_products
from ai_trains_ai.engine.model import Attention, Block, Model, RMSNorm, inverse_frequencies

SCORES_KEPT = 1 << 26
"""Attention scores (all layers) up to which they are kept for the backward pass: 128 MB."""
CACHED = 1 << 16
"""Elements of a strip of SwiGLU's inner rows: a handful of such strips fit a core's second-level cache."""


@dataclass(slots=True)
class Run:
    """One pass over a layout: the constants of all its layers. `dtype` is that of the products' operands."""

    layout: Layout
    precision: Precision
    device: torch.device
    dtype: torch.dtype
    one: Tensor
    geometry: Geometry
    attention: AttentionPlan
    order: Tensor
    scale: Tensor | None


def plan(model: Model, layout: Layout, precision: Precision) -> Run:
    """Constants of a pass: rotations, row order of queries and keys, row scales."""
    config = model.config
    geometry = Geometry(config.num_kv_heads, config.num_heads // config.num_kv_heads, config.head_dim)
    device = model.device
    angles = torch.arange(layout.positions, dtype=torch.float32)[:, None] * inverse_frequencies(config)
    half = config.head_dim // 2
    pairs = torch.arange(config.head_dim).view(2, half).t().flatten()
    heads = config.num_heads + config.num_kv_heads
    rotated = (torch.arange(heads)[:, None] * config.head_dim + pairs).flatten()
    order = torch.cat((rotated, torch.arange(rotated.numel(), rotated.numel() + config.kv_size)))
    scale = torch.ones(order.numel())
    scale[: config.query_size] = config.head_dim**-0.5
    keep_scores = _score_count(layout) * config.num_heads * config.num_layers <= SCORES_KEPT
    return Run(
        layout=layout,
        precision=precision,
        device=device,
        one=torch.ones((), device=device),
        dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
        geometry=geometry,
        attention=AttentionPlan(
            layout, geometry, torch.polar(torch.ones_like(angles), angles).to(device), keep_scores=keep_scores
        ),
        order=order.to(device),
        scale=None if config.arch == "qwen3" else scale.to(device),
    )


def _score_count(layout: Layout) -> int:
    """Scores of one head in one layer."""
    total = 0
    for branch in layout.branches:
        before = branch.prefix.length if branch.prefix else 0
        groups = branch.tiles[0].groups
        total += groups * before * before
        total += groups * sum(t.count * t.length * (t.length + before) for t in branch.tiles)
    return total


class FusedDecoder:
    """`forward` then `backward`, once each, for one Run. Reads the model's weights, changes nothing in it."""

    def __init__(self, model: Model, run: Run) -> None:
        self.model = model
        self.run = run
        trims = run.layout.predicting < run.layout.rows
        last = len(model.layers) - 1
        self.blocks = [_FusedBlock(b, run, trims=trims and i == last) for i, b in enumerate(model.layers)]
        self.final = _Norm(model.norm.eps, model.device)
        self.normed_M: Tensor | None = None

    def forward(self, *, keep: bool) -> Tensor:
        """Normalised final hidden states of the predicting rows: (M, hidden), float32.

        keep: remember what `backward` needs.
        """
        x_R = F.embedding(self.run.layout.tokens_R, self.model.embed.detach()).float()
        for block in self.blocks:
            x_R = block.forward(x_R, keep=keep)
        normed_M = self.final.forward(x_R, torch.float32)
        if keep:
            self.normed_M = normed_M
        return normed_M * self.model.norm.weight.detach()

    def backward(self, dhidden_M: Tensor) -> Gradients:
        """Gradients of every parameter that wants one, from that of `forward`'s result."""
        assert self.normed_M is not None
        gradients: Gradients = {}
        gain = self.model.norm.weight
        if gain.requires_grad:
            gradients[id(gain)] = (dhidden_M * self.normed_M).sum(0)
        dx_M = self.final.backward(dhidden_M * gain.detach(), self.normed_M, None)
        dx_R = dx_M
        while self.blocks:
            block = self.blocks.pop()
            dx_R = block.backward(dx_R)
            block.collect(gradients)
        if self.model.embed.requires_grad:
            embedding = torch.zeros_like(self.model.embed, dtype=torch.float32)
            gradients[id(self.model.embed)] = embedding.index_add_(0, self.run.layout.tokens_R, dx_R)
        return gradients


class _FusedBlock:
    def __init__(self, block: Block, run: Run, *, trims: bool) -> None:
        self.run = run
        self.trims = trims
        dtype = run.dtype
        self.qkv = FoldedMatrix(block.attn.qkv, Fold(block.attn_norm.weight, run.order, run.scale), dtype)
        self.o = FoldedMatrix(block.attn.o, Fold(), dtype)
        self.gate_up = FoldedMatrix(block.mlp.gate_up, Fold(block.mlp_norm.weight), dtype)
        self.down = FoldedMatrix(block.mlp.down, Fold(), dtype)
        self.norm_1, self.norm_2 = (
            _Norm(block.attn_norm.eps, run.device),
            _Norm(block.mlp_norm.eps, run.device),
        )
        self.head_norm = _HeadNorm.of(block.attn, run)
        self.attention = BranchedAttention(run.attention, trims=trims)
        self.swiglu = _SwiGLU(run.one)
        self.n_1 = self.mixed = self.n_2 = self.act = torch.empty(0)

    def forward(self, x_R: Tensor, *, keep: bool) -> Tensor:
        """x after the block: the same tensor, changed; only its predicting rows when the block trims."""
        run = self.run
        n_1 = self.norm_1.forward(x_R, run.dtype)
        with rounded_products(run.precision):
            qkv_R = self.qkv.forward(n_1).float()
        if self.head_norm is not None:
            self.head_norm.forward(qkv_R)
        if self.trims:
            x_R = x_R[: run.layout.predicting]
        mixed = self.attention.forward(qkv_R, keep=keep)
        with rounded_products(run.precision):
            self.o.forward_onto(mixed.to(run.dtype), x_R)
            n_2 = self.norm_2.forward(x_R, run.dtype)
            act = self.swiglu.forward(self.gate_up.forward(n_2), keep=keep)
            self.down.forward_onto(act, x_R)
        if keep:
            self.n_1, self.mixed, self.n_2, self.act = n_1, mixed, n_2, act
        return x_R

    def backward(self, dx_R: Tensor) -> Tensor:
        """From the gradient of the block's result to that of its input."""
        run = self.run
        with rounded_products(run.precision):
            dact = self.down.backward(dx_R.to(run.dtype), self.act)
            dn_2 = self.gate_up.backward(self.swiglu.backward(dact), self.n_2)
            dx_R = self.norm_2.backward(dn_2.float(), self.n_2, dx_R)
            dmixed = self.o.backward(dx_R.to(run.dtype), self.mixed.to(run.dtype)).float()
        dqkv_R = self.attention.backward(dmixed, self.mixed)
        if self.head_norm is not None:
            self.head_norm.backward(dqkv_R)
        if self.trims:
            dx_R = F.pad(dx_R, (0, 0, 0, dqkv_R.shape[0] - dx_R.shape[0]))
        with rounded_products(run.precision):
            dn_1 = self.qkv.backward(dqkv_R.to(run.dtype), self.n_1).float()
        return self.norm_1.backward(dn_1, self.n_1, dx_R)

    def collect(self, gradients: Gradients) -> None:
        for matrix in (self.qkv, self.o, self.gate_up, self.down):
            matrix.collect(gradients)
        if self.head_norm is not None:
            self.head_norm.collect(gradients)


class _Norm:
    """RMS norm without its gain. Remembers 1/rms; the result is the caller's to keep."""

    def __init__(self, eps: float, device: torch.device) -> None:
        self.eps = torch.tensor(eps, device=device)
        self.inverse = torch.empty(0)

    def forward(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        self.inverse = torch.addcmul(self.eps, norm, norm, value=1.0 / x.shape[-1]).rsqrt_()
        n = x * self.inverse
        return n if dtype == n.dtype else n.to(dtype)

    def backward(self, dn: Tensor, n: Tensor, dx: Tensor | None) -> Tensor:
        """dx += (dn − n·mean(dn·n)) / rms, in place of both dn and dx; a fresh dx when None."""
        dn.addcmul_(n, (dn * n).sum(-1, keepdim=True), value=-1.0 / n.shape[-1])
        return dn.mul_(self.inverse) if dx is None else dx.addcmul_(dn, self.inverse)


class _HeadNorm:
    """Qwen3's norm of each query and key head, with the attention scale in the queries' gain; in place."""

    def __init__(self, q_norm: RMSNorm, k_norm: RMSNorm, run: Run) -> None:
        self.parameters = (q_norm.weight, k_norm.weight)
        geometry = run.geometry
        self.pairs = run.order[: geometry.dim]
        self.queries = geometry.kv * geometry.shared
        self.heads = self.queries + geometry.kv
        self.scale = geometry.dim**-0.5
        gains = [
            q_norm.weight.detach().float()[self.pairs] * self.scale,
            k_norm.weight.detach().float()[self.pairs],
        ]
        self.gain = torch.cat((gains[0].expand(self.queries, -1), gains[1].expand(geometry.kv, -1)))
        self.norm = _Norm(q_norm.eps, run.device)
        self.normed = self.gain_gradient = torch.empty(0)

    @classmethod
    def of(cls, attention: Attention, run: Run) -> _HeadNorm | None:
        if attention.q_norm is None or attention.k_norm is None:
            return None
        return cls(attention.q_norm, attention.k_norm, run)

    def _view(self, qkv_R: Tensor) -> Tensor:
        return qkv_R[:, : self.gain.numel()].view(qkv_R.shape[0], *self.gain.shape)

    def forward(self, qkv_R: Tensor) -> None:
        heads = self._view(qkv_R)
        self.normed = self.norm.forward(heads, torch.float32)
        torch.mul(self.normed, self.gain, out=heads)

    def backward(self, dqkv_R: Tensor) -> None:
        heads = self._view(dqkv_R)
        self.gain_gradient = (heads * self.normed).sum(0)
        heads.copy_(self.norm.backward(heads * self.gain, self.normed, None))

    def collect(self, gradients: Gradients) -> None:
        for parameter, heads, scale in (
            (self.parameters[0], slice(0, self.queries), self.scale),
            (self.parameters[1], slice(self.queries, self.heads), 1.0),
        ):
            if parameter.requires_grad:
                gradient = self.gain_gradient[heads].sum(0) * scale
                gradients[id(parameter)] = torch.empty_like(gradient).index_copy_(0, self.pairs, gradient)


class _SwiGLU:
    """silu(gate) · up of (rows, 2 × inner), a strip of rows at a time, in cache.

    With r = 1 / (1 + exp(gate)): silu = gate − gate·r, and its slope 1 + r·(silu − 1). The forward pass already
    makes slope · up, so the backward pass is two products.
    """

    def __init__(self, one: Tensor) -> None:
        self.one = one
        self.silu = self.slope = torch.empty(0)

    def forward(self, gate_up: Tensor, *, keep: bool) -> Tensor:
        rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
        act, silus, slopes = (gate_up.new_empty(rows, inner) for _ in range(3))
        step = max(1, CACHED // inner)
        direct = gate_up.dtype == torch.float32
        strips = [torch.split(x, step) for x in (gate_up[:, :inner], gate_up[:, inner:], act, silus, slopes)]
        for gate, up, act_out, silu_out, slope_out in zip(*strips, strict=True):
            if not direct:
                gate, up = gate.float(), up.float()
            rest = torch.exp(gate).add_(self.one).reciprocal_()
            silu = torch.addcmul(gate, gate, rest, value=-1.0, out=silu_out if direct else None)
            result = torch.mul(silu, up, out=act_out if direct else None)
            if keep:
                slope = torch.lerp(self.one, silu, rest, out=slope_out if direct else None).mul_(up)
            if not direct:
                act_out.copy_(result)
                if keep:
                    silu_out.copy_(silu)
                    slope_out.copy_(slope)
        self.silu, self.slope = silus, slopes
        return act

    def backward(self, dact: Tensor) -> Tensor:
        """Gradient of (gate, up)."""
        rows, inner = dact.shape
        dgate_up = dact.new_empty(rows, 2 * inner)
        torch.mul(dact, self.slope, out=dgate_up[:, :inner])
        torch.mul(dact, self.silu, out=dgate_up[:, inner:])
        return dgate_up
