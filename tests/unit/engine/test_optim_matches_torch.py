"""Optimizers against torch.optim on separate matrices, schedules against torch's schedulers as prime-rl uses them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import lr_scheduler

from ai_trains_ai.config import OptimConfig, SchedulerConfig
from ai_trains_ai.engine.config import ModelConfig
from ai_trains_ai.engine.lora import attach, attached
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.optim import Optimizer, learning_rate

STEPS = 6
CONFIG = ModelConfig("llama", 20, 16, 24, 2, num_heads=2, num_kv_heads=1, head_dim=8, tie_embeddings=True)


def gradients(like: list[Tensor], step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(p.shape, generator=generator) for p in like]


def ours(config: OptimConfig) -> Model:
    trained = Model(CONFIG, seed=0)
    optimizer = Optimizer(trained, config)
    parameters = list(trained.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        assert all(parameter.grad is None for parameter in parameters)
        for parameter, gradient in zip(parameters, gradients(parameters, step), strict=True):
            parameter.grad = gradient.clone()
        optimizer.clip()
        optimizer.step(config.lr)
    return trained


def theirs(make: Any, max_norm: float | None, **options: Any) -> Model:
    trained = Model(CONFIG, seed=0)
    parameters = list(trained.parameters())
    optimizer = make(parameters, **options)
    for step in range(STEPS):
        for parameter, gradient in zip(parameters, gradients(parameters, step), strict=True):
            parameter.grad = gradient.clone()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        optimizer.step()
    return trained


def assert_same(one: Model, two: Model, tolerance: float = 1e-6) -> None:
    pairs = zip(one.named_parameters(), two.parameters(), Model(CONFIG, seed=0).parameters(), strict=True)
    for (name, a), b, before in pairs:
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance, msg=name)
        assert (a - before).abs().max() > 100 * tolerance, f"{name} was trained"


@pytest.mark.parametrize("max_norm", [None, 1.0, 1e6])
def test_adamw_with_clipping_and_decay(max_norm: float | None) -> None:
    config = OptimConfig(lr=0.01, weight_decay=0.1, betas1=0.8, betas2=0.95, max_norm=max_norm)
    other = theirs(torch.optim.AdamW, max_norm, lr=0.01, weight_decay=0.1, betas=(0.8, 0.95), fused=False)
    assert_same(ours(config), other)


@pytest.mark.parametrize("nesterov", [True, False])
def test_sgd(nesterov: bool) -> None:
    config = OptimConfig(type="sgd", lr=0.1, weight_decay=0.02, momentum=0.7, nesterov=nesterov)
    options = {"lr": 0.1, "weight_decay": 0.02, "momentum": 0.7, "nesterov": nesterov}
    assert_same(ours(config), theirs(torch.optim.SGD, 1.0, **options))


def test_muon_treats_each_projection_as_its_own_matrix() -> None:
    """Its change is 0.2·√max(rows, in) times a nearly orthogonal matrix; embeddings and norms go to AdamW."""
    trained = Model(CONFIG, seed=0)
    before = {name: p.detach().clone() for name, p in trained.named_parameters()}
    optimizer = Optimizer(trained, OptimConfig(type="muon", lr=0.01, weight_decay=0.0, max_norm=None))
    parameters = list(trained.parameters())
    for parameter, gradient in zip(parameters, gradients(parameters, 0), strict=True):
        parameter.grad = gradient.clone()
    optimizer.step(0.01)
    qkv = trained.layers[0].attn.qkv
    assert len(qkv.slices()) == 3
    for name, rows in qkv.slices().items():
        change = (qkv.weight - before["blocks.0.attn.qkv.weight"])[rows] / (0.01 * 0.2 * 16**0.5)
        values = torch.linalg.svdvals(change.float())
        assert 0.5 < values.min() <= values.max() < 1.3, name
    adam = (trained.embed - before["embed"]).abs() / 0.01
    torch.testing.assert_close(adam, torch.ones_like(adam), atol=1e-4, rtol=0)


def test_muon_is_torchs_without_nesterov() -> None:
    trained = ours(OptimConfig(type="muon", lr=0.01, weight_decay=0.05, mu=0.9, max_norm=None))
    reference = Model(CONFIG, seed=0)
    down = torch.nn.Parameter(reference.layers[1].mlp.down.weight.detach().clone())
    up = torch.nn.Parameter(reference.layers[1].mlp.gate_up.weight.detach()[24:].clone())
    options = {"momentum": 0.9, "nesterov": False, "adjust_lr_fn": "match_rms_adamw"}
    optimizer = torch.optim.Muon([down, up], lr=0.01, weight_decay=0.05, **options)  # type: ignore[arg-type]
    names = [name for name, _ in reference.named_parameters()]
    for step in range(STEPS):
        drawn = dict(zip(names, gradients(list(reference.parameters()), step), strict=True))
        down.grad, up.grad = drawn["blocks.1.mlp.down.weight"], drawn["blocks.1.mlp.gate_up.weight"][24:]
        optimizer.step()
    torch.testing.assert_close(trained.layers[1].mlp.down.weight, down, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(trained.layers[1].mlp.gate_up.weight[24:], up, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", ["adamw", "muon", "sgd", "sign_sgd"])
def test_an_attached_adapter_is_what_is_trained(kind: Any) -> None:
    trained = Model(CONFIG, seed=0)
    attach(trained, rank=2, alpha=4.0, seed=1)
    pairs = [p for pair in attached(trained).values() for p in (pair.a, pair.b)]
    optimizer = Optimizer(trained, OptimConfig(type=kind, max_norm=None))
    frozen = [p.detach().clone() for p in trained.parameters()]
    before = [p.detach().clone() for p in pairs]
    for pair in pairs:
        pair.grad = torch.ones_like(pair)
    optimizer.step(0.1)
    assert all(torch.equal(a, b) for a, b in zip(trained.parameters(), frozen, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(pairs, before, strict=True))


def by_torch(kind: str, warmup: int, decay: int, low: float, peak: float, steps: int) -> list[float]:
    """The rates of torch's schedulers, put together as prime-rl puts them together."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    floor = low / peak if low > 0 else 1e-8
    parts: list[Any] = []
    marks = []
    if warmup:
        parts.append(lr_scheduler.LinearLR(optimizer, floor, 1.0, warmup))
        marks.append(warmup)
    if kind == "cosine":
        parts.append(lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps - warmup, eta_min=low))
    elif decay:
        parts.append(lr_scheduler.LinearLR(optimizer, 1.0, 1.0, steps - decay - warmup))
        parts.append(lr_scheduler.LinearLR(optimizer, 1.0, floor, decay - 1))
        marks.append(steps - decay)
    schedule = parts[0] if len(parts) == 1 else lr_scheduler.SequentialLR(optimizer, parts, marks)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(
    ("kind", "warmup", "decay", "low"),
    [
        ("linear", 3, 4, 0.0),
        ("linear", 0, 5, 1e-4),
        ("linear", 4, 0, 0.0),
        ("linear", 5, 7, 1e-3),
        ("cosine", 0, 10, 0.0),
        ("cosine", 4, 10, 1e-4),
    ],
)
def test_schedules_are_prime_rls(kind: Any, warmup: int, decay: int, low: float) -> None:
    """Within the 1e-8 of the peak that torch's linear rise from zero starts at."""
    schedule = SchedulerConfig(type=kind, warmup_steps=warmup, decay_steps=decay, min_lr=low)
    found = [learning_rate(schedule, 0.01, step, 12) for step in range(12)]
    assert found == pytest.approx(by_torch(kind, warmup, decay, low, 0.01, 12), rel=1e-6, abs=2e-10)
    assert max(found) == 0.01
