"""Frozen values that cross module borders. No behaviour beyond trivial properties, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True)
class Task:
    """One generated problem.

    `steps` are the intermediate results of the worked solution, one text each, the last one being the
    answer or what the answer is read from; partial-credit rewards may use them.
    """

    family: str
    level: int
    seed: int
    prompt: str
    answer: str
    steps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What the trainer agent is told about a family."""

    family: str
    goal: str
    constraints: tuple[str, ...]
    evaluation: str
    examples: tuple[Task, ...]
    """Three public examples; never members of the hidden eval."""


@dataclass(frozen=True, slots=True)
class Job:
    """A snapshot of a job directory, read once; nobody reads the directory again afterwards."""

    files: Mapping[str, bytes]
    """Relative path -> content."""
    base_model: str
    environment_args: Mapping[str, Any]
    prime_rl: Mapping[str, Any]
    """The resolved `config.PrimeRlConfig` as plain data (`model_dump()`)."""
    explicit_keys: tuple[str, ...]
    """Dotted `[prime_rl]` keys that the author set, whatever their value."""
    content_sha256: str
    family: str = ""
    """The task family that job.toml says it answers."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the probe found. Errors reject the job; warnings do not."""

    check: str
    message: str
    fix: str
    severity: Literal["error", "warning"] = "error"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    valid: bool
    findings: tuple[Finding, ...]
    seconds: float
    estimated_tokens: int = 0

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity == "error")


@dataclass(frozen=True, slots=True)
class EnvTask:
    """One training problem as the job's own environment offers it; answers stay inside the sandbox."""

    index: int
    prompt: str
    system_prompt: str | None = None


class RewardSource(Protocol):
    """The job's environment, seen from the trainer. `jobs.env_host.EnvHost` is the real one."""

    @property
    def tasks(self) -> Sequence[EnvTask]: ...

    def score(self, completions: Sequence[tuple[int, str]]) -> list[float]:
        """Rewards for (task index, completion text), in order: finite floats.

        Raises AgentError when the environment misbehaves, InfrastructureError when the machine does.
        """
        ...


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled inner completion, kept for inspection (a few per step, not all)."""

    task_index: int
    prompt: str
    completion: str
    inner_reward: float


@dataclass(frozen=True, slots=True)
class InnerStep:
    """Metrics of one inner optimizer step. inner_reward is the mean over the step's rollouts."""

    step: int
    inner_reward: float
    inner_reward_std: float
    loss: float
    grad_norm: float
    lr: float
    entropy: float
    sampler_kl: float
    """Mean of (trainer logprob − sampler logprob)² / 2 over the step's tokens: a k2 estimate, in nats."""
    clip_share: float
    truncated_share: float
    skipped_groups: int
    """Groups without signal (equal rewards, or fewer than two rollouts); when all are, nothing was updated."""
    groups: int
    tokens: int
    """Completion tokens sampled."""
    seconds: float
    overlong_prompts: int = 0
    """Tasks passed over in this step because their prompt leaves no room within seq_len."""


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What the inner trainer returns for a job that ran to its end."""

    checkpoint: str
    """Folder that our trainer wrote: config.json, model.safetensors, tokenizer files."""
    weights_sha256: str
    steps: tuple[InnerStep, ...]
    rollouts: tuple[Rollout, ...]
    tokens: int
    seconds: float
    early_stop: str | None = None
    """Why training ended before its last step, e.g. because the rewards carry no signal; not a failure."""


@dataclass(frozen=True, slots=True)
class EvalResult:
    """Hidden-eval outcome of one model: per item, the mean score of its samples."""

    family: str
    model: str
    """Base name or weights_sha256."""
    accuracy: float
    low: float
    high: float
    """95% interval of `accuracy` over items (clustered by item)."""
    pass_k: float
    """Share of items solved by at least one of `samples_per_item` samples."""
    item_scores: tuple[float, ...]
    samples_per_item: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Reward:
    """0.35 validation + 0.60 quality + 0.05 speed, by default; the weights are config."""

    total: float
    validation: float
    quality: float
    speed: float
    uplift: float


@dataclass(frozen=True, slots=True)
class RunResult:
    """Everything that came out of one job."""

    job_sha256: str
    seed: int
    outcome: Literal["completed", "rejected", "failed"]
    base_model: str
    probe: ProbeResult
    pre: EvalResult | None
    """The job's own base before training."""
    best_pre: EvalResult | None
    """The best untrained base on the same items."""
    post: EvalResult | None
    uplift_low: float | None
    uplift_high: float | None
    reward: Reward
    training: TrainingRun | None
    failure: Finding | None
    """Set when outcome is "failed": the job's own fault during training."""
    seconds: float
    from_cache: bool = False
    trusted: bool = True
    """False when the sandbox was switched off by hand."""
    warnings: tuple[Finding, ...] = ()
    """What the integrity checks noticed; never changes the reward."""
    run_id: str = ""
    """The run in the store and, unless the job was rejected unread, the folder under `runs/`."""


# The outer loop's values.


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange: what the sampler saw, what it produced, what came back. Tokens are never re-encoded."""

    prompt_tokens: tuple[int, ...]
    """The whole context the sampler saw, an exact prefix-extension of the previous turn."""
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    observation_tokens: tuple[int, ...]
    tool: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Trajectory:
    turns: tuple[Turn, ...]
    policy_version: int
    stop: Literal["submitted", "turns", "tokens", "context", "submissions", "ended"]


@dataclass(frozen=True, slots=True)
class Episode:
    id: str
    spec: TaskSpec
    trajectory: Trajectory
    result: RunResult | None
    reward: Reward | None
    """None: missing because of infrastructure, leaves the group."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Group:
    id: str
    family: str
    episodes: tuple[Episode, ...]
    rewards: tuple[float, ...] = field(default=())
