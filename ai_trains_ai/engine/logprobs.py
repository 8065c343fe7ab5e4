"""TargetLogprob: log p(target) of each row, with its gradient, without keeping a log-softmax.

    logprob = z[target] − log Σ exp(z),   z = hidden · headᵀ / temperature
    dz = g · (onehot(target) − p),        p = exp(z) / Σ exp(z)

exp(z) is what is kept between the passes, scaled by rows in the backward pass instead of being normalised. The
rows are done in strips, so that the logits of a large vocabulary never exist all at once; above a size, exp(z)
is computed again instead of being kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ai_trains_ai.engine.matrix import Precision, rounded_products

KEPT = 1 << 24
"""Exponentials kept for the backward pass up to this many: 64 MB."""
STRIP = 1 << 22
"""Logits computed at a time: 16 MB."""
SAFE_SPREAD = 60.0


class TargetLogprob(torch.autograd.Function):
    """(hidden_M_H, head_V_H, targets_M, temperature, entropy wanted, precision) -> (logprobs_M, entropy_M).

    The entropy carries no gradient; it is NaN when not wanted. Temperature above 0.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_M_H: Tensor,
        head_V_H: Tensor,
        targets_M: Tensor,
        temperature: float,
        entropy: bool,
        precision: Precision,
    ) -> tuple[Tensor, Tensor]:
        ctx.temperature, ctx.precision = temperature, precision
        rows, vocabulary = hidden_M_H.shape[0], head_V_H.shape[0]
        keep = rows * vocabulary <= KEPT
        logprobs_M = hidden_M_H.new_empty(rows)
        entropy_M = hidden_M_H.new_full((rows,), float("nan"))
        ctx.sums, ctx.exps = [], []
        head = _operand(head_V_H, precision)
        ctx.head = head
        for strip in _strips(rows, vocabulary):
            logits = _logits(_operand(hidden_M_H[strip], precision), head, temperature, precision)
            chosen = logits.gather(1, targets_M[strip, None])[:, 0]
            expected = logits.clone() if entropy else None
            shift = _exponentiate(logits)
            sums = logits.sum(-1)
            log_normaliser = sums.log() + shift
            torch.sub(chosen, log_normaliser, out=logprobs_M[strip])
            if expected is not None:
                expected.mul_(logits)
                torch.sub(log_normaliser, expected.sum(-1) / sums, out=entropy_M[strip])
            ctx.sums.append(sums)
            if keep:
                ctx.exps.append(logits)
        ctx.save_for_backward(hidden_M_H, head_V_H, targets_M)
        ctx.mark_non_differentiable(entropy_M)
        return logprobs_M, entropy_M

    @staticmethod
    def backward(ctx: Any, g_M: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_M_H, head_V_H, targets_M = ctx.saved_tensors
        precision: Precision = ctx.precision
        dhidden = torch.empty_like(hidden_M_H) if ctx.needs_input_grad[0] else None
        dhead: Tensor | None = None
        head = ctx.head
        for number, strip in enumerate(_strips(hidden_M_H.shape[0], head_V_H.shape[0])):
            hidden = _operand(hidden_M_H[strip], precision)
            if ctx.exps:
                dz = ctx.exps[number]
            else:
                dz = _logits(hidden, head, ctx.temperature, precision)
                _exponentiate(dz)
            g = (g_M[strip] / ctx.temperature)[:, None]
            dz.mul_(-g / ctx.sums[number][:, None])
            dz.scatter_add_(1, targets_M[strip, None], g)
            dz = _operand(dz, precision)
            with rounded_products(precision):
                if dhidden is not None:
                    dhidden[strip] = torch.mm(dz, head)
                if ctx.needs_input_grad[1]:
                    product = torch.mm(dz.t(), hidden)
                    dhead = product.to(head_V_H.dtype) if dhead is None else dhead.add_(product)
        ctx.exps, ctx.sums, ctx.head = [], [], None
        return dhidden, dhead, None, None, None, None


def _operand(x: Tensor, precision: Precision) -> Tensor:
    return x.to(torch.bfloat16) if precision == "bf16" else x.float()


def _logits(hidden: Tensor, head: Tensor, temperature: float, precision: Precision) -> Tensor:
    """float32 (rows, vocabulary)."""
    with rounded_products(precision):
        logits = torch.mm(hidden, head.t()).float()
    return logits if temperature == 1.0 else logits.mul_(1.0 / temperature)


def _exponentiate(logits: Tensor) -> Tensor | float:
    """exp(logits − shift) in place; returns the shift, which is one number while no row can underflow by it."""
    if logits.device.type == "cpu":
        low, high = (float(bound) for bound in torch.aminmax(logits))
        if high - low <= SAFE_SPREAD:
            if abs(high) > SAFE_SPREAD:
                logits -= high
                logits.exp_()
                return high
            logits.exp_()
            return 0.0
    shift = logits.amax(-1, keepdim=True)
    logits.sub_(shift).clamp_min_(-80.0).exp_()
    return shift[:, 0]


def _strips(rows: int, vocabulary: int) -> list[slice]:
    step = max(16, STRIP // vocabulary)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]
