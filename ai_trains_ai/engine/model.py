"""The decoder: Llama and Qwen3 arithmetic as transformers computes it, with fused projections.

    tokens ─ embed ─ Block × num_layers ─ norm ─ head (or the embedding, when tied) ─ logits
    Block:   x += attn.o(attention(rope(qk_norm(attn.qkv(attn_norm(x))))))
             x += mlp.down(silu(gate) · up),  gate, up = mlp.gate_up(mlp_norm(x))

`model(tokens)` is the plain right-padded forward; `generate.py` and `train.py` drive the same blocks with
their own attention (KV cache, shared prompts) through `Attention.project`, `Attention.o`,
`Block.mlp_residual` and `Model.logits`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ai_trains_ai.engine.config import ModelConfig


class RMSNorm(nn.Module):
    """x / rms(x) · weight over the last dimension; the statistics are float32 whatever x is."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        normed = F.rms_norm(x.float(), self.weight.shape, None, self.eps)
        return normed.to(x.dtype) * self.weight.to(x.dtype)


@dataclass(eq=False, slots=True)
class LoraPair:
    """A low-rank addition to one Hugging Face projection: scale · b · a. a: (rank, in), b: (rows, rank)."""

    a: nn.Parameter
    b: nn.Parameter
    scale: float


class Projection(nn.Module):
    """One bias-free matrix that holds several Hugging Face projections stacked along its rows.

    parts: ordered name -> rows, e.g. {"q_proj": 64, "k_proj": 32, "v_proj": 32}.
    weight: (sum of rows, in_features).
    lora: pairs by part name, of the adapter that is attached now (`lora.attach`); not parameters of the model.
    """

    def __init__(self, in_features: int, parts: dict[str, int]) -> None:
        super().__init__()
        self.in_features = in_features
        self.parts = dict(parts)
        self.lora: dict[str, LoraPair] = {}
        self.weight = nn.Parameter(torch.empty(sum(parts.values()), in_features))

    def slices(self) -> dict[str, slice]:
        """Rows of each part inside `weight`."""
        found, start = {}, 0
        for name, rows in self.parts.items():
            found[name] = slice(start, start + rows)
            start += rows
        return found

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight)
        if self.lora:
            for name, rows in self.slices().items():
                if (pair := self.lora.get(name)) is not None:
                    y[..., rows] += pair.scale * F.linear(F.linear(x, pair.a.to(x.dtype)), pair.b.to(x.dtype))
        return y


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.qkv = Projection(
            config.hidden_size,
            {"q_proj": config.query_size, "k_proj": config.kv_size, "v_proj": config.kv_size},
        )
        self.o = Projection(config.query_size, {"o_proj": config.hidden_size})
        self.q_norm = RMSNorm(config.head_dim, config.rms_eps) if config.arch == "qwen3" else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_eps) if config.arch == "qwen3" else None

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, of normalised inputs.

        x: (..., hidden); cos, sin: (..., head_dim / 2) at each position, broadcast over leading dimensions.
        Returns q (..., heads, head_dim), k and v (..., kv_heads, head_dim).
        """
        qkv = self.qkv(x).unflatten(-1, (-1, self.head_dim))
        q, k, v = qkv.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=-2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Causal attention over x_B_T_H."""
        q, k, v = (part.transpose(1, 2) for part in self.project(x, cos, sin))
        shared = self.num_heads != self.num_kv_heads
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)
        merged: Tensor = self.o(mixed.transpose(1, 2).flatten(-2))
        return merged


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = Projection(
            config.hidden_size, {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size}
        )
        self.down = Projection(config.intermediate_size, {"down_proj": config.hidden_size})

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        mixed: Tensor = self.down(F.silu(gate) * up)
        return mixed


class Block(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(config.hidden_size, config.rms_eps)
        self.attn = Attention(config)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x), cos, sin)
        return self.mlp_residual(x)

    def mlp_residual(self, x: Tensor) -> Tensor:
        mixed: Tensor = x + self.mlp(self.mlp_norm(x))
        return mixed


class Model(nn.Module):
    """A causal language model.

    seed: initialise the weights from this seed; None leaves them unset, for a loader that fills every one.
    """

    def __init__(self, config: ModelConfig, *, seed: int | None = 0) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_eps)
        self.head = (
            None if config.tie_embeddings else Projection(config.hidden_size, {"lm_head": config.vocab_size})
        )
        self._rope: tuple[Tensor, Tensor] | None = None
        if seed is not None:
            self.initialise(seed)

    @property
    def layers(self) -> list[Block]:
        """`blocks` with their type."""
        return [cast(Block, block) for block in self.blocks]

    def projections(self) -> Iterator[Projection]:
        """The adaptable projections, layer by layer: qkv, o, gate_up, down."""
        for block in self.layers:
            yield from (block.attn.qkv, block.attn.o, block.mlp.gate_up, block.mlp.down)

    @property
    def device(self) -> torch.device:
        return self.embed.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.dtype

    def initialise(self, seed: int) -> None:
        """Fill the weights for training from scratch: fan-in scaling, residual outputs damped by depth."""
        generator = torch.Generator().manual_seed(seed)
        damp = 1.0 / math.sqrt(2 * self.config.num_layers)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim == 1:
                    parameter.fill_(1.0)
                    continue
                std = 0.02 if name == "embed" else parameter.shape[1] ** -0.5
                if name.endswith(("attn.o.weight", "mlp.down.weight")):
                    std *= damp
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)

    def rope(self, length: int) -> tuple[Tensor, Tensor]:
        """cos and sin of positions 0..length-1, each (length, head_dim / 2), in the model's dtype.

        Grown on demand and cached, so a model with a long context does not pay for it before it is used.
        """
        cached = self._rope
        if (
            cached is None
            or cached[0].shape[0] < length
            or cached[0].device != self.device
            or cached[0].dtype != self.dtype
        ):
            size = max(length, 256)
            if cached is not None:
                size = max(size, min(2 * cached[0].shape[0], self.config.max_positions))
            angles = torch.arange(size, dtype=torch.float32)[:, None] * inverse_frequencies(self.config)
            cached = (
                angles.cos().to(self.device, self.dtype),
                angles.sin().to(self.device, self.dtype),
            )
            self._rope = cached
        return cached[0][:length], cached[1][:length]

    def hidden(self, tokens: Tensor) -> Tensor:
        """Final normalised hidden states of right-padded tokens_B_T: (B, T, hidden)."""
        x = F.embedding(tokens, self.embed)
        cos, sin = self.rope(tokens.shape[1])
        for block in self.layers:
            x = block(x, cos, sin)
        normed: Tensor = self.norm(x)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """Unnormalised log-probabilities (..., vocab) of normalised hidden states (..., hidden)."""
        return F.linear(hidden, self.head_weight)

    @property
    def head_weight(self) -> Tensor:
        """(vocab, hidden): the embedding itself when tied."""
        return self.embed if self.head is None else self.head.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens_B_T -> logits_B_T_V. Causal; padding on the right needs no mask, its outputs are ignored."""
        return self.logits(self.hidden(tokens))


def inverse_frequencies(config: ModelConfig) -> Tensor:
    """Rotary frequencies (head_dim / 2), in radians a position; `llama3` scaling applied when configured."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    inverse = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling
    if scaling is None:
        return inverse
    turns = scaling.original_max_positions / (2 * math.pi / inverse)
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = keep.clamp(0.0, 1.0)
    return (1.0 - keep) * inverse / scaling.factor + keep * inverse


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in the half-split layout: pairs are (i, i + head_dim / 2)."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
