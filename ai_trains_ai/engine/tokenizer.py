"""Text to tokens and back, in the chat format of the model's own tokenizer.

    nano    <|user|>TEXT<|assistant|>ANSWER<|end|>    a system text stands before TEXT, on a line of its own
    chatml  <|im_start|>ROLE, newline, TEXT<|im_end|>, newline, ...    SmolLM2, Qwen3

The format follows from the special tokens that the vocabulary holds. Text never turns into special tokens:
a prompt that spells out `<|im_end|>` is encoded as those characters, so nothing a task or a model writes can
close a turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer as RawTokenizer

from ai_trains_ai.errors import UsageError

ChatFormat = Literal["nano", "chatml"]
_MARKERS: dict[ChatFormat, tuple[str, ...]] = {
    "nano": ("<|user|>", "<|assistant|>", "<|end|>"),
    "chatml": ("<|im_start|>", "<|im_end|>"),
}
_DEFAULT_SYSTEM = re.compile(r"<\|im_start\|>system(?:\n|\\n)([^'\"{}]+?)<\|im_end\|>")
"""Finds a literal default system text in a Jinja chat template; its newline may stand there as an escape."""


class Tokenizer:
    """A `tokenizers` tokenizer with its chat format and special ids.

    chat:       "nano" or "chatml".
    stop_ids:   tokens that end a completion, ascending.
    pad_id:     filler of ragged batches; never means anything to the model.
    vocab_size: ids are below it. A model may have more rows.
    """

    def __init__(
        self,
        raw: RawTokenizer,
        *,
        stop_ids: Sequence[int] = (),
        pad_id: int | None = None,
        template: str = "",
    ) -> None:
        """stop_ids: in addition to the chat format's own. template: the Jinja chat template, if there is one.

        Raises UsageError when the special tokens of no known chat format are present.
        """
        self._raw = raw
        raw.no_padding()
        raw.no_truncation()
        raw.encode_special_tokens = True
        self.chat = _chat_format(raw)
        self.vocab_size: int = raw.get_vocab_size(with_added_tokens=True)
        end = self.token_id(_MARKERS[self.chat][-1])
        self.stop_ids: tuple[int, ...] = tuple(sorted({end, *stop_ids}))
        named = raw.token_to_id("<|pad|>")
        self.pad_id: int = pad_id if pad_id is not None else (named if named is not None else end)
        found = _DEFAULT_SYSTEM.search(template)
        self.default_system: str | None = found.group(1) if found else None
        self._unknown: int | None = raw.token_to_id("<unk>") if self.chat == "nano" else None

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Read tokenizer.json and, where present, tokenizer_config.json, generation_config.json and
        chat_template.jinja. Raises UsageError for a missing or broken file or an unknown chat format.
        """
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise UsageError(f"{path} is missing: the tokenizer is read from it")
        try:
            raw = RawTokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise UsageError(f"{path} is not a tokenizer: {error}") from error
        described = _read_json(folder / "tokenizer_config.json")
        generation = _read_json(folder / "generation_config.json")
        eos = generation.get("eos_token_id")
        stops = {int(i) for i in (eos if isinstance(eos, list) else [eos]) if i is not None}
        stops |= {i for i in [_named_id(raw, described.get("eos_token"))] if i is not None}
        pad = _named_id(raw, described.get("pad_token"))
        jinja = folder / "chat_template.jinja"
        template = jinja.read_text() if jinja.is_file() else described.get("chat_template") or ""
        return cls(
            raw,
            stop_ids=tuple(stops),
            pad_id=pad if pad is not None else generation.get("pad_token_id"),
            template=template if isinstance(template, str) else "",
        )

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text; special tokens that it spells out stay plain text."""
        ids: list[int] = self._raw.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, special ones skipped."""
        text: str = self._raw.decode(list(ids), skip_special_tokens=True)
        return text

    def token_id(self, token: str) -> int:
        """Id of one token by its exact name. Raises UsageError when the vocabulary does not hold it."""
        found: int | None = self._raw.token_to_id(token)
        if found is None:
            raise UsageError(f"the tokenizer has no token {token!r}")
        return found

    def encode_message(self, role: str, text: str) -> list[int]:
        """One closed message, such that a conversation is the messages' tokens one after another."""
        if self.chat == "chatml":
            opened = [self.token_id("<|im_start|>"), *self.encode(f"{role}\n{text}")]
            return [*opened, self.token_id("<|im_end|>"), *self.encode("\n")]
        if role == "user":
            return [self.token_id("<|user|>"), *self.encode(text)]
        if role == "assistant":
            return [self.token_id("<|assistant|>"), *self.encode(text), self.token_id("<|end|>")]
        raise UsageError(f"the nano chat format has no role {role!r}: use user or assistant")

    def generation_start(self) -> list[int]:
        """The tokens after which the assistant's answer is sampled."""
        if self.chat == "chatml":
            return [self.token_id("<|im_start|>"), *self.encode("assistant\n")]
        return [self.token_id("<|assistant|>")]

    def encode_prompt(self, user_text: str, system: str | None = None) -> list[int]:
        """A single-turn prompt, up to and including the generation start.

        system: None means the model's default system text, if its template has one (SmolLM2's does).
        """
        if self.chat == "nano":
            text = user_text if not system else f"{system}\n{user_text}"
            return [*self.encode_message("user", text), *self.generation_start()]
        system = self.default_system if system is None else system
        opening = [] if system is None else self.encode_message("system", system)
        return [*opening, *self.encode_message("user", user_text), *self.generation_start()]

    def unknown_share(self, text: str) -> float:
        """Share of the text's tokens that are <unk>; 0.0 where the vocabulary has no such token.

        Byte-level vocabularies have none: what they cannot spell (SmolLM2: some control characters) is lost.
        """
        ids = self.encode(text)
        if self._unknown is None or not ids:
            return 0.0
        return ids.count(self._unknown) / len(ids)


def _chat_format(raw: RawTokenizer) -> ChatFormat:
    for chat, markers in _MARKERS.items():
        if all(raw.token_to_id(marker) is not None for marker in markers):
            return chat
    known = "; ".join(f"{chat} ({' '.join(markers)})" for chat, markers in _MARKERS.items())
    raise UsageError(f"the tokenizer has the special tokens of no known chat format: {known}")


def _named_id(raw: RawTokenizer, token: Any) -> int | None:
    """Id of a token given as its name or as an AddedToken's mapping."""
    name = token.get("content") if isinstance(token, dict) else token
    found: int | None = raw.token_to_id(name) if isinstance(name, str) else None
    return found


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds no JSON object")
    return data
