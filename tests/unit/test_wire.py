"""The worker protocol over real pipes: framing, limits, deadlines, and values that come back equal."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import pytest

from ai_trains_ai.errors import AgentError, InfrastructureError, UsageError
from ai_trains_ai.inner import wire
from ai_trains_ai.types import Finding, InnerStep, Job, Rollout, TrainingRun

STEP = InnerStep(0, 0.25, 0.43, -0.1, 1.5, 1e-4, 0.9, 1e-9, 0.0, 0.01, 1, 8, 2000, 0.5)


@pytest.fixture
def ends() -> Iterator[tuple[wire.Channel, wire.Channel, list[int]]]:
    """Two channels facing each other, and the four descriptors (a.read, b.write, b.read, a.write)."""
    to_a, to_b = os.pipe(), os.pipe()
    descriptors = [*to_a, *to_b]
    yield wire.Channel(to_a[0], to_b[1]), wire.Channel(to_b[0], to_a[1]), descriptors
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def test_messages_arrive_whole_and_in_order(ends: tuple[wire.Channel, wire.Channel, list[int]]) -> None:
    a, b, _ = ends
    large = {"id": 1, "text": "ä" * 300_000}  # many times what a pipe holds
    sender = threading.Thread(target=lambda: (a.send(large), a.send({"id": 2})))
    sender.start()
    assert b.receive(timeout=10) == large
    assert b.receive(timeout=10) == {"id": 2}
    sender.join()


def test_a_late_message_is_a_timeout_and_not_lost(
    ends: tuple[wire.Channel, wire.Channel, list[int]],
) -> None:
    _a, b, descriptors = ends
    os.write(descriptors[3], (9).to_bytes(4, "big") + b'{"id"')  # the first half of a message
    with pytest.raises(TimeoutError):
        b.receive(timeout=0.05)
    os.write(descriptors[3], b": 5}")
    assert b.receive(timeout=1) == {"id": 5}


def test_closed_pipe(ends: tuple[wire.Channel, wire.Channel, list[int]]) -> None:
    _a, b, descriptors = ends
    os.close(descriptors[3])
    assert b.receive(timeout=1) is None
    os.close(descriptors[0])
    with pytest.raises(InfrastructureError, match="gone"):
        b.send({"id": 1})


def test_closed_inside_a_message(ends: tuple[wire.Channel, wire.Channel, list[int]]) -> None:
    _, b, descriptors = ends
    os.write(descriptors[3], b"\0\0\0\x09{")
    os.close(descriptors[3])
    with pytest.raises(InfrastructureError, match="inside a message"):
        b.receive(timeout=1)


@pytest.mark.parametrize("noise", [b"Traceback (most recent call last)", b"\0\0\0\x02[]", b"\0\0\0\x01x"])
def test_what_is_no_message_is_refused(
    ends: tuple[wire.Channel, wire.Channel, list[int]], noise: bytes
) -> None:
    _, b, descriptors = ends
    os.write(descriptors[3], noise)
    with pytest.raises(InfrastructureError, match="worker channel"):
        b.receive(timeout=1)


def test_nobody_reads(ends: tuple[wire.Channel, wire.Channel, list[int]]) -> None:
    a, _, _ = ends
    with pytest.raises(InfrastructureError, match="nobody read"):
        a.send({"text": "x" * 1_000_000}, timeout=0.05)


def test_nan_and_oversized_messages_are_not_sent(
    ends: tuple[wire.Channel, wire.Channel, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _, _ = ends
    with pytest.raises(ValueError, match="JSON compliant"):
        a.send({"loss": float("nan")})
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", 10)
    with pytest.raises(ValueError, match="exceeds the limit"):
        a.send({"text": "longer than ten bytes"})


def test_values_come_back_equal() -> None:
    job = Job(
        files={"environment.py": b"\xff\x00binary", "job.toml": b""},
        base_model="nano-0.2m",
        environment_args={"levels": [1, 2]},
        prime_rl={"max_steps": 3},
        explicit_keys=("max_steps",),
        content_sha256="ab",
        family="ledger",
    )
    assert wire.decode_job(wire.encode_job(job)) == job
    run = TrainingRun("/out", "cd", (STEP,), (Rollout(0, "p", "c", 1.0),), 2000, 0.5, "no signal")
    assert wire.decode_training(wire.encode_training(run)) == run
    finding = Finding("toml", "broken", "mend it", "warning")
    assert wire.decode_finding(wire.encode_finding(finding)) == finding


@pytest.mark.parametrize(
    "error",
    [AgentError("reward_value", "nan", "be finite"), InfrastructureError("disk full"), UsageError("no base")],
)
def test_failures_keep_their_owner(error: Exception) -> None:
    back = wire.decode_error(wire.encode_error(error, "trace"))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert "trace" not in str(back)


def test_our_bugs_carry_their_traceback() -> None:
    back = wire.decode_error(wire.encode_error(KeyError("x"), "Traceback: line 7"))
    assert isinstance(back, wire.WorkerBug)
    assert "KeyError" in str(back)
    assert "line 7" in str(back)
