"""A worker without models: a real process to kill, scripted training, and answers of a chosen skill."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ai_trains_ai.config import JobLimits
from ai_trains_ai.errors import InfrastructureError
from ai_trains_ai.inner.client import ModelRef
from ai_trains_ai.seeds import derive
from ai_trains_ai.tasks.base import write_up
from ai_trains_ai.tasks.registry import FAMILIES
from ai_trains_ai.types import Finding, InnerStep, Job, Rollout, TrainingRun


@dataclass
class Script:
    """How fake workers behave. Shared by all workers started from it; changes take effect at once.

    base_skill:  base name -> share of tasks answered correctly.
    skill:       job -> the trained model's share.
    findings:    job -> what the probe finds.
    on_step:     called with (worker, step) before each training step; may kill the worker, raise or sleep.
    """

    base_skill: Mapping[str, float] = field(
        default_factory=lambda: {"nano-0.2m": 0.3, "nano-0.8m": 0.5, "smollm2-135m": 0.1}
    )
    skill: Callable[[Job], float] = lambda _job: 0.9
    findings: Callable[[Job], tuple[Finding, ...]] = lambda _job: ()
    on_step: Callable[[FakeWorker, int], None] = lambda _worker, _step: None
    seconds_a_step: float = 0.0
    started: list[FakeWorker] = field(default_factory=list)
    sampled: list[ModelRef] = field(default_factory=list)

    def start(self, **_options: object) -> FakeWorker:
        """What a pool or the command line takes as its `start`."""
        worker = FakeWorker(self)
        self.started.append(worker)
        return worker


class FakeWorker:
    """Implements `fleet.local.InnerWorker`. When its process is killed, every call fails as a real one's
    would.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        command = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def probe(self, job: Job, *, family: str | None, seed: int, limits: JobLimits) -> tuple[Finding, ...]:
        del family, seed, limits
        self._must_live("probe")
        return self._script.findings(job)

    def train(
        self,
        job: Job,
        *,
        seed: int,
        out: Path,
        limits: JobLimits,
        on_step: Callable[[InnerStep], None] | None = None,
    ) -> TrainingRun:
        del limits
        steps = []
        for number in range(int(job.prime_rl["max_steps"])):
            self._script.on_step(self, number)
            time.sleep(self._script.seconds_a_step)
            self._must_live("train")
            reward = round(0.2 + 0.02 * number, 6)
            step = InnerStep(number, reward, 0.4, 0.1, 1.0, 1e-4, 0.5, 1e-4, 0.0, 0.0, 0, 8, 1000, 0.01)
            steps.append(step)
            if on_step is not None:
                on_step(step)
        out.mkdir(parents=True)
        weights = json.dumps({"job": job.content_sha256, "seed": seed, "skill": self._script.skill(job)})
        (out / "model.safetensors").write_text(weights)
        digest = hashlib.sha256(weights.encode()).hexdigest()
        rollouts = (Rollout(0, "What is 1 + 1?", "Answer: 2", 1.0),)
        return TrainingRun(str(out), digest, tuple(steps), rollouts, 1000 * len(steps), 0.01 * len(steps))

    def sample(
        self, model: ModelRef, prompts: Sequence[str], *, samples: int, seed: int, max_tokens: int
    ) -> list[list[str]]:
        del max_tokens
        self._must_live("sample")
        self._script.sampled.append(model)
        skill = self._skill(model)
        return [[self._reply(prompt, skill, seed, number) for number in range(samples)] for prompt in prompts]

    def close(self) -> None:
        self.kill()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.alive:
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _must_live(self, op: str) -> None:
        if not self.alive:
            raise InfrastructureError(f"worker {self.pid} died during {op}")

    def _skill(self, model: ModelRef) -> float:
        if model.checkpoint is None:
            return self._script.base_skill[str(model.base)]
        weights = (Path(model.checkpoint) / "model.safetensors").read_text()
        if hashlib.sha256(weights.encode()).hexdigest() != model.sha256:
            raise InfrastructureError(f"{model.checkpoint} holds other weights than {model.sha256}")
        return float(json.loads(weights)["skill"])

    def _reply(self, prompt: str, skill: float, seed: int, number: int) -> str:
        """The worked solution with probability `skill`; the same draw for every model, so that skills
        compare.
        """
        if random.Random(derive(seed, prompt, number)).random() >= skill:
            return "Answer: none of them"
        for family in FAMILIES.values():
            solution = family.solve(prompt)
            if solution is not None:
                return write_up(solution[1], solution[0])
        raise AssertionError(f"no family solves {prompt!r}")
