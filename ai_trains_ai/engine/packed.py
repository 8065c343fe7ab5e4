"""A model's weights as the decoder wants them: folded, reordered and laid out once, read thousands of times.

None of the changes against `model.Model` alters what is computed, beyond rounding:

- a norm's gain is multiplied into the columns of the matrices behind it, the attention scale into query rows,
  an attached LoRA adapter is added to its weights;
- query, key and value rows are stored by key-value head, [its queries | key | value], so that one view serves
  grouped attention without copies;
- within each query and key head the two members of a rotary pair are neighbours, so that the rotation is one
  complex multiplication (dot products do not care about the order of a head's elements);
- matrices lie in the layout that the processor's product reads fastest: transposed for float32, oneDNN's
  blocked layout for bfloat16 where oneDNN has it.

A `PackedWeights` is a snapshot: after the model has been trained further, pack it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from ai_trains_ai.engine.config import ModelConfig
from ai_trains_ai.engine.matrix import Precision
from ai_trains_ai.engine.model import Attention, Model, Projection, inverse_frequencies

_BATCH_HINT = 32
"""oneDNN picks its blocked layout for products of about this many rows; the layout is right for any."""


class Matrix(Protocol):
    """A weight W (out, in), applied to rows x_N_in."""

    def __call__(self, x: Tensor) -> Tensor:
        """x Wᵀ, in x's dtype."""
        ...

    def into(self, out: Tensor, x: Tensor) -> Tensor:
        """out = x Wᵀ; out may be of a wider dtype. Returns out."""
        ...

    def add_to(self, out: Tensor, x: Tensor) -> None:
        """out += x Wᵀ; out may be of a wider dtype."""
        ...


@dataclass(frozen=True, slots=True)
class TransposedMatrix:
    """Plain product with (in, out) stored contiguously."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return torch.mm(x, self.weight)

    def into(self, out: Tensor, x: Tensor) -> Tensor:
        if out.dtype == x.dtype:
            return torch.mm(x, self.weight, out=out)
        return out.copy_(torch.mm(x, self.weight))

    def add_to(self, out: Tensor, x: Tensor) -> None:
        if out.dtype == x.dtype:
            out.addmm_(x, self.weight)
        else:
            out.add_(torch.mm(x, self.weight))


@dataclass(frozen=True, slots=True)
class RoundedMatrix:
    """A float32 product whose operands may be rounded to bfloat16 (CPUs with AMX or AVX512-BF16).

    PyTorch's switch for it is global, and small batched products (attention) would become slower by it, so
    it is set for this product alone.
    """

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return self.into(x.new_empty(len(x), self.weight.shape[1]), x)

    def into(self, out: Tensor, x: Tensor) -> Tensor:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("medium")
        try:
            return torch.mm(x, self.weight, out=out)
        finally:
            torch.set_float32_matmul_precision(before)

    def add_to(self, out: Tensor, x: Tensor) -> None:
        out.add_(self(x))


@dataclass(frozen=True, slots=True)
class OneDnnMatrix:
    """Product with a weight in oneDNN's own blocked layout (a private operator: see `onednn_packs`)."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.weight, None, "none", [], "")
        return product

    def into(self, out: Tensor, x: Tensor) -> Tensor:
        return out.copy_(self(x))

    def add_to(self, out: Tensor, x: Tensor) -> None:
        out.add_(self(x))


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """qkv: rows ordered (kv head, [queries, key, value], element); it and gate_up take x / rms(x).

    qk_norm: gains of a kv head's queries (scaled) and key, (queries + 1, head_dim); None: no such norm.
    """

    qkv: Matrix
    qk_norm: Tensor | None
    o: Matrix
    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """`embed` is float32 (vocab, hidden); `head` takes x / rms(x)."""

    config: ModelConfig
    dtype: torch.dtype
    device: torch.device
    embed: Tensor
    layers: tuple[PackedLayer, ...]
    head: Matrix


@torch.inference_mode()
def pack(model: Model, precision: Precision | None = None) -> PackedWeights:
    """Snapshot of a model's weights. precision: None follows the model's dtype."""
    precision = precision or ("fp32" if model.dtype == torch.float32 else "bf16")
    layers = []
    for block in model.layers:
        qkv, gate_up = _plain(block.attn.qkv), _plain(block.mlp.gate_up)
        layers.append(
            PackedLayer(
                qkv=_matrix(_grouped_rows(block.attn, qkv * block.attn_norm.weight.float()), precision),
                qk_norm=_qk_norm(block.attn),
                o=_matrix(_plain(block.attn.o), precision),
                gate_up=_matrix(gate_up * block.mlp_norm.weight.float(), precision),
                down=_matrix(_plain(block.mlp.down), precision),
            )
        )
    return PackedWeights(
        config=model.config,
        dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
        device=model.device,
        embed=model.embed.detach().to(torch.float32, copy=True),
        layers=tuple(layers),
        head=_matrix(model.head_weight.detach().float() * model.norm.weight.float(), precision),
    )


def rotations(config: ModelConfig, length: int, device: torch.device) -> Tensor:
    """exp(i · position · frequency): complex64 (length, head_dim / 2)."""
    angles = torch.arange(length, dtype=torch.float32)[:, None] * inverse_frequencies(config)
    return torch.polar(torch.ones_like(angles), angles).to(device)


@cache
def onednn_packs() -> bool:
    """Whether oneDNN's packed bfloat16 product exists here and gives what `torch.mm` gives."""
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(48, 32, generator=generator).to(torch.bfloat16)
        x = torch.randn(5, 32, generator=generator).to(torch.bfloat16)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _BATCH_HINT)
        product = OneDnnMatrix(packed)(x)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return torch.allclose(product.float(), torch.mm(x, weight.t()).float(), rtol=2e-2, atol=2e-2)


def _plain(projection: Projection) -> Tensor:
    """The weight with the attached LoRA pairs added: float32, a copy."""
    weight = projection.weight.detach().to(torch.float32, copy=True)
    for name, rows in projection.slices().items():
        pair = projection.lora.get(name)
        if pair is not None:
            weight[rows].addmm_(pair.b.detach().float(), pair.a.detach().float(), alpha=pair.scale)
    return weight


def _matrix(weight: Tensor, precision: Precision) -> Matrix:
    if precision == "bf16":
        weight = weight.to(torch.bfloat16)
    if precision == "mixed":
        return RoundedMatrix(weight.t().contiguous())
    if weight.device.type != "cpu":
        return TransposedMatrix(weight.t())
    if precision == "bf16" and onednn_packs():
        return OneDnnMatrix(torch.ops.mkldnn._reorder_linear_weight(weight, _BATCH_HINT))
    return TransposedMatrix(weight.t().contiguous())


def _grouped_rows(attention: Attention, weight: Tensor) -> Tensor:
    """Rows [all q | all k | all v] -> by kv head [its q | k | v], rotary pairs as neighbours in q and k.

    Queries are scaled here, unless a norm follows that would undo it.
    """
    kv, dim, inputs = attention.num_kv_heads, attention.head_dim, weight.shape[1]
    q, k, v = torch.split(weight.view(-1, dim, inputs), [attention.num_heads, kv, kv])
    q, k = _neighbours(q), _neighbours(k)
    if attention.q_norm is None:
        q = q * dim**-0.5
    grouped = torch.cat((q.view(kv, -1, dim, inputs), k.unsqueeze(1), v.unsqueeze(1)), dim=1)
    return grouped.reshape(weight.shape)


def _neighbours(heads: Tensor) -> Tensor:
    """(heads, dim, ...): element i and element i + dim/2 become elements 2i and 2i + 1."""
    halves = heads.reshape(heads.shape[0], 2, -1, *heads.shape[2:])
    return halves.transpose(1, 2).reshape(heads.shape)


def _qk_norm(attention: Attention) -> Tensor | None:
    if attention.q_norm is None or attention.k_norm is None:
        return None
    queries = attention.num_heads // attention.num_kv_heads
    q = attention.q_norm.weight.detach().float() * attention.head_dim**-0.5
    k = attention.k_norm.weight.detach().float()
    return _neighbours(torch.cat((q.expand(queries, -1), k.unsqueeze(0))))
