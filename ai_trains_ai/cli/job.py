"""`ata job new | check | run | render`."""

from __future__ import annotations

from pathlib import Path

import click

from ai_trains_ai.cli.output import ProgressLine, emit_json, json_option
from ai_trains_ai.cli.result import describe
from ai_trains_ai.cli.session import device_option, home_option, listener, services, unsafe_option
from ai_trains_ai.errors import UsageError, boundary
from ai_trains_ai.types import Finding

job_directory = click.argument(
    "directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
seed_option = click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**63 - 1))


@click.group()
def job() -> None:
    """Make, check and run a training job."""


@job.command(short_help="Write a job for FAMILY to start from.")
@click.argument("family")
@click.option(
    "--dir",
    "directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to write it.",
)
@json_option
def new(family: str, directory: Path, as_json: bool) -> int:
    """Write a job for FAMILY to start from: valid, and mediocre."""
    from ai_trains_ai.tasks.starter import starter_files

    files = starter_files(family)
    with boundary(f"writing {directory}"):
        if directory.exists() and any(directory.iterdir()):
            raise UsageError(f"{directory} is not empty: choose another --dir")
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name).write_text(text)
    if as_json:
        emit_json({"dir": str(directory), "family": family, "files": sorted(files)})
        return 0
    click.echo(f"{directory}: {', '.join(sorted(files))}")
    click.echo(f"next: ata job check {directory} && ata job run {directory}")
    return 0


@job.command(short_help="Everything that is wrong with a job, before it trains.")
@job_directory
@seed_option
@home_option
@unsafe_option
@json_option
@click.pass_context
def check(
    ctx: click.Context, directory: Path, seed: int, home: str | None, unsafe_no_sandbox: bool, as_json: bool
) -> int:
    """Say whether the job would be accepted, and if not, everything that is wrong with it."""
    from ai_trains_ai.fleet.stages import check_job

    line = ProgressLine()
    with services(ctx).workplace(home=home, unsafe=unsafe_no_sandbox) as place:
        found = check_job(place, directory, family=None, seed=seed, on_event=listener(line))
    line.clear()
    warnings = [finding for finding in found.findings if finding.severity == "warning"]
    if as_json:
        emit_json({"valid": found.valid, "errors": _plain(found.errors), "warnings": _plain(warnings)})
    else:
        click.echo(f"{'valid' if found.valid else 'rejected'} ({found.seconds:.1f} s)")
        for finding in found.findings:
            click.echo(f"  {finding.severity}: {finding.check}: {finding.message}")
            if finding.fix:
                click.echo(f"    fix: {finding.fix}")
    return 0 if found.valid else 1


@job.command(short_help="Train, score and reward a job.")
@job_directory
@seed_option
@click.option("--no-cache", is_flag=True, help="Run it even if this very job and seed has a result already.")
@device_option
@home_option
@unsafe_option
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    directory: Path,
    seed: int,
    no_cache: bool,
    device: str,
    home: str | None,
    unsafe_no_sandbox: bool,
    as_json: bool,
) -> int:
    """Train the job's model, score it on the hidden eval, and give the job its reward."""
    from ai_trains_ai.fleet.pipeline import run_job
    from ai_trains_ai.fleet.summary import summary

    line = ProgressLine()
    with services(ctx).workplace(home=home, unsafe=unsafe_no_sandbox, device=device) as place:
        result = run_job(place, directory, seed=seed, use_cache=not no_cache, on_event=listener(line))
    line.clear()
    if as_json:
        emit_json(summary(result))
    else:
        click.echo(describe(result))
    return 0 if result.outcome == "completed" else 1


@job.command(short_help="Write a job as prime-rl runs it.")
@job_directory
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to write rl.toml, the environment package and run.sh.",
)
@json_option
def render(directory: Path, out: Path, as_json: bool) -> int:
    """Write the job as prime-rl runs it: its whole config, its environment as a package, the command."""
    import shutil

    from ai_trains_ai.config import JobLimits
    from ai_trains_ai.engine.bases import base_folder
    from ai_trains_ai.jobs.render import render as render_job
    from ai_trains_ai.jobs.spec import read_job

    rendered = render_job(read_job(directory, JobLimits()))
    local = rendered.local_model and base_folder(rendered.local_model)
    with boundary(f"writing {out}"):
        if out.exists() and any(out.iterdir()):
            raise UsageError(f"{out} is not empty: choose another --out")
        for name, content in rendered.files.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(content)
        (out / "run.sh").chmod(0o755)
        if local:
            shutil.copytree(local, out / "models" / local.name)
        written = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    if as_json:
        emit_json({"out": str(out), "files": written, "final_weights": rendered.final_weights})
    else:
        click.echo(f"{out}: {len(written)} files")
        click.echo(f"run.sh installs and starts it; the weights will be in {rendered.final_weights}")
    return 0


def _plain(findings: list[Finding] | tuple[Finding, ...]) -> list[dict[str, str]]:
    return [{"check": f.check, "message": f.message, "fix": f.fix} for f in findings]
