"""The rendered environment package under the real verifiers: found as a plugin, played in whole rollouts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ai_trains_ai.jobs.env_package import package_id
from ai_trains_ai.jobs.render import render
from ai_trains_ai.testing.jobs import sample_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SIDE = Path(__file__).with_name("verifiers_side")


def test_verifiers_finds_and_plays_the_package(tmp_path: Path) -> None:
    python = os.environ.get("ATA_VERIFIERS_PYTHON")
    if python is None:
        command = [sys.executable, SIDE / "make_environment.py"]
        made = subprocess.run(command, check=False, capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"no environment with verifiers could be made: {made.stderr[-500:]}")
        python = made.stdout.strip().splitlines()[-1]
    job = sample_job(
        toml="[environment]\nnum_tasks = 5\n", head="from helper import X", files={"helper.py": b"X = 1\n"}
    )
    for name, content in render(job).files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    for name in ("environment.py", "helper.py"):
        (tmp_path / name).write_bytes(job.files[name])
    arguments = json.dumps(dict(job.environment_args))
    done = subprocess.run(
        [python, SIDE / "package.py", "environment", package_id(job), "environment.py", arguments],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SIDE), str(tmp_path)])},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout)
    assert answer["tasks"] == answer["direct"]
    assert len(answer["tasks"]) == 5
    assert answer["harness"] == "OneTurn"
    assert answer["default_harness"] == package_id(job)
    assert [rollout["errors"] for rollout in answer["rollouts"]] == [[], []]
    assert [rollout["total"] for rollout in answer["rollouts"]] == [1.0, 0.0]
