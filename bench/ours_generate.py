"""Our engine on the prompts of `bench.generation`; the counterpart of `bench.peer_generate`.

python -m bench.ours_generate SPEC.json     one measurement for each line on stdin, one JSON line for each
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from ai_trains_ai.engine.decode import Decoder
from ai_trains_ai.engine.generate import generate
from ai_trains_ai.engine.load import load_model
from ai_trains_ai.engine.sampling import SamplingParams


def main(spec_path: Path) -> None:
    spec = json.loads(spec_path.read_text())
    torch.set_num_threads(1)
    # As in a worker: the weights are packed for sampling once, and sampled from many times.
    decoder = Decoder(load_model(spec["model"], dtype=getattr(torch, spec["dtype"])))
    prompts: list[list[int]] = spec["prompts"]

    def once(new_tokens: int, seed: int) -> dict[str, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        done = generate(decoder, prompts, SamplingParams(max_tokens=new_tokens, stop_ids=()), seed=seed)
        assert all(len(c.tokens) == new_tokens for group in done for c in group)
        return {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}

    once(4, seed=0)  # first calls allocate and choose kernels
    for seed, _ in enumerate(sys.stdin):
        print(json.dumps({**once(spec["new_tokens"], seed), "threads": torch.get_num_threads()}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
