"""Every generated task is solved from its text alone, by code that shares nothing with its generator."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ai_trains_ai.inner.nano_tokenizer import build_tokenizer
from ai_trains_ai.tasks.base import MAX_LEVEL, extract_answer
from ai_trains_ai.tasks.hidden import hidden_items
from ai_trains_ai.tasks.modes import MODES, START, write
from ai_trains_ai.tasks.registry import FAMILIES

families = st.sampled_from(list(FAMILIES.values()))
levels = st.integers(1, MAX_LEVEL)
seeds = st.integers(0, 2**62)


@settings(deadline=None, max_examples=400)
@given(families, levels, seeds)
def test_the_answer_follows_from_the_prompt_alone(family, level, seed):
    task = family.generate(seed, level)
    assert family.solve(task.prompt) == (task.answer, task.steps)
    assert len(task.steps) == level
    assert family.score(family.gold(task), task) == 1.0
    assert family.score(family.wrong(task), task) == 0.0
    assert family.generate(seed, level) == task


@settings(deadline=None, max_examples=200)
@given(families, levels, seeds, st.sampled_from(MODES), st.floats(0, 1))
def test_every_mode_begins_as_it_should_and_ends_in_an_answer(family, level, seed, mode, slip):
    task = family.generate(seed, level)
    text = write(family, task, mode, random.Random(seed), careful_slip=slip)
    assert text.startswith(START[mode])
    assert extract_answer(text) is not None
    assert write(family, task, mode, random.Random(seed), careful_slip=slip) == text


@settings(deadline=None, max_examples=100)
@given(families, levels, seeds)
def test_careful_work_without_slips_is_right(family, level, seed):
    task = family.generate(seed, level)
    assert family.score(write(family, task, "careful", random.Random(seed)), task) == 1.0


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_thousands_of_distinct_tasks_a_level(family):
    for level in (1, 2, 5, 8):
        prompts = {family.generate(seed, level).prompt for seed in range(6000)}
        assert len(prompts) >= 2000, (level, len(prompts))


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_prompts_are_short_at_level_five(family, tokenizer_length: Callable[[str], int]):
    assert max(tokenizer_length(family.generate(seed, 5).prompt) for seed in range(300)) < 120


@pytest.fixture(scope="module")
def tokenizer_length() -> Callable[[str], int]:
    tokenizer = build_tokenizer(512, seed=20261201)
    return lambda text: len(tokenizer.encode(text).ids)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_hidden_items_depend_on_the_secret_and_never_show_an_example(family):
    one = hidden_items(family.name, b"0123456789abcdef", (2, 3), 20)
    assert one == hidden_items(family.name, b"0123456789abcdef", (2, 3), 20)
    other = hidden_items(family.name, b"0123456789abcdeg", (2, 3), 20)
    prompts = {item.prompt for item in one}
    assert len(prompts) == 40
    assert not prompts & {item.prompt for item in other}
    assert not prompts & {example.prompt for example in family.spec().examples}
    with pytest.raises(ValueError, match="16"):
        hidden_items(family.name, b"short", (2,), 1)


def test_answers_are_read_from_the_last_answer_line():
    assert extract_answer("Answer: 3. Answer:  North 4 .") == "north 4"
    assert extract_answer("Answer: 3\nAnswer: North  4.") == "north 4"
    assert extract_answer("no answer here") is None
    assert extract_answer("Answer:") is None
