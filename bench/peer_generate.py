"""`transformers.generate` on the prompts of `bench.generation`. Runs in the peer environment.

python -m bench.peer_generate SPEC.json RESULT.json
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def main(spec_path: Path) -> None:
    """Every prompt gets exactly `new_tokens` sampled tokens: stopping early is switched off on both sides."""
    spec = json.loads(spec_path.read_text())
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=getattr(torch, spec["dtype"]))
    model.train(False)
    prompts = spec["prompts"]
    width = max(map(len, prompts))
    tokens = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])

    def once(new_tokens: int) -> dict[str, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            out = model.generate(
                input_ids=tokens,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                min_new_tokens=new_tokens,
                max_new_tokens=new_tokens,
                pad_token_id=0,
            )
        assert out.shape[1] == width + new_tokens
        return {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}

    once(4)  # first calls allocate and choose kernels
    for _ in sys.stdin:
        print(json.dumps({**once(spec["new_tokens"]), "threads": torch.get_num_threads()}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
