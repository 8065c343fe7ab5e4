"""Sampling for several requests in one batch, and log-probabilities of prompts.

    requests of equal weights, top_k and top_p ─> one prefill, one decode loop ─> each request's sequences

Within a batch every request keeps its own temperature, length, stops and random numbers: what it gets does
not depend on what it was batched with, up to the rounding of matrix products of another height.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ai_trains_ai.engine.decode import Decoder
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.sampling import draw_uniforms, greedy, sample
from ai_trains_ai.engine.tokenizer import Tokenizer
from ai_trains_ai.tinker_server.logprobs import prompt_table
from ai_trains_ai.tinker_server.messages import SampledSequence, TopK

_TAIL = 48
"""Tokens from the end in which a stop text is looked for, beside the text's own length in tokens."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A checked request. prompt_last_n: prompt tokens to score from the end; None: score none."""

    prompt: tuple[int, ...]
    samples: int
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    stop_ids: frozenset[int]
    stop_texts: tuple[str, ...] = ()
    prompt_last_n: int | None = None
    prompt_top_k: int = 0


@dataclass(slots=True)
class _Row:
    """One sequence in the making."""

    request: SampleRequest
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop: str = ""

    def add(self, token: int, logprob: float, tokenizer: Tokenizer) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if token in self.request.stop_ids or self._said(tokenizer):
            self.stop = "stop"
        elif len(self.tokens) == self.request.max_tokens:
            self.stop = "length"

    def _said(self, tokenizer: Tokenizer) -> bool:
        texts = self.request.stop_texts
        if not texts:
            return False
        tail = tokenizer.decode(self.tokens[-_TAIL - max(len(text.encode()) for text in texts) :])
        return any(text in tail for text in texts)


@torch.inference_mode()
def sample_batch(
    decoder: Decoder, requests: Sequence[SampleRequest], tokenizer: Tokenizer
) -> list[list[SampledSequence]]:
    """Sample every request; result[request][sample]. All share top_k and top_p."""
    top_k, top_p = requests[0].top_k, requests[0].top_p
    assert all((request.top_k, request.top_p) == (top_k, top_p) for request in requests)
    counts = [request.samples for request in requests]
    longest = max(request.max_tokens for request in requests)
    cache, logits_G_V = decoder.prefill([list(r.prompt) for r in requests], samples=counts, room=longest)
    logits_B_V = logits_G_V.repeat_interleave(torch.tensor(counts, device=decoder.device), 0)
    rows = [_Row(request) for request in requests for _ in range(request.samples)]
    temperature_B = torch.tensor([row.request.temperature for row in rows], device=decoder.device)
    uniforms_B_T = torch.zeros(len(rows), longest)
    for request, start in zip(requests, np.cumsum([0, *counts]).tolist(), strict=False):
        drawn = draw_uniforms(request.samples, request.max_tokens, request.seed)
        uniforms_B_T[start : start + request.samples, : request.max_tokens] = drawn
    uniforms_B_T = uniforms_B_T.to(decoder.device)
    live = list(range(len(rows)))
    for position in range(longest):
        tokens_B, logprobs_B = _draw(logits_B_V, uniforms_B_T[:, position], temperature_B, top_k, top_p)
        for place, token, logprob in zip(live, tokens_B.tolist(), logprobs_B.tolist(), strict=True):
            rows[place].add(token, logprob, tokenizer)
        staying = [index for index, place in enumerate(live) if not rows[place].stop]
        if not staying:
            break
        if len(staying) < len(live):
            chosen = torch.tensor(staying, device=decoder.device)
            cache.keep(staying)
            live = [live[index] for index in staying]
            tokens_B, uniforms_B_T = tokens_B[chosen], uniforms_B_T[chosen]
            temperature_B = temperature_B[chosen]
        logits_B_V = decoder.step(cache, tokens_B)
    done = iter([SampledSequence(row.tokens, row.logprobs, row.stop) for row in rows])
    return [[next(done) for _ in range(count)] for count in counts]


def _draw(
    logits_B_V: Tensor, uniforms_B: Tensor, temperature_B: Tensor, top_k: int, top_p: float
) -> tuple[Tensor, Tensor]:
    """Rows of temperature 0 are greedy, the others drawn at their own."""
    cold_B = temperature_B == 0.0
    if bool(cold_B.all()):
        return greedy(logits_B_V)
    if not bool(cold_B.any()):
        return sample(logits_B_V, uniforms_B, temperature=temperature_B, top_k=top_k, top_p=top_p)
    likeliest_B, cold_logprobs_B = greedy(logits_B_V)
    warm_B = torch.where(cold_B, torch.ones_like(temperature_B), temperature_B)
    drawn_B, logprobs_B = sample(logits_B_V, uniforms_B, temperature=warm_B, top_k=top_k, top_p=top_p)
    return torch.where(cold_B, likeliest_B, drawn_B), torch.where(cold_B, cold_logprobs_B, logprobs_B)


def score_prompt(model: Model, request: SampleRequest) -> tuple[npt.NDArray[np.float32], TopK | None]:
    """logprobs_T of the request's prompt, NaN where not asked for, and the likeliest tokens if wanted.

    At temperature 1, whatever the request samples at: these are the model's own probabilities.
    """
    assert request.prompt_last_n is not None
    length, k = len(request.prompt), request.prompt_top_k
    tokens = torch.tensor(request.prompt, device=model.device)
    found = np.full(length, np.nan, dtype=np.float32)
    ids, values = np.zeros((length, k), dtype=np.int32), np.full((length, k), np.nan, dtype=np.float32)

    def read(table_P_V: Tensor, places: slice) -> None:
        after = slice(places.start + 1, places.stop + 1)
        found[after] = table_P_V.gather(-1, tokens[after, None])[:, 0].cpu().numpy()
        if k:
            best = table_P_V.topk(k, dim=-1)
            ids[after], values[after] = best.indices.cpu().numpy(), best.values.cpu().numpy()

    prompt_table(model, request.prompt, read, first=max(0, length - 1 - request.prompt_last_n))
    return found, TopK(ids, values) if k else None
