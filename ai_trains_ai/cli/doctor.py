"""`ata doctor`: is this machine ready, shown by trying each thing, and what to do where it is not."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import click

from ai_trains_ai.cli.output import emit_json, json_option
from ai_trains_ai.cli.session import Services, home_option, services
from ai_trains_ai.errors import AtaError

LOW_DISK_BYTES = 2 * 2**30
"""A converted smollm2-135m and a few dozen checkpoints."""


@dataclass(frozen=True)
class Check:
    """ok False means that something needed will not work; a remark stands in detail either way."""

    name: str
    ok: bool
    detail: str
    fix: str = ""


@click.command()
@home_option
@json_option
@click.pass_context
def doctor(ctx: click.Context, home: str | None, as_json: bool) -> int:
    """Check Python, torch, worker, sandbox, base models and disk, each by trying it."""
    found = services(ctx)
    checks = [
        _python(),
        _torch(),
        _tried("cores", _cores),
        _tried("state folder", lambda: _disk(found, home)),
        *_bases(),
        _tried("sandbox", _sandbox),
        _tried("worker", lambda: _worker(found)),
    ]
    ready = all(check.ok for check in checks)
    if as_json:
        emit_json({"ready": ready, "checks": [vars(check) for check in checks]})
    else:
        for check in checks:
            click.echo(f"{'ok  ' if check.ok else 'FAIL'}  {check.name}: {check.detail}")
            if check.fix:
                label = "could be better" if check.ok else "fix"
                click.echo(f"      {label}: {check.fix}")
        click.echo("ready: try `ata demo`" if ready else "not ready")
    return 0 if ready else 3


def _tried(name: str, check: Callable[[], Check]) -> Check:
    """The check's verdict; a failure that has an owner is its verdict too."""
    try:
        return check()
    except AtaError as error:
        return Check(name, False, str(error))


def _python() -> Check:
    return Check("python", sys.version_info >= (3, 11), f"{platform.python_version()} at {sys.executable}")


def _torch() -> Check:
    try:
        return Check("torch", True, version("torch"))
    except PackageNotFoundError:
        return Check("torch", False, "not installed", "pip install torch")


def _cores() -> Check:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = os.getloadavg()[0]
    detail = f"{usable} usable, load {load:.1f}; each worker uses one torch thread"
    if load > usable:
        detail += "; the machine is busy, expect longer times than documented"
    return Check("cores", True, detail)


def _disk(found: Services, home: str | None) -> Check:
    from ai_trains_ai.rundir import Home
    from ai_trains_ai.store.store import Store

    place = Home.find(home, found.environ)
    place.secret(found.environ)
    with Store(place.store) as store:
        verdict = store.database.integrity()
    free = shutil.disk_usage(place.path).free
    detail = f"{place.path}, {free / 2**30:.1f} GiB free, store {verdict}"
    if verdict != "ok":
        return Check("state folder", False, detail, "restore store.sqlite from a copy, or move it away")
    if free < LOW_DISK_BYTES:
        return Check("state folder", False, detail, "free some space, or choose another folder with --home")
    return Check("state folder", True, detail)


def _bases() -> list[Check]:
    from ai_trains_ai.engine.bases import BASES, cache_folder

    checks = []
    for name, info in BASES.items():
        label = f"base {name}"
        if info.parameters > 10_000_000 and not any(cache_folder().glob(f"{name}-*")):
            detail = f"not here yet; the first use converts it: {info.source}"
            checks.append(Check(label, True, detail))
            continue
        checks.append(_tried(label, partial(_base, label, name)))
    return checks


def _base(label: str, name: str) -> Check:
    from ai_trains_ai.engine.bases import base_folder

    return Check(label, True, str(base_folder(name)))


def _sandbox() -> Check:
    """The level that jobs will run at, and why no stronger one."""
    from ai_trains_ai.sandbox.pick import LEVELS, examine

    reasons: list[str] = []
    fixes: list[str] = []
    for level in LEVELS:
        report = examine(level)
        if report.sandbox is not None:
            return Check("sandbox", True, "; ".join([f"{level} holds", *reasons]), "; ".join(fixes))
        reasons.append(f"{level} does not: {report.reason}")
        fixes.append(f"{level}: {report.fix}")
    return Check("sandbox", False, "; ".join(reasons), "; ".join(fixes))


def _worker(found: Services) -> Check:
    started = time.monotonic()
    worker = found.start_worker(unsafe_no_sandbox=False, device="cpu")
    seconds = time.monotonic() - started
    worker.close()
    return Check("worker", True, f"started in {seconds:.1f} s")
