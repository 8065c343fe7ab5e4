"""The reward against numbers worked by hand."""

from __future__ import annotations

import pytest

from ai_trains_ai.config import JobLimits, RewardConfig
from ai_trains_ai.scoring import reward
from ai_trains_ai.types import EvalResult

CONFIG = RewardConfig()
LIMITS = JobLimits(max_training_tokens=1_000_000)


def result(*scores: float, model: str = "m") -> EvalResult:
    accuracy = sum(scores) / len(scores)
    return EvalResult("calc_chain", model, accuracy, 0.0, 1.0, accuracy, scores, 1, 0.0)


@pytest.mark.parametrize(
    ("post", "best_pre", "tokens", "submission", "total"),
    [
        # 0.35*1 + 0.60*(0.25*0.9 + 0.75*0.8) + 0.05*0.6
        (0.9, 0.5, 400_000, 1, 0.35 + 0.60 * 0.825 + 0.05 * 0.6),
        # The second submission: 0.35*0.6.
        (0.9, 0.5, 400_000, 2, 0.35 * 0.6 + 0.60 * 0.825 + 0.05 * 0.6),
        (0.9, 0.5, 400_000, 3, 0.35 * 0.3 + 0.60 * 0.825 + 0.05 * 0.6),
        # Beyond the table validity earns nothing, what was trained still counts.
        (0.9, 0.5, 400_000, 4, 0.60 * 0.825 + 0.05 * 0.6),
        # Below the best base: uplift is clipped at 0, never negative.
        (0.3, 0.5, 0, 1, 0.35 + 0.60 * 0.075 + 0.05),
        # Over the token budget: speed is clipped at 0.
        (0.5, 0.5, 2_000_000, 1, 0.35 + 0.60 * 0.125),
        # No room above the base.
        (1.0, 1.0, 1_000_000, 1, 0.35 + 0.60 * 0.25),
        (1.0, 0.0, 0, 1, 1.0),
    ],
)
def test_reward_by_hand(post: float, best_pre: float, tokens: int, submission: int, total: float) -> None:
    earned = reward.completed(
        result(post),
        result(best_pre),
        training_tokens=tokens,
        submission=submission,
        limits=LIMITS,
        config=CONFIG,
    )
    assert earned.total == pytest.approx(total, abs=1e-12)
    parts = 0.35 * earned.validation + 0.60 * earned.quality + 0.05 * earned.speed
    assert earned.total == pytest.approx(parts, abs=1e-12)


def test_uplift_forms() -> None:
    assert reward.uplift(0.9, 0.5, CONFIG) == pytest.approx(0.8)
    assert reward.uplift(0.9, 0.5, RewardConfig(uplift_form="absolute")) == pytest.approx(0.4)


def test_rejected_is_zero_in_every_part() -> None:
    assert (reward.ZERO.total, reward.ZERO.validation, reward.ZERO.quality, reward.ZERO.speed) == (0, 0, 0, 0)


def test_submissions_count_from_one() -> None:
    with pytest.raises(ValueError, match="counted from 1"):
        reward.validation(0, CONFIG)


def test_uplift_interval_holds_the_estimate_and_is_clipped() -> None:
    post, pre = result(*[1.0] * 45 + [0.0] * 5), result(*[1.0, 0.0] * 25)
    low, high = reward.uplift_interval(post, pre, CONFIG, seed=1)
    # Post 0.9, best_pre 0.5 over 50 items: uplift 0.8, with a standard error of about 0.09.
    assert 0.55 < low < 0.7 < 0.8 < 0.9 < high < 1.0
    worse = reward.uplift_interval(pre, post, CONFIG, seed=1)
    assert worse == (0.0, 0.0)
    # Nothing above a perfect base.
    assert reward.uplift_interval(result(1.0, 1.0), result(1.0, 1.0), CONFIG, seed=1) == (0.0, 0.0)
