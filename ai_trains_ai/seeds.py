"""Seeds derived by name, so that adding a consumer never shifts another one's stream."""

from __future__ import annotations

import hashlib


def derive(run_seed: int, *ids: str | int) -> int:
    """Return a 63-bit seed for the consumer named by `ids` under `run_seed`.

    sha256 over the length-prefixed parts: stable across processes and Python versions (unlike `hash()`),
    and ("a", "bc") never meets ("ab", "c").
    """
    digest = hashlib.sha256()
    for part in (run_seed, *ids):
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(4, "big"))
        digest.update(text)
    return int.from_bytes(digest.digest()[:8], "big") >> 1
