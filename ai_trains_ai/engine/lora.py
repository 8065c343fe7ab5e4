"""LoRA adapters: low-rank additions to a model's projections, trained in place of its weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ai_trains_ai.engine.model import LoraPair, Model, Projection
from ai_trains_ai.seeds import derive


def attach(model: Model, *, rank: int, alpha: float, seed: int) -> None:
    """Freeze the model's weights and attach a fresh adapter to all its linear projections.

    `a` is uniform as PEFT initialises it and `b` is zero, so nothing changes yet. Each pair has a random stream of
    its own, derived from its name.
    """
    model.requires_grad_(False)
    for name, projection, part in _places(model):
        generator = torch.Generator().manual_seed(derive(seed, "lora", name))
        bound = 1.0 / math.sqrt(projection.in_features)
        a = (torch.rand(rank, projection.in_features, generator=generator) * 2 - 1) * bound
        b = torch.zeros(projection.parts[part], rank)
        device = projection.weight.device
        projection.lora[part] = LoraPair(nn.Parameter(a.to(device)), nn.Parameter(b.to(device)), alpha / rank)


def attached(model: Model) -> dict[str, LoraPair]:
    """`layers.0.self_attn.q_proj` -> its pair, of the adapter that the model computes with now."""
    return {name: proj.lora[part] for name, proj, part in _places(model) if part in proj.lora}


@torch.no_grad()
def merge(model: Model) -> None:
    """Add the attached adapter into the base's weights and detach it."""
    for _, projection, part in _places(model):
        pair = projection.lora.pop(part, None)
        if pair is not None:
            rows = projection.slices()[part]
            addition: Tensor = pair.scale * (pair.b @ pair.a)
            projection.weight[rows] += addition.to(projection.weight.dtype)


def _places(model: Model) -> list[tuple[str, Projection, str]]:
    """(name, projection, part) of everything an adapter adds to."""
    found: list[tuple[str, Projection, str]] = []
    for i, block in enumerate(model.layers):
        for section, projection in (
            ("self_attn", block.attn.qkv),
            ("self_attn", block.attn.o),
            ("mlp", block.mlp.gate_up),
            ("mlp", block.mlp.down),
        ):
            found += [(f"layers.{i}.{section}.{part}", projection, part) for part in projection.parts]
    return found
