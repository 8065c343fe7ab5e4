"""What every part of the bench needs: one core for everything, clocks, spreads, and the machine's name."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Spread:
    """Middle and extremes of repeated measurements."""

    median: float
    low: float
    high: float
    repeats: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        return Spread(statistics.median(values), min(values), max(values), len(values))

    def text(self, unit: str = "", digits: int = 2) -> str:
        middle = f"{self.median:.{digits}f}{unit}"
        return middle if self.repeats == 1 else f"{middle} ({self.low:.{digits}f}-{self.high:.{digits}f})"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. Where there is nothing to compare with, `peer` and `ratio` are empty."""

    what: str
    ours: str
    peer: str = ""
    ratio: str = ""
    target: str = ""


def pin(core: int | None) -> str:
    """Bind this process, and so everything it starts, to one core and one thread; say what was done.

    A driver that only waits may share the core with the process it drives.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if not hasattr(os, "sched_setaffinity"):
        return "not pinned: this system has no affinity call"
    chosen = core if core is not None else max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {chosen})
    return f"core {chosen}"


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, of its living descendants and of those it has waited for."""
    process = psutil.Process(pid)
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def peer_environment() -> dict[str, str]:
    """Nothing is fetched, and no progress bars are drawn."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def run_peer(python: Path, module: str, *arguments: Path | str) -> None:
    """Run one of our `bench.peer_*` files in the peer environment; its last words are the error."""
    command = [str(python), "-m", module, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=peer_environment()
    )
    if done.returncode:
        raise RuntimeError(f"{module} failed:\n{done.stderr[-3000:]}")


def machine(python: Path, pinned: str) -> dict[str, Any]:
    """What the figures were measured on and with."""
    names = ("torch", "trl", "transformers", "accelerate")
    ask = f"from importlib.metadata import version; print(*(n + ' ' + version(n) for n in {names}), sep=', ')"
    commit = output_of("git", "rev-parse", "--short", "HEAD")
    changed = output_of("git", "status", "--porcelain", "--untracked-files=no")
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "pinned": pinned,
        "python": platform.python_version(),
        "torch": version("torch"),
        "peer": output_of(str(python), "-c", ask),
        "commit": commit + ("-changed" if changed else ""),
        "load": [round(x, 2) for x in os.getloadavg()],
    }


def output_of(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def plain(value: Any) -> Any:
    """Dataclasses as dictionaries, for the results file."""
    return asdict(value) if isinstance(value, Spread | Row) else value
