"""A curve as a few rows of block characters, with its scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def curve(values: Sequence[float], *, width: int = 60, height: int = 4) -> list[str]:
    """`height` rows of at most `width` columns. More values than columns: each column shows its values' mean.

    The top and the bottom row name the largest and the smallest value shown; a flat curve sits at mid-height.
    """
    if not values:
        return []
    columns = _columns(values, width)
    low, high = min(columns), max(columns)
    # Half of the smallest step up: the lowest column stays visible.
    scale = height * 8 - 1
    levels = [
        1 + round((value - low) / (high - low) * scale) if high > low else height * 4 for value in columns
    ]
    rows = []
    for row in range(height - 1, -1, -1):
        cells = "".join(_EIGHTHS[min(8, max(0, level - row * 8))] for level in levels)
        label = high if row == height - 1 else low if row == 0 else None
        rows.append(f"{cells.ljust(len(columns))} {'' if label is None else f'{label:.3f}'}".rstrip())
    return rows


def _columns(values: Sequence[float], width: int) -> list[float]:
    count = min(width, len(values))
    edges = [len(values) * column // count for column in range(count + 1)]
    return [math.fsum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
