"""Small random models with a working tokenizer, in the folder layout of the shipped bases."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from ai_trains_ai.engine.config import ModelConfig
from ai_trains_ai.engine.load import save_model
from ai_trains_ai.engine.model import Model

SPECIAL = ("<|pad|>", "<|user|>", "<|assistant|>", "<|end|>", "<unk>")
LETTERS = "\n " + "abcdefghijklmnopqrstuvwxyz" + "0123456789" + ".:+-=ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def write_character_tokenizer(folder: Path, letters: str = LETTERS) -> None:
    """tokenizer.json and tokenizer_config.json of a tokenizer with one token a character, nano chat format."""
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *dict.fromkeys(letters)))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<|pad|>",
        "eos_token": "<|end|>",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_random_model(folder: Path, *, seed: int = 0, max_positions: int = 256) -> None:
    """A whole base folder: a two-layer Llama of about 25k random parameters, and the character tokenizer."""
    write_character_tokenizer(folder)
    config = ModelConfig(
        arch="llama",
        vocab_size=len(SPECIAL) + len(dict.fromkeys(LETTERS)),
        hidden_size=32,
        intermediate_size=64,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        tie_embeddings=True,
        max_positions=max_positions,
        eos_token_id=SPECIAL.index("<|end|>"),
        pad_token_id=SPECIAL.index("<|pad|>"),
    )
    save_model(Model(config, seed=seed), folder)
