"""What the reward depends on: random valid jobs, run for real, and the mean reward by each choice.

    .venv/bin/python -m bench.landscape --family string_pipeline --jobs 40 --seed 0 --out FILE

Every choice is drawn uniformly and independently. Results are appended to FILE as they come (JSON lines), so
an interrupted sweep goes on where it stopped; identical jobs come from the job cache.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ai_trains_ai.cli.session import Services
from ai_trains_ai.fleet.pipeline import run_job
from ai_trains_ai.fleet.summary import summary
from ai_trains_ai.seeds import derive
from ai_trains_ai.tasks.starter import environment_source, job_toml

CHOICES: dict[str, list[Any]] = {
    "base": ["nano-0.2m", "nano-0.8m"],
    "lr": [1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3],
    "levels": [[1], [1, 2], [2, 3, 4, 5], [5, 6]],
    "reward": ["exact", "partial", "format", "length", "constant"],
    "batch": [32, 64, 128, 256],
    "group": [4, 8, 16],
    "steps": [5, 10, 20],
}


def draws(seed: int) -> Iterator[dict[str, Any]]:
    """Endless independent uniform draws."""
    rng = random.Random(derive(seed, "landscape"))
    while True:
        yield {name: rng.choice(values) for name, values in CHOICES.items()}


def job_files(family: str, choice: dict[str, Any]) -> dict[str, bytes]:
    """The job directory of a draw."""
    settings = {
        "max_steps": choice["steps"],
        "orchestrator.batch_size": choice["batch"],
        "orchestrator.group_size": choice["group"],
        "trainer.optim.lr": choice["lr"],
    }
    environment = environment_source(family, levels=choice["levels"], reward=choice["reward"])
    return {
        "job.toml": job_toml(family, choice["base"], settings).encode(),
        "environment.py": environment.encode(),
    }


def report(rows: list[dict[str, Any]]) -> str:
    """Quantiles of the reward, then its mean by the values of each choice."""
    rewards = sorted(row["reward"] for row in rows)
    best = max(rows, key=lambda row: row["reward"])
    quantiles = statistics.quantiles(rewards, n=10, method="inclusive")
    lines = [
        f"{len(rows)} jobs: min {rewards[0]:.3f}, median {statistics.median(rewards):.3f}, "
        f"90% {quantiles[8]:.3f}, max {rewards[-1]:.3f}; best minus median "
        f"{rewards[-1] - statistics.median(rewards):.3f}",
        f"best: {json.dumps(best['choice'])}, post {best['post']:.3f}, uplift {best['uplift']:.3f}",
    ]
    for name, values in CHOICES.items():
        cells = []
        for value in values:
            found = [row["reward"] for row in rows if row["choice"][name] == value]
            if found:
                cells.append(f"{value}: {statistics.mean(found):.3f} ({len(found)})")
        lines.append(f"{name:7} " + "  ".join(cells))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", default="string_pipeline")
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    done = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    source = draws(given.seed)
    wanted = [next(source) for _ in range(given.jobs)][len(done) :]
    with Services().workplace(home=None, workers=given.workers, eval_seed=given.seed) as place:

        def one(choice: dict[str, Any]) -> dict[str, Any]:
            found = summary(run_job(place, job_files(given.family, choice), seed=given.seed))
            if not found["valid"]:
                print(f"{choice}: {found}", file=sys.stderr)
            parts = {key: found[key] for key in ("post", "uplift", "seconds")}
            return {"family": given.family, "choice": choice, "reward": found["reward"]["total"], **parts}

        with ThreadPoolExecutor(given.workers) as threads, given.out.open("a") as out:
            for row in threads.map(one, wanted):
                out.write(json.dumps(row) + "\n")
                out.flush()
                done.append(row)
                print(f"{len(done)}/{given.jobs} {row}", file=sys.stderr, flush=True)
    print(report([row for row in done if row["post"] is not None]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
