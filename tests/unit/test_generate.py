"""generate against transformers and against the model's own forward pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_models import VOCAB, next_logits, random_prompts, small_model

from ai_trains_ai.engine.config import Arch
from ai_trains_ai.engine.decode import Decoder
from ai_trains_ai.engine.generate import generate
from ai_trains_ai.engine.load import save_model
from ai_trains_ai.engine.model import LoraPair, Model
from ai_trains_ai.engine.sampling import Completion, SamplingParams
from ai_trains_ai.errors import UsageError

STOPS = (3, 5, 8, 13, 21)


def recomputed(model: Model, prompt: list[int], tokens: list[int], temperature: float = 1.0) -> list[float]:
    """Log-probabilities of `tokens` after `prompt` by the plain forward pass."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + tokens]))[0, len(prompt) - 1 : -1]
    logprobs = torch.log_softmax(logits / temperature, -1)
    return logprobs.gather(-1, torch.tensor(tokens)[:, None])[:, 0].tolist()


def tokens_of(results: list[list[Completion]]) -> list[list[list[int]]]:
    return [[completion.tokens for completion in group] for group in results]


@pytest.mark.parametrize(("arch", "heads", "kv_heads"), [("llama", 4, 4), ("llama", 4, 1), ("qwen3", 4, 2)])
def test_greedy_tokens_equal_transformers(arch: Arch, heads: int, kv_heads: int, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = small_model(arch, heads=heads, kv_heads=kv_heads)
    save_model(model, tmp_path)
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    prompts = random_prompts(5, 17, 1, 9)
    ours = generate(model, prompts, SamplingParams(24, temperature=0.0), seed=0)
    for prompt, (completion,) in zip(prompts, ours, strict=True):
        asked = torch.tensor([prompt])
        theirs = reference.generate(
            asked, attention_mask=torch.ones_like(asked), max_new_tokens=24, do_sample=False, pad_token_id=0
        )
        assert completion.tokens == theirs[0, len(prompt) :].tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_logprobs_equal_recomputed_ones(arch: Arch, temperature: float) -> None:
    model = small_model(arch)
    prompts = random_prompts(4, 19, 33)
    results = generate(
        model,
        prompts,
        SamplingParams(20, temperature=temperature, stop_ids=STOPS),
        samples_per_prompt=5,
        seed=7,
    )
    for prompt, group in zip(prompts, results, strict=True):
        for completion in group:
            assert completion.logprobs == pytest.approx(
                recomputed(model, prompt, completion.tokens, temperature), abs=1e-4
            )


def test_first_tokens_follow_the_model() -> None:
    model = small_model()
    (prompt,) = random_prompts(6)
    (group,) = generate(model, [prompt], SamplingParams(1), samples_per_prompt=20_000, seed=1)
    counts = torch.bincount(torch.tensor([c.tokens[0] for c in group]), minlength=VOCAB).float()
    expected = torch.softmax(next_logits(model, prompt), -1) * counts.sum()
    common = expected >= 5
    rest = torch.stack([counts[~common].sum(), expected[~common].sum()])
    statistic = ((counts - expected) ** 2 / expected)[common].sum() + (rest[0] - rest[1]) ** 2 / rest[1]
    # Normal approximation of chi-square: mean k, deviation sqrt(2k); four deviations.
    freedom = int(common.sum())
    assert float(statistic) < freedom + 4 * (2 * freedom) ** 0.5


def test_second_tokens_depend_on_their_own_first_token() -> None:
    """Rows that share a prompt must not see each other's positions."""
    model = small_model(layers=2)
    (prompt,) = random_prompts(3)
    (group,) = generate(model, [prompt], SamplingParams(2), samples_per_prompt=64, seed=2)
    assert len({c.tokens[0] for c in group}) > 3
    for completion in group:
        assert completion.logprobs == pytest.approx(recomputed(model, prompt, completion.tokens), abs=1e-4)


def test_stop_tokens_end_a_completion_and_belong_to_it() -> None:
    model = small_model()
    results = generate(
        model, random_prompts(4, 9), SamplingParams(30, stop_ids=STOPS), samples_per_prompt=16, seed=3
    )
    completions = [completion for group in results for completion in group]
    assert {c.stop_reason for c in completions} == {"stop", "length"}
    for completion in completions:
        assert not set(completion.tokens[:-1]) & set(STOPS)
        assert len(completion.logprobs) == len(completion.tokens)
        if completion.stop_reason == "stop":
            assert completion.tokens[-1] in STOPS
        else:
            assert len(completion.tokens) == 30


def test_a_stop_token_at_the_last_position_counts_as_stop() -> None:
    model = small_model()
    results = generate(
        model,
        random_prompts(4),
        SamplingParams(1, stop_ids=tuple(range(VOCAB))),
        samples_per_prompt=3,
        seed=3,
    )
    assert [c.stop_reason for c in results[0]] == ["stop"] * 3


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_sharing_and_compaction_change_nothing_but_speed(arch: Arch) -> None:
    model = small_model(arch)
    prompts, params = random_prompts(7, 21, 2, 16), SamplingParams(40, stop_ids=STOPS)
    plain = generate(model, prompts, params, samples_per_prompt=6, seed=5, share=False, compact=False)
    lengths = {len(c.tokens) for group in plain for c in group}
    assert len(lengths) > 8  # rows leave one by one
    for share, compact in ((True, True), (True, False), (False, True)):
        other = generate(model, prompts, params, samples_per_prompt=6, seed=5, share=share, compact=compact)
        assert tokens_of(other) == tokens_of(plain)
        for ours, theirs in zip(other, plain, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                assert a.stop_reason == b.stop_reason
                assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def test_seeds() -> None:
    model, prompts, params = small_model(), random_prompts(6, 11), SamplingParams(12)
    first = generate(model, prompts, params, samples_per_prompt=4, seed=9)
    assert generate(model, prompts, params, samples_per_prompt=4, seed=9) == first
    assert tokens_of(generate(model, prompts, params, samples_per_prompt=4, seed=10)) != tokens_of(first)
    assert len({tuple(c.tokens) for c in first[0]}) > 1
    # A prompt added at the end leaves the others' completions alone.
    more = generate(model, [*prompts, [1, 2, 3]], params, samples_per_prompt=4, seed=9)
    assert tokens_of(more[:2]) == tokens_of(first)


def test_greedy_samples_agree_and_carry_plain_logprobs() -> None:
    model = small_model()
    (prompt,) = random_prompts(8)
    (group,) = generate(model, [prompt], SamplingParams(10, temperature=0.0), samples_per_prompt=3, seed=0)
    assert group[0].tokens == group[1].tokens == group[2].tokens
    assert group[0].logprobs == pytest.approx(recomputed(model, prompt, group[0].tokens), abs=1e-4)


def test_an_attached_adapter_is_sampled_from() -> None:
    model = small_model()
    prompts = random_prompts(5, 8)
    before = generate(model, prompts, SamplingParams(8), seed=4)
    generator = torch.Generator().manual_seed(3)
    for block in model.layers:
        for projection in (block.attn.qkv, block.attn.o, block.mlp.gate_up, block.mlp.down):
            for name, rows in projection.slices().items():
                a = torch.randn(4, projection.in_features, generator=generator)
                b = torch.randn(rows.stop - rows.start, 4, generator=generator)
                projection.lora[name] = LoraPair(torch.nn.Parameter(a), torch.nn.Parameter(b), 0.02)
    after = generate(model, prompts, SamplingParams(8), seed=4)
    assert tokens_of(after) != tokens_of(before)
    for prompt, (completion,) in zip(prompts, after, strict=True):
        assert completion.logprobs == pytest.approx(recomputed(model, prompt, completion.tokens), abs=1e-4)


def test_bfloat16_is_no_further_from_float32_than_a_plain_bfloat16_forward() -> None:
    model, rounded = small_model(), small_model().to(torch.bfloat16)
    prompts = random_prompts(5, 30)
    results = generate(model, prompts, SamplingParams(16), samples_per_prompt=8, seed=6, precision="bf16")
    ours, plain = [], []
    for prompt, group in zip(prompts, results, strict=True):
        for completion in group:
            exact = torch.tensor(recomputed(model, prompt, completion.tokens))
            ours.append((torch.tensor(completion.logprobs) - exact).abs().mean())
            plain.append((torch.tensor(recomputed(rounded, prompt, completion.tokens)) - exact).abs().mean())
    assert torch.stack(ours).mean() < 1.2 * torch.stack(plain).mean()


def test_a_decoder_is_a_snapshot() -> None:
    model = small_model()
    decoder = Decoder(model)
    prompts, params = random_prompts(5), SamplingParams(8)
    before = generate(decoder, prompts, params, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    assert generate(decoder, prompts, params, seed=1) == before
    assert tokens_of(generate(model, prompts, params, seed=1)) != tokens_of(before)


def test_what_cannot_be_generated_is_refused() -> None:
    model = small_model()
    assert generate(model, [], SamplingParams(4), seed=0) == []
    with pytest.raises(UsageError, match="at least one token"):
        generate(model, [[1], []], SamplingParams(4), seed=0)
    with pytest.raises(UsageError, match="256 positions"):
        generate(model, [[1] * 250], SamplingParams(7), seed=0)
    assert len(generate(model, [[1] * 250], SamplingParams(6), seed=0)[0][0].tokens) == 6
    with pytest.raises(UsageError, match="samples_per_prompt"):
        generate(model, [[1]], SamplingParams(4), samples_per_prompt=0, seed=0)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_accelerators_give_the_same_tokens(device: str) -> None:
    available = torch.cuda.is_available() if device == "cuda" else torch.backends.mps.is_available()
    if not available:
        pytest.skip(f"no {device} device here")
    model, prompts = small_model(), random_prompts(5, 19)
    params = SamplingParams(20, stop_ids=STOPS)
    expected = generate(model, prompts, params, samples_per_prompt=4, seed=3)
    found = generate(model.to(device), prompts, params, samples_per_prompt=4, seed=3)
    assert tokens_of(found) == tokens_of(expected)
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-3)
