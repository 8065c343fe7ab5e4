"""One job's way through, on fake workers: outcomes, the cache, retries, and what the store then holds."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ai_trains_ai.config import EvalConfig, RewardConfig
from ai_trains_ai.errors import AgentError, InfrastructureError, UsageError
from ai_trains_ai.fleet.local import PoolClosed, WorkerPool
from ai_trains_ai.fleet.pipeline import run_job
from ai_trains_ai.fleet.workplace import JobEvent, Workplace
from ai_trains_ai.rundir import Home
from ai_trains_ai.scoring.hidden_eval import EvalSecret, HiddenEval
from ai_trains_ai.store.store import Store
from ai_trains_ai.tasks.starter import environment_source, job_toml
from ai_trains_ai.testing.workers import FakeWorker, Script
from ai_trains_ai.types import Finding, Job

SECRET = b"a secret nobody else has: 7f3a"


def job_files(base: str = "nano-0.8m", lr: float = 1e-4, family: str = "calc_chain") -> dict[str, bytes]:
    settings = {"max_steps": 5, "orchestrator.batch_size": 64, "trainer.optim.lr": lr}
    return {
        "job.toml": job_toml(family, base, settings).encode(),
        "environment.py": environment_source(family).encode(),
    }


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def place(tmp_path: Path, script: Script) -> Iterator[Workplace]:
    home = Home(tmp_path / "home")
    with Store(home.store) as store, WorkerPool(2, script.start) as pool:
        yield Workplace(
            home=home,
            store=store,
            pool=pool,
            secret=EvalSecret.private(SECRET),
            evaluation=EvalConfig(items_per_level=25),
            base_hash=lambda name: f"hash of {name}",
        )
    assert not [worker for worker in script.started if worker.alive]


def states(place: Workplace) -> list[str]:
    return [
        row["state"] for row in place.store.database.rows("SELECT state FROM runs ORDER BY started, rowid")
    ]


def test_a_completed_job(place: Workplace, script: Script) -> None:
    events: list[JobEvent] = []
    result = run_job(place, job_files(), seed=3, on_event=events.append)
    assert result.outcome == "completed"
    assert result.pre is not None
    assert result.best_pre is not None
    assert result.post is not None
    # The fakes answer right on 0.3, 0.5 and 0.9 of the tasks.
    assert result.best_pre.model == "nano-0.8m"
    assert result.pre == result.best_pre
    assert result.best_pre.accuracy == pytest.approx(0.5, abs=0.06)
    assert result.post.accuracy == pytest.approx(0.9, abs=0.07)
    lift = (result.post.accuracy - result.best_pre.accuracy) / (1 - result.best_pre.accuracy)
    assert result.reward.uplift == pytest.approx(lift)
    assert result.uplift_low is not None
    assert result.uplift_high is not None
    assert result.uplift_low < lift < result.uplift_high
    # 5 steps of 1000 tokens out of a million.
    assert result.reward.speed == pytest.approx(0.995)
    quality = 0.25 * result.post.accuracy + 0.75 * lift
    assert result.reward.total == pytest.approx(0.35 + 0.6 * quality + 0.05 * 0.995)
    phases = list(dict.fromkeys(event.phase for event in events))
    assert phases == ["read", "probe", "train", "baseline", "score"]
    last = [event.training for event in events if event.training][-1]
    assert (last.step, last.max_steps) == (5, 5)


def test_the_store_and_the_run_directory_hold_it(place: Workplace) -> None:
    result = run_job(place, job_files())
    (run_id,) = [row["id"] for row in place.store.database.rows("SELECT id FROM runs")]
    assert place.store.runs.result(run_id) == result
    assert result.run_id == run_id
    run = place.home.run(run_id)
    kept = json.loads((run.path / "result.json").read_text())
    assert kept["reward"]["total"] == result.reward.total
    assert (run.path / "job" / "job.toml").read_bytes() == job_files()["job.toml"]
    assert json.loads((run.path / "run.json").read_text())["settings"]["evaluation"]["items_per_level"] == 25


def test_best_pre_is_the_best_base_whatever_the_job_chose(place: Workplace) -> None:
    result = run_job(place, job_files(base="nano-0.2m"))
    assert result.pre is not None
    assert result.best_pre is not None
    assert (result.pre.model, result.best_pre.model) == ("nano-0.2m", "nano-0.8m")
    assert result.pre.accuracy < result.best_pre.accuracy


def test_the_slow_base_counts_once_it_was_measured(place: Workplace, script: Script) -> None:
    script.base_skill = {"nano-0.2m": 0.1, "nano-0.8m": 0.2, "smollm2-135m": 0.7}
    before = run_job(place, job_files())
    assert before.best_pre is not None
    assert before.best_pre.model == "nano-0.8m"
    run_job(place, job_files(base="smollm2-135m"))
    after = run_job(place, job_files())
    assert not after.from_cache, "the set of bases compared with is part of the cache key"
    assert after.best_pre is not None
    assert after.best_pre.model == "smollm2-135m"


def test_baselines_are_measured_once(place: Workplace, script: Script) -> None:
    run_job(place, job_files())
    bases = [model.base for model in script.sampled if model.base]
    run_job(place, job_files(lr=2e-4))
    assert [model.base for model in script.sampled if model.base] == bases
    assert sorted(set(bases)) == ["nano-0.2m", "nano-0.8m"]


def test_the_same_job_comes_from_the_cache(place: Workplace, script: Script) -> None:
    first = run_job(place, job_files(), seed=1)
    again = run_job(place, job_files(), seed=1)
    assert again.from_cache
    assert replace(again, from_cache=False) == first
    assert not run_job(place, job_files(), seed=2).from_cache
    assert not run_job(place, job_files(lr=2e-4), seed=1).from_cache
    assert len(place.store.database.rows("SELECT * FROM cache_hits")) == 1


def test_without_the_cache_the_scores_are_the_same_to_the_last_digit(place: Workplace) -> None:
    first = run_job(place, job_files(), seed=1)
    again = run_job(place, job_files(), seed=1, use_cache=False)
    assert not again.from_cache
    assert again.run_id != first.run_id
    assert again.post == replace(first.post, seconds=again.post.seconds)  # type: ignore[type-var,union-attr]
    assert (again.reward, again.uplift_low, again.uplift_high) == (
        first.reward,
        first.uplift_low,
        first.uplift_high,
    )


def test_a_cached_result_earns_by_its_own_submission(place: Workplace) -> None:
    first = run_job(place, job_files(), submission=1)
    third = run_job(place, job_files(), submission=3)
    assert third.from_cache
    assert third.reward.quality == first.reward.quality
    assert first.reward.total - third.reward.total == pytest.approx(0.35 * (1.0 - 0.3))
    # And asking again for the first submission gives the first reward.
    assert run_job(place, job_files(), submission=1).reward == first.reward


def test_other_settings_are_another_result(place: Workplace) -> None:
    run_job(place, job_files())
    for change in (
        {"reward": RewardConfig(post_weight=0.5)},
        {"evaluation": EvalConfig(items_per_level=24)},
        {"secret": EvalSecret.private(b"another secret of enough bytes")},
        {"trusted": False},
        {"device": "cuda"},
        {"base_hash": lambda name: f"other hash of {name}"},
    ):
        assert not run_job(replace(place, **change), job_files()).from_cache, change  # type: ignore[arg-type]


def test_identical_jobs_at_one_moment_run_once(place: Workplace, script: Script) -> None:
    script.seconds_a_step = 0.02
    events: list[JobEvent] = []
    with ThreadPoolExecutor(4) as threads:
        runs = [threads.submit(run_job, place, job_files(), on_event=events.append) for _ in range(4)]
        results = [run.result() for run in runs]
    assert any("waiting for its result" in event.message for event in events)
    assert sorted(result.from_cache for result in results) == [False, True, True, True]
    assert len({result.reward for result in results}) == 1


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"job.toml": b"family = "}, "toml"),
        ({"job.toml": b'family = "calc_chain"\nbase_model = "gpt-9"\n'}, "base_model"),
        ({"environment.py": b"\xff"}, "files"),
    ],
)
def test_an_unreadable_job_is_rejected(
    place: Workplace, script: Script, change: dict[str, bytes], check: str
) -> None:
    result = run_job(place, {**job_files(), **change})
    assert result.outcome == "rejected"
    assert check in [finding.check for finding in result.probe.errors]
    assert result.reward.total == 0.0
    assert states(place) == ["rejected"]
    assert not script.started, "nothing was run"


def test_a_job_for_another_family_is_rejected(place: Workplace) -> None:
    assert run_job(place, job_files(), family="ledger").outcome == "rejected"


def test_a_job_that_the_probe_rejects(place: Workplace, script: Script) -> None:
    error = Finding("tasks", "load() gives 3 tasks", "generate more")
    script.findings = lambda job: (error, Finding("reward_constant", "flat", "vary it", "warning"))
    result = run_job(place, job_files())
    assert result.outcome == "rejected"
    assert result.probe.errors == (error,)
    assert result.reward.total == 0.0
    assert run_job(place, job_files()).from_cache


def fails(error: Exception) -> Script:
    script = Script()

    def on_step(worker: FakeWorker, step: int) -> None:
        if step == 2:
            raise error

    script.on_step = on_step
    return script


def test_a_job_that_fails_in_training_is_its_authors_zero(place: Workplace) -> None:
    with WorkerPool(1, fails(AgentError("reward_value", "nan", "return a number")).start) as pool:
        result = run_job(replace(place, pool=pool), job_files())
    assert result.outcome == "failed"
    assert result.failure == Finding("reward_value", "nan", "return a number")
    assert result.probe.valid
    assert result.reward.total == 0.0
    assert result.post is None
    assert states(place) == ["failed"]
    # The steps it got to are kept.
    assert len(place.store.database.rows("SELECT * FROM inner_steps")) == 2


@pytest.mark.parametrize("check", ["time", "time_limit", "process_ended"])
def test_what_a_busy_machine_may_have_decided_is_not_cached(place: Workplace, check: str) -> None:
    with WorkerPool(1, fails(AgentError(check, "too slow", "")).start) as pool:
        assert run_job(replace(place, pool=pool), job_files()).outcome == "failed"
    again = run_job(place, job_files())
    assert again.outcome == "completed"
    assert not again.from_cache


def test_a_worker_killed_in_mid_job_changes_nothing(place: Workplace, script: Script) -> None:
    undisturbed = run_job(place, job_files(), use_cache=False)
    killed: list[int] = []

    def on_step(worker: FakeWorker, step: int) -> None:
        if step == 3 and not killed:
            killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)
            worker._process.wait()

    script.on_step = on_step
    result = run_job(place, job_files(), use_cache=False)
    assert killed
    assert result.reward == undisturbed.reward
    assert result.training is not None
    assert len(result.training.steps) == 5
    assert [event["kind"] for event in place.store.events.all()] == ["retry"]
    assert states(place) == ["completed", "completed"]


def test_infrastructure_that_stays_broken_is_missing_not_zero(place: Workplace) -> None:
    script = fails(InfrastructureError("worker 7 died"))
    with WorkerPool(1, script.start) as pool, pytest.raises(InfrastructureError, match="worker 7 died"):
        run_job(replace(place, pool=pool), job_files())
    assert states(place) == ["missing"]
    assert not place.store.database.rows("SELECT * FROM rewards")
    assert not run_job(place, job_files()).from_cache


def test_a_bug_of_ours_crashes_and_is_recorded(place: Workplace) -> None:
    with WorkerPool(1, fails(TypeError("ours")).start) as pool, pytest.raises(TypeError):
        run_job(replace(place, pool=pool), job_files())
    assert states(place) == ["missing"]


def test_a_closed_pool_interrupts(place: Workplace, script: Script) -> None:
    begun = threading.Event()

    def on_step(worker: FakeWorker, step: int) -> None:
        begun.set()

    script.on_step, script.seconds_a_step = on_step, 0.2
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(run_job, place, job_files())
        begun.wait(5)
        place.pool.close()
        with pytest.raises(PoolClosed):
            future.result(timeout=10)
    assert states(place) == ["interrupted"]


def test_swapped_weights_are_refused(place: Workplace, script: Script) -> None:
    """Another model's weights in the checkpoint's place, put there while the baselines are measured."""

    def swap(event: JobEvent) -> None:
        if event.phase == "baseline":
            for weights in place.home.path.glob("runs/*/checkpoint/model.safetensors"):
                weights.write_text(json.dumps({"skill": 1.0}))

    with pytest.raises(InfrastructureError, match="other weights"):
        run_job(place, job_files(), on_event=swap)
    assert states(place) == ["missing"]


def test_the_secret_and_the_answers_stay_in_this_process(
    place: Workplace, script: Script, tmp_path: Path
) -> None:
    """No file under the state folder holds the secret or a hidden item's prompt."""
    run_job(place, job_files())
    items = HiddenEval.of("calc_chain", place.secret, place.evaluation).items
    place.store.close()
    held = b"".join(path.read_bytes() for path in place.home.path.rglob("*") if path.is_file())
    assert SECRET not in held
    assert SECRET.hex().encode() not in held
    assert not [item.prompt for item in items if item.prompt.encode() in held]
    assert "secret nobody" not in repr(place)
    assert items[0].prompt not in repr(HiddenEval.of("calc_chain", place.secret, place.evaluation))


def test_a_run_left_open_by_a_killed_process_is_closed(place: Workplace) -> None:
    run = place.home.new_run("left")
    run.lock.touch()
    names = {
        "job_sha256": "",
        "family": "f",
        "base_model": "b",
        "seed": 0,
        "cache_key": None,
        "trusted": True,
    }
    place.store.runs.begin(run.id, **names)  # type: ignore[arg-type]
    assert place.recover() == [run.id]
    assert states(place) == ["abandoned"]
    assert place.recover() == []


def test_a_run_being_worked_on_is_left_alone(place: Workplace, script: Script) -> None:
    seen: list[list[str]] = []
    script.on_step = lambda worker, step: seen.append(place.recover())
    assert run_job(place, job_files()).outcome == "completed"
    assert seen == [[]] * 5


def test_a_missing_directory_is_wrong_use(place: Workplace, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no job directory"):
        run_job(place, tmp_path / "nowhere")


def test_a_hacked_reward_is_reported(place: Workplace, script: Script) -> None:
    """The fakes' inner reward rises from 0.2 to 0.28 with a spread of 0.4; with more steps, to 0.78."""

    def skill(job: Job) -> float:
        return 0.3

    script.skill = skill
    files = job_files()
    files["job.toml"] = files["job.toml"].replace(b"max_steps = 5", b"max_steps = 30")
    result = run_job(place, files)
    assert result.outcome == "completed"
    assert [warning.check for warning in result.warnings] == ["reward_divergence"]
    assert result.reward.validation == 1.0, "a warning never changes the reward"
