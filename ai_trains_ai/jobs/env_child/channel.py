"""The child's end of the pipe: length-prefixed JSON, answers signed with a key that arrived first.

The environment's code runs in this very process, so nothing here is a wall. What it achieves: prints, writes
to standard descriptors and patched modules change no answer; blind writes to other descriptors are noticed.
Code that digs the key out of our frames or of the garbage collector can forge one. It gains nothing by it: it
can only claim rewards for its own job, which its own reward functions could return anyway. The hidden eval
never enters this process, and the host checks every number.

Requests are `length (4 bytes, big-endian) + JSON`; answers are `length of the rest + 16 bytes of blake2b(key,
sequence number + JSON) + JSON`. The first request carries the key.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, NamedTuple

MAC_BYTES = 16


class Channel(NamedTuple):
    receive: Callable[[], Any]
    """The next request; None at the end of the stream."""
    send: Callable[[Any], None]


def open_channel() -> Channel:
    """Move the pipe away from descriptors 0 and 1, and read the key. Prints go to stderr from here on."""
    source, sink = os.dup(0), os.dup(1)  # not inherited by programs that the job starts
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    read, write = os.read, os.write
    decode, encode = (
        json.JSONDecoder().decode,
        json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode,
    )
    for name in [name for name in sys.modules if name.split(".")[0] == "json"]:
        del sys.modules[name]  # the job's `import json` gets a copy of its own to patch
    count = [0]

    def exactly(size: int) -> bytes:
        parts = []
        while size:
            part = read(source, min(size, 1 << 16))
            if not part:
                return b""
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def receive() -> Any:
        size = int.from_bytes(exactly(4), "big")
        return decode(exactly(size).decode()) if size else None

    first = receive() or {"key": ""}
    key = bytes.fromhex(first["key"])

    def send(answer: Any) -> None:
        body = encode(answer).encode()
        mac = blake2b(count[0].to_bytes(8, "big") + body, key=key, digest_size=MAC_BYTES).digest()
        count[0] += 1
        view = memoryview((len(mac) + len(body)).to_bytes(4, "big") + mac + body)
        while view:
            view = view[write(sink, view) :]

    send({"ready": True})
    return Channel(receive, send)
