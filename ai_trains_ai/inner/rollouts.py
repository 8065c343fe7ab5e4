"""One step's rollouts: draw tasks, sample a group for each, decode, score."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ai_trains_ai.algo.batching import epoch_order
from ai_trains_ai.config import PrimeRlConfig
from ai_trains_ai.engine.generate import generate
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.sampling import Completion, SamplingParams
from ai_trains_ai.engine.tokenizer import Tokenizer
from ai_trains_ai.errors import AgentError
from ai_trains_ai.seeds import derive
from ai_trains_ai.types import EnvTask, RewardSource, Rollout

MAX_SEQUENCES = 512
"""Sequences sampled at once: more gains no speed on a CPU and costs memory. Part of what a seed means."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A task's prompt as the model sees it."""

    task: EnvTask
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """The completions of one prompt, in sampling order, with their texts and inner rewards."""

    prompt: Prompt
    completions: list[Completion]
    texts: list[str]
    rewards: list[float]

    def rollout(self, index: int) -> Rollout:
        return Rollout(
            task_index=self.prompt.task.index,
            prompt=self.prompt.task.prompt,
            completion=self.texts[index],
            inner_reward=self.rewards[index],
        )


class PromptQueue:
    """Tasks in epochs of seeded order, encoded when drawn.

    A prompt that leaves no room for a single completion token within `length_limit` is passed over, as
    prime-rl drops such prompts; `overlong` counts those of the latest draw.
    """

    def __init__(
        self, tasks: Sequence[EnvTask], tokenizer: Tokenizer, *, length_limit: int, seed: int
    ) -> None:
        if not tasks:
            raise AgentError(
                "tasks", "the environment offers no tasks", "return at least one task from load()"
            )
        self._tasks = tasks
        self._tokenizer = tokenizer
        self._length_limit = length_limit
        self._order: Iterator[int] = epoch_order(len(tasks), seed)
        self.overlong = 0

    def draw(self, count: int) -> list[Prompt]:
        """The next `count` prompts. Raises AgentError when no task of a whole epoch fits."""
        self.overlong = 0
        return [self._next() for _ in range(count)]

    def _next(self) -> Prompt:
        shortest = 0
        for _ in range(2 * len(self._tasks)):  # from anywhere in an epoch, that covers every task
            task = self._tasks[next(self._order)]
            tokens = self._tokenizer.encode_prompt(task.prompt, task.system_prompt)
            if len(tokens) < self._length_limit:
                return Prompt(task, tokens)
            self.overlong += 1
            shortest = min(shortest or len(tokens), len(tokens))
        raise AgentError(
            "seq_len",
            f"no prompt leaves room for a completion: the shortest has {shortest} tokens, and prompt and "
            f"completion together may have {self._length_limit}",
            "raise prime_rl.seq_len or make the prompts shorter",
        )


def sample_groups(
    model: Model,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    config: PrimeRlConfig,
    *,
    length_limit: int,
    seed: int,
) -> list[list[Completion]]:
    """`group_size` completions of each prompt, cut where prompt and completion reach `length_limit` tokens.

    Cutting a sampled completion gives exactly what sampling under a smaller limit would have given.
    Raises AgentError("diverged") when the model's probabilities are not finite.
    """
    sampling = config.orchestrator.train.sampling
    group_size = config.orchestrator.group_size
    at_once = max(1, MAX_SEQUENCES // group_size)
    sampled: list[list[Completion]] = []
    for start in range(0, len(prompts), at_once):
        batch = prompts[start : start + at_once]
        rooms = [length_limit - len(prompt.tokens) for prompt in batch]
        params = SamplingParams(
            max_tokens=min(sampling.max_completion_tokens, max(rooms)),
            temperature=sampling.temperature,
            stop_ids=tuple(tokenizer.stop_ids),
        )
        groups = generate(
            model,
            [prompt.tokens for prompt in batch],
            params,
            samples_per_prompt=group_size,
            seed=derive(seed, "sample", start),
        )
        sampled += [[_cut(c, room) for c in group] for group, room in zip(groups, rooms, strict=True)]
    if not all(math.isfinite(logprob) for group in sampled for c in group for logprob in c.logprobs):
        raise AgentError(
            "diverged",
            "the model no longer gives finite probabilities: training has thrown its weights away",
            "lower trainer.optim.lr in [prime_rl], and keep trainer.optim.max_norm",
        )
    return sampled


def score_groups(
    tokenizer: Tokenizer,
    rewards: RewardSource,
    prompts: Sequence[Prompt],
    sampled: Sequence[Sequence[Completion]],
) -> list[RolloutGroup]:
    """Decode and score a step's completions, all in one call of the environment.

    What the reward source raises passes through: it knows whose fault it was.
    """
    texts = [[tokenizer.decode(c.tokens) for c in group] for group in sampled]
    asked = [(p.task.index, text) for p, group in zip(prompts, texts, strict=True) for text in group]
    scores = rewards.score(asked)
    if len(scores) != len(asked):
        raise AssertionError(f"asked for {len(asked)} rewards, the reward source returned {len(scores)}")
    remaining = iter(scores)
    return [
        RolloutGroup(prompt, list(group), group_texts, [next(remaining) for _ in group])
        for prompt, group, group_texts in zip(prompts, sampled, texts, strict=True)
    ]


def _cut(completion: Completion, room: int) -> Completion:
    if len(completion.tokens) <= room:
        return completion
    return Completion(
        tokens=completion.tokens[:room], logprobs=completion.logprobs[:room], stop_reason="length"
    )
