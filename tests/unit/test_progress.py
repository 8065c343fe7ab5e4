"""Speed and time left from a run's steps."""

from __future__ import annotations

from dataclasses import replace

from ai_trains_ai.inner.progress import progress
from ai_trains_ai.types import InnerStep

STEP = InnerStep(0, 0.25, 0.43, -0.1, 1.5, 1e-4, 0.9, 1e-9, 0.0, 0.01, 1, 8, 2000, 0.5)


def test_before_the_first_step() -> None:
    assert str(progress([], 20)) == "step 0/20  inner reward 0.000  0 tokens/s  0 s left"


def test_recent_steps_decide_the_speed() -> None:
    slow = [replace(STEP, step=i, seconds=100.0) for i in range(3)]
    fast = [replace(STEP, step=3 + i, seconds=2.0, tokens=6000, inner_reward=0.75) for i in range(5)]
    now = progress([*slow, *fast], 20)
    assert (now.step, now.max_steps, now.inner_reward) == (8, 20, 0.75)
    assert now.tokens_per_second == 3000.0
    assert now.seconds_left == 24.0
    assert str(now) == "step 8/20  inner reward 0.750  3,000 tokens/s  24 s left"


def test_the_end() -> None:
    assert progress([STEP] * 20, 20).seconds_left == 0.0
