"""Schedules worked by hand; optimizers against their definitions; adapters that start as nothing and merge exactly."""

from __future__ import annotations

import pytest
import torch

from ai_trains_ai.config import OptimConfig, SchedulerConfig
from ai_trains_ai.engine.config import ModelConfig
from ai_trains_ai.engine.lora import attach, attached, merge
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.optim import Optimizer, learning_rate
from ai_trains_ai.engine.train import TokenGroup, group_logprobs
from ai_trains_ai.errors import UsageError

GROUPS = [TokenGroup([1, 2, 3], [[4, 5], [6]]), TokenGroup([7, 8], [[9, 3, 2]])]


@pytest.fixture
def model() -> Model:
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2}
    return Model(ModelConfig(arch="llama", vocab_size=32, head_dim=4, tie_embeddings=True, **shape), seed=3)


def rates(scheduler: SchedulerConfig, steps: int) -> list[float]:
    return [learning_rate(scheduler, 1.0, step, steps) for step in range(steps)]


def test_schedules_by_hand():
    assert rates(SchedulerConfig(type="constant", warmup_steps=3), 3) == [1.0, 1.0, 1.0]
    linear = SchedulerConfig(type="linear", warmup_steps=2, decay_steps=3, min_lr=0.2)
    assert rates(linear, 7) == pytest.approx([0.2, 0.6, 1.0, 1.0, 1.0, 0.6, 0.2])
    cosine = SchedulerConfig(type="cosine", warmup_steps=1, min_lr=0.0)
    assert rates(cosine, 5) == pytest.approx([0.0, 1.0, 0.853553, 0.5, 0.146447], abs=1e-6)
    with pytest.raises(UsageError, match="max_steps 4"):
        learning_rate(linear, 1.0, 0, 4)


@pytest.mark.parametrize("kind", ["adamw", "muon", "sgd", "sign_sgd"])
def test_every_optimizer_lowers_the_loss_and_clears_its_gradients(model, kind):
    optimizer = Optimizer(model, OptimConfig(type=kind, weight_decay=0.0))
    lr = {"adamw": 1e-2, "muon": 2e-2, "sgd": 1e-2, "sign_sgd": 1e-3}[kind]
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = -group_logprobs(model, GROUPS).logprobs_N_T.sum()
        loss.backward()
        losses.append(loss.item())
        optimizer.clip()
        optimizer.step(lr)
    assert losses[-1] < losses[0] - 0.5
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_sign_sgd_moves_each_weight_by_the_rate(model):
    before = model.embed.detach().clone()
    model.embed.grad = torch.zeros_like(model.embed)
    model.embed.grad[0, 0], model.embed.grad[0, 1] = 5.0, -0.001
    Optimizer(model, OptimConfig(type="sign_sgd", weight_decay=0.1)).step(0.5)
    moved = model.embed.detach() - before * (1 - 0.5 * 0.1)
    assert moved[0, 0].item() == pytest.approx(-0.5)
    assert moved[0, 1].item() == pytest.approx(0.5)
    assert moved[0, 2].item() == pytest.approx(0.0)


def test_clipping_scales_to_the_limit_and_reports_the_norm_before(model):
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    model.embed.grad[0, 0], model.embed.grad[0, 1] = 3.0, 4.0
    optimizer = Optimizer(model, OptimConfig(max_norm=1.0))
    assert optimizer.clip() == pytest.approx(5.0)
    assert model.embed.grad[0, 1].item() == pytest.approx(0.8, abs=1e-5)


def test_an_adapter_starts_as_nothing_learns_alone_and_merges_to_the_same_model(model):
    with torch.no_grad():
        plain = group_logprobs(model, GROUPS).logprobs_N_T
    frozen = [parameter.detach().clone() for parameter in model.parameters()]
    attach(model, rank=4, alpha=8.0, seed=5)
    assert len(attached(model)) == 2 * 7
    with torch.no_grad():
        torch.testing.assert_close(group_logprobs(model, GROUPS).logprobs_N_T, plain)
    optimizer = Optimizer(model, OptimConfig(weight_decay=0.0))
    for _ in range(5):
        optimizer.zero_grad()
        (-group_logprobs(model, GROUPS).logprobs_N_T.sum()).backward()
        optimizer.step(1e-2)
    assert all(torch.equal(a, b) for a, b in zip(frozen, model.parameters(), strict=True))
    with torch.no_grad():
        trained = group_logprobs(model, GROUPS).logprobs_N_T
        assert trained.sum() > plain.sum() + 0.5
        merge(model)
        assert not attached(model)
        torch.testing.assert_close(group_logprobs(model, GROUPS).logprobs_N_T, trained, atol=1e-5, rtol=1e-5)


def test_adapters_are_drawn_from_the_seed_by_name(model):
    attach(model, rank=2, alpha=2.0, seed=5)
    first = {name: pair.a.detach().clone() for name, pair in attached(model).items()}
    attach(model, rank=2, alpha=2.0, seed=5)
    assert all(torch.equal(pair.a, first[name]) for name, pair in attached(model).items())
    attach(model, rank=2, alpha=2.0, seed=6)
    assert not any(torch.equal(pair.a, first[name]) for name, pair in attached(model).items())
