"""Per-token health figures of an update, kept as sums so that micro-batches add up exactly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenStats:
    """Sums over tokens; the properties are means and are 0 for no tokens.

    tokens:   tokens in the mask.
    clipped:  of these, tokens at which the loss's clip or trust-region mask was in force.
    kl_k2:    Σ (log p − log q)²/2, kl_k3: Σ (r − 1 − log r) with r = p/q; both estimate KL(q‖p) from tokens
              drawn from the sampler q, and neither can be negative (J. Schulman, "Approximating KL
              divergence", 2020).
    surprise: Σ −log q: over tokens drawn from q its mean estimates q's entropy without bias.
    max_gap:  the largest |log p − log q|: between a sampler and a trainer with the same weights, their
              numerical disagreement.
    """

    tokens: int = 0
    clipped: int = 0
    kl_k2: float = 0.0
    kl_k3: float = 0.0
    surprise: float = 0.0
    max_gap: float = 0.0

    def __add__(self, other: TokenStats) -> TokenStats:
        return TokenStats(
            tokens=self.tokens + other.tokens,
            clipped=self.clipped + other.clipped,
            kl_k2=self.kl_k2 + other.kl_k2,
            kl_k3=self.kl_k3 + other.kl_k3,
            surprise=self.surprise + other.surprise,
            max_gap=max(self.max_gap, other.max_gap),
        )

    @property
    def clip_share(self) -> float:
        return self.clipped / max(self.tokens, 1)

    @property
    def sampler_kl(self) -> float:
        return self.kl_k2 / max(self.tokens, 1)

    @property
    def sampler_kl_k3(self) -> float:
        return self.kl_k3 / max(self.tokens, 1)

    @property
    def entropy(self) -> float:
        return self.surprise / max(self.tokens, 1)


@torch.no_grad()
def token_stats(
    logprobs_N_T: Tensor, sampler_logprobs_N_T: Tensor, mask_N_T: Tensor, clipped_N_T: Tensor
) -> TokenStats:
    """Stats of one micro-batch; arguments as in `losses`, clipped_N_T as in `losses.TokenLoss`."""
    tokens = int(mask_N_T.sum())
    if tokens == 0:
        return TokenStats()
    sampled = sampler_logprobs_N_T[mask_N_T]
    gap = logprobs_N_T[mask_N_T] - sampled
    sums = torch.stack(
        [gap.square().sum() / 2, (gap.expm1() - gap).sum(), -sampled.sum(), gap.abs().max()]
    ).tolist()
    return TokenStats(tokens, int((clipped_N_T & mask_N_T).sum()), *sums)


def masked_share(mask_N_T: Tensor) -> float:
    """Share of the [N, T] grid that is padding or left out of the loss; 0 for an empty grid."""
    return 1.0 - int(mask_N_T.sum()) / mask_N_T.numel() if mask_N_T.numel() else 0.0
