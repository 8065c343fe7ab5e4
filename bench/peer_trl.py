"""The job of `bench.inner`, trained by TRL's GRPOTrainer. Runs in the peer environment as a fresh process.

    python -m bench.peer_trl SPEC.json RESULT.json

SPEC is what `bench.inner.peer_spec` writes. Settings follow one rule: the same training as ours, by TRL's
fastest means on one CPU thread. Its defaults would be slower here: gradient checkpointing is off (memory is
no concern), bfloat16 autocast is off (slower at these sizes, as is eager attention; a static KV cache makes
no difference), the whole batch goes through one forward pass, `beta` is 0 so that no reference model exists,
and nothing is logged to a service.
"""

from __future__ import annotations

import time

STARTED = time.perf_counter()  # before the imports: they are part of a fresh process's job

import json  # noqa: E402
import resource  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from ai_trains_ai.tasks.base import extract_answer, normalise  # noqa: E402


class Clock(TrainerCallback):
    """Wall time at the start of training and at the end of each optimizer step."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.marks.append(time.perf_counter())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.marks.append(time.perf_counter())


def exact(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """The reward of the job's environment: the answer after the last "Answer:" is right."""
    return [float(extract_answer(c) == normalise(a)) for c, a in zip(completions, answer, strict=True)]


def config(spec: dict[str, Any], out: Path) -> GRPOConfig:
    """prime-rl's GRPO in TRL's words: reward minus group mean, mean over a batch's tokens, one update."""
    return GRPOConfig(
        output_dir=str(out),
        seed=spec["seed"],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_steps=spec["steps"],
        per_device_train_batch_size=spec["batch_size"],
        gradient_accumulation_steps=1,
        num_generations=spec["group_size"],
        max_completion_length=spec["max_tokens"],
        temperature=spec["temperature"],
        learning_rate=spec["lr"],
        lr_scheduler_type="constant",
        weight_decay=spec["weight_decay"],
        adam_beta1=spec["betas"][0],
        adam_beta2=spec["betas"][1],
        max_grad_norm=spec["max_norm"],
        beta=0.0,
        scale_rewards="none",
        loss_type="dapo",
        report_to="none",
        logging_steps=1,
        disable_tqdm=True,
        save_strategy="no",
        dataloader_pin_memory=False,
    )


def tokenizer(spec: dict[str, Any]) -> PreTrainedTokenizerFast:
    """The base's own tokenizer, told which ids stop and pad, so that both sides cut completions alike."""
    file = str(Path(spec["model"]) / "tokenizer.json")
    made = PreTrainedTokenizerFast(
        tokenizer_file=file, padding_side="left", clean_up_tokenization_spaces=False
    )  # type: ignore[no-untyped-call]
    made.eos_token, made.pad_token = spec["eos_token"], spec["pad_token"]
    return made


def cpu_seconds() -> float:
    mine, waited_for = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return mine.ru_utime + mine.ru_stime + waited_for.ru_utime + waited_for.ru_stime


def main(spec_path: Path, result_path: Path) -> None:
    spec = json.loads(spec_path.read_text())
    torch.set_num_threads(1)
    out = Path(spec["out"])
    chat = tokenizer(spec)
    model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32)
    model.generation_config.eos_token_id = spec["stop_ids"]
    clock = Clock()
    trainer = GRPOTrainer(
        model=model,
        processing_class=chat,
        reward_funcs=exact,
        args=config(spec, out),
        train_dataset=Dataset.from_list(spec["tasks"]),
        callbacks=[clock],
    )
    trainer.train()
    trainer.save_model(str(out))
    history = [entry for entry in trainer.state.log_history if "reward" in entry]
    result = {
        "seconds": time.perf_counter() - STARTED,
        "cpu_seconds": cpu_seconds(),
        "setup_seconds": clock.marks[0] - STARTED,
        "step_seconds": [b - a for a, b in zip(clock.marks, clock.marks[1:], strict=False)],
        "rewards": [entry["reward"] for entry in history],
        "completion_tokens": [entry["completions/mean_length"] for entry in history],
        "truncated": [entry["completions/clipped_ratio"] for entry in history],
        "prompt_ids": chat(text=[task["prompt"] for task in spec["tasks"]])["input_ids"],
        "threads": torch.get_num_threads(),
    }
    result_path.write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
