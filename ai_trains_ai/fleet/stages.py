"""The two stages that run a job's own code, on a worker: probing it and training it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ai_trains_ai.config import PrimeRlConfig
from ai_trains_ai.errors import AgentError, InfrastructureError, boundary
from ai_trains_ai.fleet.local import InnerWorker
from ai_trains_ai.fleet.workplace import JobEvent, OnEvent, Workplace
from ai_trains_ai.inner.progress import progress
from ai_trains_ai.jobs.probe import estimate_tokens, finding_of, static_probe
from ai_trains_ai.rundir import RunDir
from ai_trains_ai.types import Finding, InnerStep, Job, ProbeResult, TrainingRun


@dataclass(frozen=True)
class Request:
    """One readable job under one seed. submission: which try of its author this is, counted from 1."""

    job: Job
    family: str
    seed: int
    submission: int
    findings: tuple[Finding, ...]
    """The static probe's warnings."""
    bases: tuple[str, ...]
    """The untrained bases that uplift is measured against."""
    cache_key: str
    started: float


@dataclass(frozen=True)
class Trained:
    """What came back from the worker: one of training and failure, or neither when the probe says invalid."""

    probe: ProbeResult
    training: TrainingRun | None = None
    failure: Finding | None = None


def has_errors(findings: Sequence[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


def check_job(
    place: Workplace,
    source: Path | Mapping[str, bytes],
    *,
    family: str | None,
    seed: int,
    on_event: OnEvent,
) -> ProbeResult:
    """Everything that would reject the job, without training it: the static probe, then its environment."""
    started = time.monotonic()
    on_event(JobEvent("read", "reading the job"))
    job, findings = static_probe(source, place.limits, family)
    if job is None or has_errors(findings):
        return ProbeResult(False, tuple(findings), time.monotonic() - started)
    checked, answers = job, family or job.family
    on_event(JobEvent("probe", "running the job's environment"))
    more = place.pool.run(lambda worker: _probe(worker, checked, answers, seed, place))
    return _verdict(job, (*findings, *more), started)


def probe_and_train(place: Workplace, request: Request, run: RunDir, on_event: OnEvent) -> Trained:
    """Probe and train on one worker, again from the start when a machine fails.

    When it returns, the job's own code has ended.
    """

    def work(worker: InnerWorker) -> Trained:
        attempt = place.store.runs.attempt(run.id)
        with boundary(f"run directory {run.path}"):
            if run.checkpoint.exists():
                shutil.rmtree(run.checkpoint)  # of a try that died
        started = time.monotonic()
        on_event(JobEvent("probe", "running the job's environment"))
        found = _probe(worker, request.job, request.family, request.seed, place)
        probe = _verdict(request.job, (*request.findings, *found), started)
        if not probe.valid:
            return Trained(probe)
        on_step = _step_recorder(place, request, run, attempt, on_event)
        try:
            training = worker.train(
                request.job, seed=request.seed, out=run.checkpoint, limits=place.limits, on_step=on_step
            )
        except AgentError as error:
            return Trained(probe, failure=finding_of(error))
        return Trained(probe, training)

    def on_retry(attempt: int, error: InfrastructureError) -> None:
        place.store.events.add("retry", run.id, attempt=attempt, error=str(error))
        on_event(JobEvent("retry", f"try {attempt} failed, not by the job's fault: {error}"))

    return place.pool.run(work, on_retry=on_retry)


def _probe(worker: InnerWorker, job: Job, family: str, seed: int, place: Workplace) -> tuple[Finding, ...]:
    try:
        return worker.probe(job, family=family, seed=seed, limits=place.limits)
    except AgentError as error:
        return (finding_of(error),)


def _verdict(job: Job, findings: tuple[Finding, ...], started: float) -> ProbeResult:
    tokens = estimate_tokens(PrimeRlConfig.model_validate(job.prime_rl))
    return ProbeResult(not has_errors(findings), findings, time.monotonic() - started, tokens)


def _step_recorder(
    place: Workplace, request: Request, run: RunDir, attempt: int, on_event: OnEvent
) -> Callable[[InnerStep], None]:
    """Records each inner step when it arrives and says how far the training is."""
    steps: list[InnerStep] = []
    max_steps = int(request.job.prime_rl["max_steps"])
    on_event(JobEvent("train", f"training {request.job.base_model}, {max_steps} steps"))

    def on_step(step: InnerStep) -> None:
        steps.append(step)
        place.store.runs.step(run.id, attempt, step)
        now = progress(steps, max_steps)
        on_event(JobEvent("train", str(now), now))

    return on_step
