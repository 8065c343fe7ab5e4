"""Our end of the pipe to a job's environment: one request, one signed answer, a deadline, nothing trusted.

The other end is `env_child/channel.py`. Whatever the process behind the pipe does (write garbage, write for
ever, write nothing, close, keep the pipe open in a daemon), `request` returns or raises by its deadline.
"""

from __future__ import annotations

import hmac
import json
import math
import os
import selectors
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, NoReturn

MAC_BYTES = 16
_CHECK_SECONDS = 0.25
"""How often a passed deadline is looked at again while it keeps moving."""


class WireError(Exception):
    """The peer broke the protocol: `kind` is "closed", "timeout", "garbled" or "too_big"."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind
        self.detail = detail


class Deadline:
    """`seconds` from now, moved by what `extra` gives whenever it is reached."""

    def __init__(self, seconds: float, extra: Callable[[], float]) -> None:
        self._end = time.monotonic() + seconds
        self._extra = extra

    def left(self) -> float:
        """Seconds to wait before asking again; 0.0 once the time is up."""
        left = self._end - time.monotonic()
        if left > 0:
            return left
        return min(_CHECK_SECONDS, max(0.0, left + self._extra()))


class Wire:
    """Frames over two pipe descriptors, which stay the caller's to close."""

    def __init__(self, to_child: int, from_child: int) -> None:
        self._to_child, self._from_child = to_child, from_child
        self._key = os.urandom(32)
        self._count = 0
        self._buffer = bytearray()
        os.set_blocking(to_child, False)
        os.set_blocking(from_child, False)

    def open(self, timeout: float) -> Any:
        """Send the key; return the child's first answer."""
        return self.request({"key": self._key.hex()}, timeout, 1024)

    def request(
        self, message: Any, timeout: float, max_answer: int, extra: Callable[[], float] = lambda: 0.0
    ) -> Any:
        """Return the answer to `message` as parsed JSON. `timeout` is in seconds, for both directions; it may
        be passed by what `extra` gives, asked anew each time.

        Raises WireError, and OSError when the machine fails.
        """
        deadline = Deadline(timeout, extra)
        body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
        self._write(len(body).to_bytes(4, "big") + body, deadline)
        size = int.from_bytes(self._read(4, deadline), "big")
        if size > max_answer + MAC_BYTES:
            raise WireError("too_big", f"an answer of {size} bytes where {max_answer} is the most")
        if size < MAC_BYTES:
            raise WireError("garbled")
        frame = self._read(size, deadline)
        mac, body = frame[:MAC_BYTES], frame[MAC_BYTES:]
        signed = blake2b(self._count.to_bytes(8, "big") + body, key=self._key, digest_size=MAC_BYTES).digest()
        if not hmac.compare_digest(mac, signed):
            raise WireError("garbled")
        self._count += 1
        return parse_strict(body)

    def _write(self, data: bytes, deadline: Deadline) -> None:
        view = memoryview(data)
        while view:
            self._wait(self._to_child, selectors.EVENT_WRITE, deadline)
            try:
                view = view[os.write(self._to_child, view[: 1 << 16]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise WireError("closed") from None

    def _read(self, size: int, deadline: Deadline) -> bytes:
        while len(self._buffer) < size:
            self._wait(self._from_child, selectors.EVENT_READ, deadline)
            try:
                part = os.read(self._from_child, 1 << 16)
            except BlockingIOError:
                continue
            if not part:
                raise WireError("closed")
            self._buffer += part
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    @staticmethod
    def _wait(descriptor: int, event: int, deadline: Deadline) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, event)
            while left := deadline.left():
                if selector.select(left):
                    return
        raise WireError("timeout")


def parse_strict(body: bytes) -> Any:
    """JSON as its grammar says: no NaN, no Infinity, no number beyond a float, no lone surrogates, UTF-8."""
    try:
        value = json.loads(body.decode(), parse_constant=_refuse, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # ValueError: syntax, encoding, surrogates, digits beyond the limit
        raise WireError("garbled") from None
    return value


def _refuse(token: str) -> NoReturn:
    raise ValueError(token)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value
