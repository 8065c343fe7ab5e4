"""A real worker process on a small random model: work, failures by owner, and what is left after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ai_trains_ai.config import JobLimits, PrimeRlConfig
from ai_trains_ai.engine.tokenizer import Tokenizer
from ai_trains_ai.errors import AgentError, InfrastructureError, UsageError
from ai_trains_ai.inner.client import ModelRef, Worker, worker_environment
from ai_trains_ai.inner.wire import WorkerBug
from ai_trains_ai.tasks.starter import environment_source
from ai_trains_ai.testing.models import write_random_model
from ai_trains_ai.types import InnerStep, Job

LIMITS = JobLimits()
PROMPTS = ["say a", "say b", "say c"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "tiny"
    write_random_model(folder, max_positions=512)
    return folder


@pytest.fixture(scope="module")
def shared(base: Path) -> Iterator[Worker]:
    """One worker for the tests that leave it as they found it."""
    with Worker.start(bases={"tiny": base}) as worker:
        yield worker


def job(edit: Callable[[str], str] = lambda source: source, steps: int = 2) -> Job:
    """A length reward: what a random model can move."""
    source = environment_source("string_pipeline", reward="length", num_tasks=128)
    settings = {
        "max_steps": steps,
        "orchestrator": {"batch_size": 16, "group_size": 4},
        "trainer": {"optim": {"lr": 0.003}},
    }
    settings["orchestrator"]["train"] = {"sampling": {"max_completion_tokens": 12}}  # type: ignore[index]
    return Job(
        files={"environment.py": edit(source).encode()},
        base_model="tiny",
        environment_args={},
        prime_rl=PrimeRlConfig.model_validate(settings).model_dump(),
        explicit_keys=(),
        content_sha256="",
        family="string_pipeline",
    )


def test_a_job_from_probe_to_samples(shared: Worker, tmp_path: Path) -> None:
    findings = shared.probe(job(), family="string_pipeline", seed=0, limits=LIMITS)
    assert [f for f in findings if f.severity == "error"] == []
    seen: list[InnerStep] = []
    run = shared.train(job(), seed=0, out=tmp_path / "a", limits=LIMITS, on_step=seen.append)
    assert run.steps == tuple(seen)
    assert len(seen) == 2
    again = shared.train(job(), seed=0, out=tmp_path / "b", limits=LIMITS)
    assert again.weights_sha256 == run.weights_sha256
    trained = ModelRef(checkpoint=run.checkpoint, sha256=run.weights_sha256)
    sampled = shared.sample(trained, PROMPTS, samples=2, seed=5, max_tokens=12)
    assert [len(row) for row in sampled] == [2, 2, 2]
    assert sampled == shared.sample(trained, PROMPTS, samples=2, seed=5, max_tokens=12)
    assert sampled != shared.sample(trained, PROMPTS, samples=2, seed=6, max_tokens=12)
    assert sampled != shared.sample(ModelRef(base="tiny"), PROMPTS, samples=2, seed=5, max_tokens=12)
    assert Tokenizer.from_folder(Path(run.checkpoint)).chat == "nano"


def test_weights_are_loaded_by_hash(shared: Worker, base: Path) -> None:
    wrong = ModelRef(checkpoint=str(base), sha256="0" * 64)
    with pytest.raises(InfrastructureError, match="not what the trainer wrote"):
        shared.sample(wrong, PROMPTS, samples=1, seed=0, max_tokens=4)
    assert shared.alive


def test_failures_come_back_with_their_owner_and_leave_the_worker_usable(
    shared: Worker, tmp_path: Path
) -> None:
    broken = job(lambda source: source.replace("min(len(reply), 200) / 200", "undefined_name"))
    assert "undefined_name" in broken.files["environment.py"].decode()
    with pytest.raises(AgentError, match="undefined_name"):
        shared.train(broken, seed=0, out=tmp_path / "out", limits=LIMITS)
    with pytest.raises(UsageError, match="unknown base model 'nowhere'"):
        shared.sample(ModelRef(base="nowhere"), PROMPTS, samples=1, seed=0, max_tokens=4)
    with pytest.raises(WorkerBug, match=r"Traceback[\s\S]*_sample"):
        shared.sample(ModelRef(base="tiny"), PROMPTS, samples=0, seed=0, max_tokens=4)
    assert shared.sample(ModelRef(base="tiny"), PROMPTS, samples=1, seed=0, max_tokens=4)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_environment_is_a_finding_of_the_probe(shared: Worker) -> None:
    constant = job(lambda source: source.replace("min(len(reply), 200) / 200", "1.0"))
    findings = shared.probe(constant, family="string_pipeline", seed=0, limits=LIMITS)
    assert {f.check for f in findings if f.severity == "warning"} >= {"reward_variance"}
    raising = job(lambda source: source.replace("min(len(reply), 200) / 200", "1 / 0"))
    findings = shared.probe(raising, family="string_pipeline", seed=0, limits=LIMITS)
    assert any(f.severity == "error" and "ZeroDivisionError" in f.message for f in findings)


def test_too_slow_is_killed_with_everything(base: Path, tmp_path: Path) -> None:
    worker = Worker.start(bases={"tiny": base})
    with pytest.raises(InfrastructureError, match="took more than"):
        worker.train(job(steps=500), seed=0, out=tmp_path / "out", limits=LIMITS, timeout=1.5)
    assert not worker.alive
    with pytest.raises(InfrastructureError, match="has ended"):
        worker.warm(["tiny"])


def test_a_killed_worker_is_noticed_and_leaves_no_process(base: Path, tmp_path: Path) -> None:
    worker = Worker.start(bases={"tiny": base})
    children: list[psutil.Process] = []

    def kill(_step: InnerStep) -> None:
        children.extend(psutil.Process(worker.pid).children(recursive=True))
        os.kill(worker.pid, signal.SIGKILL)

    with pytest.raises(InfrastructureError, match="died during train"):
        worker.train(job(steps=500), seed=0, out=tmp_path / "out", limits=LIMITS, on_step=kill)
    assert children, "the job's environment was running"
    assert_gone(children)
    worker.kill()
    worker.kill()


DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_worker import LIMITS, job
from ai_trains_ai.inner.client import Worker
worker = Worker.start(bases={{"tiny": Path({base!r})}})
on_step = lambda step: print(worker.pid, step.step, flush=True)
worker.train(job(steps=500), seed=0, out=Path({out!r}), limits=LIMITS, on_step=on_step)
"""


def test_a_killed_driver_leaves_no_process(base: Path, tmp_path: Path) -> None:
    """kill -9 of the orchestrating process in mid-job: worker and environment end by themselves."""
    code = DRIVER.format(tests=str(Path(__file__).parent), base=str(base), out=str(tmp_path / "out"))
    driver = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    pid = int(driver.stdout.readline().split()[0])
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    assert len(family) > 1, "the job's environment was running"
    driver.kill()
    driver.wait()
    driver.stdout.close()
    assert_gone(family)


def test_prints_do_not_reach_the_protocol() -> None:
    code = (
        "from ai_trains_ai.inner.worker import private_pipes\n"
        "channel = private_pipes(); print('noise', flush=True); channel.send({'id': 1})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=120)
    assert done.stdout == b'\0\0\0\x09{"id": 1}'
    assert done.stderr == b"noise\n"


def test_keys_are_not_handed_to_workers() -> None:
    given = {"PATH": "/bin", "TINKER_API_KEY": "a", "RUNPOD_TOKEN": "b", "db_password": "c", "HOME": "/h"}
    kept = worker_environment(given)
    assert kept["PATH"] == "/bin"
    assert kept["OMP_NUM_THREADS"] == "1"
    assert not {"a", "b", "c"} & set(kept.values())


def test_a_model_is_named_in_exactly_one_way() -> None:
    with pytest.raises(ValueError, match="either"):
        ModelRef()
    with pytest.raises(ValueError, match="either"):
        ModelRef(base="tiny", checkpoint="/x", sha256="0")
    with pytest.raises(ValueError, match="sha256"):
        ModelRef(checkpoint="/x")


def assert_gone(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        alive = [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        if not alive:
            return
        time.sleep(0.05)
    raise AssertionError(f"still running: {alive}")
