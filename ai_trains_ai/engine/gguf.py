"""Turn a GGUF file of a Llama-architecture model into a Hugging Face folder.

Weights are dequantised once and stored as bfloat16; tokenizer, chat template and special ids come from the
file's own metadata, so nothing else has to be fetched. Only what was checked is accepted: architecture
`llama`, a byte-level BPE tokenizer with the `smollm` pre-tokenizer. Anything else is refused by name.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from ai_trains_ai.engine.config import ModelConfig
from ai_trains_ai.errors import UsageError

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_CONTROL = 3
"""The metadata's token type of special tokens."""


def convert_gguf(source: Path, folder: Path, *, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write config.json, generation_config.json, model.safetensors and the tokenizer files into `folder`.

    folder: exists, and may be half-written when this raises; the caller renames it once it is whole.
    Raises UsageError when `source` is no GGUF file, holds an unsupported model, or `gguf` is not installed.
    """
    reader = _open(source)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(meta, {tensor.name for tensor in reader.tensors})
    tensors = dict(_tensors(reader, config, dtype))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    dtype_name = str(dtype).removeprefix("torch.")
    _write_json(folder / "config.json", {**config.to_hf_dict(), "dtype": dtype_name})
    ids = {
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
    }
    _write_json(folder / "generation_config.json", ids)
    _write_tokenizer(meta, folder)


def _open(source: Path) -> Any:
    try:
        import gguf
    except ImportError as error:
        raise UsageError(
            "reading a GGUF file needs the gguf package: pip install 'ai-trains-ai[smollm]'"
        ) from error
    try:
        return gguf.GGUFReader(source)
    except (ValueError, OSError) as error:
        raise UsageError(f"{source} is not a readable GGUF file: {error}") from error


def _config(meta: dict[str, Any], names: set[str]) -> ModelConfig:
    arch = meta.get("general.architecture")
    if arch != "llama":
        raise UsageError(f"the GGUF file holds a {arch!r} model: only 'llama' can be converted")
    scaling = meta.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise UsageError(f"the GGUF file uses rope scaling {scaling!r}: only unscaled ones can be converted")
    heads, hidden = int(meta["llama.attention.head_count"]), int(meta["llama.embedding_length"])
    return ModelConfig(
        arch="llama",
        vocab_size=len(meta["tokenizer.ggml.tokens"]),
        hidden_size=hidden,
        intermediate_size=int(meta["llama.feed_forward_length"]),
        num_layers=int(meta["llama.block_count"]),
        num_heads=heads,
        num_kv_heads=int(meta.get("llama.attention.head_count_kv", heads)),
        head_dim=int(meta.get("llama.rope.dimension_count", hidden // heads)),
        # Stored as float32: 1e-5 comes back as 9.999999747378752e-06.
        rms_eps=float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        rope_theta=float(meta.get("llama.rope.freq_base", 10000.0)),
        tie_embeddings="output.weight" not in names,
        max_positions=int(meta["llama.context_length"]),
        bos_token_id=_optional_int(meta, "tokenizer.ggml.bos_token_id"),
        eos_token_id=_optional_int(meta, "tokenizer.ggml.eos_token_id"),
        pad_token_id=_optional_int(meta, "tokenizer.ggml.padding_token_id"),
    )


def _optional_int(meta: dict[str, Any], key: str) -> int | None:
    return int(meta[key]) if key in meta else None


def _tensors(reader: Any, config: ModelConfig, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    from gguf.quants import dequantize

    for stored in reader.tensors:
        # A copy: unquantised tensors are read-only views of the mapped file.
        values = np.array(dequantize(stored.data, stored.tensor_type), dtype=np.float32)
        tensor = torch.from_numpy(values.reshape(tuple(int(n) for n in reversed(stored.shape))))
        if ".attn_q." in stored.name:
            tensor = _half_split_rows(tensor, config.num_heads)
        elif ".attn_k." in stored.name:
            tensor = _half_split_rows(tensor, config.num_kv_heads)
        yield _hf_name(stored.name), tensor.to(dtype).contiguous()


def _half_split_rows(weight: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's row order of a query or key matrix.

    It stores the two members of a rotary pair next to each other (rows 2i, 2i+1 of a head); Hugging Face's
    rotation pairs row i with row i + head_dim / 2.
    """
    rows, columns = weight.shape
    pairs = weight.view(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)


def _hf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if kind == "weight" and stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.weight"
    parts = stem.split(".")
    if kind == "weight" and len(parts) == 3 and parts[0] == "blk" and parts[2] in _LAYER_NAMES:
        return f"model.layers.{int(parts[1])}.{_LAYER_NAMES[parts[2]]}.weight"
    raise UsageError(f"the GGUF file holds tensor {name!r}, which a Llama model does not have")


def _write_tokenizer(meta: dict[str, Any], folder: Path) -> None:
    kind, pre = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre")
    if (kind, pre) != ("gpt2", "smollm"):
        raise UsageError(
            f"the GGUF file has a {kind!r} tokenizer with pre-tokenizer {pre!r}: only 'gpt2' with 'smollm' "
            "can be converted"
        )
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = meta["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    described: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(meta["llama.context_length"]),
        "chat_template": meta.get("tokenizer.chat_template"),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = _optional_int(meta, f"tokenizer.ggml.{key}_token_id")
        if index is not None:
            described[f"{name}_token"] = tokens[index]
    _write_json(folder / "tokenizer_config.json", described)


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n")
