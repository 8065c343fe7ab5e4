"""config.json in both directions, and what is refused because it would be computed wrongly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ai_trains_ai.engine.config import ModelConfig, RopeScaling
from ai_trains_ai.engine.model import Model
from ai_trains_ai.errors import UsageError

PLAIN: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def test_defaults_of_a_sparse_config() -> None:
    config = ModelConfig.from_hf_dict(PLAIN)
    assert (config.num_kv_heads, config.head_dim, config.rope_theta) == (4, 8, 10000.0)
    assert not config.tie_embeddings
    assert ModelConfig.from_hf_dict({**PLAIN, "model_type": "qwen3"}).head_dim == 128


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
@pytest.mark.parametrize("scaling", [None, RopeScaling(8.0, 1.0, 4.0, 64)])
def test_round_trip(arch: Any, scaling: RopeScaling | None) -> None:
    config = ModelConfig(
        arch, 50, 32, 64, 2, 4, 2, 16, 1e-6, 5e5, True, 4096, scaling, bos_token_id=1, eos_token_id=(2, 3)
    )
    assert ModelConfig.from_hf_dict(config.to_hf_dict()) == config
    old_style = {key: value for key, value in config.to_hf_dict().items() if key != "rope_parameters"}
    assert ModelConfig.from_hf_dict(old_style) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mistral"}, "model_type 'mistral' is not supported; supported: llama, qwen3"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layers of type sliding_attention"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"num_experts": 8}, "8 experts"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope scaling 'linear'"),
        ({"vocab_size": None}, "lacks 'vocab_size'"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3"),
        ({"head_dim": 7}, "head_dim 7 is odd"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
    ],
)
def test_refusals_name_the_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ModelConfig.from_hf_dict({**PLAIN, **change})


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_as_the_model_has_them(arch: Any, tied: bool) -> None:
    config = ModelConfig(arch, 50, 32, 64, 2, 4, 2, 16, tie_embeddings=tied)
    assert config.num_parameters == sum(p.numel() for p in Model(config).parameters())


def test_initialisation_follows_the_seed() -> None:
    config = ModelConfig.from_hf_dict(PLAIN)
    one, two, other = (Model(config, seed=seed) for seed in (3, 3, 4))
    same = [bool((a == b).all()) for a, b in zip(one.parameters(), two.parameters(), strict=True)]
    assert all(same)
    assert not bool((one.embed == other.embed).any())
    assert abs(float(one.layers[0].mlp.gate_up.weight.detach().std()) - 32**-0.5) < 0.01


def test_the_rope_table_grows_and_keeps_its_values() -> None:
    model = Model(replace(ModelConfig.from_hf_dict(PLAIN), max_positions=600))
    short = [table.clone() for table in model.rope(5)]
    assert model.rope(5)[0].shape == (5, 4)
    long = model.rope(600)
    assert long[0].shape == (600, 4)
    assert all(bool((a == b[:5]).all()) for a, b in zip(short, long, strict=True))
    assert float(long[0][1, 0]) == pytest.approx(0.5403023, abs=1e-6)  # cos(1)
