"""Optimizers and learning-rate schedules under prime-rl's names, and gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ai_trains_ai.config import OptimConfig, SchedulerConfig
from ai_trains_ai.engine.lora import attached
from ai_trains_ai.engine.model import Model
from ai_trains_ai.errors import UsageError


class SignSGD(torch.optim.Optimizer):
    """Each weight moves by the learning rate against the sign of its gradient; decay is decoupled."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "this optimizer evaluates nothing itself"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
                    parameter.add_(parameter.grad.sign(), alpha=-group["lr"])


class Optimizer:
    """The configured optimizer over everything of `model` that is trained: its weights, or the attached adapter.

    Muon orthogonalises matrices, each Hugging Face projection by itself although the model stores several in one
    parameter; embeddings, heads and vectors go to AdamW at the same learning rate, as in prime-rl.
    """

    def __init__(self, model: Model, config: OptimConfig) -> None:
        named = named_trainable(model)
        self._parameters = [parameter for _, parameter in named]
        self._max_norm = config.max_norm
        self._parts = _matrices(model, named) if config.type == "muon" else []
        self._optimizers = _build(named, self._parts, config)

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def clip(self) -> float:
        """Scale the gradients down to max_norm where it is set and exceeded; return their norm before that."""
        limit = math.inf if self._max_norm is None else self._max_norm
        return float(nn.utils.clip_grad_norm_(self._parameters, limit))

    def step(self, lr: float) -> None:
        for part in self._parts:
            part.matrix.grad = None if part.whole.grad is None else part.whole.grad[part.rows]
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of a parameter as a matrix of their own, which shares the parameter's storage."""

    matrix: nn.Parameter
    whole: nn.Parameter
    rows: slice


def named_trainable(model: Model) -> list[tuple[str, nn.Parameter]]:
    """(name, parameter) of all that wants gradients, attached LoRA pairs included, in a fixed order."""
    found = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    for name, pair in attached(model).items():
        pairs = ((f"{name}.a", pair.a), (f"{name}.b", pair.b))
        found += [(label, parameter) for label, parameter in pairs if parameter.requires_grad]
    return found


def learning_rate(config: SchedulerConfig, lr: float, step: int, max_steps: int) -> float:
    """The rate of `step` (from 0), as prime-rl's constant, linear and cosine schedulers give it.

    linear: from min_lr to lr over warmup_steps, level, then to min_lr over the last decay_steps.
    cosine: the same rise, then half a cosine from lr towards min_lr, which step max_steps would reach.
    Source: prime_rl/trainer/scheduler.py. Raises UsageError when the phases are longer than the run.
    """
    low = config.min_lr
    rise = config.warmup_steps if config.type != "constant" else 0
    fall = config.decay_steps if config.type == "linear" else 0
    if rise + fall > max_steps:
        raise UsageError(f"warmup_steps {rise} and decay_steps {fall} are more than max_steps {max_steps}")
    if step < rise:
        return low + (lr - low) * step / rise
    if fall and step >= max_steps - fall:
        return lr + (low - lr) * min(1.0, (step - max_steps + fall) / max(1, fall - 1))
    if config.type == "cosine":
        turn = math.pi * (step - rise) / max(1, max_steps - rise)
        return low + (lr - low) * (1.0 + math.cos(turn)) / 2.0
    return lr


def _build(
    named: Sequence[tuple[str, nn.Parameter]], parts: Sequence[_Part], config: OptimConfig
) -> list[torch.optim.Optimizer]:
    everything = [parameter for _, parameter in named]
    if config.type == "adamw":
        return [_adamw(everything, config)]
    if config.type == "sgd":
        momentum, nesterov = config.momentum, config.nesterov
        options: dict[str, Any] = {
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": config.weight_decay,
        }
        return [torch.optim.SGD(everything, lr=config.lr, **options)]
    if config.type == "sign_sgd":
        return [SignSGD(everything, config.lr, config.weight_decay)]
    others = [parameter for name, parameter in named if not _is_matrix(name, parameter)]
    muon = torch.optim.Muon(
        [part.matrix for part in parts],
        lr=config.lr,
        momentum=config.mu,
        nesterov=False,  # as prime-rl's, which is that of the dion package
        weight_decay=config.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    return [muon, _adamw(others, config)] if others else [muon]


def _matrices(model: Model, named: Sequence[tuple[str, nn.Parameter]]) -> list[_Part]:
    slices = {id(projection.weight): projection.slices().values() for projection in model.projections()}
    return [
        _Part(nn.Parameter(parameter.data[rows]), parameter, rows)
        for name, parameter in named
        if _is_matrix(name, parameter)
        for rows in slices.get(id(parameter), [slice(None)])
    ]


def _is_matrix(name: str, parameter: Tensor) -> bool:
    return parameter.ndim == 2 and not name.startswith(("embed", "head"))


def _adamw(parameters: list[nn.Parameter], config: OptimConfig) -> torch.optim.AdamW:
    betas = (config.betas1, config.betas2)
    return torch.optim.AdamW(
        parameters, lr=config.lr, betas=betas, weight_decay=config.weight_decay, fused=True
    )
