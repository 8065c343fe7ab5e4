"""SmolLM2-135M, a batch of different prompts, against `transformers.generate`: tokens a second on one core.

Both sides get the same token ids, weights, number type, thread and number of new tokens, with stopping off.
Both processes stay up and are asked in turns, so that a busy moment of the machine meets both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ai_trains_ai.engine.bases import base_folder
from ai_trains_ai.engine.tokenizer import Tokenizer
from ai_trains_ai.tasks.registry import FAMILIES
from bench.measure import ROOT, Row, Spread, peer_environment

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
    raw: dict[str, Any] = {"prompt_tokens": [len(prompt) for prompt in prompts], "new_tokens": new_tokens}
    for dtype in ("bfloat16", "float32"):
        spec = {"model": str(folder), "dtype": dtype, "prompts": prompts, "new_tokens": new_tokens}
        ours, peer = in_turns(peer_python, spec, scratch / f"generation-{dtype}.json", repeats)
        rows.append(row(dtype, batch, new_tokens, ours, peer))
        raw[dtype] = {"ours": ours, "peer": peer}
    return rows, raw


def row(
    dtype: str, batch: int, new_tokens: int, ours: list[dict[str, float]], peer: list[dict[str, float]]
) -> Row:
    total = batch * new_tokens
    rates = [Spread.of([total / one["seconds"] for one in side]) for side in (ours, peer)]
    ratio = Spread.of([b["seconds"] / a["seconds"] for a, b in zip(ours, peer, strict=True)])
    cpu = Spread.of([b["cpu"] / a["cpu"] for a, b in zip(ours, peer, strict=True)])
    return Row(
        f"generate, {BASE}, batch {batch} × {new_tokens} tokens, {dtype}",
        rates[0].text(" tok/s", 0),
        rates[1].text(" tok/s", 0),
        f"{ratio.text('×', 1)}; CPU {cpu.median:.1f}×",
        f"≥ {TARGET:g}×",
    )


def in_turns(
    peer_python: Path, spec: dict[str, Any], file: Path, repeats: int
) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """One measurement of each side a repeat; ours first in even repeats, the peer first in odd ones."""
    file.write_text(json.dumps(spec))
    found: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    with (
        asked(Path(sys.executable), "bench.ours_generate", file) as ours,
        asked(peer_python, "bench.peer_generate", file) as peer,
    ):
        for repeat in range(repeats):
            for side in (0, 1) if repeat % 2 == 0 else (1, 0):
                found[side].append(measure_once((ours, peer)[side]))
    return found


@contextmanager
def asked(python: Path, module: str, file: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that measures when it is sent a line."""
    process = subprocess.Popen(
        [str(python), "-m", module, str(file)],
        cwd=ROOT,
        env=peer_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def measure_once(process: subprocess.Popen[str]) -> dict[str, float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise RuntimeError("a measuring process ended; its last words are above")
    result: dict[str, float] = json.loads(answer)
    assert result.pop("threads") == 1, "the comparison is per thread"
    return result
