"""The part of the probe that needs the model: real rollouts, their rewards, and two real optimizer steps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ai_trains_ai.algo.advantages import batch_advantages
from ai_trains_ai.config import PrimeRlConfig
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.tokenizer import Tokenizer
from ai_trains_ai.errors import AgentError
from ai_trains_ai.inner.rollouts import PromptQueue, RolloutGroup, sample_groups, score_groups
from ai_trains_ai.inner.update import Policy
from ai_trains_ai.seeds import derive
from ai_trains_ai.types import Finding, RewardSource

PROBED_ROLLOUTS = 32
"""Rollouts of the probe: whole groups, at least two and at most as many as a step of the job has."""
OPTIMIZER_STEPS = 2


def probe_run(
    model: Model, tokenizer: Tokenizer, rewards: RewardSource, config: PrimeRlConfig, *, seed: int
) -> list[Finding]:
    """Findings of a short run; `model` is changed by it, so pass a copy.

    Error: the environment fails on real completions, prompts don't fit, or an optimizer step diverges.
    Warning: no group has two different rewards, so that nothing would be learned from these rollouts. The
    optimizer then runs on made-up advantages: whether it works must not depend on the rewards.
    """
    try:
        groups = _rollouts(model, tokenizer, rewards, config, seed=derive(seed, "probe"))
        by_group = batch_advantages([group.rewards for group in groups]).by_group
        findings = [] if any(by_group) else [_no_signal(groups)]
        policy = Policy(model, config, seed=derive(seed, "probe", "policy"))
        advantages = by_group if any(by_group) else [_alternating(group) for group in groups]
        for step in range(OPTIMIZER_STEPS):
            policy.update(groups, advantages, step=step)
    except AgentError as error:
        return [Finding(error.check, error.message, error.fix)]
    return findings


def _rollouts(
    model: Model, tokenizer: Tokenizer, rewards: RewardSource, config: PrimeRlConfig, *, seed: int
) -> list[RolloutGroup]:
    group_size = config.orchestrator.group_size
    in_a_step = config.orchestrator.batch_size // group_size
    length_limit = min(config.seq_len, model.config.max_positions)
    queue = PromptQueue(rewards.tasks, tokenizer, length_limit=length_limit, seed=derive(seed, "tasks"))
    prompts = queue.draw(min(max(2, PROBED_ROLLOUTS // group_size), in_a_step))
    sampled = sample_groups(model, tokenizer, prompts, config, length_limit=length_limit, seed=seed)
    return score_groups(tokenizer, rewards, prompts, sampled)


def _no_signal(groups: Sequence[RolloutGroup]) -> Finding:
    values = [reward for group in groups for reward in group.rewards]
    if len(groups[0].rewards) < 2:
        return Finding(
            "reward_variance",
            "group_size is 1: a rollout is compared with its own group, so nothing can be learned",
            "set orchestrator.group_size to 4 or more in [prime_rl]",
            "warning",
        )
    spread = f"from {min(values):g} to {max(values):g} over prompts" if min(values) < max(values) else "equal"
    return Finding(
        "reward_variance",
        f"in none of {len(groups)} groups of {len(groups[0].rewards)} real rollouts do the rewards differ "
        f"({spread}); the first: {values[0]:g} for {groups[0].texts[0][:80]!r}",
        "let the reward tell better completions from worse ones, e.g. by partial credit, "
        "or use easier tasks or larger groups",
        "warning",
    )


def _alternating(group: RolloutGroup) -> tuple[float, ...]:
    return tuple(itertools.islice(itertools.cycle((1.0, -1.0)), len(group.rewards)))
