"""The driving side of a warm worker: start one, give it work, kill it with everything it started.

A worker is one process with torch imported and bases in memory, doing one thing at a time. It ends when told
to (`close`), when killed (`kill`), and by itself when the driving process is gone, however that one died:
its request pipe is held open by the driver alone, and end-of-file on it is the worker's signal to go.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ai_trains_ai.config import JobLimits
from ai_trains_ai.errors import InfrastructureError, boundary
from ai_trains_ai.inner import wire
from ai_trains_ai.types import Finding, InnerStep, Job, TrainingRun

START_SECONDS = 120.0
"""Importing torch from a cold disk can take tens of seconds."""
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model to sample from: an untrained base by name, or a checkpoint folder with the hash it must have.

    Raises ValueError when it is neither, both, or a checkpoint without its hash.
    """

    base: str | None = None
    checkpoint: str | None = None
    sha256: str | None = None

    def __post_init__(self) -> None:
        if (self.base is None) == (self.checkpoint is None):
            raise ValueError("a ModelRef names either a base or a checkpoint")
        if self.checkpoint is not None and self.sha256 is None:
            raise ValueError(f"the checkpoint {self.checkpoint} needs its sha256: weights are loaded by hash")


class Worker:
    """A running worker process. Not thread-safe: one caller at a time.

    Every call raises what the work raised, by owner (AgentError, UsageError, InfrastructureError,
    `wire.WorkerBug`), and InfrastructureError when the process died or exceeded `timeout` seconds; after the
    latter the worker is dead and a new one has to be started.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._log = log
        self._channel = wire.Channel(process.stdout.fileno(), process.stdin.fileno())
        self._next_id = 0
        self._killed = False

    @classmethod
    def start(
        cls,
        *,
        unsafe_no_sandbox: bool = False,
        bases: Mapping[str, Path] | None = None,
        device: str = "cpu",
        timeout: float = START_SECONDS,
    ) -> Worker:
        """Start a process and wait until it answers. Raises InfrastructureError when it does not.

        bases: folders of further base models, by the name that jobs use.
        device: where models run, by torch's name; one that is not there is the first request's UsageError.
        """
        command = [sys.executable, "-m", "ai_trains_ai.inner.worker", f"--parent={os.getpid()}"]
        command.append(f"--device={device}")
        if unsafe_no_sandbox:
            command.append("--unsafe-no-sandbox")
        command += [f"--base={name}={folder}" for name, folder in (bases or {}).items()]
        with boundary("starting a worker"):
            log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=worker_environment(os.environ),
                start_new_session=True,
            )
        worker = cls(process, log)
        worker._call("ping", {}, timeout=timeout)
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def warm(self, bases: Sequence[str], *, timeout: float = 300.0) -> None:
        """Load these bases now, so that the first job does not wait for them."""
        self._call("warm", {"bases": list(bases)}, timeout=timeout)

    def probe(
        self, job: Job, *, family: str | None, seed: int, limits: JobLimits, timeout: float = 300.0
    ) -> tuple[Finding, ...]:
        """What running the job's environment and two optimizer steps shows; the static probe comes before."""
        arguments = {
            "job": wire.encode_job(job),
            "family": family,
            "seed": seed,
            "limits": limits.model_dump(mode="json"),
        }
        found = self._call("probe", arguments, timeout=timeout)
        return tuple(wire.decode_finding(finding) for finding in found["findings"])

    def train(
        self,
        job: Job,
        *,
        seed: int,
        out: Path,
        limits: JobLimits,
        on_step: Callable[[InnerStep], None] | None = None,
        timeout: float | None = None,
    ) -> TrainingRun:
        """Train; `out` becomes the checkpoint folder. The job's environment process has ended on return.

        timeout defaults to twice the job's own limit: the job's limit is enforced inside, as the job's
        fault, and only a stuck machine gets past it.
        """
        arguments = {
            "job": wire.encode_job(job),
            "seed": seed,
            "out": str(out),
            "limits": limits.model_dump(mode="json"),
        }

        def on_event(event: Mapping[str, Any]) -> None:
            if on_step is not None:
                on_step(InnerStep(**event["step"]))

        timeout = timeout or 2 * limits.train_seconds
        result = self._call("train", arguments, timeout=timeout, on_event=on_event)
        return wire.decode_training(result["training"])

    def sample(
        self,
        model: ModelRef,
        prompts: Sequence[str],
        *,
        samples: int,
        seed: int,
        max_tokens: int,
        temperature: float = 1.0,
        timeout: float = 600.0,
    ) -> list[list[str]]:
        """`samples` completions of each user prompt, as text. Deterministic in its arguments."""
        arguments = {
            "model": {"base": model.base, "checkpoint": model.checkpoint, "sha256": model.sha256},
            "prompts": list(prompts),
            "samples": samples,
            "seed": seed,
            "max_tokens": max_tokens,
            "temperature": temperature,
        }
        completions: list[list[str]] = self._call("sample", arguments, timeout=timeout)["completions"]
        return completions

    def close(self) -> None:
        """Let an idle worker end; kill it when it does not within a few seconds."""
        try:
            if self.alive:
                self._channel.send({"id": 0, "op": "stop"}, timeout=1.0)
                self._process.wait(timeout=5.0)
        except (InfrastructureError, subprocess.TimeoutExpired):
            pass
        self.kill()

    def kill(self) -> None:
        """End the worker and every process in its session, at once. Safe to call twice."""
        if self._killed:
            return  # its process group id may belong to somebody else by now
        self._killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(
        self,
        op: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float,
        on_event: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        if not self.alive:
            raise InfrastructureError(f"worker {self.pid} has ended{self._last_words()}")
        self._next_id += 1
        try:
            answer = self._converse({"id": self._next_id, "op": op, **arguments}, timeout, on_event)
        except TimeoutError as error:
            self.kill()
            raise InfrastructureError(f"worker {self.pid}: {op} took more than {timeout:.0f} s") from error
        except BaseException:
            self.kill()  # in mid-work, and nobody will read its answer: not usable any more
            raise
        if "error" in answer:
            raise wire.decode_error(answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _converse(
        self,
        request: Mapping[str, Any],
        timeout: float,
        on_event: Callable[[Mapping[str, Any]], None] | None,
    ) -> dict[str, Any]:
        """Send the request, hand on its events, return its answer."""
        deadline = time.monotonic() + timeout
        self._channel.send(request, timeout=timeout)
        while True:
            message = self._channel.receive(timeout=max(0.0, deadline - time.monotonic()))
            if message is None:
                words = self._last_words()
                raise InfrastructureError(f"worker {self.pid} died during {request['op']}{words}")
            if message.get("id") != request["id"]:
                raise InfrastructureError(f"worker {self.pid} answered another request: {message.get('id')}")
            if "event" not in message:
                return message
            if on_event is not None:
                on_event(message)

    def _last_words(self) -> str:
        if self._log.closed:
            return ""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 2000))
        text = self._log.read().decode(errors="replace").strip()
        return f"; it last wrote:\n{text}" if text else ""


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The worker's environment variables: ours without what looks like a key; one thread, deterministic."""
    kept = {name: value for name, value in environment.items() if not SECRET.search(name)}
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    # Without this setting cuBLAS is not deterministic, and torch refuses to use it.
    return {**kept, **threads, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
