"""The small tokenizer of the nano bases: BPE over the families' own text, digits and stray letters apart."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from ai_trains_ai.seeds import derive
from ai_trains_ai.tasks.modes import MODES, write
from ai_trains_ai.tasks.registry import FAMILIES

SPECIAL = ("<|pad|>", "<|user|>", "<|assistant|>", "<|end|>", "<unk>")
# A word or a digit keeps the space before it, so ordinary text costs no token for spaces.
SPLIT = r"'s| ?[A-Za-z]+| ?[0-9]|\n| ?[^\sA-Za-z0-9]| "
CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'user' %}<|user|>{{ (messages[0]['content'] + '\\n' if messages[0]['role'] == 'system'"
    " and loop.index0 == 1 else '') + m['content'] }}"
    "{% elif m['role'] == 'assistant' %}<|assistant|>{{ m['content'] }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build_tokenizer(vocab_size: int, *, seed: int, samples_per_level: int = 150) -> Tokenizer:
    """Train the tokenizer on generated text: same arguments, same tokenizer.

    Printable ASCII is always in the vocabulary, so any English text can be written; other characters become
    `<unk>`, which `Tokenizer.unknown_share` reports.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(text, special=True) for text in SPECIAL],
        initial_alphabet=["\n", *map(chr, range(32, 127))],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(seed, samples_per_level), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, as transformers reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<|pad|>",
        "eos_token": "<|end|>",
        "unk_token": "<unk>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _corpus(seed: int, samples_per_level: int) -> list[str]:
    rng = random.Random(derive(seed, "tokenizer"))
    texts = []
    for family in FAMILIES.values():
        for level in range(1, 7):
            for number in range(samples_per_level):
                task = family.generate(derive(seed, "tokenizer", number), level)
                texts += [task.prompt, write(family, task, MODES[number % len(MODES)], rng)]
    return texts
