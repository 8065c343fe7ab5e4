"""The policy being trained, and one optimizer step on a scored batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ai_trains_ai.algo.losses import prime_rl, token_mean
from ai_trains_ai.algo.metrics import TokenStats, token_stats
from ai_trains_ai.config import PrimeRlConfig
from ai_trains_ai.engine.config import ModelConfig
from ai_trains_ai.engine.lora import attach, merge
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.optim import Optimizer, learning_rate
from ai_trains_ai.engine.train import LogprobBatch, TokenGroup, group_logprobs, micro_batches
from ai_trains_ai.errors import AgentError
from ai_trains_ai.inner.rollouts import RolloutGroup

NEGLIGIBLE = 1e-9
"""Rollouts with a smaller advantage are left out of the update, as prime-rl leaves out those of zero."""
ACTIVATION_BYTES = 1 << 30
"""About what one forward and backward pass may keep."""


@dataclass(frozen=True, slots=True)
class Update:
    """What one optimizer step did; loss and grad_norm are 0 when there was nothing to learn from."""

    loss: float
    grad_norm: float
    lr: float
    stats: TokenStats


class Policy:
    """A model with its optimizer: all weights, or a LoRA adapter when the job asks for one.

    seed: of the adapter's initial weights. rows: token rows of one forward and backward pass; None chooses by
    the model's size. It changes nothing but memory, speed and rounding.
    """

    def __init__(self, model: Model, config: PrimeRlConfig, *, seed: int, rows: int | None = None) -> None:
        self.model = model
        self._rows = rows or rows_at_once(model.config)
        self._config = config
        self._adapter = config.trainer.model.lora
        if self._adapter is not None:
            attach(model, rank=self._adapter.rank, alpha=self._adapter.alpha, seed=seed)
        self._optimizer = Optimizer(model, config.trainer.optim)

    def update(
        self,
        groups: Sequence[RolloutGroup],
        advantages: Sequence[tuple[float, ...] | None],
        *,
        step: int,
    ) -> Update:
        """One optimizer step on the rollouts that have an advantage; none when no rollout has.

        Loss: prime-rl's, summed over these rollouts' tokens and divided by their number.
        Raises AgentError("diverged") when the loss or the gradient is not finite.
        """
        trainer = self._config.trainer
        lr = learning_rate(trainer.scheduler, trainer.optim.lr, step, self._config.max_steps)
        chosen, counted = _counted(groups, advantages)
        if not counted:
            return Update(0.0, 0.0, lr, TokenStats())
        tokens = sum(len(rollout.logprobs) for rollout in counted)
        stats, loss, done = TokenStats(), 0.0, 0
        self._optimizer.zero_grad()
        for micro_batch in micro_batches(chosen, self._rows):
            output = group_logprobs(
                self.model, micro_batch, temperature=self._config.orchestrator.train.sampling.temperature
            )
            rollouts = counted[done : done + len(output.mask_N_T)]
            done += len(rollouts)
            part, part_stats = self._loss(output, rollouts, tokens)
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.item()
            stats += part_stats
        grad_norm = self._optimizer.clip()
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise _diverged(step, loss, grad_norm, lr)
        self._optimizer.step(lr)
        return Update(loss, grad_norm, lr, stats)

    def finish(self) -> Model:
        """The trained model, an adapter merged into its weights."""
        if self._adapter is not None:
            merge(self.model)
        return self.model

    def _loss(
        self, output: LogprobBatch, rollouts: Sequence[_Counted], tokens: int
    ) -> tuple[torch.Tensor, TokenStats]:
        settings = self._config.trainer.loss
        sampler_N_T = torch.zeros_like(output.logprobs_N_T)
        sampler_N_T[output.mask_N_T] = torch.tensor(
            [logprob for rollout in rollouts for logprob in rollout.logprobs],
            dtype=sampler_N_T.dtype,
            device=sampler_N_T.device,
        )
        advantages_N_1 = sampler_N_T.new_tensor([[rollout.advantage] for rollout in rollouts])
        token_loss = prime_rl(
            output.logprobs_N_T,
            sampler_N_T,
            advantages_N_1,
            output.mask_N_T,
            adv_tau=settings.adv_tau,
            kl_tau=settings.kl_tau,
            dppo_mask_low=settings.dppo_mask_low,
            dppo_mask_high=settings.dppo_mask_high,
        )
        stats = token_stats(output.logprobs_N_T, sampler_N_T, output.mask_N_T, token_loss.clipped_N_T)
        return token_mean(token_loss.loss_N_T, tokens), stats


def rows_at_once(config: ModelConfig) -> int:
    """Token rows whose activations fit in ACTIVATION_BYTES, between 1,024 and 2,048.

    A float32 row keeps about 10 hidden and 4 intermediate vectors a layer (measured). Beyond 2,048 rows nothing
    gets faster, since the matrices leave the caches; below 1,024 prompts are repeated too often.
    """
    row_bytes = 4 * config.num_layers * (10 * config.hidden_size + 4 * config.intermediate_size)
    return min(2048, max(1024, ACTIVATION_BYTES // row_bytes))


@dataclass(frozen=True, slots=True)
class _Counted:
    """A rollout that takes part in the update."""

    logprobs: list[float]
    advantage: float


def _counted(
    groups: Sequence[RolloutGroup], advantages: Sequence[tuple[float, ...] | None]
) -> tuple[list[TokenGroup], list[_Counted]]:
    """The rollouts with an advantage, by group for the engine and in the same order one by one."""
    chosen: list[TokenGroup] = []
    counted: list[_Counted] = []
    for group, values in zip(groups, advantages, strict=True):
        kept = [
            (completion, value)
            for completion, value in zip(group.completions, values or (), strict=values is not None)
            if abs(value) > NEGLIGIBLE
        ]
        if kept:
            chosen.append(TokenGroup(group.prompt.tokens, [completion.tokens for completion, _ in kept]))
            counted += [_Counted(completion.logprobs, value) for completion, value in kept]
    return chosen, counted


def _diverged(step: int, loss: float, grad_norm: float, lr: float) -> AgentError:
    return AgentError(
        "diverged",
        f"in step {step} the loss is {loss:g} and the gradient norm {grad_norm:g} (learning rate {lr:g})",
        "lower trainer.optim.lr in [prime_rl], and keep trainer.optim.max_norm",
    )
