"""The job of `bench.inner` as a first job: a fresh process that starts a worker, trains and ends.

python -m bench.ours_cold JOB_FOLDER SEED OUT
"""

from __future__ import annotations

import sys
from pathlib import Path

from ai_trains_ai.config import JobLimits
from ai_trains_ai.inner.client import Worker
from ai_trains_ai.jobs.spec import read_job


def main(job_folder: Path, seed: int, out: Path) -> None:
    job = read_job(job_folder, JobLimits())
    with Worker.start() as worker:
        worker.train(job, seed=seed, out=out, limits=JobLimits())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
