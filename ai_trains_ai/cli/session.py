"""From command-line options to a `Workplace`: state folder, store, secret, sandbox, workers. Built once,
here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from ai_trains_ai.cli.output import ProgressLine
from ai_trains_ai.fleet.local import InnerWorker, WorkerPool
from ai_trains_ai.fleet.workplace import JobEvent, Workplace
from ai_trains_ai.rundir import Home
from ai_trains_ai.scoring.hidden_eval import EvalSecret
from ai_trains_ai.store.store import Store

home_option = click.option(
    "--home",
    type=click.Path(file_okay=False),
    help="State folder (default: $ATA_HOME, else under ~/.local/state).",
)
unsafe_option = click.option(
    "--unsafe-no-sandbox", is_flag=True, help="Run the job's code unconfined; results are marked untrusted."
)
device_option = click.option(
    "--device", default="cpu", show_default=True, metavar="DEVICE", help="Where models run: cpu, cuda or mps."
)


def _start_real(*, unsafe_no_sandbox: bool, device: str) -> InnerWorker:
    from ai_trains_ai.inner.client import Worker

    return Worker.start(unsafe_no_sandbox=unsafe_no_sandbox, device=device)


@dataclass(frozen=True)
class Services:
    """What a command reaches outside itself; tests pass their own as click's `obj`."""

    start_worker: Callable[..., InnerWorker] = _start_real
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of `Workplace`."""

    @contextmanager
    def workplace(
        self,
        *,
        home: str | None,
        workers: int = 1,
        unsafe: bool = False,
        device: str = "cpu",
        eval_seed: int | None = None,
    ) -> Iterator[Workplace]:
        """Everything a job needs; on the way out, however that is, every worker has ended."""
        place = Home.find(home, self.environ)
        secret = (
            EvalSecret.private(place.secret(self.environ))
            if eval_seed is None
            else EvalSecret.public(eval_seed)
        )

        def start() -> InnerWorker:
            return self.start_worker(unsafe_no_sandbox=unsafe, device=device)

        with Store(place.store) as store, WorkerPool(workers, start) as pool:
            made = Workplace(
                home=place,
                store=store,
                pool=pool,
                secret=secret,
                trusted=not unsafe,
                device=device,
                run_info={"command": sys.argv, "commit": _commit()},
                **self.settings,
            )
            for run in made.recover():
                click.echo(f"run {run} was cut off when its process died; recorded as abandoned", err=True)
            yield made


def services(ctx: click.Context) -> Services:
    """The context's services: the real ones unless whoever called the command passed others."""
    return ctx.ensure_object(Services)


def listener(
    line: ProgressLine, label: str = "", together: dict[str, str] | None = None
) -> Callable[[JobEvent], None]:
    """Shows a job's events on a progress line.

    together: shared by the listeners of jobs that run side by side; on a terminal the line shows them all.
    """
    last: list[str] = []
    texts = {} if together is None else together

    def on_event(event: JobEvent) -> None:
        # A new phase, every retry and the last step are shown even where the output is a file.
        always = event.phase == "retry" or last[-1:] != [event.phase]
        if event.training is not None and event.training.step == event.training.max_steps:
            always = True
        last[:] = [event.phase]
        texts[label] = f"{label}: {event.message}" if label else event.message
        line.show(" | ".join(texts.values()) if line.terminal else texts[label], always=always)

    return on_event


def _commit() -> str | None:
    """The checkout's commit when the package runs from its own checkout; "+" marks uncommitted changes."""
    package = Path(__file__).resolve().parent.parent
    if not (package.parent / ".git").exists():
        return None
    command = ["git", "-C", str(package), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None  # no git here
    return asked.stdout.strip() or None
