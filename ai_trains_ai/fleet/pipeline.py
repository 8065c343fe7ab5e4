"""One job's way through, top to bottom: read, probe, train, score, reward, record.

    job directory ─> static probe ─> cache? ─> worker: environment probe, training ─> checkpoint
        (the job's own code has ended here)  ─> hidden eval of bases and checkpoint ─> reward ─> store

Whose failure it is decides what happens: the job's is its result (rejected or failed, reward 0), a machine's
is retried and then raised, never scored.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ai_trains_ai.errors import InfrastructureError
from ai_trains_ai.fleet.local import PoolClosed
from ai_trains_ai.fleet.scorer import base_score, compared_bases, trained_score
from ai_trains_ai.fleet.stages import Request, has_errors, probe_and_train
from ai_trains_ai.fleet.summary import summary
from ai_trains_ai.fleet.workplace import JobEvent, OnEvent, Workplace
from ai_trains_ai.jobs.probe import static_probe
from ai_trains_ai.rundir import RunDir, hold
from ai_trains_ai.scoring import reward
from ai_trains_ai.scoring.baseline import best
from ai_trains_ai.scoring.hidden_eval import HiddenEval
from ai_trains_ai.scoring.integrity import divergence, stopped_early, verify_checkpoint
from ai_trains_ai.seeds import derive
from ai_trains_ai.types import Finding, Job, ProbeResult, RunResult, TrainingRun


def ignore(event: JobEvent) -> None:
    """The listener of nobody."""


def run_job(
    place: Workplace,
    source: Path | Mapping[str, bytes],
    *,
    family: str | None = None,
    seed: int = 0,
    submission: int = 1,
    use_cache: bool = True,
    on_event: OnEvent = ignore,
) -> RunResult:
    """Run the job in a directory (or in memory) and return all that came out of it, as the store has it.

    family: the family it must answer; None takes what its job.toml says. Deterministic in job, seed, eval
    secret and code: a second request is answered from the store, unless use_cache is False.
    Raises UsageError for a missing directory, and InfrastructureError when machines kept failing: such a run
    is recorded as missing and has no reward.
    """
    started = time.monotonic()
    on_event(JobEvent("read", "reading the job"))
    job, findings = static_probe(source, place.limits, family)
    if job is None or has_errors(findings):
        return _unreadable(place, job, family, findings, seed, submission, started)
    answers = family or job.family
    bases = compared_bases(place, answers, job.base_model)
    hashes = {name: place.base_hash(name) for name in bases}
    key = place.cache_key(job.content_sha256, answers, seed, hashes)
    request = Request(job, answers, seed, submission, tuple(findings), bases, key, started)
    place.store.runs.save_job(job, answers)
    if not use_cache:
        return _run(place, request, on_event)
    # Identical jobs at one moment: the second waits here, without a worker, and takes the first's result.
    waiting = JobEvent("cache", "this very job is being run already: waiting for its result")
    with place.home.locked(f"job-{key}", lambda: on_event(waiting)):
        known = place.store.runs.cached(key)
        if known is not None:
            result = place.store.runs.result(known)
            if not _by_circumstance(result):
                on_event(JobEvent("cache", f"served from run {known}"))
                return _from_cache(place, request, known, result)
        return _run(place, request, on_event)


def _by_circumstance(result: RunResult) -> bool:
    """Whether a busy or a small machine may have decided the result: then the next request runs afresh."""
    faults = (*result.probe.errors, *([result.failure] if result.failure else []))
    return any(finding.check in ("time", "time_limit", "process_ended") for finding in faults)


def _unreadable(
    place: Workplace,
    job: Job | None,
    family: str | None,
    findings: Sequence[Finding],
    seed: int,
    submission: int,
    started: float,
) -> RunResult:
    """Reject what the static probe refused. Nothing of it was run, so there is no run directory."""
    seconds = time.monotonic() - started
    probe = ProbeResult(False, tuple(findings), seconds)
    run_id = place.home.new_run_id("unreadable")
    result = replace(_unscored(place, job, seed, probe), seconds=seconds, run_id=run_id)
    with place.store.transaction():
        _begin(place, run_id, result, family or (job.family if job else ""), cache_key=None)
        _finish(place, run_id, result, submission)
    return result


def _unscored(
    place: Workplace, job: Job | None, seed: int, probe: ProbeResult, failure: Finding | None = None
) -> RunResult:
    """A result without scores: of a job that was rejected, or that failed by its own fault."""
    return RunResult(
        job_sha256=job.content_sha256 if job else "",
        seed=seed,
        outcome="failed" if probe.valid else "rejected",
        base_model=job.base_model if job else "",
        probe=probe,
        pre=None,
        best_pre=None,
        post=None,
        uplift_low=None,
        uplift_high=None,
        reward=reward.ZERO,
        training=None,
        failure=failure,
        seconds=0.0,
        trusted=place.trusted,
    )


def _begin(place: Workplace, run_id: str, result: RunResult, family: str, cache_key: str | None) -> None:
    place.store.runs.begin(
        run_id,
        job_sha256=result.job_sha256,
        family=family,
        base_model=result.base_model,
        seed=result.seed,
        cache_key=cache_key,
        trusted=result.trusted,
    )


def _finish(place: Workplace, run_id: str, result: RunResult, submission: int) -> None:
    config = place.reward.model_dump_json()
    place.store.runs.finish(run_id, result, submission=submission, reward_config=config)


def _from_cache(place: Workplace, request: Request, run_id: str, result: RunResult) -> RunResult:
    """The recorded result, with the reward it earns under this request's submission number."""
    earned = result.reward
    if result.outcome == "completed":
        assert result.post is not None, f"run {run_id} lacks its score"
        assert result.best_pre is not None, f"run {run_id} lacks its baseline"
        assert result.training is not None, f"run {run_id} lacks its training"
        earned = reward.completed(
            result.post,
            result.best_pre,
            training_tokens=result.training.tokens,
            submission=request.submission,
            limits=place.limits,
            config=place.reward,
        )
    place.store.runs.cache_hit(
        run_id,
        request.cache_key,
        submission=request.submission,
        reward=earned,
        reward_config=place.reward.model_dump_json(),
    )
    return replace(result, reward=earned, from_cache=True)


def _run(place: Workplace, request: Request, on_event: OnEvent) -> RunResult:
    """Work the job out and record it under the run's lock: whoever finds it free knows that we are gone."""
    job = request.job
    run = place.home.new_run(f"{request.family}-{job.content_sha256[:8]}-s{request.seed}")
    with hold(run.lock):
        run.write_job(job.files)
        run.write_json("run.json", {"settings": place.settings(), "seed": request.seed, **place.run_info})
        blank = _unscored(place, job, request.seed, ProbeResult(False, (), 0.0))
        _begin(place, run.id, blank, request.family, request.cache_key)
        with _ending(place, run):
            trained = probe_and_train(place, request, run, on_event)
            result = _unscored(place, job, request.seed, trained.probe, trained.failure)
            if trained.training is not None:
                result = _score(place, request, run, trained.training, result, on_event)
            result = replace(result, seconds=time.monotonic() - request.started, run_id=run.id)
            _finish(place, run.id, result, request.submission)
        run.write_json("result.json", summary(result))
    place.tidy()
    return result


@contextlib.contextmanager
def _ending(place: Workplace, run: RunDir) -> Iterator[None]:
    """Record why a run ended without a result. On a full disk that fails too; the next start records it."""
    try:
        yield
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt | SystemExit | PoolClosed)
        with contextlib.suppress(InfrastructureError):
            place.store.runs.end(run.id, "interrupted" if stopped else "missing", str(error))
        raise


def _score(
    place: Workplace,
    request: Request,
    run: RunDir,
    training: TrainingRun,
    result: RunResult,
    on_event: OnEvent,
) -> RunResult:
    """Hidden eval of the bases and of the checkpoint, and the reward that follows."""
    verify_checkpoint(training, run.checkpoint)
    hidden = HiddenEval.of(request.family, place.secret, place.evaluation)
    scores = {base: base_score(place, hidden, base, on_event) for base in request.bases}
    pre, best_pre = scores[request.job.base_model], best(list(scores.values()))
    post = trained_score(place, hidden, request.job.base_model, training, on_event)
    seed = derive(request.seed, "intervals")
    low, high = reward.uplift_interval(post, best_pre, place.reward, seed=seed)
    noticed = (stopped_early(training), divergence(training.steps, pre, post, seed=seed))
    return replace(
        result,
        outcome="completed",
        pre=pre,
        best_pre=best_pre,
        post=post,
        uplift_low=low,
        uplift_high=high,
        training=training,
        warnings=tuple(finding for finding in noticed if finding is not None),
        reward=reward.completed(
            post,
            best_pre,
            training_tokens=training.tokens,
            submission=request.submission,
            limits=place.limits,
            config=place.reward,
        ),
    )
