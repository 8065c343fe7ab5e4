"""generate: prompts in, sampled completions out.

prefill ─> logits of each prompt, spread over its samples ─┐
  ┌────────────────────────────────────────────────────────┘
  └─> draw one token a row ─> record ─> rows that are done leave ─> step ─> logits ─┐
        ^                                                                           │
        └───────────────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ai_trains_ai.engine.decode import Decoder
from ai_trains_ai.engine.kvcache import KVCache
from ai_trains_ai.engine.matrix import Precision
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.sampling import Completion, SamplingParams, draw_uniforms, greedy, sample
from ai_trains_ai.errors import UsageError

_LEAVE_SHARE = 1 / 8
"""Done rows leave the batch once they are this share of it: leaving costs a plan, staying costs work."""


def generate(
    model: Model | Decoder,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    samples_per_prompt: int = 1,
    seed: int,
    precision: Precision | None = None,
    share: bool = True,
    compact: bool = True,
) -> list[list[Completion]]:
    """Sample `samples_per_prompt` completions of each prompt: result[prompt][sample].

    model:   a Model, packed anew by each call, or a Decoder to reuse (while its weights stay the same).
    seed:    the draws depend on it and on a completion's place in the result, on nothing else.
    precision: of the products, as in training; None: the model's. Only with a Model: a Decoder has its own.
    share:   False reads and keeps a prompt once for each sample, compact=False keeps done rows in the batch:
             the same results, slower. For tests and measurements.
    Deterministic on one machine. Raises UsageError for an empty prompt, or one that leaves no room for
    max_tokens within the model's positions.
    """
    if samples_per_prompt < 1:
        raise UsageError(f"samples_per_prompt is {samples_per_prompt}, it must be at least 1")
    if not prompts:
        return []
    decoder = model if isinstance(model, Decoder) else Decoder(model, precision=precision)
    limit, longest = decoder.config.max_positions, max(len(prompt) for prompt in prompts)
    if longest + params.max_tokens > limit:
        raise UsageError(
            f"a prompt of {longest} tokens and max_tokens {params.max_tokens} exceed the {limit} positions "
            "that the model reads"
        )
    total = len(prompts) * samples_per_prompt
    uniforms_N_T = draw_uniforms(total, params.max_tokens, seed).to(decoder.device)
    with torch.inference_mode():
        if share:
            cache, logits = decoder.prefill(prompts, samples=samples_per_prompt, room=params.max_tokens)
            logits = logits.repeat_interleave(samples_per_prompt, 0)
        else:
            repeated = [prompt for prompt in prompts for _ in range(samples_per_prompt)]
            cache, logits = decoder.prefill(repeated, room=params.max_tokens)
        done = _sample_all(decoder, cache, logits, params, uniforms_N_T, compact)
    return [done[i : i + samples_per_prompt] for i in range(0, total, samples_per_prompt)]


def _sample_all(
    decoder: Decoder,
    cache: KVCache,
    logits_B_V: Tensor,
    params: SamplingParams,
    uniforms_N_T: Tensor,
    compact: bool,
) -> list[Completion]:
    """Draw until every row is done. `live` maps the batch's rows to places in the result."""
    done = [Completion([], [], "length") for _ in uniforms_N_T]
    finished: set[int] = set()
    live = list(range(len(done)))
    uniforms_B_T = uniforms_N_T
    stops = frozenset(params.stop_ids)
    for position in range(params.max_tokens):
        tokens_B, logprobs_B = _draw(logits_B_V, params, uniforms_B_T[:, position])
        for place, token, logprob in zip(live, tokens_B.tolist(), logprobs_B.tolist(), strict=True):
            if place in finished:
                continue
            done[place].tokens.append(token)
            done[place].logprobs.append(logprob)
            if token in stops:
                finished.add(place)
                done[place] = Completion(done[place].tokens, done[place].logprobs, "stop")
        staying = [row for row, place in enumerate(live) if place not in finished]
        if not staying or position + 1 == params.max_tokens:
            break
        if compact and len(live) - len(staying) >= max(1, len(live) * _LEAVE_SHARE):
            order = cache.keep(staying)
            index = torch.tensor(order, device=decoder.device)
            live = [live[row] for row in order]
            tokens_B, uniforms_B_T = tokens_B[index], uniforms_B_T[index]
        logits_B_V = decoder.step(cache, tokens_B)
    return done


def _draw(logits_B_V: Tensor, params: SamplingParams, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
    if params.temperature == 0.0:
        return greedy(logits_B_V)
    return sample(
        logits_B_V, uniforms_B, temperature=params.temperature, top_k=params.top_k, top_p=params.top_p
    )
