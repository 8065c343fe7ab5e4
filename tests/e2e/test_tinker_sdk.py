"""The unmodified tinker SDK 0.38, in an environment of its own, does its whole cycle against our server.

The environment is .venv-tinker beside the repository's other ones:
    python3 -m venv .venv-tinker && .venv-tinker/bin/pip install tinker==0.38 torch -c constraints.txt
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ai_trains_ai.testing.models import write_random_model

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-tinker" / "bin" / "python"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PYTHON.exists(), reason="needs .venv-tinker, see the module's text"),
]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("tinker")
    write_random_model(folder / "base")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ai_trains_ai", "tinker-server", "--port", str(port)]
    command += ["--base", f"random={folder / 'base'}", "--home", str(folder / "home")]
    server = subprocess.Popen(command, cwd=ROOT)
    try:
        address = f"http://127.0.0.1:{port}"
        environment = {**os.environ, "TINKER_BASE_URL": address, "TINKER_API_KEY": "tml-local"}
        script = [str(PYTHON), str(ROOT / "tests/e2e/tinker_side/cycle.py"), "random"]
        done = subprocess.run(
            script, env=environment, capture_output=True, text=True, timeout=540, check=False
        )
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout.splitlines()[-1])
    finally:
        server.terminate()
        server.wait(30)


def test_training_learns(seen: dict[str, Any]) -> None:
    assert seen["info"] == "random"
    assert seen["cross_entropy"][0] == pytest.approx(2 * seen["forward"], rel=1e-5)
    assert seen["cross_entropy"][-1] < seen["cross_entropy"][0] - 0.1
    assert seen["grad_norm"] > 0.0


def test_policy_losses_at_ratio_one(seen: dict[str, Any]) -> None:
    """The reference is the policy itself and the four advantages are 1."""
    for name in ("importance_sampling", "ppo"):
        assert seen[name] == pytest.approx(-4.0, rel=1e-4)
    for name in ("cispo", "dro"):  # both are −A·log p there
        assert 0.0 < seen[name] < seen["forward"]


def test_a_custom_loss_sees_the_log_probabilities(seen: dict[str, Any]) -> None:
    given, expected = seen["custom"]
    assert given == pytest.approx(expected, rel=1e-4)


def test_a_saved_state_goes_on_equally(seen: dict[str, Any]) -> None:
    original, resumed = seen["continued"]
    assert original == resumed
    assert seen["loaded"] != original


def test_sampling_is_seeded_and_scored_alike(seen: dict[str, Any]) -> None:
    first, again = seen["sampled"]
    assert first == again
    assert len({tuple(tokens) for tokens in first}) > 1
    assert seen["first_is_none"]
    assert seen["sampled_logprobs"] == pytest.approx(seen["scored_logprobs"], abs=1e-4)


def test_trained_weights_are_sampled_from(seen: dict[str, Any]) -> None:
    assert all(tokens == seen["greedy_base"][0] for tokens in seen["greedy_base"])
    assert seen["greedy_trained"] != seen["greedy_base"][0]


def test_checkpoints_are_listed_and_deleted(seen: dict[str, Any]) -> None:
    assert seen["state_path"] in seen["listed"]
    gone = set(seen["listed"]) - set(seen["after_delete"])
    assert [path.endswith("/sampler_weights/published") for path in gone] == [True]


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("unknown_base", "unknown base model 'nobody/nothing'"),
        ("missing_input", "ppo needs loss_fn_inputs advantages, logprobs"),
        ("no_gradient", "no gradient to step with"),
        ("no_checkpoint", "does not exist"),
    ],
)
def test_refusals_say_why(seen: dict[str, Any], act: str, words: str) -> None:
    assert words in seen["refused"][act]
