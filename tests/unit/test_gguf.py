"""GGUF to Hugging Face: the weights that come back are those that went in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from engine_models import VOCAB, random_prompts, small_model

from ai_trains_ai.engine.gguf import convert_gguf
from ai_trains_ai.engine.load import hf_tensors, load_model
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.tokenizer import Tokenizer
from ai_trains_ai.errors import UsageError

gguf = pytest.importorskip("gguf")

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def llama_cpp_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """The row order in which llama.cpp's converter stores queries and keys."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(path: Path, model: Model, *, arch: str = "llama", pre: str = "smollm") -> None:
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    letters = [chr(ord("!") + i) for i in range(VOCAB - 4)]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "ab"]
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (VOCAB - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    for name, tensor in hf_tensors(model).items():
        stem = name.removesuffix(".weight")
        values = tensor.float().numpy()
        if stem.endswith("q_proj"):
            values = llama_cpp_rows(values, config.num_heads)
        if stem.endswith("k_proj"):
            values = llama_cpp_rows(values, config.num_kv_heads)
        if stem in TOP:
            writer.add_tensor(f"{TOP[stem]}.weight", np.ascontiguousarray(values))
        else:
            _, _, layer, part = stem.split(".", 3)
            writer.add_tensor(f"blk.{layer}.{NAMES[part]}.weight", np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_converted_model_is_the_model(tmp_path: Path) -> None:
    model = small_model()
    write_gguf(tmp_path / "model.gguf", model)
    folder = tmp_path / "hf"
    folder.mkdir()
    convert_gguf(tmp_path / "model.gguf", folder, dtype=torch.float32)
    loaded = load_model(folder)
    for name, tensor in hf_tensors(model).items():
        assert torch.equal(hf_tensors(loaded)[name], tensor), name
    tokens = torch.tensor(random_prompts(12))
    assert torch.equal(loaded(tokens), model(tokens))
    assert loaded.config.eos_token_id == 2


def test_a_converted_tokenizer_speaks_chatml(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", small_model())
    folder = tmp_path / "hf"
    folder.mkdir()
    convert_gguf(tmp_path / "model.gguf", folder)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.chat == "chatml"
    assert tokenizer.stop_ids == (2,)
    assert tokenizer.encode("cab12") == [tokenizer.token_id(t) for t in ("c", "ab", "1", "2")]


@pytest.mark.parametrize(
    ("change", "message"), [({"arch": "qwen2"}, "'qwen2' model"), ({"pre": "llama-bpe"}, "'llama-bpe'")]
)
def test_what_was_not_checked_is_refused(tmp_path: Path, change: dict[str, str], message: str) -> None:
    write_gguf(tmp_path / "model.gguf", small_model(), **change)
    with pytest.raises(UsageError, match=message):
        convert_gguf(tmp_path / "model.gguf", tmp_path)


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"not a model" * 10)
    with pytest.raises(UsageError, match="not a readable GGUF file"):
        convert_gguf(tmp_path / "model.gguf", tmp_path)
