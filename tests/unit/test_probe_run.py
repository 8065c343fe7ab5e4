"""The dynamic probe: what a few real rollouts and two optimizer steps show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ai_trains_ai.config import PrimeRlConfig
from ai_trains_ai.engine.load import load_model, weights_sha256
from ai_trains_ai.engine.tokenizer import Tokenizer
from ai_trains_ai.errors import AgentError
from ai_trains_ai.inner.probe_run import probe_run
from ai_trains_ai.testing.models import write_random_model
from ai_trains_ai.testing.rewards import FakeRewards
from ai_trains_ai.types import EnvTask, Finding

PROMPTS = [f"say {letter}" for letter in "abcdefghij"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "tiny"
    write_random_model(folder)
    return folder


def probe(
    base: Path, reward: Callable[[EnvTask, str], float], *, group_size: int = 4, batch_size: int = 64
) -> tuple[list[Finding], FakeRewards, bool]:
    """Findings, the reward source, and whether the optimizer changed the weights."""
    rewards = FakeRewards(PROMPTS, reward)
    sampling = {"sampling": {"max_completion_tokens": 6}}
    config = PrimeRlConfig.model_validate(
        {"orchestrator": {"batch_size": batch_size, "group_size": group_size, "train": sampling}}
    )
    model = load_model(base)
    findings = probe_run(model, Tokenizer.from_folder(base), rewards, config, seed=0)
    return findings, rewards, weights_sha256(model) != weights_sha256(base)


def test_a_reward_with_signal_has_no_findings(base: Path) -> None:
    findings, rewards, trained = probe(base, lambda _task, text: text.count("e") + len(text))
    assert findings == []
    assert trained, "two real optimizer steps ran"
    assert [len(batch) for batch in rewards.batches] == [32], "a few rollouts, not a whole step of 64"


def test_equal_rewards_are_a_warning_and_the_optimizer_still_runs(base: Path) -> None:
    findings, _, trained = probe(base, lambda _task, _text: 0.5)
    assert [(f.check, f.severity) for f in findings] == [("reward_variance", "warning")]
    assert "8 groups of 4" in findings[0].message
    assert "equal" in findings[0].message
    assert trained


def test_rewards_that_differ_between_prompts_only_are_no_signal(base: Path) -> None:
    findings, _, _ = probe(base, lambda task, _text: task.index / 10)
    assert [f.check for f in findings] == ["reward_variance"]
    assert "over prompts" in findings[0].message


def test_groups_of_one_get_their_own_message(base: Path) -> None:
    findings, _, trained = probe(base, lambda _task, text: float(len(text)), group_size=1)
    assert [f.check for f in findings] == ["reward_variance"]
    assert "group_size" in findings[0].fix
    assert trained


def test_a_small_batch_bounds_the_probe(base: Path) -> None:
    _, rewards, _ = probe(base, lambda _task, text: float(len(text)), group_size=4, batch_size=4)
    assert [len(batch) for batch in rewards.batches] == [4]


def test_what_the_environment_reports_is_an_error(base: Path) -> None:
    def broken(_task: EnvTask, _text: str) -> float:
        raise AgentError("reward_value", "task 3: nan", "return a finite number")

    findings, _, _ = probe(base, broken)
    assert findings == [Finding("reward_value", "task 3: nan", "return a finite number")]


def test_divergence_is_an_error(base: Path) -> None:
    findings, _, _ = probe(base, lambda _task, text: 1e38 * len(text))
    assert [(f.check, f.severity) for f in findings] == [("diverged", "error")]
