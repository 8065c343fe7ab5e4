"""group_logprobs: differentiable log-probabilities of completions, each group's prompt computed once.

    groups ─ lay_out ─ FusedDecoder ─ TargetLogprob ─ LogprobBatch ─ (the caller's loss).backward()

The whole decoder is one autograd node, so a training step on a tiny model costs its arithmetic and little else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ai_trains_ai.engine.fused import FusedDecoder, plan
from ai_trains_ai.engine.heads import CELLS
from ai_trains_ai.engine.layout import Costs, Layout, TokenGroup, lay_out, rows_of
from ai_trains_ai.engine.logprobs import TargetLogprob
from ai_trains_ai.engine.matrix import Precision
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.prefixes import share_prefixes
from ai_trains_ai.errors import UsageError

__all__ = [
    "LogprobBatch",
    "Precision",
    "TokenGroup",
    "group_logprobs",
    "micro_batches",
    "share_prefixes",
    "trainable",
    "use_deterministic",
]


@dataclass(frozen=True, slots=True)
class LogprobBatch:
    """N: all completions of all groups, in order; T: the longest of them, in predicted tokens.

    logprobs_N_T: log p(token | what precedes it) at the sampling temperature, in nats; 0 outside the mask.
    mask_N_T: True on the tokens predicted.
    entropy_N_T: of the distribution each token was drawn from, in nats, no gradient; None when not asked for.
    """

    logprobs_N_T: Tensor
    mask_N_T: Tensor
    entropy_N_T: Tensor | None


def group_logprobs(
    model: Model,
    groups: Sequence[TokenGroup],
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    prompts: bool = False,
    precision: Precision = "fp32",
) -> LogprobBatch:
    """Log-probabilities of every completion token given its prompt and the tokens before it.

    prompts: of the prompt's tokens too, from its second on: a row of the result is then the whole sequence but
    its first token. With `share_prefixes` this serves sequences of any origin.

    Gradients flow to every parameter (and attached LoRA pair) that requires them; under `torch.no_grad()`
    nothing is kept. Memory grows with the rows of `groups`: split a large batch with `micro_batches`.

    Raises UsageError for an empty batch, prompt or completion, a temperature of 0 or less, or a sequence longer
    than the model's positions.
    """
    if temperature <= 0.0:
        raise UsageError(f"temperature {temperature} has no log-probabilities: use one above 0")
    layout = lay_out(groups, _costs(model), prompts=prompts, device=model.device)
    limit = model.config.max_positions
    if layout.positions > limit:
        raise UsageError(f"a sequence needs {layout.positions} positions, the model has {limit}")
    hidden_M = _hidden(model, layout, precision)
    logprobs_M, entropy_M = TargetLogprob.apply(  # type: ignore[no-untyped-call]
        hidden_M, model.head_weight, layout.targets_M, temperature, entropy, precision
    )
    return LogprobBatch(
        logprobs_N_T=_spread(logprobs_M, layout),
        mask_N_T=layout.mask_N_T,
        entropy_N_T=_spread(entropy_M, layout) if entropy else None,
    )


def micro_batches(groups: Sequence[TokenGroup], token_budget: int) -> list[list[TokenGroup]]:
    """Split into consecutive runs of at most `token_budget` rows, completions staying in order.

    A row is a prompt token (once a group) or a completion token. A group that is too large by itself is divided
    between its completions, its prompt repeated; a single completion over the budget gets a run of its own.
    Concatenating the runs' results gives the result of the whole.
    """
    runs: list[list[TokenGroup]] = []
    used = token_budget
    for group in groups:
        for piece in _pieces(group, token_budget):
            rows = rows_of(piece)
            if not runs or used + rows > token_budget:
                runs.append([])
                used = 0
            runs[-1].append(piece)
            used += rows
    return runs


def use_deterministic(enabled: bool = True) -> None:
    """Make PyTorch refuse operations whose result may differ between runs. On a CPU there are none here."""
    torch.use_deterministic_algorithms(enabled)


def trainable(model: Model) -> list[torch.nn.Parameter]:
    """Parameters that want gradients: the model's own and those of the attached adapter, in a fixed order."""
    found = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for projection in model.projections():
        for pair in projection.lora.values():
            found += [parameter for parameter in (pair.a, pair.b) if parameter.requires_grad]
    return found


class _Decode(torch.autograd.Function):
    """The fused decoder as one node of the graph: (model, layout, precision, *trainable) -> hidden_M_H.

    Inference mode spares each call PyTorch's own bookkeeping for autograd; what leaves it is copied.
    """

    @staticmethod
    def forward(ctx: Any, model: Model, layout: Layout, precision: Precision, *parameters: Tensor) -> Tensor:
        keep = any(ctx.needs_input_grad)
        with torch.inference_mode():
            decoder = FusedDecoder(model, plan(model, layout, precision))
            hidden = decoder.forward(keep=keep)
        if keep:
            ctx.decoder, ctx.parameters = decoder, parameters
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, dhidden_M_H: Tensor) -> tuple[Tensor | None, ...]:
        with torch.inference_mode():
            gradients = ctx.decoder.backward(dhidden_M_H)
        ctx.decoder = None
        found: list[Tensor | None] = []
        for parameter in ctx.parameters:
            gradient = gradients.get(id(parameter))
            found.append(None if gradient is None else gradient.to(parameter.dtype, copy=True))
        return (None, None, None, *found)


def _hidden(model: Model, layout: Layout, precision: Precision) -> Tensor:
    inputs = (model, layout, precision, *trainable(model))
    hidden: Tensor = _Decode.apply(*inputs)  # type: ignore[no-untyped-call]
    return hidden


def _spread(values_M: Tensor, layout: Layout) -> Tensor:
    """Row results to (N, T), 0 where there is no token."""
    padded = torch.cat((values_M, values_M.new_zeros(1)))
    return padded.index_select(0, layout.places_N_T.flatten()).view(layout.places_N_T.shape)


def _costs(model: Model) -> Costs:
    """A tile's calls take about 60 µs a layer, a branch's 40; a row takes 6 flops a parameter at 150 GFLOP/s."""
    config = model.config
    rows_per_us = 150e3 / (6 * config.num_parameters)
    return Costs(
        tile=max(1, round(60 * config.num_layers * rows_per_us)),
        branch=max(1, round(40 * config.num_layers * rows_per_us)),
        cells=CELLS // config.num_heads,
    )


def _pieces(group: TokenGroup, token_budget: int) -> list[TokenGroup]:
    if rows_of(group) <= token_budget:
        return [group]
    pieces: list[TokenGroup] = []
    room = 0
    for completion in group.completions:
        if not pieces or len(completion) > room:
            pieces.append(TokenGroup(group.prompt, []))
            room = token_budget - len(group.prompt) + 1
        pieces[-1] = TokenGroup(group.prompt, [*pieces[-1].completions, completion])
        room -= len(completion)
    return pieces
