"""A LoRA adapter: low-rank pairs for a model's projections, attached for the time of one computation.

One base model in memory serves every client; an adapter is what differs between them. Its tensors carry the
names that PEFT gives them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from ai_trains_ai.engine.model import LoraPair, Model, Projection
from ai_trains_ai.errors import UsageError
from ai_trains_ai.seeds import derive

ALPHA = 32.0
"""The scale of a pair is ALPHA / rank, as on the hosted service, so that learning rates carry over."""
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What an adapter covers. The unembedding is never adapted: the bases tie it to their embedding."""

    rank: int
    train_attn: bool = True
    train_mlp: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= 512:
            raise UsageError(f"LoRA rank {self.rank} is not between 1 and 512")
        if not (self.train_attn or self.train_mlp):
            raise UsageError("train_attn and train_mlp are both off: there is nothing to train")

    @property
    def targets(self) -> tuple[str, ...]:
        return (ATTENTION if self.train_attn else ()) + (MLP if self.train_mlp else ())


class Adapter:
    """Pairs of every target projection, in the model's order. float32, on the model's device."""

    def __init__(self, model: Model, config: AdapterConfig, tensors: Mapping[str, Tensor]) -> None:
        """tensors: by PEFT name, copied. Raises UsageError unless they are exactly the config's."""
        self.config = config
        self._pairs: list[dict[str, LoraPair]] = []
        left = dict(tensors)
        for prefix, projection in _named(model):
            pairs = {}
            for name, rows in projection.parts.items():
                if name in config.targets:
                    a = _take(left, f"{prefix[name]}.lora_A.weight", (config.rank, projection.in_features))
                    b = _take(left, f"{prefix[name]}.lora_B.weight", (rows, config.rank))
                    a, b = (t.detach().to(model.device, torch.float32, copy=True) for t in (a, b))
                    pairs[name] = LoraPair(nn.Parameter(a), nn.Parameter(b), scale=ALPHA / config.rank)
            self._pairs.append(pairs)
        if left:
            raise UsageError(f"the adapter holds tensors that the model has no place for: {_some(left)}")

    @classmethod
    def fresh(cls, model: Model, config: AdapterConfig, *, seed: int) -> Self:
        """Starts as no change: b is zero, a uniform; the draws depend on `seed` alone."""
        generator = torch.Generator().manual_seed(derive(seed, "lora"))
        tensors = {}
        for prefix, projection in _named(model):
            for name, rows in projection.parts.items():
                if name in config.targets:
                    bound = projection.in_features**-0.5
                    a = torch.empty(config.rank, projection.in_features).uniform_(
                        -bound, bound, generator=generator
                    )
                    tensors[f"{prefix[name]}.lora_A.weight"] = a
                    tensors[f"{prefix[name]}.lora_B.weight"] = torch.zeros(rows, config.rank)
        return cls(model, config, tensors)

    def parameters(self) -> list[nn.Parameter]:
        return [tensor for pairs in self._pairs for pair in pairs.values() for tensor in (pair.a, pair.b)]

    def tensors(self, model: Model) -> dict[str, Tensor]:
        """Detached copies by PEFT name, on the CPU."""
        found = {}
        for (prefix, _), pairs in zip(_named(model), self._pairs, strict=True):
            for name, pair in pairs.items():
                found[f"{prefix[name]}.lora_A.weight"] = pair.a.detach().to("cpu", copy=True)
                found[f"{prefix[name]}.lora_B.weight"] = pair.b.detach().to("cpu", copy=True)
        return found

    @contextmanager
    def attached(self, model: Model) -> Iterator[Model]:
        """The model with this adapter, inside the block. One adapter at a time."""
        projections = list(model.projections())
        assert not any(projection.lora for projection in projections), "another adapter is attached"
        try:
            for projection, pairs in zip(projections, self._pairs, strict=True):
                projection.lora = pairs
            yield model
        finally:
            for projection in projections:
                projection.lora = {}


def _named(model: Model) -> Iterator[tuple[dict[str, str], Projection]]:
    """Every projection with the PEFT name of each of its parts, in the order of `Model.projections`."""
    places = ("self_attn", "self_attn", "mlp", "mlp")
    for i, projection in enumerate(model.projections()):
        prefix = f"base_model.model.model.layers.{i // 4}.{places[i % 4]}"
        yield {name: f"{prefix}.{name}" for name in projection.parts}, projection


def _take(tensors: dict[str, Tensor], name: str, shape: tuple[int, int]) -> Tensor:
    if name not in tensors:
        raise UsageError(f"the adapter lacks {name}; it holds {_some(tensors)}")
    tensor = tensors.pop(name)
    if tuple(tensor.shape) != shape:
        raise UsageError(f"the adapter's {name} has shape {tuple(tensor.shape)}, the model needs {shape}")
    return tensor


def _some(tensors: Mapping[str, Tensor]) -> str:
    names = sorted(tensors)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "none"
