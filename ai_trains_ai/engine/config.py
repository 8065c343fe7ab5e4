"""ModelConfig: a decoder's architecture as the engine runs it, read from and written to `config.json`.

Two families are supported, both dense, bias-free and fully causal: `llama` and `qwen3` (which normalises
every query and key head before rotating it). What would silently compute something else is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ai_trains_ai.errors import UsageError

Arch = Literal["llama", "qwen3"]
_CLASSES: dict[Arch, str] = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """The `llama3` frequency stretch: long wavelengths are divided by `factor`, short ones kept."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shapes and constants of one decoder. Sizes are in elements; `head_dim` is even."""

    arch: Arch
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float = 1e-5
    rope_theta: float = 10000.0
    tie_embeddings: bool = False
    max_positions: int = 2048
    rope_scaling: RopeScaling | None = None
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "max_positions",
        ):
            if getattr(self, name) < 1:
                raise UsageError(f"model config: {name} is {getattr(self, name)}, it must be at least 1")
        if self.arch not in _CLASSES:
            raise UsageError(f"model config: arch {self.arch!r} is not one of {', '.join(_CLASSES)}")
        if self.num_heads % self.num_kv_heads:
            raise UsageError(
                f"model config: {self.num_heads} query heads cannot share {self.num_kv_heads} key-value heads"
            )
        if self.head_dim % 2:
            raise UsageError(f"model config: head_dim {self.head_dim} is odd, rotary embeddings need pairs")

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        """Trainable elements, tied embeddings counted once."""
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.arch == "qwen3" else 0)
        attention = self.hidden_size * (2 * self.query_size + 2 * self.kv_size)
        layer = attention + 3 * self.hidden_size * self.intermediate_size + norms
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        return self.num_layers * layer + embeddings + self.hidden_size

    @classmethod
    def from_folder(cls, folder: str | Path) -> ModelConfig:
        """Read `folder/config.json`. Raises UsageError when it is missing, broken or unsupported."""
        path = Path(folder) / "config.json"
        try:
            data = json.loads(path.read_text())
        except FileNotFoundError as error:
            raise UsageError(
                f"{path} is missing: model folders hold config.json, model.safetensors"
            ) from error
        except json.JSONDecodeError as error:
            raise UsageError(f"{path} is not JSON: {error}") from error
        return cls.from_hf_dict(data)

    @classmethod
    def from_hf_dict(cls, data: Mapping[str, Any]) -> ModelConfig:
        """Translate a Hugging Face config. Raises UsageError for anything the engine does not compute."""
        arch = data.get("model_type")
        if arch not in _CLASSES:
            raise UsageError(f"model_type {arch!r} is not supported; supported: {', '.join(_CLASSES)}")
        _refuse_unsupported(data)
        theta, scaling = _read_rope(data)
        heads = int(_need(data, "num_attention_heads"))
        hidden = int(_need(data, "hidden_size"))
        eos = data.get("eos_token_id")
        return cls(
            arch=arch,
            vocab_size=int(_need(data, "vocab_size")),
            hidden_size=hidden,
            intermediate_size=int(_need(data, "intermediate_size")),
            num_layers=int(_need(data, "num_hidden_layers")),
            num_heads=heads,
            num_kv_heads=int(data.get("num_key_value_heads") or heads),
            head_dim=int(data.get("head_dim") or (128 if arch == "qwen3" else hidden // heads)),
            rms_eps=float(data.get("rms_norm_eps", 1e-6)),
            rope_theta=theta,
            tie_embeddings=bool(data.get("tie_word_embeddings", False)),
            max_positions=int(data.get("max_position_embeddings", 32768 if arch == "qwen3" else 2048)),
            rope_scaling=scaling,
            bos_token_id=data.get("bos_token_id"),
            eos_token_id=tuple(eos) if isinstance(eos, list) else eos,
            pad_token_id=data.get("pad_token_id"),
        )

    def to_hf_dict(self) -> dict[str, Any]:
        """A `config.json` for transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters) alike."""
        eos = list(self.eos_token_id) if isinstance(self.eos_token_id, tuple) else self.eos_token_id
        data: dict[str, Any] = {
            "architectures": [_CLASSES[self.arch]],
            "model_type": self.arch,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_eps,
            "rope_theta": self.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "tie_word_embeddings": self.tie_embeddings,
            "max_position_embeddings": self.max_positions,
            "attention_bias": False,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": eos,
            "pad_token_id": self.pad_token_id,
        }
        if self.rope_scaling is not None:
            scaling = {
                "rope_type": "llama3",
                "factor": self.rope_scaling.factor,
                "low_freq_factor": self.rope_scaling.low_freq_factor,
                "high_freq_factor": self.rope_scaling.high_freq_factor,
                "original_max_position_embeddings": self.rope_scaling.original_max_positions,
            }
            data["rope_scaling"] = scaling
            data["rope_parameters"] = {**scaling, "rope_theta": self.rope_theta}
        return data


def _need(data: Mapping[str, Any], key: str) -> Any:
    if data.get(key) is None:
        raise UsageError(f"config.json lacks {key!r}")
    return data[key]


def _refuse_unsupported(data: Mapping[str, Any]) -> None:
    """Settings that change the arithmetic and that this engine does not implement."""
    for key in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if data.get(key):
            raise UsageError(f"config.json sets {key}: the engine does not support it")
    if data.get("hidden_act", "silu") != "silu":
        raise UsageError(f"config.json sets hidden_act {data['hidden_act']!r}: only 'silu' is supported")
    odd = sorted(set(data.get("layer_types") or ()) - {"full_attention"})
    if odd:
        raise UsageError(f"config.json has layers of type {', '.join(odd)}: only full_attention is supported")
    experts = data.get("num_experts") or data.get("num_local_experts")
    if experts:
        raise UsageError(f"config.json has {experts} experts: only dense models are supported")
    if data.get("quantization_config"):
        raise UsageError("config.json has a quantization_config: the engine needs plain weights")


def _read_rope(data: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """rope_theta and scaling, from the old keys (rope_theta, rope_scaling) or the new (rope_parameters)."""
    merged: dict[str, Any] = {**(data.get("rope_scaling") or {}), **(data.get("rope_parameters") or {})}
    theta = merged.get("rope_theta", data.get("rope_theta", 10000.0))
    kind = merged.get("rope_type", merged.get("type", "default"))
    if kind == "default":
        return float(theta), None
    if kind != "llama3":
        raise UsageError(f"rope scaling {kind!r} is not supported; supported: default, llama3")
    return float(theta), RopeScaling(
        factor=float(_need(merged, "factor")),
        low_freq_factor=float(_need(merged, "low_freq_factor")),
        high_freq_factor=float(_need(merged, "high_freq_factor")),
        original_max_positions=int(_need(merged, "original_max_position_embeddings")),
    )
