"""What a job's environment may answer: anything arrives, only exact finite bounded numbers get through."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai_trains_ai.config import JobLimits
from ai_trains_ai.errors import AgentError
from ai_trains_ai.jobs.answers import clean, object_of, results_of, rewards_of, scored_of, tasks_of
from ai_trains_ai.jobs.env_host import allowed_errors

LIMITS = JobLimits(max_tasks=3, max_prompt_chars=20, reward_bound=100.0)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(
                ["total", "parts", "raised", "bad", "tasks", "rewards", "results", "error", "check"]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=10,
)


@given(JSON)
def test_whatever_arrives_is_a_checked_value_or_the_agents_error(answer: Any) -> None:
    try:
        table = object_of(answer)
        assert isinstance(table, dict)
        for task in tasks_of(table, LIMITS):
            assert len(task.prompt) <= 20
        for _, weight in rewards_of(table):
            assert math.isfinite(weight)
        assert len(results_of(table, 2)) == 2
    except AgentError:
        return


@given(JSON)
def test_a_result_is_finite_and_bounded_or_the_agents_error(result: Any) -> None:
    try:
        scored = scored_of(0, result, LIMITS)
    except AgentError:
        return
    assert type(scored.total) is float
    assert math.isfinite(scored.total)
    assert abs(scored.total) <= 100.0
    assert scored.raised is None or scored.total == 0.0


@pytest.mark.parametrize("total", [True, False, None, "1", "1.0", [1], {}, math.nan, math.inf, 10**400])
def test_what_is_no_exact_number_is_refused(total: Any) -> None:
    with pytest.raises(AgentError) as caught:
        scored_of(0, {"total": total}, LIMITS)
    assert caught.value.check == "protocol"


def test_bounds_are_inclusive_and_named() -> None:
    assert scored_of(0, {"total": 100}, LIMITS).total == 100.0
    assert scored_of(0, {"total": -100.0}, LIMITS).total == -100.0
    with pytest.raises(AgentError, match=r"task 4: a reward of 1e\+09, outside ±100") as caught:
        scored_of(4, {"total": 1e9}, LIMITS)
    assert caught.value.check == "reward_bounds"


def test_parts_and_raised_and_bad() -> None:
    assert scored_of(0, {"total": 1, "parts": {"a": [2, 0.5]}}, LIMITS).parts == (("a", 2.0, 0.5),)
    assert scored_of(0, {"raised": "KeyError: 'x'"}, LIMITS).raised == "KeyError: 'x'"
    with pytest.raises(AgentError, match="task 2: `f` returned None"):
        scored_of(2, {"bad": "`f` returned None"}, LIMITS)


@pytest.mark.parametrize(
    "tasks",
    [
        None,
        "ab",
        [["a"]],
        [["a", 1]],
        [[1, None]],
        ["ab"],
        [["a" * 21, None]],
        [["a", None]] * 4,
        {"0": ["a", None]},
    ],
)
def test_tasks_of_another_shape_are_refused(tasks: Any) -> None:
    with pytest.raises(AgentError):
        tasks_of({"tasks": tasks}, LIMITS)


def test_an_error_of_the_child_is_raised_without_control_characters() -> None:
    error = {"check": "environment_load", "message": "line 1\n\x1b[31mred\x07", "fix": "x" * 5000}
    with pytest.raises(AgentError) as caught:
        object_of({"error": error})
    assert caught.value.check == "environment_load"
    assert caught.value.message == "line 1  [31mred "
    assert len(caught.value.fix) == 300


def test_clean_shortens() -> None:
    assert clean("a" * 50, 10) == "a" * 9 + "…"
    assert clean("äß→", 10) == "äß→"


def test_allowed_errors_by_hand() -> None:
    assert allowed_errors(0, 0.02) == 0.0
    assert allowed_errors(1, 0.02) < 1
    assert allowed_errors(50, 0.02) == 3.0
    assert allowed_errors(128, 0.02) == pytest.approx(2.56 + 2 * 1.6)
    assert allowed_errors(5000, 0.02) == 120.0
    assert allowed_errors(5000, 0.0) == 0.0


def test_results_are_json_that_any_parser_reads() -> None:
    assert json.loads(json.dumps({"total": 0.1}))["total"] == scored_of(0, {"total": 0.1}, LIMITS).total
