"""How far a training run is, worked out from its steps. No torch: the command line imports this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ai_trains_ai.types import InnerStep

RECENT_STEPS = 5
"""Speed is that of the latest steps: completions grow or shrink as the model learns."""


@dataclass(frozen=True, slots=True)
class Progress:
    """step counts finished steps; tokens_per_second counts sampled completion tokens over whole steps."""

    step: int
    max_steps: int
    inner_reward: float
    tokens_per_second: float
    seconds_left: float

    def __str__(self) -> str:
        return (
            f"step {self.step}/{self.max_steps}  inner reward {self.inner_reward:.3f}  "
            f"{self.tokens_per_second:,.0f} tokens/s  {self.seconds_left:.0f} s left"
        )


def progress(steps: Sequence[InnerStep], max_steps: int) -> Progress:
    """Progress after `steps`, the run's steps so far in order. All zeros before the first one."""
    if not steps:
        return Progress(0, max_steps, 0.0, 0.0, 0.0)
    recent = steps[-RECENT_STEPS:]
    seconds = sum(step.seconds for step in recent)
    return Progress(
        step=len(steps),
        max_steps=max_steps,
        inner_reward=steps[-1].inner_reward,
        tokens_per_second=sum(step.tokens for step in recent) / seconds if seconds > 0 else 0.0,
        seconds_left=seconds / len(recent) * (max_steps - len(steps)),
    )
