"""Small random models with a working tokenizer, in the folder layout of the shipped bases."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|pad|>", "<|user|>", "<|assistant|>", "<|end|>", "<unk>")
LETTERS = "\n " + "abcdefghijklmnopqrstuvwxyz" + "0123456789" + ".:+-=ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def write_character_tokenizer(folder: Path, letters: str = LETTERS) -> None:
    """tokenizer.json and tokenizer_config.json of a tokenizer with one token a character, nano chat format."""
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *dict.fromkeys(letters)))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"(?s)."), behavior="isolated")
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
