"""Hidden evals: what a sampler sees, how its replies are scored, what makes a number another number."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ai_trains_ai.config import EvalConfig
from ai_trains_ai.errors import InfrastructureError
from ai_trains_ai.fleet.versions import SAMPLING, TRAINING, base_sha256, libraries, source_digest
from ai_trains_ai.scoring.evaluate import AT_ONCE, evaluate
from ai_trains_ai.scoring.hidden_eval import EvalSecret, HiddenEval
from ai_trains_ai.tasks.base import write_up
from ai_trains_ai.tasks.registry import FAMILIES, family

SECRET = EvalSecret.private(b"0123456789abcdef")
CONFIG = EvalConfig(levels=(2, 3), items_per_level=8, samples=2)


def hidden(name: str = "ledger", secret: EvalSecret = SECRET, config: EvalConfig = CONFIG) -> HiddenEval:
    return HiddenEval.of(name, secret, config)


def gold(prompt: str) -> str:
    solution = family("ledger").solve(prompt)
    assert solution is not None
    return write_up(solution[1], solution[0])


def test_scores_by_hand() -> None:
    """Item 0: both samples right; item 1: one; all others none."""
    items = hidden().items

    def sample(prompts: Sequence[str], samples: int, seed: int) -> list[list[str]]:
        assert samples == 2
        replies = [["Answer: nobody"] * samples for _ in prompts]
        replies[0] = [gold(prompts[0])] * 2
        replies[1][1] = gold(prompts[1])
        return replies

    result = evaluate(sample, hidden(), model="m", samples=2)
    assert result.item_scores == (1.0, 0.5, *[0.0] * 14)
    assert result.accuracy == pytest.approx(1.5 / 16)
    assert result.pass_k == pytest.approx(2 / 16)
    assert len(items) == 16


@pytest.mark.parametrize("name", FAMILIES)
def test_a_perfect_and_a_hopeless_model(name: str) -> None:
    chosen = family(name)
    by_prompt = {item.prompt: item for item in hidden(name).items}

    def perfect(prompts: Sequence[str], samples: int, seed: int) -> list[list[str]]:
        return [[chosen.gold(by_prompt[prompt])] for prompt in prompts]

    def hopeless(prompts: Sequence[str], samples: int, seed: int) -> list[list[str]]:
        return [[chosen.wrong(by_prompt[prompt])] for prompt in prompts]

    assert evaluate(perfect, hidden(name), model="m", samples=1).accuracy == 1.0
    assert evaluate(hopeless, hidden(name), model="m", samples=1).accuracy == 0.0


def test_the_sampler_sees_prompts_and_nothing_else() -> None:
    seen: list[str] = []

    def sample(prompts: Sequence[str], samples: int, seed: int) -> list[list[str]]:
        seen.extend(prompts)
        return [["Answer: x"] * samples for _ in prompts]

    evaluate(sample, hidden(), model="m", samples=1)
    assert seen == [item.prompt for item in hidden().items]
    assert all(type(prompt) is str for prompt in seen)


def test_batches_are_cut_the_same_way_and_seeded_apart() -> None:
    large = hidden(config=EvalConfig(items_per_level=64))
    calls: list[tuple[int, int]] = []

    def sample(prompts: Sequence[str], samples: int, seed: int) -> list[list[str]]:
        calls.append((len(prompts), seed))
        return [["Answer: x"] * samples for _ in prompts]

    evaluate(sample, large, model="base", samples=8)
    assert [count for count, _ in calls] == [AT_ONCE // 8] * 4
    assert len({seed for _, seed in calls}) == 4
    first, calls[:] = list(calls), []
    evaluate(sample, large, model="another", samples=8)
    assert calls == first, "base and trained model are sampled with the same seeds"
    calls.clear()
    evaluate(sample, large, model="large", samples=1, at_once=64)
    assert [count for count, _ in calls] == [64] * 4


def test_a_short_answer_of_the_sampler_is_infrastructure() -> None:
    with pytest.raises(InfrastructureError, match="2 completions"):
        evaluate(lambda prompts, samples, seed: [["x"]] * len(prompts), hidden(), model="m", samples=2)


def test_a_secret_has_a_name_that_tells_nothing() -> None:
    value = b"fedcba9876543210"
    assert value.decode() not in EvalSecret.private(value).id
    assert EvalSecret.private(value).id == EvalSecret.private(value).id
    assert EvalSecret.private(value).id != SECRET.id
    assert EvalSecret.public(3).id == "public-3"
    assert EvalSecret.public(3).value != EvalSecret.public(4).value
    # A public seed can never be mistaken for, or collide with, a private secret's name.
    assert EvalSecret.private(EvalSecret.public(3).value).id != EvalSecret.public(3).id


def test_items_depend_on_the_secret() -> None:
    ours = {item.prompt for item in hidden().items}
    theirs = {item.prompt for item in hidden(secret=EvalSecret.public(1)).items}
    assert not ours & theirs
    assert hidden().items == hidden().items


def test_the_key_names_everything_a_number_depends_on() -> None:
    keys = {
        hidden().key({"source": "a"}),
        hidden().key({"source": "b"}),
        hidden("triage").key({"source": "a"}),
        hidden(secret=EvalSecret.public(1)).key({"source": "a"}),
        hidden(config=EvalConfig(levels=(2, 3), items_per_level=8, samples=3)).key({"source": "a"}),
    }
    assert len(keys) == 5
    assert hidden().key({"a": "1", "b": "2"}) == hidden().key({"b": "2", "a": "1"})


def test_versions_name_source_and_libraries() -> None:
    assert len({source_digest(SAMPLING), source_digest(TRAINING)}) == 2
    assert libraries()["torch"] != "none"


def test_a_bases_hash_is_of_its_files() -> None:
    from ai_trains_ai.engine.bases import base_folder
    from ai_trains_ai.errors import UsageError

    with pytest.raises(UsageError, match="unknown base"):
        base_sha256("nano-9t")
    try:
        base_folder("nano-0.2m")
    except InfrastructureError:
        pytest.skip("the tiny bases are not built in this checkout")
    assert base_sha256("nano-0.2m") != base_sha256("nano-0.8m")
