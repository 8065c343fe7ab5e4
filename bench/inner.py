"""One training job, by our worker and by TRL's GRPOTrainer: time a step, time a job, and what was learnt.

The same base weights, tasks, reward, number of steps, rollouts, group size, learning rate, optimizer numbers,
temperature and token limit, on the same core, in alternating order. TRL scores completions with a Python
function in its own process; ours sends them to the job's environment in its sandbox, and pays for that.

    warm    our worker is up with torch and the base loaded, as it is for every job but the first
    cold    a fresh Python process that starts a worker, trains and ends; TRL's job is always such a process

Each checkpoint is then scored by us, on the same hidden items with the same seeds.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as RawTokenizer

from ai_trains_ai.config import EvalConfig, JobLimits
from ai_trains_ai.engine.bases import base_folder
from ai_trains_ai.engine.load import weights_sha256
from ai_trains_ai.engine.tokenizer import Tokenizer
from ai_trains_ai.inner.client import ModelRef, Worker
from ai_trains_ai.jobs.env_host import EnvHost
from ai_trains_ai.jobs.spec import read_job
from ai_trains_ai.sandbox.pick import pick_sandbox
from ai_trains_ai.scoring.evaluate import evaluate
from ai_trains_ai.scoring.hidden_eval import EvalSecret, HiddenEval
from ai_trains_ai.scoring.stats import clustered, paired_difference
from ai_trains_ai.tasks.registry import family
from ai_trains_ai.tasks.starter import environment_source, job_toml
from ai_trains_ai.types import Job
from bench.measure import ROOT, Row, Spread, cpu_seconds, run_peer

STEP_TARGET, JOB_TARGET = 4.0, 6.0
EVAL = EvalConfig()
SECRET = EvalSecret.public(0)


@dataclass(frozen=True, slots=True)
class Plan:
    """The job that both sides run. What is not here has the job format's default."""

    family: str = "string_pipeline"
    base: str = "nano-0.2m"
    levels: tuple[int, ...] = (1, 2, 3, 4, 5)
    tasks: int = 512
    steps: int = 20
    batch_size: int = 192
    group_size: int = 8
    max_tokens: int = 60
    lr: float = 3e-4


@dataclass(frozen=True, slots=True)
class Run:
    """One side's run.

    seconds, cpu: wall and CPU time of the whole job. steps: wall time by step. rewards: inner reward by step.
    post: hidden-eval score by item.
    """

    seconds: float
    cpu: float
    steps: list[float]
    rewards: list[float]
    post: list[float]


def write_job(plan: Plan, folder: Path) -> Job:
    settings = {
        "max_steps": plan.steps,
        "orchestrator.batch_size": plan.batch_size,
        "orchestrator.group_size": plan.group_size,
        "orchestrator.train.sampling.max_completion_tokens": plan.max_tokens,
        "trainer.optim.lr": plan.lr,
    }
    folder.mkdir()
    environment = environment_source(plan.family, levels=plan.levels, reward="exact", num_tasks=plan.tasks)
    (folder / "environment.py").write_text(environment)
    (folder / "job.toml").write_text(job_toml(plan.family, plan.base, settings))
    return read_job(folder, JobLimits())


def peer_spec(plan: Plan, job: Job, seed: int, out: Path) -> dict[str, Any]:
    """The same job for `bench.peer_trl`: the tasks as the job's environment offers them, solved."""
    folder = base_folder(plan.base)
    tokenizer = Tokenizer.from_folder(folder)
    raw = RawTokenizer.from_file(str(folder / "tokenizer.json"))
    solver = family(plan.family)
    tasks, prompt_ids = [], []
    with EnvHost.start(job, pick_sandbox(), JobLimits()) as host:
        for task in host.tasks:
            solved = solver.solve(task.prompt)
            assert solved is not None
            prompt_ids.append(tokenizer.encode_prompt(task.prompt, task.system_prompt))
            text = raw.decode(prompt_ids[-1], skip_special_tokens=False)
            tasks.append({"prompt": text, "answer": solved[0]})
    optim = job.prime_rl["trainer"]["optim"]
    return {
        "model": str(folder),
        "out": str(out),
        "seed": seed,
        "steps": plan.steps,
        "batch_size": plan.batch_size,
        "group_size": plan.group_size,
        "max_tokens": plan.max_tokens,
        "temperature": job.prime_rl["orchestrator"]["train"]["sampling"]["temperature"],
        "lr": optim["lr"],
        "weight_decay": optim["weight_decay"],
        "betas": [optim["betas1"], optim["betas2"]],
        "max_norm": optim["max_norm"],
        "stop_ids": list(tokenizer.stop_ids),
        "eos_token": raw.id_to_token(tokenizer.stop_ids[0]),
        "pad_token": raw.id_to_token(tokenizer.pad_id),
        "tasks": tasks,
        "prompt_ids": prompt_ids,
    }


def ours_warm(worker: Worker, scored: str, job: Job, seed: int, out: Path) -> Run:
    before, started = cpu_seconds(worker.pid), time.perf_counter()
    training = worker.train(job, seed=seed, out=out, limits=JobLimits())
    seconds = time.perf_counter() - started
    return Run(
        seconds,
        cpu_seconds(worker.pid) - before,
        [step.seconds for step in training.steps],
        [step.inner_reward for step in training.steps],
        scores(worker, scored, ModelRef(checkpoint=training.checkpoint, sha256=training.weights_sha256)),
    )


def ours_cold(job_folder: Path, seed: int, out: Path) -> float:
    """Seconds from starting Python to a written checkpoint and an ended worker."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "bench.ours_cold", str(job_folder), str(seed), str(out)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def trl(peer_python: Path, spec: dict[str, Any], worker: Worker, scored: str, scratch: Path) -> Run:
    """TRL's job in a fresh process, its checkpoint scored by our worker."""
    spec_file, answer = scratch / "trl.json", scratch / "trl-result.json"
    spec_file.write_text(json.dumps(spec))
    started = time.perf_counter()
    run_peer(peer_python, "bench.peer_trl", spec_file, answer)
    seconds = time.perf_counter() - started
    result = json.loads(answer.read_text())
    assert result["threads"] == 1, "the comparison is per thread"
    assert result["prompt_ids"] == spec["prompt_ids"], "TRL would train on other tokens than we do"
    out = Path(spec["out"])
    for file in ("tokenizer.json", "tokenizer_config.json"):  # transformers rewrites them in its own manner
        shutil.copy(Path(spec["model"]) / file, out / file)
    post = scores(worker, scored, ModelRef(checkpoint=str(out), sha256=weights_sha256(out)))
    return Run(seconds, result["cpu_seconds"], result["step_seconds"], result["rewards"], post)


def scores(worker: Worker, scored: str, model: ModelRef) -> list[float]:
    """Score by hidden item, sampled at temperature 1 with the seeds every model gets."""

    def sampler(prompts: Sequence[str], samples: int, seed: int) -> list[list[str]]:
        return worker.sample(
            model, prompts, samples=samples, seed=seed, max_tokens=EVAL.max_completion_tokens
        )

    hidden = HiddenEval.of(scored, SECRET, EVAL)
    return list(evaluate(sampler, hidden, model=scored, samples=EVAL.samples).item_scores)


def run(peer_python: Path, scratch: Path, plan: Plan, *, repeats: int) -> tuple[list[Row], Any]:
    """Run both sides `repeats` times, each repeat with its own seed. Returns the table's rows and the raw
    figures.
    """
    job = write_job(plan, scratch / "job")
    ours, peer, cold = [], [], []
    with Worker.start() as worker:
        worker.warm([plan.base])
        pre = scores(worker, plan.family, ModelRef(base=plan.base))
        for seed in range(repeats):
            spec = peer_spec(plan, job, seed, scratch / f"trl-{seed}")

            def one(seed: int = seed) -> None:
                ours.append(ours_warm(worker, plan.family, job, seed, scratch / f"ours-{seed}"))

            def other(spec: dict[str, Any] = spec) -> None:
                peer.append(trl(peer_python, spec, worker, plan.family, scratch))

            for turn in (one, other) if seed % 2 == 0 else (other, one):
                turn()
            cold.append(ours_cold(scratch / "job", seed, scratch / f"cold-{seed}"))
    raw = {
        "plan": asdict(plan),
        "pre": pre,
        "ours": [asdict(one) for one in ours],
        "trl": [asdict(one) for one in peer],
        "ours_cold_seconds": cold,
    }
    return table(plan, pre, ours, peer, cold), raw


def table(plan: Plan, pre: list[float], ours: list[Run], peer: list[Run], cold: list[float]) -> list[Row]:
    size = f"{plan.base}, {plan.batch_size} rollouts"
    steps = (
        [statistics.median(run.steps[1:]) for run in ours],
        [statistics.median(run.steps[1:]) for run in peer],
    )
    jobs = [run.seconds for run in ours], [run.seconds for run in peer]
    cpu = [run.cpu for run in ours], [run.cpu for run in peer]
    return [
        versus(f"GRPO step, {size}", *steps, target=f"≥ {STEP_TARGET:g}×"),
        versus(f"job, {size} × {plan.steps} steps, warm worker", *jobs, target=f"≥ {JOB_TARGET:g}×"),
        versus("the same, fresh process on both sides", cold, jobs[1]),
        versus("the same, CPU time, warm worker", *cpu),
        learnt(plan, pre, ours, peer),
    ]


def versus(what: str, ours: Sequence[float], peer: Sequence[float], target: str = "") -> Row:
    """Medians over the repeats; the ratio is taken within each repeat, where the machine was in one state."""
    ratio = Spread.of([b / a for a, b in zip(ours, peer, strict=True)])
    return Row(what, Spread.of(ours).text(" s"), Spread.of(peer).text(" s"), ratio.text("×", 1), target)


def learnt(plan: Plan, pre: list[float], ours: list[Run], peer: list[Run]) -> Row:
    """Post scores by item, averaged over the repeats' seeds; intervals over the items, as everywhere."""
    mine, theirs = (np.mean([run.post for run in runs], axis=0).tolist() for runs in (ours, peer))
    gap, low, high = paired_difference(mine, theirs, seed=0)
    return Row(
        f"hidden-eval score, {plan.family}, from {np.mean(pre):.3f} ({len(ours)} seeds)",
        interval(mine),
        interval(theirs),
        f"{gap:+.3f} ({low:+.3f} to {high:+.3f})",
        "≥ TRL's",
    )


def interval(item_scores: Sequence[float]) -> str:
    accuracy, low, high = clustered(item_scores)
    return f"{accuracy:.3f} ({low:.3f}-{high:.3f})"
