"""The cache as a session: rows that wait, join, read several tokens at once, and leave, in any order."""

from __future__ import annotations

import random

import pytest
import torch
from engine_models import VOCAB, next_logits, random_prompts, small_model

from ai_trains_ai.engine.config import Arch
from ai_trains_ai.engine.decode import Decoder
from ai_trains_ai.engine.kvcache import KVCache
from ai_trains_ai.engine.model import Model
from ai_trains_ai.errors import UsageError


def check(model: Model, logits: torch.Tensor, rows: list[list[int]]) -> None:
    """Each row's logits are what the plain forward pass gives for its whole token list."""
    expected = torch.stack([next_logits(model, tokens) for tokens in rows])
    assert torch.allclose(logits, expected, atol=2e-4), float((logits - expected).abs().max())


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_prefill_reads_prompts_of_any_length(arch: Arch) -> None:
    model = small_model(arch)
    prompts = random_prompts(1, 40, 16, 17, 3)
    cache, logits = Decoder(model).prefill(prompts, samples=[1, 2, 1, 3, 1])
    check(model, logits, prompts)
    assert cache.positions == [1, 40, 40, 16, 17, 17, 17, 3]


def test_episodes_that_wait_for_their_tools() -> None:
    """The example of the module's text, with observations of different lengths and a shared prompt."""
    model = small_model()
    decoder = Decoder(model)
    (spec,) = random_prompts(50)
    cache, _ = decoder.prefill([spec], samples=4, room=4)
    rows = [[*spec] for _ in range(4)]
    for step in range(6):
        tokens = [(7 * row + step) % VOCAB for row in range(4)]
        for row, token in zip(rows, tokens, strict=True):
            row.append(token)
        check(model, decoder.step(cache, torch.tensor(tokens)), rows)

    waiting = cache.take([1, 3])
    assert cache.keep([0, 2]) == [0, 2]
    for step in range(3):
        tokens = [step, step + 1]
        rows[0].append(tokens[0])
        rows[2].append(tokens[1])
        check(model, decoder.step(cache, torch.tensor(tokens)), [rows[0], rows[2]])

    observations = random_prompts(90, 5, seed=3)
    logits = decoder.extend(waiting, observations)
    rows[1] += observations[0]
    rows[3] += observations[1]
    check(model, logits, [rows[1], rows[3]])

    cache.join(waiting)
    assert len(cache.prefixes) == 1  # the prompt is shared again, not copied
    order = [rows[0], rows[2], rows[1], rows[3]]
    for row in order:
        row.append(11)
    check(model, decoder.step(cache, torch.tensor([11] * 4)), order)


def test_newcomers_join_a_running_batch() -> None:
    model = small_model()
    decoder = Decoder(model)
    first, second = random_prompts(12, 30), random_prompts(70, 2, 9, seed=4)
    cache, _ = decoder.prefill(first, samples=3, room=8)
    rows = [[*prompt] for prompt in first for _ in range(3)]
    for row in rows:
        row.append(5)
    decoder.step(cache, torch.tensor([5] * 6))
    newcomers, logits = decoder.prefill(second, samples=[1, 4, 2])
    check(model, logits, second)
    cache.join(newcomers)
    rows += [[*prompt] for prompt, count in zip(second, (1, 4, 2), strict=True) for _ in range(count)]
    for step in range(20):
        tokens = [(3 * i + step) % VOCAB for i in range(len(rows))]
        for row, token in zip(rows, tokens, strict=True):
            row.append(token)
        logits = decoder.step(cache, torch.tensor(tokens))
    check(model, logits, rows)


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_operations(seed: int) -> None:
    model = small_model("qwen3" if seed % 2 else "llama", layers=2)
    decoder, draw = Decoder(model), random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(VOCAB) for _ in range(count)]

    def prefill() -> tuple[KVCache, list[list[int]]]:
        prompts = [tokens(draw.randrange(1, 25)) for _ in range(draw.randrange(1, 4))]
        counts = [draw.randrange(1, 4) for _ in prompts]
        cache, logits = decoder.prefill(prompts, samples=counts, room=draw.choice([1, 30]))
        check(model, logits, prompts)
        return cache, [[*p] for p, count in zip(prompts, counts, strict=True) for _ in range(count)]

    cache, rows = prefill()
    parked: list[tuple[KVCache, list[list[int]]]] = []
    for _ in range(14):
        action = draw.choice(["step", "step", "extend", "keep", "park", "resume", "join"])
        if action == "step":
            new = tokens(len(rows))
            rows = [[*row, token] for row, token in zip(rows, new, strict=True)]
            check(model, decoder.step(cache, torch.tensor(new)), rows)
        elif action == "extend":
            texts = [tokens(draw.randrange(1, 9)) for _ in rows]
            rows = [[*row, *text] for row, text in zip(rows, texts, strict=True)]
            check(model, decoder.extend(cache, texts), rows)
        elif action == "keep" and len(rows) > 1:
            kept = draw.sample(range(len(rows)), draw.randrange(1, len(rows)))
            order = cache.keep(kept)
            assert sorted(order) == sorted(kept)
            rows = [rows[i] for i in order]
        elif action == "park" and len(rows) > 1:
            chosen = draw.sample(range(len(rows)), draw.randrange(1, len(rows)))
            parked.append((cache.take(chosen), [rows[i] for i in chosen]))
            staying = [i for i in range(len(rows)) if i not in chosen]
            rows = [rows[i] for i in cache.keep(staying)]
        elif action in ("resume", "join"):
            other, others = parked.pop() if action == "resume" and parked else prefill()
            cache.join(other)
            rows += others
    new = tokens(len(rows))
    check(
        model, decoder.step(cache, torch.tensor(new)), [[*row, t] for row, t in zip(rows, new, strict=True)]
    )


def test_leaving_rows_free_their_prompts() -> None:
    model = small_model()
    decoder = Decoder(model)
    prompts = random_prompts(4, 6, 8, 10)
    cache, _ = decoder.prefill(prompts, samples=2)
    assert cache.keep([0, 6, 7]) == [0, 6, 7]
    assert [prefix.length for prefix in cache.prefixes] == [4, 10]
    check(
        model,
        decoder.step(cache, torch.tensor([1, 2, 3])),
        [[*prompts[0], 1], [*prompts[3], 2], [*prompts[3], 3]],
    )


def test_extend_needs_tokens_for_every_row() -> None:
    decoder = Decoder(small_model())
    cache, _ = decoder.prefill(random_prompts(4), samples=2)
    with pytest.raises(UsageError, match="2 rows"):
        decoder.extend(cache, [[1]])
    with pytest.raises(UsageError, match="at least one token"):
        decoder.extend(cache, [[1], []])


def test_memory_that_was_never_written_is_never_read() -> None:
    """In deterministic mode torch fills fresh memory with NaN; one read of it would spoil a row's logits."""
    model = small_model()
    decoder = Decoder(model)
    torch.use_deterministic_algorithms(True)
    try:
        prompts = random_prompts(3, 21)
        cache, _ = decoder.prefill(prompts, samples=3, room=40)
        rows = [[*prompt] for prompt in prompts for _ in range(3)]
        rows = [rows[row] for row in cache.keep([0, 1, 3])]
        newcomers, _ = decoder.prefill(random_prompts(33, seed=8), room=1)
        cache.join(newcomers)
        rows.append(random_prompts(33, seed=8)[0])
        for token in range(20):
            logits = decoder.step(cache, torch.tensor([token] * 4))
            for row in rows:
                row.append(token)
    finally:
        torch.use_deterministic_algorithms(False)
    check(model, logits, rows)
