"""Plain data to TOML text; the standard library only reads it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumps(document: Mapping[str, Any]) -> str:
    """Return TOML that reads back equal. Tables, lists of tables, lists of values, text, numbers, booleans.

    None becomes the text "None", which is how prime-rl's configs write null in TOML.
    Raises ValueError for anything else.
    """
    return "\n".join(_table(document, "")).strip() + "\n"


def _table(table: Mapping[str, Any], path: str) -> Iterator[str]:
    """The table's own values first: TOML would count them to the last sub-table otherwise."""
    for key, value in table.items():
        if not _is_table(value) and not _is_tables(value):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        inner = f"{path}.{_key(key)}" if path else _key(key)
        if _is_table(value):
            # A header is needed only where values follow; an empty table is one, and means something.
            if not value or any(not _is_table(v) and not _is_tables(v) for v in value.values()):
                yield from ("", f"[{inner}]")
            yield from _table(value, inner)
        elif _is_tables(value):
            for item in value:
                yield from ("", f"[[{inner}]]", *_table(item, inner))


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(_is_table(item) for item in value)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _text(value: str) -> str:
    # JSON's escapes are TOML's, but for DEL, which TOML wants escaped, and surrogate pairs, which it has not.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if value is None:
        return '"None"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no place in a config")
        return repr(value) if "." in repr(value) or "e" in repr(value) else f"{value!r}.0"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    raise ValueError(f"{type(value).__name__} has no TOML form here")
