"""What a job may not set in `[prime_rl]`, with the reason and what to do instead. Data, no logic.

Names are prime-rl's own at the pinned commit, its former ones, and those of neighbouring trainers that people
and models mix up with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Refusal(NamedTuple):
    reason: str
    fix: str


_REMOVE = "remove it"
_CODE = Refusal("it would load code into the trainer", "put code into environment.py, which is sandboxed")
_PATH = Refusal("it chooses where files are read or written, which the run directory decides", _REMOVE)
_NETWORK = Refusal("it points training at a network address; a job has no network", _REMOVE)
_SECRET = Refusal("it names credentials; no key ever enters a job", _REMOVE)
_REWARDS = Refusal(
    "it would replace the environment's functions by imported ones",
    "write an async @vf.reward method in environment.py",
)
_SERVER = Refusal("it passes settings to the inference server, which the executor owns", _REMOVE)
_MODEL = Refusal(
    "it chooses the model or how it is loaded",
    'choose the model with `base_model = "…"` at the top of job.toml',
)
_MACHINE = Refusal("it chooses machines, devices or parallelism, which the executor decides", _REMOVE)
_LOGS = Refusal("it configures logging or tracking, which the outer run owns", _REMOVE)
_RESUME = Refusal("it configures checkpoints and resuming, which the executor owns", _REMOVE)
_EVAL = Refusal("the hidden eval is the only evaluation, and no part of a job", _REMOVE)
_ENVIRONMENT = Refusal(
    "the only environment is the job's own environment.py",
    "remove it; arguments for environment.py go into [environment]",
)
_ALGORITHM = Refusal(
    "the inner algorithm is GRPO with prime-rl's default loss", "tune the numbers in [prime_rl.trainer.loss]"
)
_SAMPLING = Refusal(
    "rollouts are sampled from the whole distribution, so that their probabilities are the trainer's",
    "use `temperature` in [prime_rl.orchestrator.train.sampling]",
)
_ASYNC = Refusal("the inner trainer is synchronous: every rollout is on policy", _REMOVE)
_BATCH = Refusal("batches are counted in rollouts", "use `batch_size` in [prime_rl.orchestrator]")
_LORA = Refusal("LoRA covers every linear layer", "use `rank` and `alpha` in [prime_rl.trainer.model.lora]")
_LENGTH = Refusal("the reward is the environment's alone", "write a @vf.reward method that prices length")
_DATA = Refusal("training data is what the environment's load() returns", "change load() in environment.py")
_MEMORY = Refusal("it trades memory for time inside the trainer and changes no result", _REMOVE)

BY_NAME: Mapping[str, Refusal] = {
    "import_path": _CODE,
    "fn": _CODE,
    "kwargs": _CODE,
    "trust_remote_code": Refusal("it would run code that comes with a model", _REMOVE),
    "env_vars": Refusal("it sets environment variables of the training processes", _REMOVE),
    "rewards": _REWARDS,
    "metrics": _REWARDS,
    "stops": _REWARDS,
    "judges": _REWARDS,
    "output_dir": _PATH,
    "dir": _PATH,
    "path": _PATH,
    "conversion_dir": _PATH,
    "trace_path": _PATH,
    "memory_profiler_path": _PATH,
    "rollout_path": _PATH,
    "output_path": _PATH,
    "ckpt_path": _PATH,
    "url": _NETWORK,
    "base_url": _NETWORK,
    "admin_base_url": _NETWORK,
    "host": _NETWORK,
    "port": _NETWORK,
    "address": _NETWORK,
    "client": _NETWORK,
    "headers": _NETWORK,
    "headers_from_env": _SECRET,
    "api_key": _SECRET,
    "api_key_var": _SECRET,
    "extra_body": _SERVER,
    "vllm": _SERVER,
    "extra": _SERVER,
    "gpu_memory_utilization": _SERVER,
    "max_model_len": _SERVER,
    "enforce_eager": _SERVER,
    "chat_template": Refusal("the chat format belongs to the base model", _REMOVE),
    "renderer": Refusal("the chat format belongs to the base model", _REMOVE),
    "harness": Refusal("rollouts are single-turn and run in process", _REMOVE),
    "runtime": Refusal("rollouts are single-turn and run in process", _REMOVE),
    "max_turns": Refusal("rollouts are single-turn", _REMOVE),
    "name": _MODEL,
    "model_name": _MODEL,
    "tp": _MACHINE,
    "dp": _MACHINE,
    "cp": _MACHINE,
    "ep": _MACHINE,
    "dp_replicate": _MACHINE,
    "num_train_gpus": _MACHINE,
    "num_infer_gpus": _MACHINE,
    "trainer_gpu_ids": _MACHINE,
    "inference_gpu_ids": _MACHINE,
    "num_workers": _MACHINE,
    "num_train_workers": _MACHINE,
    "matmul_precision": _MACHINE,
    "compile": _MEMORY,
    "ac": _MEMORY,
    "ac_offloading": _MEMORY,
    "attn": _MEMORY,
    "micro_batch_size": _MEMORY,
    "micro_bs": _MEMORY,
    "per_device_train_batch_size": _MEMORY,
    "gradient_accumulation_steps": _MEMORY,
    "fsdp_cpu_offload": _MEMORY,
    "optim_cpu_offload": _MEMORY,
    "reshard_after_forward": _MEMORY,
    "optimization_dtype": _MEMORY,
    "reduce_dtype": _MEMORY,
    "top_p": _SAMPLING,
    "top_k": _SAMPLING,
    "min_p": _SAMPLING,
    "min_tokens": _SAMPLING,
    "repetition_penalty": _SAMPLING,
    "seed": Refusal(
        "the seed comes from outside, so that jobs can be compared", "use `ata job run --seed N`"
    ),
    "max_off_policy_steps": _ASYNC,
    "max_async_level": _ASYNC,
    "async_level": _ASYNC,
    "concurrency": _ASYNC,
    "max_inflight": _ASYNC,
    "token_batch_size": _BATCH,
    "filter_zero_advantages": Refusal("groups whose rewards are all equal are always skipped", _REMOVE),
    "target_modules": _LORA,
    "modules_to_save": _LORA,
    "dropout": Refusal("training has no dropout", _REMOVE),
    "ipo_threshold": _ALGORITHM,
    "advantage": _ALGORITHM,
    "algo": _ALGORITHM,
    "filters": _ALGORITHM,
    "buffer": _ALGORITHM,
    "length_penalty": _LENGTH,
}
"""Refused wherever the key or table stands."""

TABLES: Mapping[str, Refusal] = {
    "model": _MODEL,
    "trainer.model.name": _MODEL,
    "orchestrator.model": _MODEL,
    "orchestrator.student": _MODEL,
    "orchestrator.teacher": _MODEL,
    "tokenizer": _MODEL,
    "trainer.tokenizer": _MODEL,
    "orchestrator.tokenizer": _MODEL,
    "trainer.model.debug": _MODEL,
    "trainer.model.vlm": _MODEL,
    "trainer.model.quantization": _MODEL,
    "inference": _SERVER,
    "deployment": _MACHINE,
    "slurm": _MACHINE,
    "trainer.gc": _MEMORY,
    "trainer.data": _DATA,
    "ckpt": _RESUME,
    "trainer.ckpt": _RESUME,
    "orchestrator.ckpt": _RESUME,
    "resume": _RESUME,
    "trainer.resume": _RESUME,
    "orchestrator.resume": _RESUME,
    "clean": _RESUME,
    "run": _RESUME,
    "dry_run": Refusal("a job is checked without being run by another command", "use `ata job check DIR`"),
    "wandb": _LOGS,
    "log": _LOGS,
    "trainer.log": _LOGS,
    "orchestrator.log": _LOGS,
    "monitors": _LOGS,
    "trainer.monitors": _LOGS,
    "orchestrator.monitors": _LOGS,
    "trainer.wandb": _LOGS,
    "orchestrator.wandb": _LOGS,
    "trainer.metrics_server": _NETWORK,
    "trainer.heartbeat": _NETWORK,
    "orchestrator.heartbeat": _NETWORK,
    "weight_broadcast": _MACHINE,
    "trainer.weight_broadcast": _MACHINE,
    "orchestrator.weight_broadcast": _MACHINE,
    "rollout_transport": _MACHINE,
    "trainer.rollout_transport": _MACHINE,
    "orchestrator.rollout_transport": _MACHINE,
    "orchestrator.eval": _EVAL,
    "eval": _EVAL,
    "orchestrator.env": _ENVIRONMENT,
    "orchestrator.train.env": _ENVIRONMENT,
    "orchestrator.train.source": _ENVIRONMENT,
    "environment": _ENVIRONMENT,
    "env": _ENVIRONMENT,
}
"""Refused under this dotted name."""

MOVED: Mapping[str, str] = {
    "orchestrator.sampling": "orchestrator.train.sampling",
    "sampling": "orchestrator.train.sampling",
    "train.sampling": "orchestrator.train.sampling",
    "optim": "trainer.optim",
    "scheduler": "trainer.scheduler",
    "loss": "trainer.loss",
    "lora": "trainer.model.lora",
    "model.lora": "trainer.model.lora",
    "trainer.lora": "trainer.model.lora",
    "orchestrator.lora": "trainer.model.lora",
    "orchestrator.model.lora": "trainer.model.lora",
    "model.experimental.lora": "trainer.model.lora",
    "trainer.model.experimental.lora": "trainer.model.lora",
    "orchestrator.optim": "trainer.optim",
    "trainer.sampling": "orchestrator.train.sampling",
}
"""Tables under a former or mistaken name -> where they belong."""

RENAMED: Mapping[str, str] = {
    "rollouts_per_example": "orchestrator.group_size",
    "rollouts_per_prompt": "orchestrator.group_size",
    "num_generations": "orchestrator.group_size",
    "num_rollouts": "orchestrator.group_size",
    "samples_per_prompt": "orchestrator.group_size",
    "max_tokens": "orchestrator.train.sampling.max_completion_tokens",
    "max_new_tokens": "orchestrator.train.sampling.max_completion_tokens",
    "max_completion_length": "orchestrator.train.sampling.max_completion_tokens",
    "rollout_batch_size": "orchestrator.batch_size",
    "train_batch_size": "orchestrator.batch_size",
    "max_batch_size": "orchestrator.batch_size",
    "total_steps": "max_steps",
    "num_steps": "max_steps",
    "steps": "max_steps",
    "max_train_steps": "max_steps",
    "seq_length": "seq_len",
    "max_seq_len": "seq_len",
    "max_length": "seq_len",
    "learning_rate": "trainer.optim.lr",
    "grad_norm_clip": "trainer.optim.max_norm",
    "max_grad_norm": "trainer.optim.max_norm",
    "grad_clip": "trainer.optim.max_norm",
    "optimizer": "trainer.optim.type",
    "beta1": "trainer.optim.betas1",
    "beta2": "trainer.optim.betas2",
    "adam_beta1": "trainer.optim.betas1",
    "adam_beta2": "trainer.optim.betas2",
    "sched_type": "trainer.scheduler.type",
    "lr_scheduler_type": "trainer.scheduler.type",
    "warmup": "trainer.scheduler.warmup_steps",
    "beta": "trainer.loss.kl_tau",
    "kl_coef": "trainer.loss.kl_tau",
    "kl_beta": "trainer.loss.kl_tau",
    "token_mask_low": "trainer.loss.dppo_mask_low",
    "token_mask_high": "trainer.loss.dppo_mask_high",
    "mask_low": "trainer.loss.dppo_mask_low",
    "mask_high": "trainer.loss.dppo_mask_high",
    "ratio_low": "trainer.loss.dppo_mask_low",
    "ratio_high": "trainer.loss.dppo_mask_high",
    "r": "trainer.model.lora.rank",
    "lora_rank": "trainer.model.lora.rank",
    "lora_r": "trainer.model.lora.rank",
    "lora_alpha": "trainer.model.lora.alpha",
}
"""Former names of prime-rl and names of other trainers -> the key that is meant."""
