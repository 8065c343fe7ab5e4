"""LoRA: sampling, training and merging compute the same thing, and gradients follow the chain rule."""

from __future__ import annotations

import torch

from ai_trains_ai.engine import lora
from ai_trains_ai.engine.config import ModelConfig
from ai_trains_ai.engine.generate import generate
from ai_trains_ai.engine.load import hf_tensors
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.sampling import SamplingParams
from ai_trains_ai.engine.train import TokenGroup, group_logprobs

GROUPS = [TokenGroup([1, 2, 3, 4], [[5, 6, 7], [8, 9]]), TokenGroup([3, 1], [[2, 2, 2, 2]])]


CONFIG = ModelConfig("llama", 20, 16, 24, 2, num_heads=2, num_kv_heads=1, head_dim=8, tie_embeddings=True)


def adapted() -> Model:
    """A model with an adapter of rank 2 and scale 3 that does something."""
    made = Model(CONFIG, seed=0)
    lora.attach(made, rank=2, alpha=6.0, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for pair in lora.attached(made).values():
            pair.b.copy_(0.2 * torch.randn(pair.b.shape, generator=generator))
    return made


def test_forward_backward_sampling_and_merging_agree() -> None:
    made = adapted()
    before = group_logprobs(made, GROUPS)
    before.logprobs_N_T.sum().backward()
    for name, pair in lora.attached(made).items():
        assert pair.a.grad is not None and pair.a.grad.abs().max() > 0, name  # noqa: PT018
        assert pair.b.grad is not None and pair.b.grad.abs().max() > 0, name  # noqa: PT018
    assert all(p.grad is None for p in made.parameters()), "the weights are frozen"
    plain = group_logprobs(Model(CONFIG, seed=0), GROUPS).logprobs_N_T
    assert not torch.allclose(before.logprobs_N_T, plain, atol=1e-2)
    params = SamplingParams(max_tokens=6)
    sampled = generate(made, [[1, 2, 3]], params, samples_per_prompt=4, seed=0)
    lora.merge(made)
    assert lora.attached(made) == {}
    after = group_logprobs(made, GROUPS)
    torch.testing.assert_close(after.logprobs_N_T, before.logprobs_N_T, atol=1e-5, rtol=1e-5)
    again = generate(made, [[1, 2, 3]], params, samples_per_prompt=4, seed=0)
    assert [c.tokens for c in sampled[0]] == [c.tokens for c in again[0]]


def test_the_adapters_gradient_follows_from_the_merged_weights() -> None:
    """d/db = scale · dW aᵀ and d/da = scale · bᵀ dW, with dW from a model whose weights hold the adapter."""
    made, merged = adapted(), adapted()
    lora.merge(merged)
    merged.requires_grad_(True)
    for trained in (made, merged):
        group_logprobs(trained, GROUPS).logprobs_N_T.sum().backward()
    for with_pair, whole in zip(made.projections(), merged.projections(), strict=True):
        assert whole.weight.grad is not None
        for name, rows in whole.slices().items():
            pair, change = with_pair.lora[name], whole.weight.grad[rows]
            torch.testing.assert_close(pair.b.grad, pair.scale * change @ pair.a.T, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(pair.a.grad, pair.scale * pair.b.T @ change, atol=1e-4, rtol=1e-4)


def test_merging_adds_scale_b_a_to_each_projection_and_nothing_else() -> None:
    made, plain = adapted(), hf_tensors(Model(CONFIG, seed=0))
    pairs = lora.attached(made)
    lora.merge(made)
    for name, after in hf_tensors(made).items():
        pair = pairs.get(name.removeprefix("model.").removesuffix(".weight"))
        if pair is None:
            assert torch.equal(after, plain[name]), name
        else:
            expected = plain[name] + 3.0 * pair.b.detach() @ pair.a.detach()
            torch.testing.assert_close(after, expected, msg=name)
    assert len(pairs) == 14  # 7 projections in each of 2 layers
