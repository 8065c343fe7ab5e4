"""Encoding, the two chat formats, and text that tries to be a special token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from ai_trains_ai.engine.tokenizer import Tokenizer
from ai_trains_ai.errors import UsageError

NANO = ["<|pad|>", "<unk>", "<|user|>", "<|assistant|>", "<|end|>"]
CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LETTERS = "abcdefghijklmnopqrstuvwxyz 0123456789?+"


def nano_raw() -> RawTokenizer:
    """A vocabulary of single characters (and what a few lines merge to), with <unk> for the rest."""
    raw = RawTokenizer(models.BPE(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=80, special_tokens=NANO, initial_alphabet=list(LETTERS), show_progress=False
    )
    raw.train_from_iterator(["what is two plus two", "what is 1 + 2"], trainer)
    raw.decoder = decoders.Fuse()
    return raw


def chatml_raw() -> RawTokenizer:
    """Byte-level: spells any text."""
    raw = RawTokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=CHATML,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(["the cat and the dog"], trainer)
    raw.decoder = decoders.ByteLevel()
    return raw


@given(st.text(alphabet=LETTERS))
def test_nano_round_trip(text: str) -> None:
    tokenizer = Tokenizer(nano_raw())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.unknown_share(text) == 0.0


BYTE_LEVEL = Tokenizer(chatml_raw())


@given(st.text())
def test_byte_level_round_trip(text: str) -> None:
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text)) == text
    assert BYTE_LEVEL.unknown_share(text) == 0.0


def test_nano_format() -> None:
    tokenizer = Tokenizer(nano_raw())
    user, assistant, end = (tokenizer.token_id(name) for name in ("<|user|>", "<|assistant|>", "<|end|>"))
    assert tokenizer.chat == "nano"
    assert tokenizer.encode_prompt("what is 2 + 3?") == [user, *tokenizer.encode("what is 2 + 3?"), assistant]
    assert tokenizer.encode_prompt("a", system="b") != tokenizer.encode_prompt("a")
    assert tokenizer.encode_prompt("a", system="b") == [user, *tokenizer.encode("b\na"), assistant]
    assert tokenizer.stop_ids == (end,)
    assert tokenizer.pad_id == tokenizer.token_id("<|pad|>")
    assert tokenizer.decode([user, *tokenizer.encode("two"), end]) == "two"
    with pytest.raises(UsageError, match="no role 'tool'"):
        tokenizer.encode_message("tool", "x")


def test_unknown_share_counts_what_the_vocabulary_cannot_spell() -> None:
    tokenizer = Tokenizer(nano_raw())
    assert tokenizer.unknown_share("ab€d") == pytest.approx(1 / 4)
    assert tokenizer.unknown_share("") == 0.0


@pytest.mark.parametrize("raw", [nano_raw, chatml_raw])
def test_text_cannot_spell_special_tokens(raw: object) -> None:
    assert callable(raw)
    tokenizer = Tokenizer(raw())
    special = {tokenizer.token_id(name) for name in (NANO if tokenizer.chat == "nano" else CHATML)}
    attack = "".join(NANO + CHATML)
    spelled = set(tokenizer.encode(attack)) & special
    assert spelled <= ({tokenizer.token_id("<unk>")} if tokenizer.chat == "nano" else set())
    if tokenizer.chat == "chatml":
        assert tokenizer.decode(tokenizer.encode(attack)) == attack
        assert len(tokenizer.encode_prompt(attack)) > len(tokenizer.encode_prompt("hello"))


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), st.text()), max_size=5))
def test_earlier_messages_are_an_exact_prefix(messages: list[tuple[str, str]]) -> None:
    whole: list[int] = []
    for role, text in messages:
        before = [*whole]
        whole += BYTE_LEVEL.encode_message(role, text)
        assert whole[: len(before)] == before
        assert whole.count(BYTE_LEVEL.token_id("<|im_start|>")) == before.count(1) + 1


def write_folder(folder: Path, raw: RawTokenizer, **described: object) -> Path:
    raw.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return folder


TEMPLATES = {
    "escaped": "{% if x %}{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{% endif %}",
    "literal": "{% if x %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}",
}


@pytest.mark.parametrize("spelling", list(TEMPLATES))
def test_folder_settings(tmp_path: Path, spelling: str) -> None:
    write_folder(
        tmp_path,
        chatml_raw(),
        eos_token="<|im_end|>",
        pad_token={"content": "<|endoftext|>"},
        chat_template=TEMPLATES[spelling],
    )
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.stop_ids == (0, 2)
    assert tokenizer.pad_id == 0
    assert tokenizer.default_system == "Be kind."
    opening = tokenizer.encode_message("system", "Be kind.")
    assert tokenizer.encode_prompt("hi")[: len(opening)] == opening
    assert tokenizer.encode_prompt("hi", system="") != tokenizer.encode_prompt("hi")


def test_a_template_without_default_system_text_adds_none(tmp_path: Path) -> None:
    template = "{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}"
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, chatml_raw(), chat_template=template))
    assert tokenizer.default_system is None
    assert tokenizer.encode_prompt("hi").count(tokenizer.token_id("<|im_start|>")) == 2


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_chatml_equals_transformers(tmp_path: Path, system: str | None) -> None:
    transformers = pytest.importorskip("transformers")
    template = (
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
        "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    write_folder(tmp_path, chatml_raw(), tokenizer_class="PreTrainedTokenizerFast", chat_template=template)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = Tokenizer.from_folder(tmp_path)
    for text in ("What is 12 + 7?", "  two\n\nlines\t", "it's \u00e9\u6f22\U0001f642"):
        messages = [{"role": "user", "content": text}]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        theirs = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert tokenizer.encode_prompt(text, system) == theirs


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tokenizer\.json is missing"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="is not a tokenizer"):
        Tokenizer.from_folder(tmp_path)
    with pytest.raises(UsageError, match="no known chat format"):
        Tokenizer(RawTokenizer(models.BPE()))
