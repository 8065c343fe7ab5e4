"""The inner loop: synchronous GRPO of a small model on a job's environment.

    draw tasks ─> sample a group for each ─> score in the job's environment ─> group-relative advantages
       ─> one optimizer step on prime-rl's loss ─> next step samples from the updated weights

One batch, one update: the weights that sampled a batch are the weights that it updates, so ratios are 1 but
for the numerical difference between sampling and training, which every step records as `sampler_kl`. The run
is a function of (weights, tasks, rewards, config, seed); time enters only the records and the time limit.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ai_trains_ai.algo.advantages import BatchAdvantages, batch_advantages
from ai_trains_ai.config import PrimeRlConfig
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.tokenizer import Tokenizer
from ai_trains_ai.errors import AgentError
from ai_trains_ai.inner.checkpoint import write_checkpoint
from ai_trains_ai.inner.rollouts import PromptQueue, RolloutGroup, sample_groups, score_groups
from ai_trains_ai.inner.update import Policy, Update
from ai_trains_ai.seeds import derive
from ai_trains_ai.types import InnerStep, RewardSource, Rollout, TrainingRun

QUIET_STEPS = 3
QUIET_GROUPS = 24
"""Training ends early after this many steps, and groups in them, without a single difference in reward.
Groups are counted because one group of two is often equal by chance; 24 in a row are not."""
KEPT_STEPS = 32
"""About this many steps, evenly spread, keep their best and worst rollout for inspection."""


def train(
    model: Model,
    tokenizer: Tokenizer,
    rewards: RewardSource,
    config: PrimeRlConfig,
    *,
    seed: int,
    out: Path,
    on_step: Callable[[InnerStep], None],
    tokenizer_folder: Path,
    seconds_limit: float = math.inf,
) -> TrainingRun:
    """Train `model` in place and write the result to the folder `out`, replacing what an earlier try left.

    on_step is called after each step. The tokenizer's files are copied from `tokenizer_folder`.
    Raises AgentError when the job is at fault: what `rewards` reports, "diverged", "seq_len", "time_limit".
    A job whose rewards never differ is no failure: it ends early with unchanged weights, and says so.
    """
    started = time.monotonic()
    room = min(config.seq_len, model.config.max_positions)
    queue = PromptQueue(rewards.tasks, tokenizer, length_limit=room, seed=derive(seed, "inner", "tasks"))
    policy = Policy(model, config, seed=derive(seed, "inner", "policy"))
    groups_a_step = config.orchestrator.batch_size // config.orchestrator.group_size
    quiet = QuietWatch()
    steps: list[InnerStep] = []
    kept: list[Rollout] = []
    for number in range(config.max_steps):
        began = time.monotonic()
        check_time(began - started, seconds_limit, number, config.max_steps)
        prompts = queue.draw(groups_a_step)
        step_seed = derive(seed, "inner", number)
        sampled = sample_groups(model, tokenizer, prompts, config, length_limit=room, seed=step_seed)
        groups = score_groups(tokenizer, rewards, prompts, sampled)
        advantages = batch_advantages([group.rewards for group in groups])
        update = policy.update(groups, advantages.by_group, step=number)
        step = describe_step(number, groups, advantages, update, queue.overlong, time.monotonic() - began)
        steps.append(step)
        if number % max(1, config.max_steps // KEPT_STEPS) == 0:
            kept += telling_rollouts(groups)
        on_step(step)
        if quiet.see(step):
            break
    return TrainingRun(
        checkpoint=str(out),
        weights_sha256=write_checkpoint(policy.finish(), tokenizer_folder, out),
        steps=tuple(steps),
        rollouts=tuple(kept),
        tokens=sum(step.tokens for step in steps),
        seconds=time.monotonic() - started,
        early_stop=quiet.reason,
    )


@dataclass(slots=True)
class QuietWatch:
    """Counts steps in a row in which no group had any spread of rewards; `reason` is set when it is enough."""

    steps: int = 0
    groups: int = 0
    reason: str | None = None

    def see(self, step: InnerStep) -> bool:
        """Take note of a step; True when training should end."""
        if step.skipped_groups < step.groups:
            self.steps = self.groups = 0
            return False
        self.steps += 1
        self.groups += step.groups
        if self.steps >= QUIET_STEPS and self.groups >= QUIET_GROUPS:
            self.reason = (
                f"no signal: in each of the last {self.groups} groups ({self.steps} steps) all rewards were "
                f"equal, {step.inner_reward:g} on average in the last step; nothing can be learned from them"
            )
        return self.reason is not None


def describe_step(
    number: int,
    groups: Sequence[RolloutGroup],
    advantages: BatchAdvantages,
    update: Update,
    overlong_prompts: int,
    seconds: float,
) -> InnerStep:
    """The step's record. Time is the only field that two runs of the same job and seed do not share."""
    rewards = [reward for group in groups for reward in group.rewards]
    completions = [completion for group in groups for completion in group.completions]
    logprobs = [logprob for completion in completions for logprob in completion.logprobs]
    return InnerStep(
        step=number,
        inner_reward=math.fsum(rewards) / len(rewards),
        inner_reward_std=statistics.pstdev(rewards),
        loss=update.loss,
        grad_norm=update.grad_norm,
        lr=update.lr,
        # Over all sampled tokens, so that skipped groups count: the mean of -log q is an unbiased estimate.
        entropy=-math.fsum(logprobs) / len(logprobs),
        sampler_kl=update.stats.sampler_kl,
        clip_share=update.stats.clip_share,
        truncated_share=sum(c.stop_reason == "length" for c in completions) / len(completions),
        skipped_groups=advantages.skipped,
        groups=len(groups),
        tokens=len(logprobs),
        seconds=seconds,
        overlong_prompts=overlong_prompts,
    )


def telling_rollouts(groups: Sequence[RolloutGroup]) -> list[Rollout]:
    """The step's best and worst rollout (the first of equals); one when all rewards are equal."""
    places = [(group, index) for group in groups for index in range(len(group.rewards))]
    best = max(places, key=lambda place: place[0].rewards[place[1]])
    worst = min(places, key=lambda place: place[0].rewards[place[1]])
    chosen = [best] if best == worst else [best, worst]
    return [group.rollout(index) for group, index in chosen]


def check_time(elapsed: float, limit: float, done: int, max_steps: int) -> None:
    if elapsed > limit:
        raise AgentError(
            "time_limit",
            f"after {elapsed:.0f} s only {done} of {max_steps} steps were done; {limit:.0f} s are allowed",
            "lower max_steps, batch_size or max_completion_tokens, or choose a smaller base model",
        )
