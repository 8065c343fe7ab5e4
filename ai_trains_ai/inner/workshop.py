"""What a worker can do: probe a job, train it, sample from a model. No processes or pipes of its own here.

The hidden eval's answers never get here: sampling takes prompts only, and a job's environment has ended before
they come.
"""

from __future__ import annotations

import copy
import os
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
