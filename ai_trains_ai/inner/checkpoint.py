"""A trained model's folder: what our trainer wrote, laid out like a base's."""

from __future__ import annotations

import shutil
from pathlib import Path

from ai_trains_ai.engine.load import save_model, weights_sha256
from ai_trains_ai.engine.model import Model
from ai_trains_ai.errors import boundary

TOKENIZER_FILES = frozenset(
    {
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "generation_config.json",
        "chat_template.jinja",
    }
)


def write_checkpoint(model: Model, tokenizer_folder: Path, out: Path) -> str:
    """Write weights, config and tokenizer files as one folder that appears whole; return the weights' hash.

    Raises InfrastructureError when the disk does not take it.
    """
    partial = out.with_name(f".{out.name}.partial")
    with boundary(f"writing the checkpoint {out}"):
        for leftover in (partial, out):
            if leftover.exists():
                shutil.rmtree(leftover)
        try:
            save_model(model, partial)
            for file in sorted(tokenizer_folder.iterdir()):
                if file.name in TOKENIZER_FILES:
                    shutil.copyfile(file, partial / file.name)
            digest = weights_sha256(partial)
            partial.rename(out)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return digest
