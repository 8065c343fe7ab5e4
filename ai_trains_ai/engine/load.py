"""Models from and to Hugging Face folders (config.json + model.safetensors), and their content hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ai_trains_ai.engine.config import ModelConfig
from ai_trains_ai.engine.model import Model, Projection
from ai_trains_ai.errors import InfrastructureError, UsageError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def hf_tensors(model: Model) -> dict[str, Tensor]:
    """Hugging Face name -> view of the model's own storage (no copy), in the order of the forward pass."""
    found: dict[str, Tensor] = {"model.embed_tokens.weight": model.embed.detach()}
    for i, block in enumerate(model.layers):
        prefix = f"model.layers.{i}."
        found[prefix + "input_layernorm.weight"] = block.attn_norm.weight.detach()
        found[prefix + "post_attention_layernorm.weight"] = block.mlp_norm.weight.detach()
        for name, tensor in _parts(block.attn.qkv) + _parts(block.attn.o):
            found[f"{prefix}self_attn.{name}.weight"] = tensor
        if block.attn.q_norm is not None and block.attn.k_norm is not None:
            found[prefix + "self_attn.q_norm.weight"] = block.attn.q_norm.weight.detach()
            found[prefix + "self_attn.k_norm.weight"] = block.attn.k_norm.weight.detach()
        for name, tensor in _parts(block.mlp.gate_up) + _parts(block.mlp.down):
            found[f"{prefix}mlp.{name}.weight"] = tensor
    found["model.norm.weight"] = model.norm.weight.detach()
    if model.head is not None:
        found["lm_head.weight"] = model.head.weight.detach()
    return found


def load_model(folder: str | Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Model:
    """Read a model folder, whole or sharded.

    Raises UsageError when the folder is no supported model, or when its tensors are not exactly the
    architecture's: a missing, an extra or a mis-shaped one is named, never skipped.
    """
    folder = Path(folder)
    config = ModelConfig.from_folder(folder)
    model = Model(config, seed=None).to(dtype)
    wanted = hf_tensors(model)
    missing = set(wanted)
    for name, tensor in _stored(folder):
        if name == "lm_head.weight" and config.tie_embeddings:
            continue  # some writers store the tied copy
        if name not in wanted:
            raise UsageError(f"{folder}: tensor {name!r} is not in a {config.arch} model of this config")
        if tensor.shape != wanted[name].shape:
            asked = tuple(wanted[name].shape)
            raise UsageError(f"{folder}: {name} has shape {tuple(tensor.shape)}, the config asks for {asked}")
        if not tensor.is_floating_point():
            raise UsageError(f"{folder}: {name} holds {tensor.dtype}, the engine needs plain float weights")
        wanted[name].copy_(tensor)
        missing.discard(name)
    if missing:
        raise UsageError(f"{folder}: {len(missing)} missing tensors: {', '.join(sorted(missing)[:5])}")
    return model.to(device)


def save_model(model: Model, folder: str | Path, dtype: torch.dtype | None = None) -> None:
    """Write config.json and model.safetensors, which transformers' AutoModelForCausalLM loads.

    dtype: of the stored tensors; None keeps the model's. Each file appears whole or not at all.
    """
    folder = Path(folder)
    kept = dtype or model.dtype
    tensors = {name: t.detach().to("cpu", kept).contiguous() for name, t in hf_tensors(model).items()}
    data = {**model.config.to_hf_dict(), "dtype": str(kept).removeprefix("torch.")}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{WEIGHTS}.partial"
        save_file(tensors, partial, metadata={"format": "pt"})
        partial.replace(folder / WEIGHTS)
        config_partial = folder / ".config.json.partial"
        config_partial.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n")
        config_partial.replace(folder / "config.json")
    except (OSError, SafetensorError) as error:
        raise InfrastructureError(f"cannot write the model to {folder}: {error}") from error


def weights_sha256(source: Model | str | Path) -> str:
    """Identity of a model: sha256 of its config and its tensors by name, with dtype, shape and bytes.

    A model in memory and the folder it was saved to (same dtype) hash alike; file layout, sharding and
    tensor order do not matter.
    """
    if isinstance(source, Model):
        config = source.config
        tensors = {name: t.detach().cpu() for name, t in hf_tensors(source).items()}
    else:
        config = ModelConfig.from_folder(source)
        tensors = dict(_stored(Path(source)))
        if config.tie_embeddings:
            tensors.pop("lm_head.weight", None)
    digest = hashlib.sha256(json.dumps(config.to_hf_dict(), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _parts(projection: Projection) -> list[tuple[str, Tensor]]:
    return [(name, projection.weight.detach()[rows]) for name, rows in projection.slices().items()]


def _stored(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in the folder's safetensors files, one at a time."""
    files = [folder / WEIGHTS]
    if not files[0].exists():
        index = folder / INDEX
        if not index.exists():
            raise UsageError(f"{folder} has neither {WEIGHTS} nor {INDEX}")
        files = [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    for file in files:
        try:
            with safe_open(file, framework="pt") as stored:
                for name in stored.keys():  # noqa: SIM118 (not a mapping)
                    yield name, stored.get_tensor(name)
        except (SafetensorError, FileNotFoundError) as error:
            raise UsageError(f"{file} is not a readable safetensors file: {error}") from error
