"""A model's weights as the decoder wants them: cast, reordered and laid out once, read thousands of times.

Three changes against `model.Model`, none of which alters what is computed:

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
from ai_trains_ai.engine.model import Attention, Model, inverse_frequencies

_BATCH_HINT = 32
"""oneDNN picks its blocked layout for products of about this many rows; the layout is right for any."""


class Matrix(Protocol):
    """A weight W (out, in), applied to rows x_N_in."""

    def __call__(self, x: Tensor) -> Tensor:
        """x Wᵀ, in x's dtype."""
        ...

    def add_to(self, stream: Tensor, x: Tensor) -> None:
        """stream += x Wᵀ; stream may be of a wider dtype."""
        ...


@dataclass(frozen=True, slots=True)
class TransposedMatrix:
    """Plain product with (in, out) stored contiguously."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return torch.mm(x, self.weight)

    def add_to(self, stream: Tensor, x: Tensor) -> None:
        if stream.dtype == x.dtype:
            stream.addmm_(x, self.weight)
        else:
            stream.add_(torch.mm(x, self.weight))


@dataclass(frozen=True, slots=True)
class OneDnnMatrix:
    """Product with a weight in oneDNN's own blocked layout (a private operator: see `onednn_packs`)."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")
        return product

    def add_to(self, stream: Tensor, x: Tensor) -> None:
        stream.add_(self(x))


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """qkv: rows ordered (kv head, [queries, key, value], element). qk_norm: (queries + 1, head_dim) or None."""

    attn_norm: Tensor
    qkv: Matrix
    qk_norm: Tensor | None
    o: Matrix
    mlp_norm: Tensor
    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """norm weights are float32; `embed` is (vocab, hidden) in `dtype`."""

    config: ModelConfig
    dtype: torch.dtype
    device: torch.device
    embed: Tensor
    layers: tuple[PackedLayer, ...]
    norm: Tensor
    head: Matrix


@torch.inference_mode()
def pack(model: Model, dtype: torch.dtype | None = None) -> PackedWeights:
    """Snapshot of a model's weights, in `dtype` (None: the model's own)."""
    dtype = dtype or model.dtype
    layers = tuple(
        PackedLayer(
            attn_norm=_copy(block.attn_norm.weight),
            qkv=_matrix(_grouped_rows(block.attn, block.attn.qkv.weight), dtype),
            qk_norm=_qk_norm(block.attn),
            o=_matrix(block.attn.o.weight, dtype),
            mlp_norm=_copy(block.mlp_norm.weight),
            gate_up=_matrix(block.mlp.gate_up.weight, dtype),
            down=_matrix(block.mlp.down.weight, dtype),
        )
        for block in model.layers
    )
    return PackedWeights(
        config=model.config,
        dtype=dtype,
        device=model.device,
        embed=_copy(model.embed, dtype),
        layers=layers,
        norm=_copy(model.norm.weight),
        head=_matrix(model.head_weight, dtype),
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


def _copy(tensor: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return tensor.detach().to(dtype, copy=True)


def _matrix(weight: Tensor, dtype: torch.dtype) -> Matrix:
    weight = _copy(weight, dtype)
    if weight.device.type != "cpu":
        return TransposedMatrix(weight.t())
    if dtype == torch.bfloat16 and onednn_packs():
        return OneDnnMatrix(torch.ops.mkldnn._reorder_linear_weight(weight, _BATCH_HINT))
    return TransposedMatrix(weight.t().contiguous())


def _grouped_rows(attention: Attention, weight: Tensor) -> Tensor:
    """Rows [all q | all k | all v] -> by kv head [its q | k | v], rotary pairs as neighbours in q and k."""
    kv, dim, inputs = attention.num_kv_heads, attention.head_dim, weight.shape[1]
    heads = weight.view(-1, dim, inputs)
    q, k, v = torch.split(heads, [attention.num_heads, kv, kv])
    q, k = _neighbours(q), _neighbours(k)
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
    q, k = _copy(attention.q_norm.weight), _copy(attention.k_norm.weight)
    return _neighbours(torch.cat((q.expand(queries, -1), k.unsqueeze(0))))
