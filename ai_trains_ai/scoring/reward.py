"""What a job earned: validation, quality and speed, weighed by `config.RewardConfig`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ai_trains_ai.config import JobLimits, RewardConfig
from ai_trains_ai.scoring.stats import Floats, paired_bootstrap
from ai_trains_ai.types import EvalResult, Reward

ZERO = Reward(total=0.0, validation=0.0, quality=0.0, speed=0.0, uplift=0.0)
"""A job that was rejected, or that failed in training by its own fault."""


def uplift(post: float, best_pre: float, config: RewardConfig) -> float:
    """Share of the room above the best untrained base that training closed, in [0, 1].

    "headroom": (post − best_pre) / (1 − best_pre). "absolute": post − best_pre. Both clipped to [0, 1]; a
    base without room (best_pre = 1) gives 0.
    """
    gain = post - best_pre
    if config.uplift_form == "headroom":
        room = 1.0 - best_pre
        gain = gain / room if room > 0.0 else 0.0
    return min(1.0, max(0.0, gain))


def uplift_interval(
    post: EvalResult, best_pre: EvalResult, config: RewardConfig, *, seed: int
) -> tuple[float, float]:
    """95% paired bootstrap interval of `uplift` over the items that both were scored on."""

    def statistic(post_R: Floats, pre_R: Floats) -> Floats:
        gain_R: Floats = post_R - pre_R
        if config.uplift_form == "headroom":
            room_R = 1.0 - pre_R
            gain_R = np.divide(gain_R, room_R, out=np.zeros_like(gain_R), where=room_R > 0.0)
        clipped_R: Floats = np.clip(gain_R, 0.0, 1.0)
        return clipped_R

    return paired_bootstrap(post.item_scores, best_pre.item_scores, statistic, seed=seed)


def speed(training_tokens: int, limits: JobLimits) -> float:
    """Share of the token budget that the job left unused, in [0, 1]."""
    return min(1.0, max(0.0, 1.0 - training_tokens / limits.max_training_tokens))


def validation(submission: int, config: RewardConfig) -> float:
    """Credit for a valid job, by which submission (1 is the first) it was; 0 beyond the table."""
    if submission < 1:
        raise ValueError(f"submission {submission}: submissions are counted from 1")
    table: Sequence[float] = config.validation_by_submission
    return table[submission - 1] if submission <= len(table) else 0.0


def completed(
    post: EvalResult,
    best_pre: EvalResult,
    *,
    training_tokens: int,
    submission: int,
    limits: JobLimits,
    config: RewardConfig,
) -> Reward:
    """The reward of a job that was trained to its end. Rejected and failed jobs earn `ZERO`."""
    lift = uplift(post.accuracy, best_pre.accuracy, config)
    valid = validation(submission, config)
    quality = config.post_weight * post.accuracy + config.uplift_weight * lift
    fast = speed(training_tokens, limits)
    total = config.validation_weight * valid + config.quality_weight * quality + config.speed_weight * fast
    return Reward(total=total, validation=valid, quality=quality, speed=fast, uplift=lift)
