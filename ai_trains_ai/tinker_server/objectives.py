"""From a Tinker loss name and a datum's inputs to a loss on its log-probabilities.

All inputs are aligned with the targets: (T) each, or (T, K) for a cross entropy over several targets a
position. The reduction is a sum over all tokens, as on the hosted service.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ai_trains_ai.algo import losses
from ai_trains_ai.errors import UsageError
from ai_trains_ai.tinker_server.messages import Datum

_POLICY: dict[str, tuple[Callable[..., losses.TokenLoss], Mapping[str, str]]] = {
    "importance_sampling": (losses.importance_sampling, {}),
    "ppo": (losses.ppo, {"clip_low_threshold": "clip_low", "clip_high_threshold": "clip_high"}),
    "cispo": (losses.cispo, {"clip_low_threshold": "clip_low", "clip_high_threshold": "clip_high"}),
    "dro": (losses.dro, {"beta": "beta"}),
}
LOSSES = ("cross_entropy", *_POLICY)


def check(
    data: Sequence[Datum], loss_fn: str, config: Mapping[str, float], vocab: int, positions: int
) -> None:
    """Raises UsageError for what this loss, or a model of this size, cannot be trained on."""
    if loss_fn not in LOSSES:
        raise UsageError(f"unknown loss_fn {loss_fn!r}: this server has {', '.join(LOSSES)}")
    keys = {} if loss_fn == "cross_entropy" else _POLICY[loss_fn][1]
    if extra := set(config) - set(keys):
        raise UsageError(
            f"{loss_fn} has no setting {', '.join(sorted(extra))}; it has {', '.join(keys) or 'none'}"
        )
    if not data:
        raise UsageError("data is empty: there is nothing to compute")
    for index, datum in enumerate(data):
        _check_datum(f"datum {index}", datum, loss_fn, vocab, positions)


def _check_datum(where: str, datum: Datum, loss_fn: str, vocab: int, positions: int) -> None:
    needed = (
        {"target_tokens", "weights"}
        if loss_fn == "cross_entropy"
        else {"target_tokens", "logprobs", "advantages"}
    )
    optional = {"weights"} if loss_fn == "cross_entropy" else set()
    if missing := needed - optional - set(datum.inputs):
        raise UsageError(f"{where}: {loss_fn} needs loss_fn_inputs {', '.join(sorted(missing))}")
    if extra := set(datum.inputs) - needed:
        raise UsageError(f"{where}: {loss_fn} takes no loss_fn_inputs {', '.join(sorted(extra))}")
    targets = datum.inputs["target_tokens"]
    if not 1 <= len(datum.tokens) <= positions:
        raise UsageError(f"{where} has {len(datum.tokens)} input tokens; the model reads 1 to {positions}")
    if (
        targets.dtype != np.int64
        or targets.ndim not in (1, 2)
        or (targets.ndim == 2 and loss_fn != "cross_entropy")
    ):
        raise UsageError(f"{where}: target_tokens must be int64 and one a position")
    if len(targets) != len(datum.tokens):
        raise UsageError(f"{where}: {len(targets)} target_tokens for {len(datum.tokens)} input tokens")
    ids = np.concatenate((targets.ravel(), np.asarray(datum.tokens)))
    if ids.min(initial=0) < 0 or ids.max(initial=0) >= vocab:
        raise UsageError(f"{where}: token ids must be between 0 and {vocab - 1}")
    for name, array in datum.inputs.items():
        if array.shape != targets.shape:
            raise UsageError(f"{where}: {name} has shape {array.shape}, target_tokens {targets.shape}")
        if not np.isfinite(array).all():
            raise UsageError(f"{where}: {name} holds a value that is not finite")


def token_losses(logprobs: Tensor, datum: Datum, loss_fn: str, config: Mapping[str, float]) -> Tensor:
    """Loss of every target of one checked datum, in the shape of its target_tokens, differentiable."""
    if loss_fn == "cross_entropy":
        weights = datum.inputs.get("weights")
        return -logprobs if weights is None else -logprobs * _tensor(weights, logprobs)
    function, names = _POLICY[loss_fn]
    found = function(
        logprobs.unsqueeze(0),
        _tensor(datum.inputs["logprobs"], logprobs).unsqueeze(0),
        _tensor(datum.inputs["advantages"], logprobs).unsqueeze(0),
        torch.ones_like(logprobs, dtype=torch.bool).unsqueeze(0),
        **{names[key]: value for key, value in config.items()},
    )
    return found.loss_N_T.squeeze(0)


def _tensor(array: np.ndarray[tuple[int, ...], np.dtype[np.float32 | np.int64]], like: Tensor) -> Tensor:
    return torch.from_numpy(array).to(like.device, like.dtype)
