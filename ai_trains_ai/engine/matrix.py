"""FoldedMatrix: a projection as the fused kernels multiply with it, and the way back for its gradients.

Folding moves work from every token to once a batch: the gain of the norm before the projection goes into its
columns, the attention scale and the sign that SwiGLU wants into its rows, and the rows of queries and keys are
reordered so that rotary pairs are adjacent. LoRA is folded in too where adding b·a to the weight costs less than
carrying a thin product along for every token (tiny models); otherwise it stays a thin product.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ai_trains_ai.engine.model import LoraPair, Projection

Precision = Literal["fp32", "mixed", "bf16"]
"""fp32: all of it. mixed: float32 tensors, but large products may round their operands to bf16 (CPUs with AMX or
AVX512-BF16; elsewhere the same as fp32). bf16: operands and results of the products are bf16 tensors; the
residual stream, norms, softmax, log-probabilities and gradients of trained weights are float32."""

Gradients = dict[int, Tensor]
"""id of a parameter -> its gradient."""


@contextmanager
def rounded_products(precision: Precision) -> Iterator[None]:
    """Inside, float32 matrix products on a CPU may round their operands to bf16 when precision is "mixed".

    The switch is PyTorch's, global to the process, and restored on leaving.
    """
    if precision != "mixed":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@dataclass(frozen=True, slots=True)
class Fold:
    """gain: (in,) multiplies columns; order: row permutation; scale: (out,) multiplies rows after `order`."""

    gain: torch.nn.Parameter | None = None
    order: Tensor | None = None
    scale: Tensor | None = None

    def rows(self, matrix: Tensor, part: slice | None = None) -> Tensor:
        """Reorder and scale rows; `part` says which rows of the whole `matrix` is (reordered within itself)."""
        order, scale = self.order, self.scale
        if part is not None:
            order = None if order is None else order[part] - part.start
            scale = None if scale is None else scale[part]
        if order is not None:
            matrix = matrix[order]
        return matrix if scale is None else matrix * scale[:, None]

    def unrows(self, matrix: Tensor, part: slice | None = None) -> Tensor:
        """The transpose of `rows`: from a gradient of the folded matrix to one of the plain matrix."""
        order, scale = self.order, self.scale
        if part is not None:
            order = None if order is None else order[part] - part.start
            scale = None if scale is None else scale[part]
        if scale is not None:
            matrix = matrix * scale[:, None]
        return matrix if order is None else torch.empty_like(matrix).index_copy_(0, order, matrix)


class FoldedMatrix:
    """y = x · valueᵀ, plus thin LoRA products. x: (rows, in) and y: (rows, out), both in `dtype`.

    `forward` any number of times; `backward` adds up the weights' gradients; `collect` hands them out.
    """

    def __init__(self, projection: Projection, fold: Fold, dtype: torch.dtype) -> None:
        self.projection = projection
        self.fold = fold
        self.dtype = dtype
        self.pairs = [
            (rows, projection.lora[name])
            for name, rows in projection.slices().items()
            if name in projection.lora
        ]
        self.merged = _merging_pays(projection, self.pairs)
        gain_wanted = fold.gain is not None and fold.gain.requires_grad
        self.wanted = projection.weight.requires_grad or self.merged or gain_wanted
        self.value = self._fold()
        self.gradient: Tensor | None = None
        self.thin = [] if self.merged else [_Thin(pair, rows, fold, dtype) for rows, pair in self.pairs]

    def _plain(self) -> Tensor:
        """The weight with merged LoRA, unfolded."""
        weight = self.projection.weight.detach()
        if self.merged:
            weight = weight.clone()
            for rows, pair in self.pairs:
                weight[rows].addmm_(pair.b.detach(), pair.a.detach(), alpha=pair.scale)
        return weight

    def _fold(self) -> Tensor:
        weight = self._plain()
        if self.fold.gain is not None:
            weight = weight * self.fold.gain.detach()
        return self.fold.rows(weight).to(self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.mm(x, self.value.t())
        for thin in self.thin:
            thin.forward(x, y)
        return y

    def forward_onto(self, x: Tensor, residual: Tensor) -> None:
        """residual += forward(x), without a pass of its own where types allow."""
        if self.thin or residual.dtype != x.dtype:
            residual += self.forward(x)
        else:
            residual.addmm_(x, self.value.t())

    def backward(self, dy: Tensor, x: Tensor) -> Tensor:
        """dx, in `dtype`; the weights' gradients are added to what is collected."""
        if self.wanted:
            if self.gradient is None:
                self.gradient = torch.mm(dy.t(), x).float()
            elif dy.dtype == torch.float32:
                self.gradient.addmm_(dy.t(), x)
            else:
                self.gradient += torch.mm(dy.t(), x)
        dx = torch.mm(dy, self.value)
        for thin in self.thin:
            thin.backward(dy, x, dx)
        return dx

    def collect(self, gradients: Gradients) -> None:
        """Write the gradients of the projection's weight, the folded gain and the LoRA pairs."""
        for thin in self.thin:
            thin.collect(gradients)
        if self.gradient is None:
            return
        gradient = self.fold.unrows(self.gradient)
        gain = self.fold.gain
        if gain is not None:
            if gain.requires_grad:
                gradients[id(gain)] = (gradient * self._plain()).sum(0)
            gradient = gradient * gain.detach()
        if self.projection.weight.requires_grad:
            gradients[id(self.projection.weight)] = gradient
        if self.merged:
            for rows, pair in self.pairs:
                part = gradient[rows]
                gradients[id(pair.a)] = pair.scale * pair.b.detach().t() @ part
                gradients[id(pair.b)] = pair.scale * part @ pair.a.detach().t()


class _Thin:
    """One LoRA pair that is carried along: y[:, rows] += (x · aᵀ) · bᵀ, the scale in b."""

    def __init__(self, pair: LoraPair, rows: slice, fold: Fold, dtype: torch.dtype) -> None:
        self.pair = pair
        self.rows = rows
        self.fold = fold
        a = pair.a.detach()
        self.a = (a if fold.gain is None else a * fold.gain.detach()).to(dtype)
        self.b = fold.rows(pair.b.detach() * pair.scale, rows).to(dtype)
        self.da = torch.zeros_like(self.a, dtype=torch.float32)
        self.db = torch.zeros_like(self.b, dtype=torch.float32)

    def forward(self, x: Tensor, y: Tensor) -> None:
        y[:, self.rows].addmm_(torch.mm(x, self.a.t()), self.b.t())

    def backward(self, dy: Tensor, x: Tensor, dx: Tensor) -> None:
        dy = dy[:, self.rows]
        self.db += torch.mm(dy.t(), torch.mm(x, self.a.t()))
        inner = torch.mm(dy, self.b)
        self.da += torch.mm(inner.t(), x)
        dx.addmm_(inner, self.a)

    def collect(self, gradients: Gradients) -> None:
        da = self.da if self.fold.gain is None else self.da * self.fold.gain.detach()
        gradients[id(self.pair.a)] = da
        gradients[id(self.pair.b)] = self.fold.unrows(self.db, self.rows) * self.pair.scale


def _merging_pays(projection: Projection, pairs: list[tuple[slice, LoraPair]]) -> bool:
    """Whether the dense weight gradient that merging needs is cheaper, a token, than the thin products."""
    if not pairs or any(pair.b.requires_grad != pairs[0][1].b.requires_grad for _, pair in pairs):
        return False
    dense = projection.weight.numel()
    thin = sum(3 * pair.a.shape[0] * (pair.a.shape[1] + pair.b.shape[0]) for _, pair in pairs)
    return dense <= thin
