"""Our GRPO loss and gradient equal TRL's GRPOTrainer on one batch, recorded in `golden/trl_grpo`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ai_trains_ai.algo.advantages import batch_advantages
from ai_trains_ai.algo.losses import grpo, sequence_mean, token_mean
from ai_trains_ai.algo.metrics import token_stats
from ai_trains_ai.engine.load import hf_tensors, load_model
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.train import TokenGroup, group_logprobs

GOLDEN = Path(__file__).parents[1] / "golden" / "trl_grpo"
PEER = Path(__file__).parents[2] / ".venv-bench" / "bin" / "python"


def hf_gradients(model: Model) -> dict[str, Tensor]:
    """The gradients under Hugging Face names: poured into a second model, which knows how to unfuse them."""
    shadow = Model(model.config, seed=None)
    for parameter, copy in zip(model.parameters(), shadow.parameters(), strict=True):
        assert parameter.grad is not None
        copy.data.copy_(parameter.grad)
    return hf_tensors(shadow)


def ours(folder: Path, case: dict[str, Any], batch: dict[str, Any]) -> tuple[Tensor, float, Model]:
    model = load_model(folder)
    groups = [
        TokenGroup(prompt=p, completions=c)
        for p, c in zip(batch["prompts"], batch["completions"], strict=True)
    ]
    output = group_logprobs(model, groups, temperature=batch["temperature"])
    width = output.logprobs_N_T.shape[1]
    old, reference = (
        torch.tensor(batch[key])[:, :width] for key in ("old_per_token_logps", "ref_per_token_logps")
    )
    by_group = batch_advantages(batch["rewards"]).by_group
    advantages_N_1 = torch.tensor([a for group in by_group for a in group or ()]).unsqueeze(1)
    token_loss = grpo(
        output.logprobs_N_T,
        old,
        advantages_N_1,
        output.mask_N_T,
        clip_low=1 - case["epsilon_low"],
        clip_high=1 + case["epsilon_high"],
        beta=case["beta"],
        reference_logprobs_N_T=reference,
        unbiased_kl=case.get("unbiased_kl", True),
    )
    stats = token_stats(output.logprobs_N_T, old, output.mask_N_T, token_loss.clipped_N_T)
    if case["loss_type"] == "dapo":
        loss = token_mean(token_loss.loss_N_T, stats.tokens)
    else:
        loss = sequence_mean(token_loss.loss_N_T, output.mask_N_T)
    loss.backward()
    return loss.detach(), stats.clip_share, model


def assert_equal_to_trl(folder: Path) -> None:
    batch = json.loads((folder / "batch.json").read_text())
    assert set(batch["cases"]) == {"grpo", "dapo", "grpo_kl", "dapo_plain_kl"}
    for name, case in batch["cases"].items():
        loss, clip_share, model = ours(folder, case, batch)
        assert loss.item() == pytest.approx(case["loss"], abs=1e-6), name
        assert clip_share == pytest.approx(case["clip_share"], abs=1e-6), name
        assert 0 < clip_share < 1, f"{name}: the batch must exercise the clip"
        gradients = hf_gradients(model)
        for key, expected in load_file(folder / f"{name}.safetensors").items():
            torch.testing.assert_close(gradients[key], expected, atol=2e-6, rtol=1e-5, msg=f"{name} {key}")
            assert expected.abs().max() > 1e-4, f"{name} {key}: a gradient of nothing proves nothing"


def test_loss_and_gradient_equal_the_recorded_ones() -> None:
    assert_equal_to_trl(GOLDEN)


@pytest.mark.slow
def test_loss_and_gradient_equal_trl_run_now(tmp_path: Path) -> None:
    if not PEER.exists():
        pytest.skip(f"{PEER} is missing: `make bench` sets up the environment that has TRL")
    script = GOLDEN.parent / "make_trl_grpo.py"
    subprocess.run([PEER, script, tmp_path], check=True, capture_output=True, timeout=240)
    assert_equal_to_trl(tmp_path)
    recorded = json.loads((GOLDEN / "batch.json").read_text())
    now = json.loads((tmp_path / "batch.json").read_text())
    for name, case in recorded["cases"].items():
        assert now["cases"][name]["loss"] == pytest.approx(case["loss"], abs=1e-5), "the record is stale"
