"""Choosing the next token: parameters, results, and one vectorised draw over a batch.

A draw inverts the cumulative distribution at one uniform number a row. The numbers are drawn before sampling
starts, one for each (sequence, position), so what a sequence becomes does not depend on which other
sequences are still alive beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ai_trains_ai.errors import UsageError

_BLOCK = 256
"""Large vocabularies are searched in two steps, first for the block of this many tokens, then inside it."""
_BELOW_ONE = 1.0 - 2.0**-24


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How completions are drawn.

    max_tokens:  upper bound of a completion's length, its stop token included.
    temperature: divides the logits; 0 takes the likeliest token.
    top_k:       keep the k likeliest tokens (ties with the k-th are kept too); 0 keeps all.
    top_p:       keep the smallest set of likeliest tokens that reaches probability top_p, after top_k.
    stop_ids:    tokens that end a completion.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UsageError(f"max_tokens is {self.max_tokens}, it must be at least 1")
        if not 0.0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature is {self.temperature}, it must be finite and not negative")
        if self.top_k < 0:
            raise UsageError(f"top_k is {self.top_k}, it must be 0 (off) or positive")
        if not 0.0 < self.top_p <= 1.0:
            raise UsageError(f"top_p is {self.top_p}, it must be above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled completion.

    tokens:   the sampled ids, the stop token included when there is one.
    logprobs: of each token under the distribution it was drawn from, in nats: temperature, top_k and top_p
              applied. Greedy tokens carry their log-probability at temperature 1, before top_k and top_p.
    """

    tokens: list[int]
    logprobs: list[float]
    stop_reason: Literal["stop", "length"]


def draw_uniforms(count: int, length: int, seed: int) -> Tensor:
    """uniforms_N_T in [0, 1) on the CPU, row i for sequence i.

    The generator runs row by row: sequences added at the end leave the earlier rows' numbers unchanged.
    """
    return torch.rand(count, length, generator=torch.Generator().manual_seed(seed))


def sample(
    logits_B_V: Tensor,
    uniforms_B: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Draw one token a row: (tokens_B int64, logprobs_B float32).

    logits_B_V: float32; may be overwritten.
    temperature: one for all rows or a tensor_B; positive. Use `greedy` for 0.
    """
    if isinstance(temperature, Tensor):
        logits_B_V = logits_B_V.div_(temperature.unsqueeze(-1))
    elif temperature != 1.0:
        logits_B_V = logits_B_V.div_(temperature)
    if top_k or top_p < 1.0:
        logits_B_V = restrict(logits_B_V, top_k, top_p)
    probs_B_V = torch.softmax(logits_B_V, -1)
    tokens_B_1 = _invert(probs_B_V, uniforms_B.unsqueeze(-1))
    return tokens_B_1.squeeze(-1), probs_B_V.gather(-1, tokens_B_1).squeeze(-1).log_()


def greedy(logits_B_V: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest token of each row (the first of equals) and its log-probability at temperature 1."""
    vocab = logits_B_V.shape[-1]
    if vocab % _BLOCK or vocab < 16 * _BLOCK:
        tokens_B = logits_B_V.argmax(-1)
    else:  # torch's argmax over a long row is an order of magnitude slower than amax
        blocks = logits_B_V.view(len(logits_B_V), -1, _BLOCK)
        block_B = blocks.amax(-1).argmax(-1)
        inner_B = blocks[torch.arange(len(block_B), device=block_B.device), block_B].argmax(-1)
        tokens_B = block_B * _BLOCK + inner_B
    chosen_B = logits_B_V.gather(-1, tokens_B.unsqueeze(-1)).squeeze(-1)
    return tokens_B, chosen_B - logits_B_V.logsumexp(-1)


def restrict(logits_B_V: Tensor, top_k: int, top_p: float) -> Tensor:
    """Logits with the tokens outside top_k and top_p at -inf."""
    if 0 < top_k < logits_B_V.shape[-1]:
        least = logits_B_V.topk(top_k, dim=-1).values[:, -1:]
        logits_B_V = logits_B_V.masked_fill(logits_B_V < least, -torch.inf)
    if top_p < 1.0:
        probs = torch.softmax(logits_B_V, -1)
        ranked = probs.sort(dim=-1, descending=True).values
        before = ranked.cumsum(-1) - ranked  # mass of the likelier tokens: below top_p, the token is kept
        kept = (before < top_p).sum(-1, keepdim=True).clamp_(min=1)
        logits_B_V = logits_B_V.masked_fill(probs < ranked.gather(-1, kept - 1), -torch.inf)
    return logits_B_V


def _invert(probs_B_V: Tensor, uniforms_B_1: Tensor) -> Tensor:
    """First token whose cumulative probability exceeds the row's uniform number: int64 (B, 1)."""
    vocab = probs_B_V.shape[-1]
    if vocab % _BLOCK or vocab < 16 * _BLOCK:
        return _first_above(probs_B_V.cumsum(-1), uniforms_B_1)
    blocks_B_K_W = probs_B_V.view(len(probs_B_V), -1, _BLOCK)
    mass_B_K = blocks_B_K_W.sum(-1)
    cumulative_B_K = mass_B_K.cumsum(-1)
    block_B_1 = _first_above(cumulative_B_K, uniforms_B_1)
    mass_B_1 = mass_B_K.gather(-1, block_B_1)
    inside_B_1 = uniforms_B_1 * cumulative_B_K[:, -1:] - cumulative_B_K.gather(-1, block_B_1) + mass_B_1
    # Rounding must not lead out of the block, where a token of probability 0 might stand.
    inside_B_1 = inside_B_1.div_(mass_B_1).clamp_(0.0, _BELOW_ONE)
    rows = torch.arange(len(block_B_1), device=block_B_1.device).unsqueeze(-1)
    chosen_B_W = blocks_B_K_W[rows, block_B_1].squeeze(1)
    return block_B_1 * _BLOCK + _first_above(chosen_B_W.cumsum(-1), inside_B_1)


def _first_above(cumulative_B_K: Tensor, uniforms_B_1: Tensor) -> Tensor:
    """Index of the first entry above uniform × total. It exists, since uniforms end at 1 - 2^-24.

    Only NaN has none: its row gets the last index, and so a log-probability of NaN, which the caller can see.
    """
    found = torch.searchsorted(cumulative_B_K, uniforms_B_1 * cumulative_B_K[:, -1:], right=True)
    return found.clamp_(max=cumulative_B_K.shape[-1] - 1)
