"""Random models whose distributions are far from flat, and per-sequence references by plain autograd."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ai_trains_ai.engine.config import Arch, ModelConfig, RopeScaling
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.train import TokenGroup

VOCAB = 61


def random_model(
    arch: Arch = "llama",
    *,
    kv_heads: int = 2,
    tied: bool = True,
    layers: int = 3,
    sharpness: float = 1.0,
    scaling: RopeScaling | None = None,
) -> Model:
    """Gains away from 1, head and matrices of unit scale; `sharpness` multiplies query and key rows."""
    config = ModelConfig(
        arch,
        VOCAB,
        hidden_size=32,
        intermediate_size=56,
        num_layers=layers,
        num_heads=4,
        num_kv_heads=kv_heads,
        head_dim=8,
        tie_embeddings=tied,
        max_positions=512,
        rope_scaling=scaling,
    )
    model = Model(config, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.copy_(0.5 + torch.rand(parameter.shape, generator=generator))
            elif name == "embed":
                parameter.mul_(15.0)
        for block in model.layers:
            block.attn.qkv.weight[: config.query_size + config.kv_size] *= sharpness
    return model


def tokens(count: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCAB) for _ in range(count)]


def group(prompt: int, *completions: int, seed: int = 0) -> TokenGroup:
    """Random tokens of the given lengths."""
    made = [tokens(count, 100 * seed + place) for place, count in enumerate(completions)]
    return TokenGroup(tokens(prompt, 7 + seed), made)


def reference(model: Model, groups: Sequence[TokenGroup], temperature: float = 1.0) -> Tensor:
    """(N, T) log-probabilities, one plain forward pass a sequence, 0 where there is no token."""
    found = []
    for one in groups:
        for completion in one.completions:
            sequence = torch.tensor([[*one.prompt, *completion]])
            logits = model(sequence)[0, len(one.prompt) - 1 : -1].float() / temperature
            chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(completion)[:, None])
            found.append(chosen[:, 0])
    return pad_sequence(found, batch_first=True)


def gradients(model: Model, loss: Tensor) -> dict[str, Tensor]:
    """Of every parameter, by name; those of attached LoRA pairs too. Clears them afterwards."""
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    for place, projection in enumerate(model.projections()):
        for part, pair in projection.lora.items():
            for label, parameter in (("a", pair.a), ("b", pair.b)):
                assert parameter.grad is not None
                found[f"{place}.{part}.{label}"] = parameter.grad.clone()
                parameter.grad = None
    model.zero_grad(set_to_none=True)
    return found


def assert_same_gradients(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Each gradient's error, relative to its norm, is below `tolerance`."""
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        error = (found[name] - gradient).norm() / gradient.norm().clamp_min(1e-6)
        assert error < tolerance, f"{name}: relative error {error:.2e}"
