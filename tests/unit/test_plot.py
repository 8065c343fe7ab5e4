"""Curves and tables as text."""

from __future__ import annotations

import pytest

from ai_trains_ai.cli.output import table
from ai_trains_ai.cli.plot import curve


def test_a_rising_line() -> None:
    assert curve([0.0, 0.5, 1.0], height=1) == ["▁▅█ 1.000"]


def test_two_rows_name_both_ends() -> None:
    assert curve([0.0, 1.0], height=2) == [" █ 1.000", "▁█ 0.000"]


def test_a_flat_curve_is_in_the_middle() -> None:
    assert curve([0.3] * 4, height=2) == ["     0.300", "████ 0.300"]


def test_many_values_are_averaged() -> None:
    rows = curve([float(value) for value in range(100)], width=10, height=1)
    assert rows == ["▁▂▃▃▄▅▆▆▇█ 94.500"]


def test_nothing_to_plot() -> None:
    assert curve([]) == []


@pytest.mark.parametrize("count", [1, 7, 59, 60, 61, 500])
def test_never_wider_than_asked(count: int) -> None:
    rows = curve([0.1 * value for value in range(count)], width=60)
    assert all(len(row.split(" ")[0]) <= 60 for row in rows)
    assert len(rows) == 4


def test_table() -> None:
    assert table([["name", "x"], ["a", "10"], ["long one", "9"]], right=[1]).splitlines() == [
        "name       x",
        "--------  --",
        "a         10",
        "long one   9",
    ]
