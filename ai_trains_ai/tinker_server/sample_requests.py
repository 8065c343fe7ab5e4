"""Sample requests of the API, checked against the model, sampled together, encoded. On the worker thread."""

from __future__ import annotations

from collections.abc import Sequence

from ai_trains_ai.errors import UsageError
from ai_trains_ai.seeds import derive
from ai_trains_ai.tinker_server import requests as body
from ai_trains_ai.tinker_server.futures import Failed, Outcome, Proto
from ai_trains_ai.tinker_server.messages import sample_output
from ai_trains_ai.tinker_server.models import Base, BaseModels, SamplerWeights
from ai_trains_ai.tinker_server.sampling import SampleRequest, sample_batch, score_prompt


def sample_all(
    bases: BaseModels, weights: SamplerWeights, payloads: Sequence[tuple[str, body.Sample]], seed: int
) -> list[Outcome]:
    """payloads: sampler id and request. seed: for requests without one. Unusable requests
    fail by themselves, the others are sampled together.
    """
    base = bases.load(weights.base_model)
    outcomes: list[Outcome | None] = []
    usable: list[SampleRequest] = []
    for sampler_id, request in payloads:
        try:
            usable.append(_resolve(base, sampler_id, request, seed))
            outcomes.append(None)
        except UsageError as error:
            outcomes.append(Failed(str(error), "user"))
    results = iter(_sample(bases, base, weights, usable) if usable else [])
    return [next(results) if outcome is None else outcome for outcome in outcomes]


def _sample(
    bases: BaseModels, base: Base, weights: SamplerWeights, usable: Sequence[SampleRequest]
) -> list[Outcome]:
    sampled = sample_batch(bases.decoder(weights), usable, base.tokenizer)
    done: list[Outcome] = []
    for request, sequences in zip(usable, sampled, strict=True):
        logprobs, topk = None, None
        if request.prompt_last_n is not None:
            with bases.attached(weights) as model:
                logprobs, topk = score_prompt(model, request)
        done.append(Proto(sample_output(sequences, logprobs, topk)))
    return done


def _resolve(base: Base, sampler_id: str, request: body.Sample, seed: int) -> SampleRequest:
    """Raises UsageError for a prompt or settings that this model cannot be sampled with."""
    prompt = tuple(token for chunk in request.prompt.chunks for token in chunk.tokens)
    params, config = request.sampling_params, base.model.config
    if not prompt or min(prompt) < 0 or max(prompt) >= config.vocab_size:
        raise UsageError(f"the prompt must be one or more tokens between 0 and {config.vocab_size - 1}")
    room = config.max_positions - len(prompt)
    if room < (params.max_tokens or 1):
        raise UsageError(
            f"a prompt of {len(prompt)} tokens and max_tokens {params.max_tokens or 1} exceed the "
            f"model's {config.max_positions} positions"
        )
    stop = [params.stop] if isinstance(params.stop, str) else params.stop
    texts = tuple(item for item in stop or () if isinstance(item, str) and item)
    ids = base.tokenizer.stop_ids if stop is None or texts else [i for i in stop if isinstance(i, int)]
    last_n = request.prompt_logprobs_last_n
    if last_n is not None and not (request.prompt_logprobs and last_n < len(prompt)):
        raise UsageError(
            "prompt_logprobs_last_n needs prompt_logprobs, and must be below the prompt's length"
        )
    scored = bool(request.prompt_logprobs or request.topk_prompt_logprobs)
    return SampleRequest(
        prompt=prompt,
        samples=request.num_samples,
        max_tokens=params.max_tokens or room,
        temperature=params.temperature,
        top_k=max(0, params.top_k),
        top_p=params.top_p,
        seed=derive(seed, sampler_id, request.seq_id or 0) if params.seed is None else params.seed,
        stop_ids=frozenset(ids),
        stop_texts=texts,
        prompt_last_n=(last_n or len(prompt)) if scored else None,
        prompt_top_k=min(request.topk_prompt_logprobs, config.vocab_size),
    )
