"""A job for prime-rl: its whole `rl.toml`, the environment package, and the command that runs them.

    OUT/rl.toml         what `rl @ rl.toml` reads
    OUT/environment/    the package to install first (see `env_package`)
    OUT/run.sh          both commands
    OUT/models/NAME/    the base model, when it is one that no hub has

The job chose the hyperparameters; everything else is ours and the same for all jobs. Facts about prime-rl are
those of commit `prime_rl.PRIME_RL_COMMIT`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ai_trains_ai.errors import UsageError
from ai_trains_ai.jobs.env_package import environment_package, package_id
from ai_trains_ai.jobs.prime_rl import PRIME_RL_COMMIT
from ai_trains_ai.jobs.toml import dumps
from ai_trains_ai.jobs.whitelist import OPTIONS_OF_TYPE
from ai_trains_ai.types import Job

HUB_MODELS: Mapping[str, str] = {
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B",
    "smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct",
}
LOCAL_MODELS = ("nano-0.2m", "nano-0.8m")
"""Their folder is part of what is rendered."""

RUN_NAME = "job"
OUTPUT_DIR = "outputs"

_RUN_SH = """\
#!/bin/sh
# prime-rl at commit {commit}, two GPUs. Ends with the trained weights in {weights}
set -eu
cd "$(dirname "$0")"
uv pip install --no-deps ./environment
exec rl @ rl.toml
"""


@dataclass(frozen=True, slots=True)
class Rendered:
    """files: relative path -> content. config: what rl.toml says. local_model: a base whose folder belongs
    into models/, or None. final_weights: where they will be, relative to the same folder.
    """

    files: Mapping[str, bytes]
    config: Mapping[str, Any]
    local_model: str | None
    final_weights: str


def render(job: Job) -> Rendered:
    """Render a job. Deterministic: the same job gives the same bytes.

    Raises UsageError for a base model that prime-rl can't be given.
    """
    config = rl_config(job)
    weights = f"{OUTPUT_DIR}/{RUN_NAME}/broadcasts/step_{job.prime_rl['max_steps']}"
    files = {f"environment/{path}": content for path, content in environment_package(job).items()}
    head = f"# Rendered from job {job.content_sha256} for prime-rl at commit {PRIME_RL_COMMIT}.\n\n"
    files["rl.toml"] = (head + dumps(config)).encode()
    files["run.sh"] = _RUN_SH.format(commit=PRIME_RL_COMMIT, weights=weights).encode()
    local = job.base_model if job.base_model in LOCAL_MODELS else None
    return Rendered(dict(sorted(files.items())), config, local, weights)


def model_name(base_model: str) -> str:
    """What prime-rl's `model.name` says: a hub name, or a folder relative to rl.toml."""
    if base_model in LOCAL_MODELS:
        return f"models/{base_model}"
    if base_model not in HUB_MODELS:
        known = ", ".join((*LOCAL_MODELS, *HUB_MODELS))
        raise UsageError(
            f"base model {base_model!r} is not known to the prime-rl rendering: use one of {known}"
        )
    return HUB_MODELS[base_model]


def rl_config(job: Job) -> dict[str, Any]:
    """The whole configuration as plain data. No checkpoints: the last weight broadcast is the result."""
    chosen = job.prime_rl
    orchestrator, trainer = chosen["orchestrator"], chosen["trainer"]
    sampling = orchestrator["train"]["sampling"]
    environment = package_id(job)
    return {
        "max_steps": chosen["max_steps"],
        "seq_len": chosen["seq_len"],
        "output_dir": OUTPUT_DIR,
        "run": {"name": RUN_NAME},
        "model": {"name": model_name(job.base_model)},
        # One GPU samples, one trains. The files that carry the weights over are also the result.
        "deployment": {
            "type": "single_node",
            "gpus_per_node": 2,
            "num_train_gpus": 1,
            "num_infer_gpus": 1,
        },
        "weight_broadcast": {"type": "filesystem"},
        "orchestrator": {
            "batch_size": orchestrator["batch_size"],
            "group_size": orchestrator["group_size"],
            "algo": {"type": "grpo"},
            "renderer": _renderer(job.base_model),
            "train": {
                "sampling": {
                    "temperature": sampling["temperature"],
                    "max_completion_tokens": sampling["max_completion_tokens"],
                },
                "source": [
                    {
                        "name": "job",
                        "env": {
                            "taskset": {"id": environment},
                            "agent": {
                                "harness": {"id": environment},
                                "runtime": {"type": "subprocess"},
                            },
                        },
                    }
                ],
            },
        },
        "trainer": {
            "optim": _of_type("trainer.optim", trainer["optim"]),
            "scheduler": _of_type("trainer.scheduler", trainer["scheduler"]),
            "loss": dict(trainer["loss"]),
            **_model(trainer["model"]),
        },
        "inference": {"vllm": {"max_model_len": chosen["seq_len"]}},
    }


def _of_type(table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The options that exist for the chosen type; ours share one class, prime-rl's are one each."""
    known = OPTIONS_OF_TYPE[table][values["type"]]
    return {"type": values["type"], **{key: value for key, value in values.items() if key in known}}


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    lora = model["lora"]
    return {} if lora is None else {"model": {"lora": {"rank": lora["rank"], "alpha": lora["alpha"]}}}


def _renderer(base_model: str) -> dict[str, Any]:
    """How prompts become tokens. Qwen3 thinks unless told not to: short completions leave no room for it."""
    if base_model.startswith("qwen3-"):
        return {"name": "qwen3", "enable_thinking": False}
    return {"name": "default"}
