"""The recorded loss curves still hold (see make_policy_curve.py), and mean what they should."""

from __future__ import annotations

import json
from pathlib import Path

import make_policy_curve
import pytest

from ai_trains_ai.testing.models import write_random_model

RECORDED = json.loads(make_policy_curve.OUT.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("base") / "tiny"
    write_random_model(made)
    return made


@pytest.mark.parametrize("case", make_policy_curve.CASES)
def test_the_curve_is_the_recorded_one(folder: Path, case: str) -> None:
    tolerance = 1e-2 if case == "muon" else 1e-3  # muon's products are bfloat16, which machines round apart
    found = make_policy_curve.curve(folder, make_policy_curve.CASES[case])
    assert len(found) == len(RECORDED[case]) == make_policy_curve.STEPS
    for step, (now, then) in enumerate(zip(found, RECORDED[case], strict=True)):
        for name, value in then.items():
            assert now[name] == pytest.approx(value, rel=tolerance, abs=2e-6), f"step {step}: {name}"


def test_the_recorded_curves_exercise_what_they_are_for() -> None:
    assert set(RECORDED) == set(make_policy_curve.CASES)
    for case, steps in RECORDED.items():
        assert steps[0]["sampler_kl"] < 1e-12, f"{case}: the first update is on-policy"
        assert steps[0]["clip_share"] == 0.0
        assert min(step["loss"] for step in steps) < 1.5 * steps[0]["loss"] < 0, f"{case}: the loss falls"
        assert steps[-1]["sampler_kl"] > 1e-6, f"{case}: later updates are off-policy"
    assert max(step["clip_share"] for step in RECORDED["tight_mask"]) > 0.2
    assert RECORDED["strong_kl"][-1]["sampler_kl"] < 0.7 * RECORDED["adamw_unclipped"][-1]["sampler_kl"]
    assert [step["lr"] for step in RECORDED["adamw"]][3:7] == pytest.approx([0.01] * 4)
    assert RECORDED["adamw"][-1]["lr"] == pytest.approx(1e-4)
