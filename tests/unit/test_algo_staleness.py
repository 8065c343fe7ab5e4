"""Groups that are too far off policy are discarded, counted, and named with their numbers."""

from __future__ import annotations

import pytest

from ai_trains_ai.algo.staleness import check_staleness


def test_staleness_three_where_two_is_allowed() -> None:
    check = check_staleness([10, 7, 8, 9, 6], current=10, max_steps_off_policy=2)
    assert check.kept == (0, 2, 3)
    assert check.discarded == (1, 4)
    assert check.worst == 4
    assert check.warning == "2 of 5 groups discarded: 3, 4 steps off policy, 2 allowed"


def test_within_the_bound_there_is_nothing_to_say() -> None:
    check = check_staleness([10, 8], current=10, max_steps_off_policy=2)
    assert (check.kept, check.discarded, check.worst, check.warning) == ((0, 1), (), 2, None)
    assert check_staleness([], current=3, max_steps_off_policy=0).kept == ()


def test_a_version_from_the_future_is_refused() -> None:
    with pytest.raises(ValueError, match="newer than 3"):
        check_staleness([2, 4], current=3, max_steps_off_policy=2)
