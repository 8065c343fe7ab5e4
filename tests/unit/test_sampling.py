"""The draw: right distribution, right log-probabilities, nothing outside top_k and top_p."""

from __future__ import annotations

import math

import pytest
import torch

from ai_trains_ai.engine.sampling import SamplingParams, draw_uniforms, greedy, restrict, sample
from ai_trains_ai.errors import UsageError


def chi_square(counts: torch.Tensor, probs: torch.Tensor) -> float:
    expected = probs * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.6])
def test_frequencies_follow_the_distribution(temperature: float) -> None:
    logits = torch.tensor([2.0, 0.5, -1.0, 0.0, 1.0, -3.0])
    rows = 40_000
    tokens, logprobs = sample(
        logits.repeat(rows, 1), draw_uniforms(rows, 1, seed=3)[:, 0], temperature=temperature
    )
    probs = torch.softmax(logits / temperature, -1)
    # 99.99% quantile of chi-square with 5 degrees of freedom is 25.7.
    assert chi_square(torch.bincount(tokens, minlength=6).float(), probs) < 25.7
    assert torch.allclose(logprobs, probs.log()[tokens], atol=1e-5)


def test_large_vocabularies_are_searched_in_two_steps_with_the_same_result() -> None:
    logits = torch.randn(512, 8192, generator=torch.Generator().manual_seed(0)) * 3
    uniforms = draw_uniforms(512, 1, seed=1)[:, 0]
    tokens, logprobs = sample(logits.clone(), uniforms)
    reference = torch.log_softmax(logits.double(), -1)
    assert torch.allclose(logprobs.double(), reference.gather(-1, tokens[:, None])[:, 0], atol=1e-5)
    cumulative = reference.exp().cumsum(-1)
    upper = cumulative.gather(-1, tokens[:, None])[:, 0]
    lower = upper - reference.exp().gather(-1, tokens[:, None])[:, 0]
    assert ((uniforms >= lower - 1e-5) & (uniforms <= upper + 1e-5)).all()


@pytest.mark.parametrize("vocab", [40, 8192])
def test_a_token_of_probability_zero_is_never_drawn(vocab: int) -> None:
    logits = torch.full((4096, vocab), -math.inf)
    allowed = torch.tensor([3, vocab // 2, vocab - 2])
    logits[:, allowed] = torch.tensor([0.0, 1.0, -1.0])
    uniforms = draw_uniforms(4096, 1, seed=5)[:, 0]
    uniforms[:3] = torch.tensor([0.0, 1.0 - 2.0**-24, 0.5])
    tokens, logprobs = sample(logits, uniforms)
    assert torch.isin(tokens, allowed).all()
    assert torch.isfinite(logprobs).all()
    assert tokens[0] == 3
    assert tokens[1] == vocab - 2


def test_top_k_keeps_k_and_renormalises() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0]]).repeat(2000, 1)
    tokens, logprobs = sample(logits.clone(), draw_uniforms(2000, 1, seed=1)[:, 0], top_k=2)
    assert set(tokens.tolist()) == {1, 2}
    both = torch.log_softmax(torch.tensor([3.0, 2.0]), -1)
    assert torch.allclose(logprobs, torch.where(tokens == 1, both[0], both[1]), atol=1e-6)


@pytest.mark.parametrize(("top_p", "kept"), [(0.1, 1), (0.49, 1), (0.51, 2), (0.79, 2), (0.81, 3), (1.0, 4)])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, kept: int) -> None:
    logits = torch.tensor([[0.05, 0.5, 0.15, 0.3]]).double().log()
    assert int(torch.isfinite(restrict(logits, 0, top_p)).sum()) == kept


@pytest.mark.parametrize("vocab", [50, 8192])
def test_greedy_takes_the_first_of_the_likeliest(vocab: int) -> None:
    logits = torch.randn(64, vocab, generator=torch.Generator().manual_seed(2))
    logits[0, [7, vocab - 1]] = 9.0
    tokens, logprobs = greedy(logits)
    assert tokens.tolist() == logits.argmax(-1).tolist()
    assert tokens[0] == 7
    reference = torch.log_softmax(logits, -1).gather(-1, tokens[:, None])[:, 0]
    assert torch.allclose(logprobs, reference, atol=1e-5)


def test_temperatures_may_differ_by_row() -> None:
    logits = torch.tensor([[0.0, 2.0], [0.0, 2.0]])
    _, logprobs = sample(logits, torch.tensor([0.9, 0.9]), temperature=torch.tensor([1.0, 2.0]))
    expected = [torch.log_softmax(torch.tensor([0.0, t]), -1)[1] for t in (2.0, 1.0)]
    assert torch.allclose(logprobs, torch.stack(expected), atol=1e-6)


def test_more_sequences_leave_the_first_ones_numbers_alone() -> None:
    assert torch.equal(draw_uniforms(5, 7, seed=11)[:3], draw_uniforms(3, 7, seed=11))


@pytest.mark.parametrize(
    "wrong",
    [{"max_tokens": 0}, {"temperature": -1.0}, {"temperature": math.inf}, {"top_k": -1}, {"top_p": 0.0}],
)
def test_impossible_parameters_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        SamplingParams(**{"max_tokens": 4, **wrong})  # type: ignore[arg-type]
