"""Messages between a worker and whoever drives it: JSON behind a 4-byte big-endian length, over two pipes.

    request   {"id": 7, "op": "train", ...arguments}
    progress  {"id": 7, "event": "step", "step": {...}}        any number, before the answer
    answer    {"id": 7, "result": {...}}  or  {"id": 7, "error": {"kind": ..., "message": ...}}

Nothing is ever unpickled: what arrives is plain data, rebuilt into frozen values by name. NaN and infinity do
not exist in it. This file imports neither torch nor the engine, so a driver stays light.
"""

from __future__ import annotations

import base64
import json
import os
import select
import time
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from ai_trains_ai.errors import AgentError, InfrastructureError, UsageError
from ai_trains_ai.types import Finding, InnerStep, Job, Rollout, TrainingRun

MAX_MESSAGE_BYTES = 64 * 1024 * 1024


class WorkerBug(RuntimeError):
    """Something neither a job nor a machine can be blamed for failed in the worker; carries its traceback."""


class Channel:
    """One end of the conversation, over the file descriptors that this end reads from and writes to.

    The channel switches both to non-blocking mode and does not close them.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._buffer = bytearray()
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)

    def send(self, message: Mapping[str, Any], timeout: float | None = None) -> None:
        """Write one message.

        Raises InfrastructureError when the other end is gone or has not read within `timeout` seconds, and
        ValueError for a message that is too large or not JSON.
        """
        body = json.dumps(message, allow_nan=False).encode()
        if len(body) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {len(body)} bytes exceeds the limit of {MAX_MESSAGE_BYTES}")
        deadline = None if timeout is None else time.monotonic() + timeout
        rest = memoryview(len(body).to_bytes(4, "big") + body)
        while rest:
            try:
                rest = rest[os.write(self._write_fd, rest) :]
            except BlockingIOError:
                if not select.select([], [self._write_fd], [], _remaining(deadline))[1]:
                    raise InfrastructureError(f"worker channel: nobody read for {timeout} s") from None
            except OSError as error:
                raise InfrastructureError(f"worker channel: the other end is gone ({error})") from error

    def receive(self, timeout: float | None = None) -> dict[str, Any] | None:
        """Read one message; None when the other end closed the pipe between messages.

        Raises TimeoutError after `timeout` seconds without a whole message (nothing read so far is lost), and
        InfrastructureError for a pipe closed inside a message or a message that breaks the format.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            message = self._take()
            if message is not None:
                return message
            if not select.select([self._read_fd], [], [], _remaining(deadline))[0]:
                raise TimeoutError(f"worker channel: no message within {timeout} s")
            try:
                chunk = os.read(self._read_fd, 1 << 20)
            except BlockingIOError:
                continue
            except OSError as error:
                raise InfrastructureError(f"worker channel: {error}") from error
            if not chunk:
                if self._buffer:
                    raise InfrastructureError("worker channel: the pipe closed inside a message")
                return None
            self._buffer += chunk

    def _take(self) -> dict[str, Any] | None:
        if len(self._buffer) < 4:
            return None
        size = int.from_bytes(self._buffer[:4], "big")
        if size > MAX_MESSAGE_BYTES:
            raise InfrastructureError(f"worker channel: a message claims {size} bytes, something else wrote")
        if len(self._buffer) < 4 + size:
            return None
        body = bytes(self._buffer[4 : 4 + size])
        del self._buffer[: 4 + size]
        try:
            message = json.loads(body)
        except ValueError as error:
            raise InfrastructureError(f"worker channel: not JSON: {error}") from error
        if not isinstance(message, dict):
            raise InfrastructureError(f"worker channel: not a JSON object: {type(message).__name__}")
        return message


def _remaining(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def encode_job(job: Job) -> dict[str, Any]:
    plain = {field.name: getattr(job, field.name) for field in fields(job)}
    files = {name: base64.b64encode(content).decode() for name, content in job.files.items()}
    return {**plain, "files": files, "explicit_keys": list(job.explicit_keys)}


def decode_job(data: Mapping[str, Any]) -> Job:
    files = {name: base64.b64decode(content) for name, content in data["files"].items()}
    return Job(**{**data, "files": files, "explicit_keys": tuple(data["explicit_keys"])})


def encode_training(run: TrainingRun) -> dict[str, Any]:
    return asdict(run)


def decode_training(data: Mapping[str, Any]) -> TrainingRun:
    return TrainingRun(
        **{
            **data,
            "steps": tuple(InnerStep(**step) for step in data["steps"]),
            "rollouts": tuple(Rollout(**rollout) for rollout in data["rollouts"]),
        }
    )


def encode_finding(finding: Finding) -> dict[str, Any]:
    return asdict(finding)


def decode_finding(data: Mapping[str, Any]) -> Finding:
    return Finding(**data)


def encode_error(error: BaseException, traceback: str) -> dict[str, Any]:
    """Whose fault it is, in a form that survives the pipe. The traceback is sent only for our own bugs."""
    if isinstance(error, AgentError):
        return {"kind": "agent", "check": error.check, "message": error.message, "fix": error.fix}
    if isinstance(error, InfrastructureError):
        return {"kind": "infrastructure", "message": str(error)}
    if isinstance(error, UsageError):
        return {"kind": "usage", "message": str(error)}
    return {"kind": "bug", "message": f"{type(error).__name__}: {error}", "traceback": traceback}


def decode_error(data: Mapping[str, Any]) -> Exception:
    """The exception to raise on the driver's side for an `encode_error` payload."""
    kind = data["kind"]
    if kind == "agent":
        return AgentError(data["check"], data["message"], data["fix"])
    if kind == "infrastructure":
        return InfrastructureError(data["message"])
    if kind == "usage":
        return UsageError(data["message"])
    return WorkerBug(f"{data['message']}\n{data.get('traceback', '')}")
