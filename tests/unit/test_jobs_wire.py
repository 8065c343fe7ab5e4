"""The pipe to a job's process, with threads in the child's place that do what a hostile child could."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import pytest

from ai_trains_ai.jobs.wire import Wire, WireError, parse_strict


class Child:
    """The other end: reads requests, writes frames, honest only if the test says so."""

    def __init__(self, requests: int, answers: int) -> None:
        self.requests, self.answers = requests, answers
        self.key, self.count = b"", 0

    def read(self) -> Any:
        size = int.from_bytes(self._exactly(4), "big")
        return json.loads(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = os.read(self.requests, size - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def frame(self, body: bytes) -> bytes:
        mac = blake2b(self.count.to_bytes(8, "big") + body, key=self.key, digest_size=16).digest()
        self.count += 1
        return (len(mac) + len(body)).to_bytes(4, "big") + mac + body

    def write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.answers, data) :]

    def greet(self) -> None:
        self.key = bytes.fromhex(self.read()["key"])
        self.write(self.frame(b'{"ready":true}'))


@contextmanager
def wired(act: Callable[[Child], None]) -> Iterator[Wire]:
    """A Wire whose other end greets and then does `act` in a thread."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    child = Child(theirs_in, theirs_out)

    def run() -> None:
        try:
            child.greet()
            act(child)
        except (EOFError, BrokenPipeError):
            pass

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wire = Wire(ours_out, ours_in)
        assert wire.open(5.0) == {"ready": True}
        yield wire
    finally:
        os.close(ours_out)
        os.close(ours_in)
        thread.join(10)
        os.close(theirs_in)
        os.close(theirs_out)
        assert not thread.is_alive()


def test_an_honest_answer_comes_back_and_each_frame_counts() -> None:
    def act(child: Child) -> None:
        for _ in range(3):
            child.write(child.frame(json.dumps({"echo": child.read()}).encode()))

    with wired(act) as wire:
        for n in range(3):
            assert wire.request({"n": n}, 5.0, 1000) == {"echo": {"n": n}}


def test_a_large_request_and_answer_in_pieces() -> None:
    def act(child: Child) -> None:
        frame = child.frame(json.dumps(child.read()).encode())
        for start in range(0, len(frame), 70_001):
            child.write(frame[start : start + 70_001])
            time.sleep(0.001)

    message = {"text": "x" * 1_000_000}
    with wired(act) as wire:
        assert wire.request(message, 10.0, 2_000_000) == message


def failing(
    act: Callable[[Child], None], *, timeout: float = 0.3, max_answer: int = 1000, size: int = 10
) -> str:
    with wired(act) as wire:
        began = time.monotonic()
        with pytest.raises(WireError) as caught:
            wire.request({"x": "y" * size}, timeout, max_answer)
        assert time.monotonic() - began < timeout + 3.0
    return caught.value.kind


def silent(child: Child) -> None:
    child.read()
    child.read()  # ends with the pipe


def test_silence_ends_at_the_deadline() -> None:
    assert failing(silent) == "timeout"


def test_a_child_that_does_not_read_ends_at_the_deadline() -> None:
    assert failing(lambda child: time.sleep(0.5), size=1_000_000) == "timeout"


def test_a_dripping_child_ends_at_the_deadline() -> None:
    def drip(child: Child) -> None:
        child.write((900).to_bytes(4, "big"))
        for _ in range(20):
            child.write(b"x")
            time.sleep(0.05)

    assert failing(drip) == "timeout"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'{"reward": 1.0}\n' * 10, "too_big"),
        ((20).to_bytes(4, "big") + b"\0" * 20, "garbled"),
        ((3).to_bytes(4, "big") + b"abc", "garbled"),
        (b"\0\0\0\0", "garbled"),
    ],
    ids=["text", "unsigned", "short", "empty"],
)
def test_what_is_not_signed_is_not_an_answer(data: bytes, kind: str) -> None:
    def forge(child: Child) -> None:
        child.read()
        child.write(data)

    assert failing(forge) == kind


def test_a_replayed_frame_is_not_an_answer() -> None:
    def replay(child: Child) -> None:
        child.count = 0
        child.write(child.frame(b'{"ready":true}'))
        child.read()

    assert failing(replay) == "garbled"


def test_an_answer_that_announces_too_much_is_refused_before_it_is_read() -> None:
    def flood(child: Child) -> None:
        child.read()
        child.write(b"\xff" * 1_000_000)

    assert failing(flood) == "too_big"


def test_a_closed_pipe_is_said_so() -> None:
    def leave(child: Child) -> None:
        child.read()
        os.dup2(os.open(os.devnull, os.O_WRONLY), child.answers)

    assert failing(leave) == "closed"


@pytest.mark.parametrize(
    "body",
    [
        b'{"total": NaN}',
        b'{"total": Infinity}',
        b'{"total": -Infinity}',
        b'{"total": 1e999}',
        b'{"total": ' + b"9" * 5000 + b"}",
        b'{"total": 1',
        b'{"text": "\xff"}',
        b'{"text": "\\ud800"}',
        b"[" * 100_000,
        b"",
        b"\x00",
    ],
)
def test_a_signed_answer_must_be_strict_json(body: bytes) -> None:
    with pytest.raises(WireError, match="garbled"):
        parse_strict(body)


def test_numbers_arrive_to_the_last_digit() -> None:
    assert parse_strict(b"[0.1, 1e-320, 3, -0.0]") == [0.1, 1e-320, 3, 0.0]
    assert parse_strict(json.dumps(1 / 3).encode()) == 1 / 3
