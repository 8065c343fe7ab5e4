"""Rewards that are no plain finite bounded numbers, and rewards that raise."""

from __future__ import annotations

import pytest
from test_environment_channel import BATCH, LIMITS, refused

from ai_trains_ai.errors import AgentError
from ai_trains_ai.jobs.env_host import EnvHost
from ai_trains_ai.sandbox.base import Sandbox
from ai_trains_ai.testing.jobs import environment_py, sample_job


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("None", "returned None"),
        ('"1.0"', "'1.0' (str)"),
        ("True", "True (bool)"),
        ("{'right': None}", "returned None"),
        ("[1.0]", "returned list"),
        ("float('nan')", "returned nan"),
        ("-float('inf')", "returned -inf"),
        ("type('E', (), {'__eq__': lambda a, b: True, '__float__': lambda a: 1.0})()", "returned E"),
        ("type('F', (float,), {'__eq__': lambda a, b: True, '__hash__': None})(1)", "(F)"),
        ("type('I', (int,), {})(1)", "(I)"),
        ("__import__('fractions').Fraction(1, 2)", "returned Fraction"),
        ("1j", "returned complex"),
        ("10 ** 400", "an int beyond any float"),
    ],
)
def test_what_is_no_plain_number_is_rejected_by_name(value: str, shown: str, sandbox: Sandbox) -> None:
    error = refused(sample_job(reward=f"return {value}"), sandbox)
    assert error.check == "reward_value"
    assert error.message.startswith("task 4: `right` ")
    assert shown in error.message
    assert "float" in error.fix


@pytest.mark.parametrize("value", ["1e9", "-101", "10 ** 30", "100.0001", "{'a': 60, 'b': 60}"])
def test_rewards_out_of_bounds_are_rejected(value: str, sandbox: Sandbox) -> None:
    error = refused(sample_job(reward=f"return {value}"), sandbox)
    assert error.check == "reward_bounds"
    assert "±100" in error.message


def test_a_sum_beyond_any_float_is_rejected(sandbox: Sandbox) -> None:
    error = refused(sample_job(reward="return {'a': 1e308, 'b': 1e308}"), sandbox)
    assert error.check == "reward_value"
    assert "the weighted sum of rewards is inf" in error.message


@pytest.mark.parametrize("value", ["1", "-100", "0.1 + 0.2", "1e-320", "100"])
def test_plain_numbers_arrive_to_the_last_digit(value: str, sandbox: Sandbox) -> None:
    with EnvHost.start(sample_job(reward=f"return {value}"), sandbox, LIMITS) as host:
        found = host.score(BATCH)
    assert [repr(reward) for reward in found] == [repr(float(eval(value)))] * 4


SOMETIMES = "if int(reply) % {every} == 0:\n    raise KeyError('no such thing')\nreturn 1.0"
LINE = environment_py(reward=SOMETIMES).splitlines().index("            raise KeyError('no such thing')") + 1
WHERE = f"environment.py, line {LINE}, in right: KeyError: 'no such thing'"


def test_a_reward_that_raises_once_in_a_hundred_is_counted_and_scored_zero(sandbox: Sandbox) -> None:
    with EnvHost.start(sample_job(reward=SOMETIMES.format(every=100)), sandbox, LIMITS) as host:
        for first in range(1, 512, 128):
            found = host.score([(0, str(n)) for n in range(first, first + 128)])
            assert found == [float(n % 100 != 0) for n in range(first, first + 128)]
        assert (host.stats.completions, host.stats.errors) == (512, 5)
        assert host.stats.first_error == WHERE


@pytest.mark.parametrize("every", [1, 5])
def test_a_reward_that_raises_often_fails_the_run_with_the_first_error(every: int, sandbox: Sandbox) -> None:
    with EnvHost.start(sample_job(reward=SOMETIMES.format(every=every)), sandbox, LIMITS) as host:
        with pytest.raises(AgentError) as caught:
            host.score([(0, str(n)) for n in range(1, 129)])
        assert caught.value.check == "reward_error"
        assert f"on {128 // every} of 128 completions" in caught.value.message
        assert WHERE in caught.value.message
        with pytest.raises(AgentError, match="of 128 completions"):
            host.score(BATCH)


def test_an_exception_whose_text_fails_is_still_reported(sandbox: Sandbox) -> None:
    nasty = "class E(Exception):\n    def __str__(self):\n        raise ValueError\nraise E"
    error = refused(sample_job(reward=nasty), sandbox)
    assert error.check == "reward_error"
    assert "E: (its message cannot be shown)" in error.message
