"""The engine on SmolLM2-135M, against transformers on the same folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ai_trains_ai.engine.bases import base_folder
from ai_trains_ai.engine.generate import generate
from ai_trains_ai.engine.load import load_model
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.sampling import SamplingParams
from ai_trains_ai.engine.tokenizer import Tokenizer
from ai_trains_ai.errors import AtaError

QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about a cat that learns to sail across a very wide and cold sea.",
    "2 + 2 =",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return base_folder("smollm2-135m")
    except AtaError as error:
        pytest.skip(f"smollm2-135m cannot be had here: {error}")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load_model(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def test_greedy_text_equals_transformers(model: Model, reference: Any, tokenizer: Tokenizer) -> None:
    prompts = [tokenizer.encode_prompt(question) for question in QUESTIONS]
    assert len({len(prompt) for prompt in prompts}) == len(prompts)
    params = SamplingParams(16, temperature=0.0, stop_ids=tokenizer.stop_ids)
    ours = generate(model, prompts, params, seed=0)
    for prompt, (completion,) in zip(prompts, ours, strict=True):
        asked = torch.tensor([prompt])
        theirs = reference.generate(
            asked,
            attention_mask=torch.ones_like(asked),
            max_new_tokens=16,
            do_sample=False,
            pad_token_id=tokenizer.pad_id,
        )
        assert completion.tokens == theirs[0, len(prompt) :].tolist()
    assert tokenizer.decode(ours[0][0].tokens) == "The capital of France is Paris."
    assert ours[0][0].stop_reason == "stop"


def test_sampled_logprobs_equal_transformers(model: Model, reference: Any, tokenizer: Tokenizer) -> None:
    prompts = [tokenizer.encode_prompt(question) for question in QUESTIONS[:2]]
    results = generate(model, prompts, SamplingParams(12), samples_per_prompt=2, seed=1)
    for prompt, group in zip(prompts, results, strict=True):
        for completion in group:
            with torch.inference_mode():
                logits = reference(torch.tensor([prompt + completion.tokens])).logits[0, len(prompt) - 1 : -1]
            expected = torch.log_softmax(logits, -1).gather(-1, torch.tensor(completion.tokens)[:, None])[
                :, 0
            ]
            assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_bfloat16_answers_too(model: Model, tokenizer: Tokenizer) -> None:
    prompts = [tokenizer.encode_prompt(QUESTIONS[0])]
    params = SamplingParams(16, temperature=0.0, stop_ids=tokenizer.stop_ids)
    ((completion,),) = generate(model, prompts, params, seed=0, precision="bf16")
    assert "Paris" in tokenizer.decode(completion.tokens)


@pytest.mark.parametrize("system", [None, "You answer in one word."])
def test_chat_format_equals_transformers(folder: Path, tokenizer: Tokenizer, system: str | None) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for text in (*QUESTIONS, "  leading, it's \n\n \u00e9\u6f22 12345\t"):
        messages = [{"role": "user", "content": text}]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert tokenizer.encode_prompt(text, system) == expected
    assert tokenizer.stop_ids == (theirs.eos_token_id,)
    assert tokenizer.pad_id == theirs.pad_token_id


def test_text_round_trip(tokenizer: Tokenizer) -> None:
    """Its vocabulary lacks a few bytes: of control characters and of planes that are not assigned."""

    @settings(max_examples=50, deadline=None)
    @given(st.text(st.characters(min_codepoint=32, max_codepoint=0x3FFFF, exclude_categories=["Cs"])))
    def round_trip(text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text)) == text

    round_trip()


@pytest.mark.slow
def test_conversion_equals_transformers_own(folder: Path, tmp_path: Path) -> None:
    """Weight for weight what transformers makes of the same GGUF file, rounded to bfloat16."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from safetensors.torch import load_file

    from ai_trains_ai.engine import bases

    gguf_file = bases._gguf_file(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32
    ).state_dict()
    ours = load_file(folder / "model.safetensors")
    theirs.pop("lm_head.weight")
    assert set(ours) == set(theirs)
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor.to(torch.bfloat16)), name
