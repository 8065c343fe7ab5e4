"""The fused training path against one plain autograd pass a sequence: values and every gradient."""

from __future__ import annotations

import pytest
import torch
from random_models import VOCAB, assert_same_gradients, gradients, group, random_model, reference, tokens

from ai_trains_ai.engine import attention, fused, heads, logprobs
from ai_trains_ai.engine.config import Arch
from ai_trains_ai.engine.lora import attach, attached
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.train import TokenGroup, group_logprobs, micro_batches, share_prefixes
from ai_trains_ai.errors import UsageError

RAGGED = [
    group(20, 9, 3, 14, 1, seed=1),
    group(1, 5, 6, seed=2),
    group(17, 4, 12, 2, 7, seed=3),
    group(40, 31, seed=4),
]
"""Padded prompts, a prompt of one token, tiles of several lengths, groups of different sizes."""


def weights_like(logprobs_N_T: torch.Tensor) -> torch.Tensor:
    return torch.randn(logprobs_N_T.shape, generator=torch.Generator().manual_seed(5))


def compare(
    model: Model, groups: list[TokenGroup], *, temperature: float = 1.0, tolerance: float = 2e-5
) -> None:
    expected = reference(model, groups, temperature)
    weight = weights_like(expected)
    batch = group_logprobs(model, groups, temperature=temperature)
    torch.testing.assert_close(batch.logprobs_N_T, expected, atol=tolerance, rtol=tolerance)
    lengths = torch.tensor([len(c) for g in groups for c in g.completions])
    assert torch.equal(batch.mask_N_T.sum(1), lengths)
    assert not batch.logprobs_N_T[~batch.mask_N_T].any()
    found = gradients(model, (batch.logprobs_N_T * weight).sum())
    assert_same_gradients(found, gradients(model, (expected * weight).sum()), tolerance)


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
@pytest.mark.parametrize(("kv_heads", "tied"), [(4, True), (2, False), (1, True)])
def test_equals_plain_autograd(arch: Arch, kv_heads: int, tied: bool) -> None:
    compare(random_model(arch, kv_heads=kv_heads, tied=tied), RAGGED)


def test_temperature() -> None:
    compare(random_model(), RAGGED, temperature=0.7)


def test_one_layer_and_one_sequence() -> None:
    compare(random_model(layers=1), [group(1, 1)])
    compare(random_model(layers=1), [group(6, 5, seed=9)])


def test_sharp_scores_are_stabilised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores beyond what exp takes unshifted: the maxima are subtracted, padding and future left out of them."""
    used = []
    plain = attention._subtract_maxima
    monkeypatch.setattr(attention, "_subtract_maxima", lambda *a: used.append(1) or plain(*a))
    compare(random_model(sharpness=0.5), RAGGED)
    assert not used
    compare(random_model(sharpness=6.0), RAGGED, tolerance=3e-4)
    assert used


@pytest.mark.parametrize("kept", [0, 1 << 25])
def test_long_sequences_in_parts(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    """Scores in runs of 32 time steps and one group at a time, kept or computed again; strips of rows."""
    monkeypatch.setattr(heads, "CELLS", 2048)
    monkeypatch.setattr(fused, "SCORES_KEPT", kept)
    monkeypatch.setattr(fused, "CACHED", 1024)
    monkeypatch.setattr(logprobs, "STRIP", 600)
    monkeypatch.setattr(logprobs, "KEPT", kept)
    compare(
        random_model(layers=2), [group(70, 90, 40, seed=1), group(66, 75, 75, seed=2), group(9, 100, seed=3)]
    )


def test_logits_of_any_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head's exponentials: as they are, shifted by one number, or by row maxima when rows differ much."""
    hidden = torch.randn(6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    targets = torch.tensor([0, 1, 2, 3, 4, 5])
    for scale, shift in ((1.0, 0.0), (1.0, 500.0), (60.0, 0.0)):
        head = torch.randn(VOCAB, 8, generator=torch.Generator().manual_seed(1)) * scale
        ours, theirs = (hidden.clone().requires_grad_() for _ in range(2))
        bias = torch.full((6, 1), shift)
        heads_1, heads_2 = (torch.cat((head, torch.ones(VOCAB, 1)), 1).requires_grad_() for _ in range(2))
        found, entropy = logprobs.TargetLogprob.apply(
            torch.cat((ours, bias), 1), heads_1, targets, 1.0, True, "fp32"
        )
        full = torch.log_softmax((torch.cat((theirs, bias), 1) @ heads_2.T).double(), -1)
        torch.testing.assert_close(found.double(), full[range(6), targets], atol=2e-4, rtol=1e-5)
        torch.testing.assert_close(entropy.double(), -(full.exp() * full).sum(-1), atol=2e-4, rtol=1e-4)
        found.sum().backward()
        full[range(6), targets].sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad, atol=3e-4 * scale, rtol=1e-3)
        torch.testing.assert_close(heads_1.grad[:, :8], heads_2.grad[:, :8], atol=3e-4, rtol=1e-3)


def test_entropy() -> None:
    model = random_model()
    groups = [group(6, 4, 3)]
    found = group_logprobs(model, groups, temperature=0.5, entropy=True).entropy_N_T
    assert found is not None
    assert not found.requires_grad
    logits = model(torch.tensor([[*groups[0].prompt, *groups[0].completions[1]]]))[0, 5:-1] / 0.5
    torch.testing.assert_close(found[1, :3], torch.distributions.Categorical(logits=logits).entropy())
    assert found[1, 3] == 0.0
    assert group_logprobs(model, groups).entropy_N_T is None


@pytest.mark.parametrize("rank", [2, 24])
@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_lora_gradients_thin_and_merged(arch: Arch, rank: int) -> None:
    """Rank 2 is carried along as a thin product, rank 24 is folded into the weights: the same numbers."""
    model = random_model(arch)
    attach(model, rank=rank, alpha=4.0, seed=3)
    with torch.no_grad():
        for pair in attached(model).values():
            pair.b.copy_(torch.randn(pair.b.shape, generator=torch.Generator().manual_seed(4)) * 0.1)
    compare(model, RAGGED)


def test_lora_is_merged_where_that_is_cheaper() -> None:
    def merged(rank: int) -> set[bool]:
        model = random_model()
        attach(model, rank=rank, alpha=4.0, seed=3)
        matrices = (fused.FoldedMatrix(p, fused.Fold(), torch.float32) for p in model.projections())
        return {matrix.merged for matrix in matrices}

    assert merged(2) == {False}
    assert merged(24) == {True}


def test_frozen_weights_get_no_gradient() -> None:
    model = random_model()
    model.requires_grad_(False)
    model.layers[1].attn.o.weight.requires_grad_(True)
    expected = gradients(model, reference(model, RAGGED).sum())
    assert list(expected) == ["blocks.1.attn.o.weight"]
    assert_same_gradients(gradients(model, group_logprobs(model, RAGGED).logprobs_N_T.sum()), expected, 2e-5)


def test_without_gradients_nothing_is_kept() -> None:
    model = random_model()
    with torch.no_grad():
        batch = group_logprobs(model, RAGGED)
    assert not batch.logprobs_N_T.requires_grad
    torch.testing.assert_close(batch.logprobs_N_T, group_logprobs(model, RAGGED).logprobs_N_T, atol=0, rtol=0)


@pytest.mark.parametrize("precision", ["mixed", "bf16"])
def test_lower_precision_is_close(precision: str) -> None:
    """bf16 has 8 bits: a log-probability is off by hundredths, a gradient's direction by a per cent or so."""
    model = random_model()
    exact = group_logprobs(model, RAGGED)
    weight = weights_like(exact.logprobs_N_T)
    expected = gradients(model, (exact.logprobs_N_T * weight).sum())
    rough = group_logprobs(model, RAGGED, precision=precision)
    assert (rough.logprobs_N_T - exact.logprobs_N_T).abs().max() < 0.3
    assert (rough.logprobs_N_T - exact.logprobs_N_T).abs().mean() < 0.03
    assert_same_gradients(gradients(model, (rough.logprobs_N_T * weight).sum()), expected, 0.1)
    assert torch.get_float32_matmul_precision() == "highest"


def test_same_input_same_bits() -> None:
    def once() -> dict[str, torch.Tensor]:
        model = random_model("qwen3")
        batch = group_logprobs(model, RAGGED)
        return {"logprobs": batch.logprobs_N_T.detach(), **gradients(model, batch.logprobs_N_T.sum())}

    first, second = once(), once()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_micro_batches_are_the_whole() -> None:
    """Consecutive runs within the budget; an oversized group is divided; results and gradients add up."""
    model = random_model()
    runs = micro_batches(RAGGED, 45)
    assert [[(len(g.prompt), [len(c) for c in g.completions]) for g in run] for run in runs] == [
        [(20, [9, 3, 14])],
        [(20, [1]), (1, [5, 6])],
        [(17, [4, 12, 2, 7])],
        [(40, [31])],
    ]
    weight = weights_like(group_logprobs(model, RAGGED).logprobs_N_T)
    whole = gradients(model, (group_logprobs(model, RAGGED).logprobs_N_T * weight).sum())
    done, loss = 0, torch.zeros(())
    for run in runs:
        found = group_logprobs(model, run).logprobs_N_T
        loss = loss + (found * weight[done : done + found.shape[0], : found.shape[1]]).sum()
        done += found.shape[0]
    assert done == sum(len(g.completions) for g in RAGGED)
    assert_same_gradients(gradients(model, loss), whole, 2e-5)


def test_sequences_share_their_prefixes() -> None:
    """Whole sequences, prompt tokens included: as if each had been computed alone."""
    shared = tokens(15, 1)
    sequences = [
        [*shared, *tokens(6, 2)],
        tokens(9, 3),
        [*shared, *tokens(11, 4)],
        [*shared[:12], *tokens(4, 5)],
    ]
    groups, order = share_prefixes(sequences)
    assert sorted(order) == [0, 1, 2, 3]
    assert sorted(len(g.completions) for g in groups) == [1, 3]
    rebuilt = [[*g.prompt, *c] for g in groups for c in g.completions]
    assert [sequences[index] for index in order] == rebuilt
    model = random_model()
    alone = reference(model, [TokenGroup(sequences[i][:1], [sequences[i][1:]]) for i in order])
    weight = weights_like(alone)
    expected = gradients(model, (alone * weight).sum())
    batch = group_logprobs(model, groups, prompts=True)
    torch.testing.assert_close(batch.logprobs_N_T, alone, atol=2e-5, rtol=1e-5)
    assert torch.equal(batch.mask_N_T.sum(1), torch.tensor([len(sequences[i]) - 1 for i in order]))
    assert_same_gradients(gradients(model, (batch.logprobs_N_T * weight).sum()), expected, 2e-5)
    with pytest.raises(UsageError, match="sequence 1 has 1 tokens"):
        share_prefixes([[1, 2], [3]])


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], "no groups"),
        ([TokenGroup([], [[1]])], "group 0 has an empty prompt"),
        ([group(2, 1), TokenGroup([1], [])], "group 1 has no completions"),
        ([TokenGroup([1], [[2], []])], "group 0 has an empty completion"),
        ([group(500, 14)], "needs 513 positions, the model has 512"),
    ],
)
def test_refusals(groups: list[TokenGroup], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        group_logprobs(random_model(), groups)


def test_temperature_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="temperature 0"):
        group_logprobs(random_model(), RAGGED, temperature=0.0)
