"""Every config class: pydantic, `extra="forbid"`. TOML in, resolved JSON out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SamplingConfig(Config):
    """prime-rl's `orchestrator.train.sampling`."""

    temperature: Annotated[float, Field(gt=0.0, le=2.0)] = 1.0
    max_completion_tokens: Annotated[int, Field(ge=1, le=4096)] = 96


class OrchestratorTrainConfig(Config):
    sampling: SamplingConfig = SamplingConfig()


class OrchestratorConfig(Config):
    """batch_size counts rollouts a step, as in prime-rl; group_size of them share a prompt."""

    batch_size: Annotated[int, Field(ge=1, le=4096)] = 128
    group_size: Annotated[int, Field(ge=1, le=256)] = 8
    train: OrchestratorTrainConfig = OrchestratorTrainConfig()

    @model_validator(mode="after")
    def _whole_groups(self) -> OrchestratorConfig:
        if self.batch_size % self.group_size:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of group_size {self.group_size}: "
                f"use {self.batch_size - self.batch_size % self.group_size or self.group_size}"
            )
        return self


class OptimConfig(Config):
    """prime-rl has one class per type; here they share one, and `jobs` refuses an option of another type."""

    type: Literal["adamw", "muon", "sgd", "sign_sgd"] = "adamw"
    lr: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-4
    weight_decay: Annotated[float, Field(ge=0.0, le=1.0)] = 0.01
    max_norm: Annotated[float, Field(gt=0.0)] | None = 1.0
    betas1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    betas2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.999
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    nesterov: bool = True
    mu: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.95

    @model_validator(mode="before")
    @classmethod
    def _default_of_type(cls, data: Any) -> Any:
        """muon's betas2 has another default than adamw's, as in prime-rl."""
        if isinstance(data, dict) and data.get("type") == "muon":
            return {"betas2": 0.95, **data}
        return data


class SchedulerConfig(Config):
    type: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    decay_steps: Annotated[int, Field(ge=0)] = 10
    min_lr: Annotated[float, Field(ge=0.0)] = 0.0


class LossConfig(Config):
    """prime-rl's default loss: its numbers only, never a loss that loads code."""

    type: Literal["default"] = "default"
    adv_tau: Annotated[float, Field(ge=0.0)] = 1.0
    kl_tau: Annotated[float, Field(ge=0.0)] = 0.001
    dppo_mask_low: Annotated[float, Field(ge=0.0)] = 0.2
    dppo_mask_high: Annotated[float, Field(ge=0.0)] = 0.2


class LoraConfig(Config):
    rank: Annotated[int, Field(ge=1, le=256)] = 16
    alpha: Annotated[float, Field(gt=0.0)] = 32.0


class TrainerModelConfig(Config):
    lora: LoraConfig | None = None


class TrainerConfig(Config):
    optim: OptimConfig = OptimConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    loss: LossConfig = LossConfig()
    model: TrainerModelConfig = TrainerModelConfig()


class PrimeRlConfig(Config):
    """The whitelisted subset of prime-rl's configuration that a job may set, under prime-rl's names."""

    max_steps: Annotated[int, Field(ge=1, le=2000)] = 20
    seq_len: Annotated[int, Field(ge=16, le=8192)] = 512
    orchestrator: OrchestratorConfig = OrchestratorConfig()
    trainer: TrainerConfig = TrainerConfig()


class JobLimits(Config):
    """What a job may cost. The probe enforces these before anything is trained."""

    max_rollouts: Annotated[int, Field(ge=1)] = 6000
    """max_steps × batch_size."""
    max_training_tokens: Annotated[int, Field(ge=1)] = 1_000_000
    """Upper estimate of prompt and completion tokens that the job samples and trains on."""
    max_files: int = 16
    max_file_bytes: int = 64 * 1024
    max_total_bytes: int = 256 * 1024
    min_distinct_tasks: int = 64
    max_tasks: int = 20_000
    max_prompt_chars: int = 8_000
    load_seconds: float = 10.0
    score_seconds: float = 20.0
    """For one batch of scores."""
    train_seconds: float = 600.0
    memory_mb: int = 1024
    reward_bound: float = 100.0
    """Rewards outside ± this are refused."""
    max_reward_errors: float = 0.02
    """Share of a run's completions on which a reward may raise (each scores 0, is counted and reported)."""


class RewardConfig(Config):
    """Section 7 of the docs: reward = Σ weight × part."""

    validation_weight: float = 0.35
    quality_weight: float = 0.60
    speed_weight: float = 0.05
    validation_by_submission: tuple[float, ...] = (1.0, 0.6, 0.3)
    post_weight: float = 0.25
    uplift_weight: float = 0.75
    uplift_form: Literal["headroom", "absolute"] = "headroom"
    """headroom: (post − best_pre) / (1 − best_pre); absolute: post − best_pre."""


class EvalConfig(Config):
    """The hidden eval: `items` a level × `levels`, `samples` each at temperature 1."""

    levels: tuple[int, ...] = (2, 3, 4, 5)
    items_per_level: Annotated[int, Field(ge=1)] = 64
    samples: Annotated[int, Field(ge=1)] = 1
    baseline_samples: Annotated[int, Field(ge=1)] = 8
    max_completion_tokens: int = 96
