"""Log-probabilities of a datum's targets at every position of its input, differentiable.

A datum whose targets are its own next tokens is a sequence, and goes through the engine's fused training path
together with the others of its batch. Any other (several targets a position, or targets from elsewhere) is
read by the plain forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ai_trains_ai.engine.matrix import Precision
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.train import TokenGroup, group_logprobs, micro_batches
from ai_trains_ai.tinker_server.messages import Datum

CELLS = 32 * 2**20
"""Logits that one forward and backward pass may hold at a time."""
ROWS = 4096
"""Token rows of one pass of the fused path."""


def batches(model: Model, data: Sequence[Datum], precision: Precision) -> Iterator[list[tuple[int, Tensor]]]:
    """Runs of (place in data, log-probabilities in the shape of its targets), each with a graph of its own.

    The caller goes backward through a run before it asks for the next one: that bounds the memory.
    """
    plain = [place for place, datum in enumerate(data) if not _is_sequence(datum)]
    fused = [place for place, datum in enumerate(data) if _is_sequence(datum)]
    groups = []
    for place in fused:
        last = int(data[place].inputs["target_tokens"][-1])
        groups.append(TokenGroup(data[place].tokens[:1], [[*data[place].tokens[1:], last]]))
    done = 0
    for run in micro_batches(groups, max(1, min(ROWS, CELLS // model.config.vocab_size))):
        output = group_logprobs(model, run, precision=precision)
        places = fused[done : done + len(run)]
        done += len(run)
        yield [
            (place, output.logprobs_N_T[row, : len(data[place].tokens)]) for row, place in enumerate(places)
        ]
    for place in plain:
        targets = torch.from_numpy(data[place].inputs["target_tokens"]).to(model.device)
        yield [(place, _plain(model, data[place].tokens, targets))]


def prompt_table(
    model: Model, tokens: Sequence[int], read: Callable[[Tensor, slice], None], first: int = 0
) -> None:
    """Call `read(logprobs_P_V, places)` on the next-token log-probabilities after positions first..T-2.

    In pieces, as a whole table of a long prompt over a large vocabulary would not fit.
    """
    with torch.inference_mode():
        hidden_T_H = model.hidden(torch.tensor([list(tokens)], device=model.device))[0]
        step = max(1, CELLS // model.config.vocab_size)
        for start in range(first, len(tokens) - 1, step):
            places = slice(start, min(start + step, len(tokens) - 1))
            read(torch.log_softmax(model.logits(hidden_T_H[places]).float(), -1), places)


def _is_sequence(datum: Datum) -> bool:
    targets = datum.inputs["target_tokens"]
    return targets.ndim == 1 and bool(np.array_equal(targets[:-1], np.asarray(datum.tokens[1:])))


def _plain(model: Model, tokens: Sequence[int], targets: Tensor) -> Tensor:
    hidden = model.hidden(torch.tensor([list(tokens)], device=model.device))[0]
    found = torch.log_softmax(model.logits(hidden).float(), -1)
    return found.gather(-1, targets if targets.ndim == 2 else targets[:, None]).view(targets.shape)
