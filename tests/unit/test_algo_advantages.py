"""Group-relative advantages against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from ai_trains_ai.algo.advantages import batch_advantages, group_advantages


def test_mean_centred() -> None:
    # mean of 1, 0, 0, 1 is 1/2
    assert group_advantages([1.0, 0.0, 0.0, 1.0]) == (0.5, -0.5, -0.5, 0.5)


def test_seven_equal_and_one_zero() -> None:
    # mean = 7 * 0.35 / 8 = 0.30625; seven get 0.35 - 0.30625 = 0.04375, the last -0.30625
    advantages = group_advantages([0.35] * 7 + [0.0])
    assert advantages is not None
    assert advantages == pytest.approx([0.04375] * 7 + [-0.30625], abs=1e-15)
    # population variance = (7 * 0.04375² + 0.30625²) / 8 = 0.013398…, std = 0.115752…:
    # the lone zero is √7 standard deviations below, its siblings 1/√7 above
    scaled = group_advantages([0.35] * 7 + [0.0], divide_by_std=True)
    assert scaled == pytest.approx([1 / math.sqrt(7)] * 7 + [-math.sqrt(7)], abs=1e-12)


@pytest.mark.parametrize("divide_by_std", [False, True])
def test_equal_rewards_in_float32_are_no_signal(divide_by_std: bool) -> None:
    rewards = torch.full((8,), 0.35)
    assert 0 < rewards.std() < 1e-7, "the case: float32 computes a tiny spread where there is none"
    assert group_advantages(rewards.tolist(), divide_by_std=divide_by_std) is None


def test_spread_below_the_bound_is_skipped_and_above_it_is_not() -> None:
    assert group_advantages([0.35, 0.35 + 9e-7], divide_by_std=True) is None
    advantages = group_advantages([0.35, 0.35 + 2e-6], divide_by_std=True)
    assert advantages == pytest.approx((-1.0, 1.0), abs=1e-9), "never hundreds, however small the spread"


def test_one_survivor_is_skipped_and_counted() -> None:
    batch = batch_advantages([[0.7], [], [1.0, 0.0], [0.2, 0.2]], divide_by_std=True)
    assert batch.by_group == (None, None, (1.0, -1.0), None)
    assert (batch.too_small, batch.all_equal, batch.skipped) == (2, 1, 3)


def test_every_group_constant() -> None:
    batch = batch_advantages([[0.5] * 4, [1.0] * 4])
    assert batch.by_group == (None, None)
    assert batch.all_equal == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        group_advantages([0.0, bad])
