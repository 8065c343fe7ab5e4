"""`ata demo`: one task family, three jobs side by side, from the probe's verdict to the reward's parts."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ai_trains_ai.cli.output import ProgressLine, emit_json, json_option
from ai_trains_ai.cli.result import describe
from ai_trains_ai.cli.session import device_option, home_option, listener, services
from ai_trains_ai.errors import boundary
from ai_trains_ai.types import RunResult

if TYPE_CHECKING:
    from ai_trains_ai.fleet.workplace import Workplace

FAMILY = "string_pipeline"
TITLES = {
    "good": "the stronger base, tasks as long as the hidden ones, exact reward, a bold learning rate",
    "mediocre": "the starter as it comes: the weaker base, short tasks, few steps",
    "broken": "a key in the wrong table",
}


def demo_jobs(family: str) -> dict[str, dict[str, str]]:
    """Name -> files of the three jobs."""
    from ai_trains_ai.tasks.starter import environment_source, job_toml, starter_files

    good = {
        "max_steps": 20,
        "orchestrator.batch_size": 192,
        "orchestrator.group_size": 8,
        "orchestrator.train.sampling.max_completion_tokens": 96,
        "trainer.optim.lr": 5e-4,
    }
    return {
        "good": {
            "job.toml": job_toml(family, "nano-0.8m", good),
            "environment.py": environment_source(family, levels=(2, 3, 4, 5)),
        },
        "mediocre": starter_files(family),
        "broken": {
            "job.toml": job_toml(family, "nano-0.8m", {"group_size": 8}),
            "environment.py": environment_source(family),
        },
    }


@click.command()
@click.option("--family", default=FAMILY, show_default=True, help="The task family to show.")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 16), help="Worker processes.")
@click.option("--no-cache", is_flag=True, help="Train again even if the results are there already.")
@device_option
@home_option
@json_option
@click.pass_context
def demo(
    ctx: click.Context,
    family: str,
    workers: int,
    no_cache: bool,
    device: str,
    home: str | None,
    as_json: bool,
) -> int:
    """Show what makes a training job good: run a good, a mediocre and a broken one side by side.

    Under a minute on two cores. The jobs stay where they were written: change one and `ata job run` it.
    """
    from ai_trains_ai.fleet.summary import summary

    started = time.monotonic()
    jobs = demo_jobs(family)
    line = ProgressLine()
    with services(ctx).workplace(home=home, workers=workers, device=device) as place:
        folders = {name: _write(place.home.demo / name, files) for name, files in jobs.items()}
        results = _run(place, folders, workers, use_cache=not no_cache, line=line)
    line.clear()
    if as_json:
        shown = [
            {"name": name, "dir": str(folders[name]), **summary(result)} for name, result in results.items()
        ]
        emit_json({"family": family, "seconds": time.monotonic() - started, "jobs": shown})
    else:
        for name, result in results.items():
            click.echo(f"\n{name.upper()}: {TITLES[name]}\n  {folders[name]}")
            click.echo("\n".join("  " + row for row in describe(result).splitlines()))
        click.echo(
            f"\n{_moral(results)}\n{time.monotonic() - started:.0f} s in all. Next: change a job above,"
        )
        click.echo(f"then ata job run {folders['mediocre']}")
    as_meant = [result.outcome for result in results.values()] == ["completed", "completed", "rejected"]
    return 0 if as_meant else 1


def _write(folder: Path, files: dict[str, str]) -> Path:
    with boundary(f"writing {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
    return folder


def _run(
    place: Workplace, folders: dict[str, Path], workers: int, *, use_cache: bool, line: ProgressLine
) -> dict[str, RunResult]:
    """All jobs at once, as many as there are workers; results in the order of `folders`."""
    from ai_trains_ai.fleet.pipeline import run_job

    latest: dict[str, str] = {}

    def one(name: str) -> RunResult:
        on_event = listener(line, label=name, together=latest)
        return run_job(place, folders[name], use_cache=use_cache, on_event=on_event)

    threads = ThreadPoolExecutor(workers)
    try:
        return dict(zip(folders, threads.map(one, folders), strict=True))
    except BaseException:
        # Closing the pool first lets the threads that wait for a worker's answer end.
        place.pool.close()
        raise
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


def _moral(results: dict[str, RunResult]) -> str:
    lines = []
    for name, result in results.items():
        scores = "no model"
        if result.best_pre is not None and result.post is not None:
            scores = f"{result.best_pre.accuracy:.2f} -> {result.post.accuracy:.2f}"
        lines.append(f"{name:9} {scores:13} reward {result.reward.total:.2f}")
    return "\n".join(lines)
