"""A client's model: its adapter, the gradients it has gathered, its optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ai_trains_ai.engine.matrix import Precision
from ai_trains_ai.engine.model import Model
from ai_trains_ai.errors import UsageError
from ai_trains_ai.tinker_server import objectives
from ai_trains_ai.tinker_server.adapter import Adapter, AdapterConfig
from ai_trains_ai.tinker_server.logprobs import batches
from ai_trains_ai.tinker_server.messages import ForwardBackward, forward_backward_output

_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class AdamSettings:
    """One step's settings, as the request names them. grad_clip_norm 0: no clipping."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "eps", "weight_decay", "grad_clip_norm"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} is {getattr(self, name)}, it must be finite and not negative")
        for name in ("beta1", "beta2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UsageError(f"{name} is {getattr(self, name)}, it must be at least 0 and below 1")


class TrainedModel:
    """model: the shared base, whose own weights stay as they are."""

    def __init__(self, model: Model, adapter: Adapter, precision: Precision = "fp32") -> None:
        self.model = model
        self.adapter = adapter
        self._precision = precision
        self._optimizer = torch.optim.AdamW(adapter.parameters(), lr=0.0)

    def forward_backward(self, request: ForwardBackward) -> bytes:
        """Compute the loss, add its gradient to what is gathered (unless forward_only); the encoded output.

        Raises UsageError for unusable data, and when the loss is not finite: then no gradient is kept at all.
        """
        config = self.model.config
        objectives.check(
            request.data, request.loss_fn, request.config, config.vocab_size, config.max_positions
        )
        outputs: list[Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]] = [
            {} for _ in request.data
        ]
        total = 0.0
        with self.adapter.attached(self.model) as model, torch.set_grad_enabled(not request.forward_only):
            for run in batches(model, request.data, self._precision):
                losses: list[Tensor] = []
                for place, logprobs in run:
                    loss = objectives.token_losses(
                        logprobs, request.data[place], request.loss_fn, request.config
                    )
                    outputs[place] = {"logprobs": _numpy(logprobs), "elementwise_loss": _numpy(loss)}
                    losses.append(loss.sum())
                run_loss = torch.stack(losses).sum()
                total += run_loss.item()
                if not math.isfinite(total):
                    self._optimizer.zero_grad(set_to_none=True)
                    raise UsageError(
                        f"the loss of {request.loss_fn} is {total}; the gathered gradient is dropped"
                    )
                if not request.forward_only:
                    run_loss.backward()  # type: ignore[no-untyped-call]
        return forward_backward_output(outputs, {"loss:sum": total})

    def optim_step(self, settings: AdamSettings) -> dict[str, float]:
        """AdamW with the gathered gradient, which is then gone. The norm is that before clipping.

        Raises UsageError when there is no gradient, or one that is not finite.
        """
        parameters = self.adapter.parameters()
        if all(parameter.grad is None for parameter in parameters):
            raise UsageError(
                "no gradient to step with: no forward_backward has succeeded since the last optim_step"
            )
        limit = settings.grad_clip_norm or math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, limit))
        if not math.isfinite(norm):
            self._optimizer.zero_grad(set_to_none=True)
            raise UsageError(f"the gradient's norm is {norm}; it is dropped and the weights are unchanged")
        for group in self._optimizer.param_groups:
            group["lr"] = settings.learning_rate
            group["betas"] = (settings.beta1, settings.beta2)
            group["eps"], group["weight_decay"] = settings.eps, settings.weight_decay
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return {"unclipped_grad_l2:mean": norm}

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Moments and step counts, on the CPU; empty before the first step."""
        found = {}
        for index, parameter in enumerate(self.adapter.parameters()):
            for name, value in self._optimizer.state.get(parameter, {}).items():
                found[f"{index}.{name}"] = value.detach().to("cpu", copy=True)
        return found

    def load(self, adapter: Mapping[str, Tensor], optimizer: Mapping[str, Tensor] | None) -> None:
        """Replace the weights; the optimizer's state too, or reset it. Gathered gradients are dropped.

        Raises UsageError when the tensors do not fit this model's adapter.
        """
        loaded = Adapter(self.model, self.adapter.config, adapter)
        parameters = loaded.parameters()
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in (optimizer or {}).items():
            index, _, key = name.partition(".")
            state.setdefault(int(index), {})[key] = value.clone()
        for place, values in state.items():
            if set(values) != {"step", *_MOMENTS} or any(
                values[moment].shape != parameters[place].shape for moment in _MOMENTS
            ):
                raise UsageError("the checkpoint's optimizer state does not fit the adapter")
        self.adapter = loaded
        self._optimizer = torch.optim.AdamW(parameters, lr=0.0)
        if state:
            groups = self._optimizer.state_dict()["param_groups"]
            self._optimizer.load_state_dict({"state": state, "param_groups": groups})


def fresh(model: Model, config: AdapterConfig, *, seed: int, precision: Precision) -> TrainedModel:
    return TrainedModel(model, Adapter.fresh(model, config, seed=seed), precision)


def _numpy(tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return tensor.detach().to("cpu", torch.float32).numpy()
