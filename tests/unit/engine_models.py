"""Small random models for the engine's tests."""

from __future__ import annotations

import random

import torch

from ai_trains_ai.engine.config import Arch, ModelConfig
from ai_trains_ai.engine.model import Model

VOCAB = 97


def small_model(arch: Arch = "llama", *, heads: int = 4, kv_heads: int = 2, layers: int = 3) -> Model:
    """Random weights, large enough that its distributions are far from flat."""
    config = ModelConfig(
        arch=arch,
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=16,
        max_positions=256,
    )
    model = Model(config, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
            else:
                parameter.mul_(2.5)
    return model


def random_prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(VOCAB) for _ in range(length)] for length in lengths]


@torch.inference_mode()
def next_logits(model: Model, tokens: list[int]) -> torch.Tensor:
    """The plain forward pass's logits after `tokens`."""
    return model(torch.tensor([tokens]))[0, -1]
