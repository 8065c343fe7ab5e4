"""Regenerate `trl_grpo/`: GRPO losses and gradients as TRL's own GRPOTrainer computes them on one batch.

    make bench BENCH_ARGS=--help                       # sets up the environment that has TRL
    .venv-bench/bin/python tests/golden/make_trl_grpo.py [OUT_DIR]

The batch is fixed here: a small random Llama model with grouped-query attention, two prompts of different
lengths with three completions each, also of different lengths, a temperature other than 1, and recorded
"old" log-probabilities that differ from the model's so that both sides of the clip are in force.
Written: config.json and model.safetensors (the model), batch.json (inputs, per-token log-probabilities and
loss of each case), CASE.safetensors (TRL's gradient for every parameter).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

OUT = Path(__file__).parent / "trl_grpo"
TEMPERATURE = 0.8
PROMPTS = [[3, 7, 11, 2, 19], [5, 4, 8]]
COMPLETIONS = [[[9, 10, 1], [12, 1], [13, 14, 15, 16, 17, 1]], [[20, 21, 22, 1], [6, 6, 6, 6, 6], [18]]]
REWARDS = [[1.0, 0.0, 0.25], [0.0, 0.0, 1.0]]
CASES: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo", "beta": 0.0, "epsilon_low": 0.2, "epsilon_high": 0.2},
    "dapo": {"loss_type": "dapo", "beta": 0.0, "epsilon_low": 0.2, "epsilon_high": 0.28},
    "grpo_kl": {"loss_type": "grpo", "beta": 0.04, "epsilon_low": 0.2, "epsilon_high": 0.2},
    "dapo_plain_kl": {
        "loss_type": "dapo",
        "beta": 0.04,
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "unbiased_kl": False,
    },
}


def small_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=24,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=4,
            max_position_embeddings=64,
            initializer_range=0.3,
            tie_word_embeddings=True,
        )
    )


def trainer(model: LlamaForCausalLM, folder: str) -> GRPOTrainer:
    """A real trainer; only its loss is called, so the data set and the reward function stay unused."""
    vocabulary = Tokenizer(models.WordLevel({f"t{i}": i for i in range(24)}, unk_token="t0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary, eos_token="t1", pad_token="t0")
    config = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=6,
        num_generations=3,
        temperature=TEMPERATURE,
        report_to="none",
    )
    made = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "t3"}] * 6),
    )
    made.current_gradient_accumulation_steps = 1
    made.model.train()
    return made


def batch(made: GRPOTrainer) -> dict[str, torch.Tensor]:
    """TRL's input layout: prompts padded on the left, completions on the right, one row a completion."""
    prompts = [p for p, group in zip(PROMPTS, COMPLETIONS, strict=True) for _ in group]
    completions = [c for group in COMPLETIONS for c in group]
    p_len, c_len = max(map(len, prompts)), max(map(len, completions))
    inputs = {
        "prompt_ids": torch.tensor([[0] * (p_len - len(p)) + p for p in prompts]),
        "prompt_mask": torch.tensor([[0] * (p_len - len(p)) + [1] * len(p) for p in prompts]),
        "completion_ids": torch.tensor([c + [0] * (c_len - len(c)) for c in completions]),
        "completion_mask": torch.tensor([[1] * len(c) + [0] * (c_len - len(c)) for c in completions]),
    }
    rewards = torch.tensor(REWARDS)
    inputs["advantages"] = (rewards - rewards.mean(dim=1, keepdim=True)).flatten()
    inputs["num_items_in_batch"] = inputs["completion_mask"].sum()
    with torch.no_grad():
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        logprobs = made._get_per_token_logps_and_entropies(made.model, ids, mask, c_len)[0]
    noise = torch.Generator().manual_seed(1)
    inputs["old_per_token_logps"] = logprobs + 0.3 * torch.randn(logprobs.shape, generator=noise)
    inputs["ref_per_token_logps"] = logprobs + 0.3 * torch.randn(logprobs.shape, generator=noise)
    inputs["logprobs"] = logprobs
    return inputs


def main(out: Path) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    model = small_model()
    model.save_pretrained(out)
    (out / "generation_config.json").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(model, folder)
        inputs = batch(made)
        results = {name: run_case(made, inputs, out / f"{name}.safetensors", **CASES[name]) for name in CASES}
    record = {
        "temperature": TEMPERATURE,
        "prompts": PROMPTS,
        "completions": COMPLETIONS,
        "rewards": REWARDS,
        "cases": {name: {**CASES[name], **results[name]} for name in CASES},
        **{
            key: inputs[key].tolist()
            for key in ("completion_mask", "old_per_token_logps", "ref_per_token_logps", "logprobs")
        },
    }
    (out / "batch.json").write_text(json.dumps(record, indent=1) + "\n")


def run_case(
    made: GRPOTrainer,
    inputs: dict[str, torch.Tensor],
    out: Path,
    *,
    unbiased_kl: bool = True,
    **settings: Any,
) -> dict[str, float]:
    made.args.use_bias_correction_kl = unbiased_kl
    for name, value in settings.items():
        setattr(made, name, value)
    made._metrics["train"].clear()
    made.model.zero_grad()
    loss = made._compute_loss(made.model, inputs)
    loss.backward()
    save_file({name: p.grad.contiguous() for name, p in made.model.named_parameters()}, out)
    (clipped,) = made._metrics["train"]["clip_ratio/region_mean"]
    return {"loss": loss.item(), "clip_share": clipped}


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
