"""Our engine on the prompts of `bench.generation`; the counterpart of `bench.peer_generate`.

python -m bench.ours_generate SPEC.json RESULT.json
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from ai_trains_ai.engine.generate import generate
from ai_trains_ai.engine.load import load_model
from ai_trains_ai.engine.sampling import SamplingParams


def main(spec_path: Path, result_path: Path) -> None:
    spec = json.loads(spec_path.read_text())
    torch.set_num_threads(1)
    model = load_model(spec["model"], dtype=getattr(torch, spec["dtype"]))
    prompts: list[list[int]] = spec["prompts"]

    def once(new_tokens: int, seed: int) -> float:
        started = time.perf_counter()
        done = generate(model, prompts, SamplingParams(max_tokens=new_tokens, stop_ids=()), seed=seed)
        assert all(len(c.tokens) == new_tokens for group in done for c in group)
        return time.perf_counter() - started

    once(4, seed=0)  # first calls allocate and choose kernels
    seconds = [once(spec["new_tokens"], seed) for seed in range(spec["repeats"])]
    result_path.write_text(json.dumps({"seconds": seconds, "threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
