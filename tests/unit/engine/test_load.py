"""Folders: what is refused by name, and the hash that identifies a model by its content."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from random_models import random_model
from safetensors.torch import load_file, save_file
from torch import Tensor

from ai_trains_ai.engine.load import hf_tensors, load_model, save_model, weights_sha256
from ai_trains_ai.engine.model import Model
from ai_trains_ai.errors import UsageError

KEY = "model.layers.1.self_attn.k_proj.weight"


@pytest.fixture
def model() -> Model:
    return random_model("qwen3", tied=False)


@pytest.fixture
def folder(model: Model, tmp_path: Path) -> Path:
    save_model(model, tmp_path / "model")
    return tmp_path / "model"


def rewrite(folder: Path, **changes: Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")


def test_round_trip(model: Model, folder: Path) -> None:
    again = load_model(folder)
    assert again.config == model.config
    ours, theirs = hf_tensors(model), hf_tensors(again)
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}


def test_hf_tensors_are_views_that_mark_changes(model: Model) -> None:
    """Writing through them changes the model, and autograd's version counter tells."""
    weight = model.layers[1].attn.qkv.weight
    before = weight._version
    hf_tensors(model)[KEY].fill_(2.0)
    rows = weight[model.config.query_size :][: model.config.kv_size]
    assert bool((rows == 2.0).all())
    assert weight._version > before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({KEY: None}, "1 missing tensors: " + KEY),
        (
            {"model.layers.9.mlp.up_proj.weight": torch.ones(1)},
            "'model.layers.9.mlp.up_proj.weight' is not in",
        ),
        ({KEY: torch.ones(16, 31)}, r"k_proj.weight has shape \(16, 31\), the config asks for \(16, 32\)"),
        ({KEY: torch.ones(16, 32, dtype=torch.int8)}, "holds torch.int8"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    folder: Path, change: dict[str, Tensor | None], message: str
) -> None:
    rewrite(folder, **change)
    with pytest.raises(UsageError, match=message):
        load_model(folder)


def test_broken_folders(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config.json is missing"):
        load_model(tmp_path)
    (folder / "config.json").write_text("{")
    with pytest.raises(UsageError, match="is not JSON"):
        load_model(folder)


def test_missing_and_truncated_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(UsageError, match="not a readable safetensors file"):
        load_model(folder)
    weights.unlink()
    with pytest.raises(UsageError, match="has neither"):
        load_model(folder)


def test_sharded_folders_load(model: Model, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    files = {name: f"model-{1 + place % 2}.safetensors" for place, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert weights_sha256(load_model(folder)) == weights_sha256(model) == weights_sha256(folder)


def test_the_hash_depends_on_content_alone(model: Model, folder: Path, tmp_path: Path) -> None:
    first = weights_sha256(folder)
    assert len(first) == 64
    assert weights_sha256(model) == first
    rewrite(folder)  # same tensors, other metadata
    assert weights_sha256(folder) == first
    (folder / "tokenizer.json").write_text("{}")
    assert weights_sha256(folder) == first
    shutil.copytree(folder, tmp_path / "copy")
    assert weights_sha256(tmp_path / "copy") == first


def test_the_hash_sees_every_change(model: Model) -> None:
    seen = {weights_sha256(model)}
    with torch.no_grad():
        model.norm.weight[0] += 1e-6
    seen.add(weights_sha256(model))
    seen.add(weights_sha256(model.to(torch.bfloat16)))
    other = random_model("qwen3", tied=False)
    object.__setattr__(other.config, "rope_theta", 9999.0)
    seen.add(weights_sha256(other))
    assert len(seen) == 4


def test_dtypes(model: Model, tmp_path: Path) -> None:
    save_model(model, tmp_path, dtype=torch.bfloat16)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    half = load_model(tmp_path, dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert weights_sha256(half) == weights_sha256(tmp_path)
    assert load_model(tmp_path).dtype == torch.float32
