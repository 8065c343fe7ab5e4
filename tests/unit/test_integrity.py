"""Checkpoints that are not ours, and rewards that pay for something else."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ai_trains_ai.errors import InfrastructureError
from ai_trains_ai.scoring.integrity import divergence, stopped_early, verify_checkpoint
from ai_trains_ai.types import EvalResult, InnerStep, TrainingRun


def training(folder: Path, sha: str = "aa") -> TrainingRun:
    return TrainingRun(str(folder), sha, (), (), 0, 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "run" / "checkpoint"
    made.mkdir(parents=True)
    (made / "model.safetensors").write_text("aa")
    return made


def test_our_own_checkpoint_passes(folder: Path) -> None:
    assert verify_checkpoint(training(folder), folder) == folder


def test_another_path_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="reports a checkpoint at"):
        verify_checkpoint(training(tmp_path), folder)


def test_a_linked_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "better"
    folder.rename(other)
    folder.symlink_to(other)
    with pytest.raises(InfrastructureError, match="is a link"):
        verify_checkpoint(training(folder), folder)


def test_a_linked_file_is_refused(folder: Path, tmp_path: Path) -> None:
    weights = folder / "model.safetensors"
    weights.rename(tmp_path / "better")
    weights.symlink_to(tmp_path / "better")
    with pytest.raises(InfrastructureError, match="no plain file"):
        verify_checkpoint(training(folder), folder)


def test_a_pipe_in_the_folder_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(InfrastructureError, match="no plain file"):
        verify_checkpoint(training(folder), folder)


def test_an_early_stop_is_a_warning_with_the_trainers_reason(folder: Path) -> None:
    assert stopped_early(training(folder)) is None
    finding = stopped_early(replace(training(folder), early_stop="no signal: all rewards were equal"))
    assert finding is not None
    assert finding.severity == "warning"
    assert "after 0 steps: no signal: all rewards were equal" in finding.message


def step(number: int, reward: float, spread: float) -> InnerStep:
    return InnerStep(number, reward, spread, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 1, 1, 0.1)


def evaluated(*scores: float) -> EvalResult:
    return EvalResult("f", "m", sum(scores) / len(scores), 0.0, 1.0, 0.0, scores, 1, 0.0)


LENGTH_REWARD = [step(n, 0.2 + 0.04 * n, 0.15) for n in range(20)]


def test_a_hacked_reward_is_reported() -> None:
    pre, post = evaluated(*[1.0, 0.0] * 50), evaluated(*[0.0] * 100)
    found = divergence(LENGTH_REWARD, pre, post, seed=1)
    assert found is not None
    assert found.severity == "warning"
    # First fifth: mean of 0.20, 0.24, 0.28, 0.32; last fifth: 0.84 … 0.96.
    assert "0.260 to 0.900" in found.message
    assert "0.500 to 0.000 (-0.500)" in found.message


def test_an_honest_reward_is_not() -> None:
    pre, post = evaluated(*[1.0, 0.0] * 50), evaluated(*[1.0] * 95 + [0.0] * 5)
    assert divergence(LENGTH_REWARD, pre, post, seed=1) is None


def test_a_flat_reward_is_not() -> None:
    pre = evaluated(*[1.0, 0.0] * 50)
    flat = [step(n, 0.5 + 0.001 * n, 0.4) for n in range(20)]
    assert divergence(flat, pre, pre, seed=1) is None
    assert divergence(LENGTH_REWARD[:1], pre, pre, seed=1) is None
