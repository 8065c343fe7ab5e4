"""Group-relative advantages: how much better a rollout was than its siblings on the same prompt.

Rewards are reduced in float64 with `math.fsum`, so equal rewards give a mean that equals them, and a group
without spread is recognised as such instead of being divided by rounding noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MIN_SPREAD = 1e-6
"""A group whose largest and smallest rewards are closer than this carries no signal."""


@dataclass(frozen=True, slots=True)
class BatchAdvantages:
    """Advantages of a batch of groups, in the order of the groups.

    by_group:  one tuple a group, as long as the group; None for a group that was skipped.
    all_equal: groups skipped because their rewards are equal (within `MIN_SPREAD`).
    too_small: groups skipped because fewer than two rollouts survived in them.
    """

    by_group: tuple[tuple[float, ...] | None, ...]
    all_equal: int
    too_small: int

    @property
    def skipped(self) -> int:
        return self.all_equal + self.too_small


def group_advantages(rewards_G: Sequence[float], *, divide_by_std: bool = False) -> tuple[float, ...] | None:
    """Advantages of one group, or None when the group has no signal.

    The default is reward − mean, as prime-rl's GRPO (and Dr. GRPO, arXiv:2503.20783, which explains why the
    division is left out). `divide_by_std` gives the original GRPO form (arXiv:2402.03300) with the population
    standard deviation, for which |advantage| ≤ √(G − 1) whatever the rewards; no epsilon is needed because
    groups without spread never get here.

    Raises ValueError for a reward that is not finite: the caller should have refused it at the border.
    """
    rewards = [float(reward) for reward in rewards_G]
    if not all(math.isfinite(reward) for reward in rewards):
        raise ValueError(f"rewards must be finite, got {rewards}")
    if len(rewards) < 2 or max(rewards) - min(rewards) < MIN_SPREAD:
        return None
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not divide_by_std:
        return tuple(centred)
    std = math.sqrt(math.fsum(value * value for value in centred) / len(centred))
    return tuple(value / std for value in centred)


def batch_advantages(groups: Sequence[Sequence[float]], *, divide_by_std: bool = False) -> BatchAdvantages:
    """`group_advantages` for each group, with the skipped groups counted by reason."""
    by_group = tuple(group_advantages(group, divide_by_std=divide_by_std) for group in groups)
    too_small = sum(len(group) < 2 for group in groups)
    skipped = sum(advantages is None for advantages in by_group)
    return BatchAdvantages(by_group=by_group, all_equal=skipped - too_small, too_small=too_small)
