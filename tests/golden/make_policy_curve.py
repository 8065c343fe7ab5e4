"""Regenerate `policy_curve.json`: losses of ten updates on one fixed batch, for every optimizer and for LoRA.

    .venv/bin/python tests/golden/make_policy_curve.py

The batch is fixed, not sampled: after the first update it is off-policy, so the ratio, the trust-region mask and
the KL term are all in force, and a rounding difference between machines cannot change what is trained on. A
pure refactoring leaves these numbers as they are.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import torch

from ai_trains_ai.algo.advantages import batch_advantages
from ai_trains_ai.config import PrimeRlConfig
from ai_trains_ai.engine.load import load_model
from ai_trains_ai.engine.sampling import Completion
from ai_trains_ai.engine.train import TokenGroup, group_logprobs
from ai_trains_ai.inner.rollouts import Prompt, RolloutGroup
from ai_trains_ai.inner.update import Policy
from ai_trains_ai.testing.models import write_random_model
from ai_trains_ai.types import EnvTask

OUT = Path(__file__).parent / "policy_curve.json"
STEPS = 10
SCHEDULE = {"type": "linear", "warmup_steps": 3, "decay_steps": 3, "min_lr": 1e-4}
CASES: dict[str, dict[str, Any]] = {
    "adamw": {"optim": {"type": "adamw", "lr": 0.01}, "scheduler": SCHEDULE},
    "adamw_unclipped": {"optim": {"type": "adamw", "lr": 0.003, "max_norm": None, "weight_decay": 0.1}},
    "sgd": {"optim": {"type": "sgd", "lr": 0.1}, "scheduler": {"type": "cosine", "warmup_steps": 2}},
    "muon": {"optim": {"type": "muon", "lr": 0.005}},
    "sign_sgd": {"optim": {"type": "sign_sgd", "lr": 0.001}},
    "lora": {"optim": {"type": "adamw", "lr": 0.02}, "model": {"lora": {"rank": 4, "alpha": 8.0}}},
    "strong_kl": {
        "optim": {"type": "adamw", "lr": 0.003, "max_norm": None, "weight_decay": 0.1},
        "loss": {"adv_tau": 1.0, "kl_tau": 0.5},
    },
    "tight_mask": {
        "optim": {"type": "adamw", "lr": 0.005},
        "loss": {"dppo_mask_low": 0.01, "dppo_mask_high": 0.02},
    },
}


def fixed_batch(folder: Path) -> list[RolloutGroup]:
    """Three prompts with four completions of 3 to 8 letters, with the untrained model's log-probabilities."""
    rng = random.Random(0)
    prompts = [[rng.randrange(5, 70) for _ in range(length)] for length in (4, 9, 6)]
    completions = [
        [[rng.randrange(5, 70) for _ in range(rng.randint(3, 8))] for _ in range(4)] for _ in prompts
    ]
    model = load_model(folder)
    groups = []
    for index, (prompt, group) in enumerate(zip(prompts, completions, strict=True)):
        with torch.no_grad():
            logprobs = group_logprobs(model, [TokenGroup(prompt, group)]).logprobs_N_T
        made = [
            Completion(tokens, row[: len(tokens)], "length")
            for tokens, row in zip(group, logprobs.tolist(), strict=True)
        ]
        rewards = [rng.choice((0.0, 0.25, 1.0)) for _ in group]
        groups.append(RolloutGroup(Prompt(EnvTask(index, ""), prompt), made, [""] * 4, rewards))
    return groups


def curve(folder: Path, trainer: dict[str, Any]) -> list[dict[str, float]]:
    """What each update of a case reports."""
    torch.set_num_threads(1)
    groups = fixed_batch(folder)
    advantages = batch_advantages([group.rewards for group in groups]).by_group
    config = PrimeRlConfig.model_validate({"max_steps": STEPS, "trainer": trainer})
    policy = Policy(load_model(folder), config, seed=3)
    found = []
    for step in range(STEPS):
        update = policy.update(groups, advantages, step=step)
        found.append(
            {
                "loss": update.loss,
                "grad_norm": update.grad_norm,
                "lr": update.lr,
                "sampler_kl": update.stats.sampler_kl,
                "clip_share": update.stats.clip_share,
            }
        )
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "tiny"
        write_random_model(folder)
        curves = {case: curve(folder, trainer) for case, trainer in CASES.items()}
    OUT.write_text(json.dumps(curves, indent=1) + "\n")


if __name__ == "__main__":
    main()
