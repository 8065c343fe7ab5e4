"""A warm worker process: torch imported once, bases kept in memory, one request at a time.

    python -m ai_trains_ai.inner.worker --parent=PID [--device=cpu] [--unsafe-no-sandbox]
                                        [--base NAME=FOLDER]...

    stdin  ── reader thread ──> queue ──> main thread: probe | train | sample | warm | ping | stop
    stdout <── events and the answer ──────────┘        (anything printed goes to stderr instead)

`inner.wire` describes the messages, `inner.client` is the other side. End-of-file on stdin means that the
driver is gone: the reader thread then kills this process and all in its session, also in the middle of a job.
The kernel's parent-death signal does the same should another process have inherited the pipe. The worker gets
hidden prompts to sample from, never an answer, and a job's environment has ended before it gets them.
"""

from __future__ import annotations

import argparse
import copy
import functools
import os
import queue
import signal
import sys
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ai_trains_ai.config import JobLimits, PrimeRlConfig
from ai_trains_ai.engine.bases import base_folder
from ai_trains_ai.engine.generate import generate
from ai_trains_ai.engine.load import load_model, weights_sha256
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.sampling import SamplingParams
from ai_trains_ai.engine.tokenizer import Tokenizer
from ai_trains_ai.errors import InfrastructureError, UsageError, boundary
from ai_trains_ai.inner import wire
from ai_trains_ai.inner.probe_run import probe_run
from ai_trains_ai.inner.trainer import train
from ai_trains_ai.jobs.env_host import EnvHost
from ai_trains_ai.jobs.probe import environment_probe
from ai_trains_ai.sandbox.base import Sandbox
from ai_trains_ai.sandbox.pick import pick_sandbox
from ai_trains_ai.sandbox.prctl import SET_PDEATHSIG, prctl
from ai_trains_ai.seeds import derive
from ai_trains_ai.tasks.registry import family
from ai_trains_ai.types import InnerStep

Arguments = Mapping[str, Any]
Emit = Callable[[str, Mapping[str, Any]], None]
"""(event name, payload): sends progress for the request in hand."""

KEPT_CHECKPOINTS = 2
MAX_SEQUENCES = 512


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights that nobody changes: training works on a copy."""

    model: Model
    tokenizer: Tokenizer
    folder: Path


class Workshop:
    """What the worker keeps between requests, and one method for each request."""

    def __init__(self, *, unsafe_no_sandbox: bool, folders: Mapping[str, Path], device: str) -> None:
        self._unsafe = unsafe_no_sandbox
        self._device = device
        self._folders = folders
        self._sandbox: Sandbox | None = None
        self._bases: dict[str, LoadedModel] = {}
        self._checkpoints: OrderedDict[str, LoadedModel] = OrderedDict()

    def handle(self, op: str, arguments: Arguments, emit: Emit) -> Mapping[str, Any]:
        """Do one request. Raises whatever went wrong, by owner."""
        handlers: dict[str, Callable[[Arguments, Emit], Mapping[str, Any]]] = {
            "ping": lambda _arguments, _emit: {"pid": os.getpid()},
            "warm": self._warm,
            "probe": self._probe,
            "train": self._train,
            "sample": self._sample,
        }
        if op not in handlers:
            raise UsageError(f"unknown request {op!r}: known are {', '.join(handlers)}")
        return handlers[op](arguments, emit)

    def _warm(self, arguments: Arguments, _emit: Emit) -> Mapping[str, Any]:
        for name in arguments["bases"]:
            self._base(name)
        return {"bases": sorted(self._bases)}

    def _probe(self, arguments: Arguments, _emit: Emit) -> Mapping[str, Any]:
        job = wire.decode_job(arguments["job"])
        limits = JobLimits(**arguments["limits"])
        base = self._base(job.base_model)
        with EnvHost.start(job, self._picked_sandbox(), limits) as rewards:
            findings = environment_probe(
                job,
                rewards,
                family(arguments["family"]) if arguments["family"] else None,
                limits,
                count_tokens=lambda text: len(base.tokenizer.encode_prompt(text)),
                unknown_share=base.tokenizer.unknown_share,
            )
            if not any(finding.severity == "error" for finding in findings):
                config = PrimeRlConfig(**job.prime_rl)
                findings += probe_run(
                    copy.deepcopy(base.model), base.tokenizer, rewards, config, seed=arguments["seed"]
                )
        return {"findings": [wire.encode_finding(finding) for finding in findings]}

    def _train(self, arguments: Arguments, emit: Emit) -> Mapping[str, Any]:
        job = wire.decode_job(arguments["job"])
        limits = JobLimits(**arguments["limits"])
        base = self._base(job.base_model)

        def on_step(step: InnerStep) -> None:
            emit("step", {"step": asdict(step)})

        with EnvHost.start(job, self._picked_sandbox(), limits) as rewards:
            run = train(
                copy.deepcopy(base.model),
                base.tokenizer,
                rewards,
                PrimeRlConfig(**job.prime_rl),
                seed=arguments["seed"],
                out=Path(arguments["out"]),
                on_step=on_step,
                tokenizer_folder=base.folder,
                seconds_limit=limits.train_seconds,
            )
        return {"training": wire.encode_training(run)}

    def _sample(self, arguments: Arguments, _emit: Emit) -> Mapping[str, Any]:
        """Completions as text, `MAX_SEQUENCES` at a time: how they are cut is part of what a seed means."""
        source = self._model(arguments["model"])
        samples, prompts = arguments["samples"], arguments["prompts"]
        params = SamplingParams(
            max_tokens=arguments["max_tokens"],
            temperature=arguments["temperature"],
            stop_ids=tuple(source.tokenizer.stop_ids),
        )
        at_once = max(1, MAX_SEQUENCES // samples)
        completions: list[list[str]] = []
        for start in range(0, len(prompts), at_once):
            batch = prompts[start : start + at_once]
            groups = generate(
                source.model,
                [source.tokenizer.encode_prompt(prompt) for prompt in batch],
                params,
                samples_per_prompt=samples,
                seed=derive(arguments["seed"], "sample", start),
            )
            completions += [[source.tokenizer.decode(c.tokens) for c in group] for group in groups]
        return {"completions": completions}

    def _picked_sandbox(self) -> Sandbox:
        if self._sandbox is None:
            self._sandbox = pick_sandbox(unsafe=self._unsafe)
        return self._sandbox

    def _base(self, name: str) -> LoadedModel:
        if name not in self._bases:
            self._bases[name] = _load(self._folders.get(name) or base_folder(name), self._device)
        return self._bases[name]

    def _model(self, ref: Mapping[str, Any]) -> LoadedModel:
        if ref["base"] is not None:
            return self._base(ref["base"])
        wanted = ref["sha256"]
        if wanted not in self._checkpoints:
            loaded = _load(Path(ref["checkpoint"]), self._device)
            found = weights_sha256(loaded.model)
            if found != wanted:
                raise InfrastructureError(
                    f"{ref['checkpoint']} holds weights {found[:12]}, expected {wanted[:12]}: "
                    "they are not what the trainer wrote"
                )
            self._checkpoints[wanted] = loaded
            while len(self._checkpoints) > KEPT_CHECKPOINTS:
                self._checkpoints.popitem(last=False)
        self._checkpoints.move_to_end(wanted)
        return self._checkpoints[wanted]


def _load(folder: Path, device: str) -> LoadedModel:
    _check_device(device)
    with boundary(f"reading {folder}"):
        return LoadedModel(load_model(folder, device=device), Tokenizer.from_folder(folder), folder)


def _check_device(device: str) -> None:
    """Raises UsageError for a device that torch does not know or this machine does not have."""
    kind = device.partition(":")[0]
    here: dict[str, Callable[[], bool]] = {
        "cpu": lambda: True,
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
    }
    if kind not in here:
        raise UsageError(f"unknown device {device!r}: use one of {', '.join(here)}")
    if not here[kind]():
        raise UsageError(f"device {device!r}: torch finds none on this machine; use cpu")


def serve(channel: wire.Channel, workshop: Workshop) -> None:
    """Answer requests until told to stop."""
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(channel, requests), daemon=True).start()
    while True:
        request = requests.get()
        number, op = request.pop("id"), request.pop("op")
        if op == "stop":
            return

        def emit(event: str, payload: Mapping[str, Any], number: int = number) -> None:
            channel.send({"id": number, "event": event, **payload})

        try:
            answer = {"id": number, "result": workshop.handle(op, request, emit)}
        except Exception as error:  # noqa: BLE001 - the border: a failure becomes a message with its owner
            answer = {"id": number, "error": wire.encode_error(_attributed(error), traceback.format_exc())}
        channel.send(answer)
        warm_up()


@functools.cache
def warm_up() -> None:
    """Import what torch puts off until the first optimizer (over a second, once), while nobody waits for it."""
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])


def _attributed(error: Exception) -> Exception:
    """Running out of memory is the machine's failure, also when torch reports it as a RuntimeError."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return InfrastructureError(f"out of memory: {error}")
    return error


def _read(channel: wire.Channel, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    while True:
        try:
            message = channel.receive()
        except InfrastructureError as error:
            print(error, file=sys.stderr, flush=True)
            message = None
        if message is None:
            _end_session()
            return
        requests.put(message)


def _end_session() -> None:
    """Kill this process and whatever it started, now. The session is ours alone (see `_detach`)."""
    os.killpg(os.getpid(), signal.SIGKILL)


def _detach(parent: int) -> None:
    """Become a session leader, and die with `parent`.

    The kernel sends the parent-death signal when the *thread* that started us ends, so it only makes us look.
    """
    if os.getpgrp() != os.getpid():
        os.setsid()

    def on_signal(_number: int, _frame: object) -> None:
        if os.getppid() != parent:
            _end_session()

    signal.signal(signal.SIGUSR1, on_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    if sys.platform == "linux":
        prctl(SET_PDEATHSIG, signal.SIGUSR1)
    if os.getppid() != parent:
        _end_session()


def _private_pipes() -> wire.Channel:
    """Take stdin and stdout for the messages; a stray print then goes to stderr and cannot corrupt them."""
    channel = wire.Channel(os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return channel


def main() -> None:
    parser = argparse.ArgumentParser(description="A warm worker; started by ata, not by hand.")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--unsafe-no-sandbox", action="store_true")
    parser.add_argument("--base", action="append", default=[], metavar="NAME=FOLDER")
    arguments = parser.parse_args()
    folders = {name: Path(folder) for name, _, folder in (item.partition("=") for item in arguments.base)}
    _detach(arguments.parent)
    channel = _private_pipes()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    workshop = Workshop(
        unsafe_no_sandbox=arguments.unsafe_no_sandbox, folders=folders, device=arguments.device
    )
    serve(channel, workshop)


if __name__ == "__main__":
    main()
