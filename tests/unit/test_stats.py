"""Intervals against numbers worked by hand, and against what they promise."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai_trains_ai.scoring.stats import Z95, clustered, paired_bootstrap, paired_difference, wilson


def test_wilson_by_hand() -> None:
    # 8 of 10, z = 1.96: centre (0.8 + 3.8416/20) / 1.38416 = 0.716738;
    # half 1.96/1.38416 * sqrt(0.16/10 + 3.8416/400) = 0.226581.
    assert wilson(0.8, 10, z=1.96) == pytest.approx((0.490157, 0.943319), abs=1e-6)


@pytest.mark.parametrize(("share", "low", "high"), [(0.0, 0.0, 0.277533), (1.0, 0.722467, 1.0)])
def test_wilson_has_width_at_the_ends(share: float, low: float, high: float) -> None:
    # z²/(n+z²) = 3.841459/13.841459 = 0.277533
    assert wilson(share, 10) == pytest.approx((low, high), abs=1e-6)


def test_wilson_refuses_a_share_outside_the_unit_interval() -> None:
    with pytest.raises(ValueError, match="outside"):
        wilson(1.2, 10)


def test_one_sample_an_item_is_wilson() -> None:
    scores = [1.0] * 30 + [0.0] * 10
    assert clustered(scores)[1:] == pytest.approx(wilson(0.75, 40), abs=1e-12)


def test_agreeing_samples_count_as_one_each() -> None:
    # Each item is all right or all wrong: eight samples tell no more than one.
    scores = [1.0] * 30 + [0.0] * 10
    assert clustered(scores, 8)[1:] == pytest.approx(wilson(0.75, 40), abs=1e-12)


def test_effective_sample_size_by_hand() -> None:
    # Two items at 0.25, two at 0.75: mean 0.5, Var(mean) = 4 * 0.0625 / 16 = 1/64, 0.25 / (1/64) = 16
    # samples.
    mean, low, high = clustered([0.25, 0.25, 0.75, 0.75], 8)
    assert mean == 0.5
    assert (low, high) == pytest.approx(wilson(0.5, 16), abs=1e-12)


def test_identical_fractions_are_not_certainty() -> None:
    _, low, high = clustered([0.5] * 20, 2)
    assert (low, high) == pytest.approx(wilson(0.5, 20), abs=1e-12)


def test_no_items_is_an_error() -> None:
    with pytest.raises(ValueError, match="no items"):
        clustered([])


@given(st.lists(st.integers(0, 8), min_size=1, max_size=60))
def test_interval_holds_the_estimate_and_stays_inside(counts: list[int]) -> None:
    mean, low, high = clustered([count / 8 for count in counts], 8)
    assert 0.0 <= low <= mean <= high <= 1.0
    assert high - low > 0.0


def test_clustered_interval_covers() -> None:
    """At a nominal 95%, of 400 evals with a spread of item difficulty about 380 intervals hold the true
    mean.
    """
    source = random.Random(7)
    hits = 0
    for _ in range(400):
        scores = []
        for _ in range(60):
            difficulty = source.betavariate(2, 3)
            scores.append(sum(source.random() < difficulty for _ in range(8)) / 8)
        _, low, high = clustered(scores, 8)
        hits += low <= 0.4 <= high
    assert 366 <= hits <= 394


def test_bootstrap_is_paired() -> None:
    before = [i / 100 for i in range(100)]
    after = [score + 0.25 for score in before]
    # The items differ a lot, the difference not at all: an unpaired interval would be wide.
    mean, low, high = paired_difference(after, before, seed=1)
    assert mean == pytest.approx(0.25)
    assert (low, high) == pytest.approx((0.25, 0.25), abs=1e-9)


def test_bootstrap_width_is_the_textbook_one() -> None:
    after = [1.0] * 70 + [0.0] * 30
    before = [0.0] * 100
    mean, low, high = paired_difference(after, before, seed=3)
    half = Z95 * (0.7 * 0.3 / 100) ** 0.5
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=0.015)


def test_bootstrap_is_a_function_of_its_seed() -> None:
    after, before = [i**0.5 / 7 for i in range(40)], [i / 100 for i in range(40)]
    once = paired_bootstrap(after, before, np.subtract, seed=5)
    assert once == paired_bootstrap(after, before, np.subtract, seed=5)
    assert once != paired_bootstrap(after, before, np.subtract, seed=6)


def test_unpaired_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="not paired"):
        paired_difference([1.0], [1.0, 0.0], seed=0)
