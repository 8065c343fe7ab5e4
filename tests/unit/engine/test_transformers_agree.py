"""The model and the training path against transformers: logits, gradients, folders in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from random_models import VOCAB, group, tokens

from ai_trains_ai.engine.bases import base_folder
from ai_trains_ai.engine.load import hf_tensors, load_model, save_model, weights_sha256
from ai_trains_ai.engine.lora import attach, attached, merge
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.train import group_logprobs
from ai_trains_ai.errors import AtaError

transformers = pytest.importorskip("transformers")

SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "initializer_range": 0.3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"num_key_value_heads": 6, "tie_word_embeddings": False}),
    "llama grouped, tied": ("Llama", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "llama, llama3 rope": (
        "Llama",
        {"num_key_value_heads": 3, "max_position_embeddings": 512, "rope_parameters": LLAMA3},
    ),
    "qwen3 grouped": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": False}),
    "qwen3 tied": ("Qwen3", {"num_key_value_heads": 6, "head_dim": 8, "tie_word_embeddings": True}),
}
GROUPS = [group(30, 20, 8, 14, seed=1), group(3, 5, 6, seed=2)]


@pytest.fixture(params=sorted(VARIANTS))
def theirs(request: pytest.FixtureRequest) -> Any:
    name, options = VARIANTS[request.param]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SHAPE, **options)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # gains of 1 would hide a missing one
                parameter.copy_(0.5 + torch.rand_like(parameter))
    return model


@pytest.fixture
def folder(theirs: Any, tmp_path: Path) -> Path:
    theirs.save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def their_logprobs(model: Any) -> torch.Tensor:
    """Sum of random multiples of every completion token's log-probability."""
    generator = torch.Generator().manual_seed(3)
    total = torch.zeros(())
    for one in GROUPS:
        for completion in one.completions:
            sequence = torch.tensor([[*one.prompt, *completion]])
            logits = model(sequence).logits[0, len(one.prompt) - 1 : -1]
            chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(completion)[:, None])[:, 0]
            total = total + (chosen * torch.randn(len(completion), generator=generator)).sum()
    return total


def our_logprobs(model: Model) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    batch = group_logprobs(model, GROUPS)
    total = torch.zeros(())
    for row, mask in zip(batch.logprobs_N_T, batch.mask_N_T, strict=True):
        total = total + (row[mask] * torch.randn(int(mask.sum()), generator=generator)).sum()
    return total


def test_logits(theirs: Any, folder: Path) -> None:
    ours = load_model(folder)
    sequence = torch.tensor([tokens(200, 1), tokens(200, 2)])
    with torch.no_grad():
        torch.testing.assert_close(ours(sequence), theirs(sequence).logits, atol=1e-4, rtol=0)


def test_gradients_of_all_weights(theirs: Any, folder: Path) -> None:
    ours = load_model(folder)
    our_logprobs(ours).backward()
    their_logprobs(theirs).backward()
    expected = {name: p.grad for name, p in theirs.named_parameters()}
    with torch.no_grad():  # the gradients under their names: as the weights of a model of the same shape
        for parameter in ours.parameters():
            parameter.copy_(parameter.grad)
    found = hf_tensors(ours)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        error = (found[name] - gradient).norm() / gradient.norm()
        assert error < 3e-5, f"{name}: {error:.2e}"


def test_gradients_of_an_adapter(theirs: Any, folder: Path) -> None:
    """d/db = scale · dW·aᵀ and d/da = scale · bᵀ·dW, with dW from transformers on the merged weights."""
    ours = load_model(folder)
    attach(ours, rank=3, alpha=6.0, seed=1)
    with torch.no_grad():
        for pair in attached(ours).values():
            pair.b.copy_(torch.randn(pair.b.shape, generator=torch.Generator().manual_seed(2)) * 0.05)
    our_logprobs(ours).backward()
    pairs = attached(ours)
    merge(ours)
    with torch.no_grad():
        for name, weight in hf_tensors(ours).items():
            theirs.get_parameter(name).copy_(weight)
    their_logprobs(theirs).backward()
    for name, pair in pairs.items():
        change = theirs.get_parameter(f"model.{name}.weight").grad
        for found, expected in (
            (pair.b.grad, pair.scale * change @ pair.a.detach().T),
            (pair.a.grad, pair.scale * pair.b.detach().T @ change),
        ):
            assert (found - expected).norm() / expected.norm() < 3e-5, name


def test_saved_models_load_in_transformers(theirs: Any, folder: Path, tmp_path: Path) -> None:
    ours = load_model(folder)
    save_model(ours, tmp_path / "ours")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert type(again) is type(theirs)
    sequence = torch.tensor([tokens(100, 1)])
    with torch.no_grad():
        torch.testing.assert_close(again(sequence).logits, theirs(sequence).logits, atol=0, rtol=0)
    assert weights_sha256(tmp_path / "ours") == weights_sha256(folder) == weights_sha256(ours)


def test_smollm2_logits_and_gradients() -> None:
    try:
        folder = base_folder("smollm2-135m")
    except AtaError as error:
        pytest.skip(f"smollm2-135m cannot be had here: {error}")
    ours = load_model(folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    sequence = torch.tensor([tokens(24, 1)]) * 100
    with torch.no_grad():
        torch.testing.assert_close(ours(sequence), theirs(sequence).logits, atol=1e-4, rtol=0)
    for model in (ours, theirs):
        model.requires_grad_(False)
    ours.layers[0].attn.qkv.weight.requires_grad_(True)
    query = theirs.model.layers[0].self_attn.q_proj.weight.requires_grad_(True)
    our_logprobs(ours).backward()
    their_logprobs(theirs).backward()
    gradient = ours.layers[0].attn.qkv.weight.grad[: query.shape[0]]
    assert (gradient - query.grad).norm() / query.grad.norm() < 1e-4
