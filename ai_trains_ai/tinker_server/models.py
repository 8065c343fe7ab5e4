"""The base models that the server offers, loaded when first asked for, and packed decoders for sampling.

Used on the worker thread, except for `BaseModels.name`, `names` and `about`, which load no weights.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ai_trains_ai.engine.bases import BASES, base_folder
from ai_trains_ai.engine.config import ModelConfig
from ai_trains_ai.engine.decode import Decoder
from ai_trains_ai.engine.load import load_model
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.tokenizer import Tokenizer
from ai_trains_ai.errors import UsageError
from ai_trains_ai.tinker_server.adapter import Adapter, AdapterConfig

ALIASES = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": "smollm2-135m",
    "ai-trains-ai/nano-0.2m": "nano-0.2m",
    "ai-trains-ai/nano-0.8m": "nano-0.8m",
}
DECODER_BYTES = 2 * 2**30
"""Packed weights that are kept for the next request; the one in use may be larger."""


@dataclass(frozen=True, slots=True)
class Base:
    """A loaded base: its weights want no gradient."""

    name: str
    folder: Path
    model: Model
    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True)
class SamplerWeights:
    """What a sampler samples from: a base, or a base with a copy of an adapter. Equal keys, equal weights."""

    key: str
    base_model: str
    adapter: tuple[AdapterConfig, Mapping[str, Tensor]] | None


class BaseModels:
    """extra: further bases, name -> Hugging Face folder."""

    def __init__(self, extra: Mapping[str, Path] | None = None, device: str = "cpu") -> None:
        packaged: dict[str, Callable[[], Path]] = {name: partial(base_folder, name) for name in BASES}
        self._folders = packaged | {name: partial(Path, path) for name, path in (extra or {}).items()}
        self._device = device
        self._loaded: dict[str, Base] = {}
        self._decoders: OrderedDict[str, Decoder] = OrderedDict()

    @property
    def names(self) -> list[str]:
        """Our names, then those that are aliases."""
        return [*self._folders, *(alias for alias, name in ALIASES.items() if name in self._folders)]

    def name(self, asked: str) -> str:
        """Our name of a base. Raises UsageError with the known ones."""
        found = ALIASES.get(asked, asked)
        if found not in self._folders:
            raise UsageError(f"unknown base model {asked!r}: this server has {', '.join(self.names)}")
        return found

    def about(self, asked: str) -> tuple[Path, ModelConfig]:
        """Folder and architecture. Fetches the files where they must be fetched first."""
        folder = self._folders[self.name(asked)]()
        return folder, ModelConfig.from_folder(folder)

    def load(self, asked: str) -> Base:
        name = self.name(asked)
        if name not in self._loaded:
            folder = self._folders[name]()
            model = load_model(folder, device=self._device)
            model.requires_grad_(False)
            self._loaded[name] = Base(name, folder, model, Tokenizer.from_folder(folder))
        return self._loaded[name]

    def decoder(self, weights: SamplerWeights) -> Decoder:
        """Packed weights of a sampler, kept while there is room for them."""
        found = self._decoders.pop(weights.key, None)
        base = self.load(weights.base_model)
        if found is None:
            keep = max(0, DECODER_BYTES // _bytes(base.model) - 1)
            while len(self._decoders) > keep:
                self._decoders.popitem(last=False)
            with self.attached(weights) as model:
                found = Decoder(model)
        self._decoders[weights.key] = found
        return found

    @contextmanager
    def attached(self, weights: SamplerWeights) -> Iterator[Model]:
        """The base with a sampler's adapter, inside the block."""
        base = self.load(weights.base_model)
        if weights.adapter is None:
            yield base.model
            return
        with Adapter(base.model, *weights.adapter).attached(base.model) as model:
            yield model

    def forget(self, key: str) -> None:
        self._decoders.pop(key, None)


def _bytes(model: Model) -> int:
    return sum(p.numel() * torch.finfo(p.dtype).bits // 8 for p in model.parameters())
