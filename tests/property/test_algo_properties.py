"""Properties of advantages and of the task order that hold for every input."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from ai_trains_ai.algo.advantages import MIN_SPREAD, group_advantages
from ai_trains_ai.algo.batching import epoch_order

REWARDS = st.lists(st.floats(-100, 100), min_size=0, max_size=40)


@given(REWARDS)
def test_skipped_exactly_when_there_is_no_signal(rewards: list[float]) -> None:
    no_signal = len(rewards) < 2 or max(rewards) - min(rewards) < MIN_SPREAD
    assert (group_advantages(rewards) is None) == no_signal


@given(REWARDS)
def test_centred_and_in_the_rewards_order(rewards: list[float]) -> None:
    advantages = group_advantages(rewards)
    if advantages is None:
        return
    assert abs(math.fsum(advantages)) < 1e-9 * len(rewards) * 100
    for (r1, a1), (r2, a2) in itertools.combinations(zip(rewards, advantages, strict=True), 2):
        assert (r1 > r2) <= (a1 >= a2)


@given(REWARDS)
def test_standardised_advantages_are_bounded_by_the_group_size(rewards: list[float]) -> None:
    advantages = group_advantages(rewards, divide_by_std=True)
    if advantages is None:
        return
    assert max(abs(a) for a in advantages) <= math.sqrt(len(rewards) - 1) + 1e-6


@given(REWARDS, st.floats(-10, 10))
def test_a_constant_added_to_every_reward_changes_nothing(rewards: list[float], shift: float) -> None:
    before, after = group_advantages(rewards), group_advantages([r + shift for r in rewards])
    if before is None or after is None:
        return  # rounding may carry a spread across the bound
    assert all(abs(a - b) < 1e-9 for a, b in zip(before, after, strict=True))


@given(st.integers(1, 30), st.integers(0, 2**62), st.integers(0, 90))
def test_epochs_are_permutations(count: int, seed: int, draws: int) -> None:
    drawn = list(itertools.islice(epoch_order(count, seed), draws))
    for start in range(0, draws, count):
        epoch = drawn[start : start + count]
        assert len(set(epoch)) == len(epoch)
        assert all(0 <= index < count for index in epoch)
    assert drawn == list(itertools.islice(epoch_order(count, seed), draws))
