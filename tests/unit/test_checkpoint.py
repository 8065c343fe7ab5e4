"""Checkpoints appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from ai_trains_ai.engine.load import load_model, weights_sha256
from ai_trains_ai.errors import InfrastructureError
from ai_trains_ai.inner.checkpoint import write_checkpoint
from ai_trains_ai.testing.models import write_random_model


def test_a_failure_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    write_random_model(tmp_path / "base")
    model = load_model(tmp_path / "base")
    broken = tmp_path / "tokenizer"
    broken.mkdir()
    (broken / "tokenizer.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "runs").mkdir()
    with pytest.raises(InfrastructureError, match="writing the checkpoint"):
        write_checkpoint(model, broken, tmp_path / "runs" / "out")
    assert list((tmp_path / "runs").iterdir()) == []


def test_only_tokenizer_files_are_copied(tmp_path: Path) -> None:
    base = tmp_path / "base"
    write_random_model(base)
    (base / "README.md").write_text("about the base, not about what was trained")
    digest = write_checkpoint(load_model(base), base, tmp_path / "out")
    assert digest == weights_sha256(base)
    assert not (tmp_path / "out" / "README.md").exists()
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
