"""Each loss on tokens whose ratios are round numbers, value and gradient worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ai_trains_ai.algo import losses
from ai_trains_ai.algo.losses import TokenLoss

ALL = (losses.importance_sampling, losses.ppo, losses.cispo, losses.prime_rl, losses.grpo)


def tokens(p: list[float], q: list[float], advantages: list[float]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One completion of len(p) tokens with probabilities p (trainer) and q (sampler), in float64."""
    logprobs = torch.tensor([p], dtype=torch.float64).log().requires_grad_()
    sampler = torch.tensor([q], dtype=torch.float64).log()
    return (
        logprobs,
        sampler,
        torch.tensor([advantages], dtype=torch.float64),
        torch.ones(1, len(p), dtype=torch.bool),
    )


def gradient(output: TokenLoss, logprobs: Tensor) -> list[float]:
    (grad,) = torch.autograd.grad(losses.total(output.loss_N_T), logprobs)
    return [round(value, 12) for value in grad[0].tolist()]


def values(output: TokenLoss) -> list[float]:
    return [round(value, 12) for value in output.loss_N_T[0].tolist()]


# p/q = 2, 1/2, 1, 3/2, 1/2 with advantages 1, 1, -2, -1, -1
P = [0.4, 0.2, 0.5, 0.3, 0.25]
Q = [0.2, 0.4, 0.5, 0.2, 0.5]
A = [1.0, 1.0, -2.0, -1.0, -1.0]


def test_importance_sampling() -> None:
    args = tokens(P, Q, A)
    output = losses.importance_sampling(*args)
    # −r·A, whose derivative by log p is −r·A again
    assert values(output) == [-2.0, -0.5, 2.0, 1.5, 0.5]
    assert gradient(output, args[0]) == [-2.0, -0.5, 2.0, 1.5, 0.5]
    assert not output.clipped_N_T.any()
    assert losses.total(output.loss_N_T).item() == pytest.approx(1.5)


def test_ppo_clips_the_side_the_advantage_pushes_to() -> None:
    args = tokens(P, Q, A)
    output = losses.ppo(*args)
    # −min(r·A, clip(r, .8, 1.2)·A): 2 → 1.2 (clipped, no gradient); 1/2 keeps 1/2; 1 keeps −2;
    # 3/2 keeps −3/2; 1/2 with A = −1: min(−.5, −.8) = −.8 (clipped)
    assert values(output) == [-1.2, -0.5, 2.0, 1.5, 0.8]
    assert gradient(output, args[0]) == [0.0, -0.5, 2.0, 1.5, 0.0]
    assert output.clipped_N_T[0].tolist() == [True, False, False, False, True]


def test_ppo_thresholds_bound_the_ratio_itself() -> None:
    output = losses.ppo(*tokens(P, Q, A), clip_low=0.9, clip_high=1.1)
    assert values(output) == [-1.1, -0.5, 2.0, 1.5, 0.9]


def test_cispo_never_silences_a_token() -> None:
    # ratios 8 and 1/8; the default clips only above, at 4: weight 4 and 1/8
    args = tokens([0.8, 0.1], [0.1, 0.8], [1.0, -3.0])
    output = losses.cispo(*args)
    assert values(output) == [round(-4 * math.log(0.8), 12), round(3 / 8 * math.log(0.1), 12)]
    assert gradient(output, args[0]) == [-4.0, 0.375]
    assert output.clipped_N_T[0].tolist() == [True, False]
    both = losses.cispo(*args, clip_low=0.8, clip_high=1.2)
    assert gradient(both, args[0]) == [-1.2, 2.4]
    assert both.clipped_N_T[0].tolist() == [True, True]


def test_prime_rl_masks_by_probability_difference() -> None:
    # p − q = .5 (A > 0: dropped), .5 (A < 0: kept), −.5 (A < 0: dropped), −.5 (A > 0: kept),
    # .1 at ratio 2 (kept: rare tokens may double), −.5 with A = 0 (dropped as on the negative side)
    args = tokens([0.8, 0.8, 0.2, 0.2, 0.2, 0.2], [0.3, 0.3, 0.7, 0.7, 0.1, 0.7], [1, -1, -1, 1, 1, 0])
    output = losses.prime_rl(*args, adv_tau=2.0, kl_tau=0.5)
    assert output.clipped_N_T[0].tolist() == [True, False, True, False, False, True]
    up, down, double = math.log(8 / 3), math.log(2 / 7), math.log(2)
    # dropped tokens keep the squared log ratio: .5·(log r)²; kept ones add −2·A·r
    expected = [
        0.5 * up**2,
        0.5 * up**2 + 2 * 8 / 3,
        0.5 * down**2,
        0.5 * down**2 - 2 * 2 / 7,
        0.5 * double**2 - 2 * 2,
        0.5 * down**2,
    ]
    assert values(output) == pytest.approx(expected, abs=1e-11)
    # d/dlog p: log r for the quadratic term, −2·A·r for the kept policy term
    slopes = [up, up + 16 / 3, down, down - 4 / 7, double - 4, down]
    assert gradient(output, args[0]) == pytest.approx(slopes, abs=1e-11)


def test_prime_rl_thresholds_are_strict_and_separate() -> None:
    args = tokens([0.75, 0.25], [0.5, 0.5], [1.0, -1.0])
    at_the_bound = losses.prime_rl(*args, dppo_mask_low=0.25, dppo_mask_high=0.25)
    assert at_the_bound.clipped_N_T[0].tolist() == [False, False]
    only_high = losses.prime_rl(*args, dppo_mask_low=0.3, dppo_mask_high=0.2)
    assert only_high.clipped_N_T[0].tolist() == [True, False]
    # mask_high = 0 is what a job may set: every token that gained anything is dropped where A > 0
    none_kept = losses.prime_rl(*args, dppo_mask_low=0.0, dppo_mask_high=0.0, kl_tau=0.0)
    assert values(none_kept) == [0.0, 0.0]


def test_on_policy_first_step_is_plain_policy_gradient() -> None:
    """With p = q every loss has gradient −A and the same for the reductions' weights."""
    for loss in ALL:
        args = tokens([0.3, 0.6], [0.3, 0.6], [1.5, -0.5])
        assert gradient(loss(*args), args[0]) == [-1.5, 0.5], loss.__name__


def test_grpo_reference_penalty() -> None:
    args = tokens([0.2], [0.2], [1.0])
    reference = torch.tensor([[0.4]], dtype=torch.float64).log()
    output = losses.grpo(*args, beta=0.1, reference_logprobs_N_T=reference, unbiased_kl=False)
    # d = log 2: penalty .1·(2 − log 2 − 1); its slope by log p is .1·(1 − 2)
    assert values(output) == [round(-1 + 0.1 * (1 - math.log(2)), 12)]
    assert gradient(output, args[0]) == [-1.1]
    # times the ratio, which is 1 here: the same value, and the slope gains the penalty itself:
    # .1·(1 − 2) + .1·(1 − log 2) = −.1·log 2, the reverse KL's −.1·d
    unbiased = losses.grpo(*args, beta=0.1, reference_logprobs_N_T=reference)
    assert values(unbiased) == values(output)
    assert gradient(unbiased, args[0]) == [round(-1 - 0.1 * math.log(2), 12)]
    with pytest.raises(ValueError, match="reference"):
        losses.grpo(*args, beta=0.1)


def test_reductions() -> None:
    loss = torch.tensor([[1.0, 2.0, 3.0], [6.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    assert losses.total(loss).item() == 12.0
    assert losses.token_mean(loss, tokens=4).item() == 3.0  # (1 + 2 + 3 + 6) / 4
    assert losses.sequence_mean(loss, mask).item() == 4.0  # ((1 + 2 + 3) / 3 + 6) / 2


def test_micro_batches_add_up_under_token_mean() -> None:
    logprobs, sampler, advantages, mask = tokens(P, Q, A)
    whole = losses.token_mean(losses.ppo(logprobs, sampler, advantages, mask).loss_N_T, 5)
    parts = 0.0
    for s in (slice(0, 2), slice(2, 5)):
        output = losses.ppo(logprobs[:, s], sampler[:, s], advantages[:, s], mask[:, s])
        parts += losses.token_mean(output.loss_N_T, 5).item()
    assert parts == pytest.approx(whole.item(), abs=1e-15)


@pytest.mark.parametrize("loss", ALL, ids=lambda f: f.__name__)
def test_nothing_to_train_on_is_zero_not_nan(loss: object) -> None:
    """All completions truncated away: the mask's sum is 0."""
    logprobs = torch.full((2, 3), -1.0, requires_grad=True)
    mask = torch.zeros(2, 3, dtype=torch.bool)
    output = loss(logprobs, torch.full((2, 3), -1.0), torch.ones(2, 1), mask)  # type: ignore[operator]
    for reduced in (
        losses.total(output.loss_N_T),
        losses.token_mean(output.loss_N_T, 0),
        losses.sequence_mean(output.loss_N_T, mask),
    ):
        assert reduced.item() == 0.0
    losses.token_mean(output.loss_N_T, 0).backward()
    assert logprobs.grad is not None
    assert logprobs.grad.abs().sum().item() == 0.0


@pytest.mark.parametrize("loss", ALL, ids=lambda f: f.__name__)
@pytest.mark.parametrize("padding", [float("-inf"), float("nan"), 1e30])
def test_padding_never_leaks(loss: object, padding: float) -> None:
    logprobs = torch.tensor([[-0.5, padding]], requires_grad=True)
    sampler = torch.tensor([[-0.7, padding]])
    mask = torch.tensor([[True, False]])
    output = loss(logprobs, sampler, torch.tensor([[1.0]]), mask)  # type: ignore[operator]
    losses.total(output.loss_N_T).backward()
    assert logprobs.grad is not None
    assert torch.isfinite(logprobs.grad).all()
    assert logprobs.grad[0, 1].item() == 0.0
    assert math.isfinite(losses.total(output.loss_N_T).item())
    assert not output.clipped_N_T[0, 1]


def test_long_sequences_keep_per_token_ratios() -> None:
    """500 tokens, each 0.01 more likely: e^5 = 148 as a sequence ratio, 1.01 a token."""
    logprobs = torch.full((1, 500), -1.0, dtype=torch.float64, requires_grad=True)
    sampler = logprobs.detach() - 0.01
    mask = torch.ones(1, 500, dtype=torch.bool)
    one = torch.ones(1, 1, dtype=torch.float64)
    for loss in (losses.importance_sampling, losses.ppo, losses.grpo):
        output = loss(logprobs, sampler, one, mask)
        assert losses.token_mean(output.loss_N_T, 500).item() == pytest.approx(-math.exp(0.01), abs=1e-12)
        assert not output.clipped_N_T.any()
    (grad,) = torch.autograd.grad(losses.total(losses.cispo(logprobs, sampler, one, mask).loss_N_T), logprobs)
    assert grad.abs().max().item() == pytest.approx(math.exp(0.01), abs=1e-12)


def test_dro_is_a_gain_and_a_quadratic_penalty() -> None:
    logprobs, sampler, advantages, mask = tokens([0.5, 0.5], [0.25, 1.0], [2.0, -1.0])
    output = losses.dro(logprobs, sampler, advantages, mask, beta=0.1)
    half = math.log(2.0)  # |log p − log q| of both tokens, and −log p
    penalty = 0.05 * half**2
    assert values(output) == [round(2 * half + penalty, 12), round(-half + penalty, 12)]
    assert gradient(output, logprobs) == [round(-2 + 0.1 * half, 12), round(1 - 0.1 * half, 12)]
