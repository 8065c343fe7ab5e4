"""Intervals: Wilson for plain counts, clustered for several samples an item, paired bootstrap for uplift.

All intervals are 95% and two-sided. Items are what is drawn at random (the hidden eval is one draw of items
from a family), so items are what intervals are over; the samples of one item are not independent of each
other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Z95 = 1.959963984540054
"""97.5% quantile of the standard normal."""

Floats = npt.NDArray[np.float64]
Statistic = Callable[[Floats, Floats], Floats]


def wilson(share: float, count: float, z: float = Z95) -> tuple[float, float]:
    """Wilson score interval of a share observed over `count` trials (Wilson 1927); `count` may be fractional.

    Never leaves [0, 1] and stays honest at shares of 0 and 1, where the normal interval has width 0.
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share {share} is outside [0, 1]")
    if count <= 0:
        return 0.0, 1.0
    square = z * z
    centre = (share + square / (2 * count)) / (1 + square / count)
    half = z / (1 + square / count) * math.sqrt(share * (1 - share) / count + square / (4 * count * count))
    # At a share of 0 or 1 one end is exact; rounding must not push it past the estimate.
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def clustered(item_scores: Sequence[float], samples_per_item: int = 1) -> tuple[float, float, float]:
    """(mean, low, high) of per-item mean scores in [0, 1], clustered by item.

    Wilson's interval at the effective sample size p(1-p) / Var(mean), the variance being that of the item
    means over the number of items. The size is held between the number of items (the samples of an item
    agree) and the number of samples (they are independent). With one 0/1 sample an item this is Wilson's
    interval itself.
    """
    items = len(item_scores)
    if items == 0:
        raise ValueError("no items: an interval needs at least one")
    mean = min(1.0, max(0.0, math.fsum(item_scores) / items))
    variance = math.fsum((score - mean) ** 2 for score in item_scores) / items / items
    spread = mean * (1.0 - mean)
    effective = float(items) if variance <= 0.0 else spread / variance
    effective = min(float(items * samples_per_item), max(float(items), effective))
    low, high = wilson(mean, effective)
    return mean, low, high


def paired_bootstrap(
    first: Sequence[float], second: Sequence[float], statistic: Statistic, *, seed: int, resamples: int = 4000
) -> tuple[float, float]:
    """Percentile bootstrap interval of `statistic(mean of first, mean of second)`, items resampled in pairs.

    first, second: scores of the same items in the same order. statistic: vectorised over arrays of
    resampled means. Deterministic in its arguments. Raises ValueError when the two differ in length or are
    empty.
    """
    if len(first) != len(second):
        raise ValueError(f"not paired: {len(first)} and {len(second)} items")
    if not first:
        raise ValueError("no items: an interval needs at least one")
    pairs_2_N = np.asarray([first, second], dtype=np.float64)
    generator = np.random.Generator(np.random.PCG64(seed))
    count = pairs_2_N.shape[1]
    # Resampling items is drawing multinomial counts: one (resamples, items) matrix product gives both means.
    counts_R_N = generator.multinomial(count, np.full(count, 1.0 / count), size=resamples).astype(np.float64)
    means_R_2 = counts_R_N @ pairs_2_N.T / count
    values_R = statistic(means_R_2[:, 0], means_R_2[:, 1])
    low, high = np.quantile(values_R, [0.025, 0.975])
    return float(low), float(high)


def paired_difference(
    after: Sequence[float], before: Sequence[float], *, seed: int
) -> tuple[float, float, float]:
    """(mean, low, high) of after − before over the same items."""
    low, high = paired_bootstrap(after, before, lambda a, b: a - b, seed=seed)
    return math.fsum(after) / len(after) - math.fsum(before) / len(before), low, high
