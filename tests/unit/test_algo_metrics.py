"""Token statistics against numbers worked by hand, and their addition over micro-batches."""

from __future__ import annotations

import math

import pytest
import torch

from ai_trains_ai.algo.metrics import TokenStats, masked_share, token_stats


def test_two_tokens_by_hand() -> None:
    logprobs = torch.tensor([[math.log(0.4), math.log(0.1), 9.0]], dtype=torch.float64)
    sampler = torch.tensor([[math.log(0.2), math.log(0.2), float("nan")]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False]])
    clipped = torch.tensor([[True, False, True]])
    stats = token_stats(logprobs, sampler, mask, clipped)
    two = math.log(2)
    assert (stats.tokens, stats.clipped, stats.clip_share) == (2, 1, 0.5)
    assert stats.sampler_kl == pytest.approx(two**2 / 2)  # both gaps are ±log 2
    # r − 1 − log r: 2 − 1 − log 2 and 1/2 − 1 + log 2
    assert stats.sampler_kl_k3 == pytest.approx((1 - 0.5) / 2)
    assert stats.entropy == pytest.approx(-math.log(0.2))
    assert stats.max_gap == pytest.approx(two)
    assert masked_share(mask) == pytest.approx(1 / 3)


def test_micro_batches_add_up() -> None:
    generator = torch.Generator().manual_seed(0)
    logprobs = -torch.rand(6, 4, generator=generator, dtype=torch.float64)
    sampler = -torch.rand(6, 4, generator=generator, dtype=torch.float64)
    mask = torch.rand(6, 4, generator=generator) > 0.3
    clipped = torch.rand(6, 4, generator=generator) > 0.5
    whole = token_stats(logprobs, sampler, mask, clipped)
    halves = token_stats(logprobs[:2], sampler[:2], mask[:2], clipped[:2]) + token_stats(
        logprobs[2:], sampler[2:], mask[2:], clipped[2:]
    )
    assert (whole.tokens, whole.clipped, whole.max_gap) == (halves.tokens, halves.clipped, halves.max_gap)
    assert whole.sampler_kl == pytest.approx(halves.sampler_kl)
    assert whole.entropy == pytest.approx(halves.entropy)


def test_no_tokens_is_zero_everywhere() -> None:
    empty = torch.zeros(2, 3)
    stats = token_stats(empty, empty, empty.bool(), empty.bool())
    assert stats == TokenStats()
    assert (stats.clip_share, stats.sampler_kl, stats.entropy, masked_share(empty[:0].bool())) == (0, 0, 0, 0)
