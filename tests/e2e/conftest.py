"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e_driver import Ata, MakeJob

from ai_trains_ai.tasks.starter import environment_source, job_toml


@pytest.fixture(scope="module")
def ata(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ata]:
    made = Ata(tmp_path_factory.mktemp("home"))
    yield made
    assert made.leftovers() == []


@pytest.fixture
def make_job(tmp_path: Path) -> MakeJob:
    """make_job(reward=…, steps=…, edit=…) -> a directory with a small job.

    Its default reward differs among the replies of any model: weights move in every step.
    """

    def make(
        *,
        reward: str = "len(reply) % 7 / 7",
        steps: int = 3,
        batch: int = 32,
        edit: Callable[[str], str] = lambda source: source,
    ) -> Path:
        folder = tmp_path / f"job{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        settings = {"max_steps": steps, "orchestrator.batch_size": batch, "orchestrator.group_size": 8}
        (folder / "job.toml").write_text(job_toml("string_pipeline", "nano-0.2m", settings))
        source = environment_source("string_pipeline", reward=reward, num_tasks=128)
        (folder / "environment.py").write_text(edit(source))
        return folder

    return make
