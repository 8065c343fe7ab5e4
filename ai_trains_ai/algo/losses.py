"""Policy-gradient losses on token log-probabilities, one function a loss, all of one shape.

Every function takes

    logprobs_N_T          log p(token) under the policy being trained, differentiable
    sampler_logprobs_N_T  log q(token) recorded when the token was sampled, no gradient
    advantages_N_T        the token's advantage, broadcastable: [N, 1] when a rollout shares one
    mask_N_T              bool, True where a token counts; the other positions may hold anything

and returns `TokenLoss`: the loss of each token (0 outside the mask) and which tokens a trust region cut off.
How tokens are added up is the caller's choice, because it is what distinguishes otherwise equal algorithms:
`total` (Tinker), `token_mean` (prime-rl, DAPO) or `sequence_mean` (original GRPO). All ratios are per token,
so a long sequence cannot make one astronomically large; none of the reductions divides by zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """loss_N_T carries the gradient; clipped_N_T (bool) marks tokens whose clip or mask was in force."""

    loss_N_T: Tensor
    clipped_N_T: Tensor


def importance_sampling(
    logprobs_N_T: Tensor, sampler_logprobs_N_T: Tensor, advantages_N_T: Tensor, mask_N_T: Tensor
) -> TokenLoss:
    """−(p/q)·A. Source: Tinker, "Loss functions", `importance_sampling`."""
    ratio = _log_ratio(logprobs_N_T, sampler_logprobs_N_T, mask_N_T).exp()
    return TokenLoss(_masked(-ratio * advantages_N_T, mask_N_T), torch.zeros_like(mask_N_T))


def ppo(
    logprobs_N_T: Tensor,
    sampler_logprobs_N_T: Tensor,
    advantages_N_T: Tensor,
    mask_N_T: Tensor,
    *,
    clip_low: float = 0.8,
    clip_high: float = 1.2,
) -> TokenLoss:
    """−min(r·A, clip(r, clip_low, clip_high)·A) with r = p/q, a token at a time.

    The thresholds bound the ratio itself. Source: Tinker, "Loss functions", `ppo`, whose ε is 0.2 on both
    sides; the objective is arXiv:1707.06347's.
    """
    ratio = _log_ratio(logprobs_N_T, sampler_logprobs_N_T, mask_N_T).exp()
    objective = torch.minimum(ratio * advantages_N_T, ratio.clamp(clip_low, clip_high) * advantages_N_T)
    return TokenLoss(
        _masked(-objective, mask_N_T), _beyond_clip(ratio, advantages_N_T, mask_N_T, clip_low, clip_high)
    )


def cispo(
    logprobs_N_T: Tensor,
    sampler_logprobs_N_T: Tensor,
    advantages_N_T: Tensor,
    mask_N_T: Tensor,
    *,
    clip_low: float = 0.0,
    clip_high: float = 4.0,
) -> TokenLoss:
    """−sg(clip(r, clip_low, clip_high))·A·log p: the clip bounds a token's weight, it never silences it.

    Source: Tinker, "Loss functions", `cispo`, with its one-sided defaults; arXiv:2506.13585.
    """
    ratio = _log_ratio(logprobs_N_T.detach(), sampler_logprobs_N_T, mask_N_T).exp()
    weight = ratio.clamp(clip_low, clip_high)
    clipped = mask_N_T & ((ratio < clip_low) | (ratio > clip_high))
    return TokenLoss(_masked(-weight * advantages_N_T * logprobs_N_T, mask_N_T), clipped)


def dro(
    logprobs_N_T: Tensor,
    sampler_logprobs_N_T: Tensor,
    advantages_N_T: Tensor,
    mask_N_T: Tensor,
    *,
    beta: float = 0.05,
) -> TokenLoss:
    """−(A·log p − beta/2·(log p − log q)²): no ratio at all, a quadratic penalty keeps the policy near.

    Source: Tinker, "Loss functions", `dro`, and its beta; arXiv:2405.19107.
    """
    log_ratio = _log_ratio(logprobs_N_T, sampler_logprobs_N_T, mask_N_T)
    gain = _masked(advantages_N_T * logprobs_N_T, mask_N_T)
    return TokenLoss(0.5 * beta * log_ratio.square() - gain, torch.zeros_like(mask_N_T))


def prime_rl(
    logprobs_N_T: Tensor,
    sampler_logprobs_N_T: Tensor,
    advantages_N_T: Tensor,
    mask_N_T: Tensor,
    *,
    adv_tau: float = 1.0,
    kl_tau: float = 0.001,
    dppo_mask_low: float = 0.2,
    dppo_mask_high: float = 0.2,
) -> TokenLoss:
    """prime-rl's default loss: −keep·adv_tau·A·r + kl_tau·(log r)², with r = p/q.

    `keep` drops a token from the policy gradient, but not from the squared-log-ratio term, once its
    *probability* has moved too far in the direction in which its advantage pushes: p − q > dppo_mask_high
    where A > 0, p − q < −dppo_mask_low elsewhere (A = 0 included, as there). Probability differences rather
    than ratios, so that rare tokens are not cut off for tiny absolute changes (DPPO, arXiv:2602.04879; the
    second term is Kimi K2.5's, arXiv:2602.02276).
    Source: prime-rl, trainer/rl/loss.py, `default_loss_fn` and `DefaultLossConfig` (August 2026).
    """
    log_ratio = _log_ratio(logprobs_N_T, sampler_logprobs_N_T, mask_N_T)
    with torch.no_grad():
        moved = _masked(logprobs_N_T.exp() - sampler_logprobs_N_T.exp(), mask_N_T)
        dropped = torch.where(advantages_N_T > 0, moved > dppo_mask_high, moved < -dppo_mask_low) & mask_N_T
    policy = _masked(adv_tau * advantages_N_T * log_ratio.exp(), mask_N_T & ~dropped)
    return TokenLoss(kl_tau * log_ratio.square() - policy, dropped)


def grpo(
    logprobs_N_T: Tensor,
    sampler_logprobs_N_T: Tensor,
    advantages_N_T: Tensor,
    mask_N_T: Tensor,
    *,
    clip_low: float = 0.8,
    clip_high: float = 1.2,
    beta: float = 0.0,
    reference_logprobs_N_T: Tensor | None = None,
    unbiased_kl: bool = True,
) -> TokenLoss:
    """GRPO's token loss: PPO's clipped objective, plus beta·(exp(d) − d − 1) with d = log reference − log p.

    `unbiased_kl` multiplies the second term by p/q, which makes its gradient that of the reverse KL
    (DeepSeek-V3.2, arXiv:2512.02556; TRL's default); False is the original GRPO (arXiv:2402.03300).
    With `sequence_mean` this is TRL's loss_type "grpo", with `token_mean` its "dapo" (checked against TRL
    1.16, for one process and one micro-batch).

    Raises ValueError when beta is set without reference log-probabilities.
    """
    clipped = ppo(
        logprobs_N_T, sampler_logprobs_N_T, advantages_N_T, mask_N_T, clip_low=clip_low, clip_high=clip_high
    )
    if beta == 0.0:
        return clipped
    if reference_logprobs_N_T is None:
        raise ValueError(f"beta is {beta}: pass reference_logprobs_N_T, or set beta to 0")
    difference = _log_ratio(reference_logprobs_N_T, logprobs_N_T, mask_N_T)
    penalty = beta * (difference.exp() - difference - 1.0)
    if unbiased_kl:
        penalty = penalty * _log_ratio(logprobs_N_T, sampler_logprobs_N_T, mask_N_T).exp()
    return TokenLoss(clipped.loss_N_T + penalty, clipped.clipped_N_T)


def total(loss_N_T: Tensor) -> Tensor:
    """Sum over all tokens, Tinker's reduction. 0 (with a gradient of 0) when no token counts."""
    return loss_N_T.sum()


def token_mean(loss_N_T: Tensor, tokens: int) -> Tensor:
    """Sum over all tokens divided by `tokens`, the count of trained tokens in the *whole* batch.

    Micro-batches that each divide by the batch's count add up to the loss and gradient of the undivided
    batch. Every token weighs the same, so long completions count more. A count of 0 divides by 1.
    """
    return loss_N_T.sum() / max(tokens, 1)


def sequence_mean(loss_N_T: Tensor, mask_N_T: Tensor) -> Tensor:
    """Mean over completions of each completion's mean over its tokens; an empty completion counts as 0."""
    lengths_N = mask_N_T.sum(dim=1).clamp_min(1)
    return (loss_N_T.sum(dim=1) / lengths_N).sum() / max(loss_N_T.shape[0], 1)


def _masked(values_N_T: Tensor, mask_N_T: Tensor) -> Tensor:
    return values_N_T.masked_fill(~mask_N_T, 0.0)


def _log_ratio(logprobs_N_T: Tensor, sampler_logprobs_N_T: Tensor, mask_N_T: Tensor) -> Tensor:
    """log p − log q, 0 outside the mask before any exp: a padded −inf must not become a NaN gradient."""
    return _masked(logprobs_N_T, mask_N_T) - _masked(sampler_logprobs_N_T, mask_N_T)


def _beyond_clip(
    ratio_N_T: Tensor, advantages_N_T: Tensor, mask_N_T: Tensor, clip_low: float, clip_high: float
) -> Tensor:
    """Where the clipped side of PPO's minimum is the smaller one, hence the gradient is zero."""
    above = (ratio_N_T > clip_high) & (advantages_N_T > 0)
    below = (ratio_N_T < clip_low) & (advantages_N_T < 0)
    return (above | below) & mask_N_T
