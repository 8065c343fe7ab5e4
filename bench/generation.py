"""SmolLM2-135M, a batch of different prompts, against `transformers.generate`: tokens a second on one core.

Both sides get the same token ids, weights, number type, thread and number of new tokens, with stopping off.
The order alternates, each measurement in a fresh process after a warm-up call.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ai_trains_ai.engine.bases import base_folder
from ai_trains_ai.engine.tokenizer import Tokenizer
from ai_trains_ai.tasks.registry import FAMILIES
from bench.measure import ROOT, Row, Spread, run_peer

BASE = "smollm2-135m"
TARGET = 3.0


def run(
    peer_python: Path, scratch: Path, *, batch: int, new_tokens: int, repeats: int
) -> tuple[list[Row], Any]:
    """Measure in bfloat16 and float32. Returns the table's rows and the raw figures."""
    folder = base_folder(BASE)
    tokenizer = Tokenizer.from_folder(folder)
    families = list(FAMILIES.values())
    tasks = [families[i % len(families)].generate(i, 1 + i % 5) for i in range(batch)]
    prompts = [tokenizer.encode_prompt(task.prompt) for task in tasks]
    rows: list[Row] = []
    raw: dict[str, Any] = {"prompt_tokens": [len(p) for p in prompts]}
    for dtype in ("bfloat16", "float32"):
        spec = scratch / f"generation-{dtype}.json"
        spec.write_text(
            json.dumps(
                {
                    "model": str(folder),
                    "dtype": dtype,
                    "prompts": prompts,
                    "new_tokens": new_tokens,
                    "repeats": 1,
                }
            )
        )
        ours, peer = _alternate(peer_python, spec, scratch / "answer.json", repeats)
        total = batch * new_tokens
        rates = [total / s for s in ours], [total / s for s in peer]
        ratio = Spread.of([b / a for a, b in zip(ours, peer, strict=True)])
        rows.append(
            Row(
                f"generate {BASE}, batch {batch} × {new_tokens} tokens, {dtype}",
                Spread.of(rates[0]).text(" tok/s", 0),
                Spread.of(rates[1]).text(" tok/s", 0),
                ratio.text("×"),
                f"≥ {TARGET:g}×",
            )
        )
        raw[dtype] = {"ours_seconds": ours, "peer_seconds": peer, "tokens": total, "ratio": ratio}
    return rows, raw


def _alternate(peer_python: Path, spec: Path, answer: Path, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds by side, ours first in even repeats, the peer first in odd ones."""

    def ours() -> float:
        subprocess.run(
            [sys.executable, "-m", "bench.ours_generate", str(spec), str(answer)], cwd=ROOT, check=True
        )
        return _only(answer)

    def peer() -> float:
        run_peer(peer_python, "bench.peer_generate", spec, answer)
        return _only(answer)

    found: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats):
        for side in (0, 1) if repeat % 2 == 0 else (1, 0):
            found[side].append((ours, peer)[side]())
    return found


def _only(answer: Path) -> float:
    result = json.loads(answer.read_text())
    assert result["threads"] == 1, "the comparison is per thread"
    return float(result["seconds"][0])
