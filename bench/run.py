"""`make bench`: the table of speeds and scores, each figure beside what it is compared with, in one run.

    python -m bench.run --peer-python .venv-bench/bin/python [--only inner|budget|generation] [--repeats N]

Prints the table to stdout (progress to stderr) and writes the raw figures to bench/results/.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import budget, generation, inner
from bench.measure import ROOT, Row, machine, pin, plain

DEFAULT = inner.Plan()
PARTS = ("inner", "budget", "generation")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compare this project's training and sampling with its peers."
    )
    parser.add_argument("--peer-python", type=Path, required=True, help="the environment with TRL")
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part (may be repeated)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--core", type=int, help="the core to use; by default the last one")
    parser.add_argument("--family", default=DEFAULT.family)
    parser.add_argument("--base", default=DEFAULT.base)
    parser.add_argument("--steps", type=int, default=DEFAULT.steps)
    parser.add_argument(
        "--new-tokens", type=int, default=64, help="tokens by sequence in the generation part"
    )
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results")
    return parser.parse_args()


def main() -> None:
    asked = options()
    pinned = pin(asked.core)
    about = machine(asked.peer_python, pinned)
    print(f"{about['cpu']}, {pinned}, one thread; torch {about['torch']}; {about['peer']}")
    rows: list[Row] = []
    raw: dict[str, Any] = {"machine": about}
    for part in asked.only or PARTS:
        started = time.perf_counter()
        print(f"bench: {part} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="ata-bench-") as scratch:
            found, raw[part] = measure(part, asked, Path(scratch))
        rows += found
        print(f"bench: {part} took {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    print(render(rows))
    asked.results.mkdir(parents=True, exist_ok=True)
    file = asked.results / f"{about['commit']}.json"
    file.write_text(json.dumps({**raw, "rows": rows}, default=plain, indent=1) + "\n")
    print(f"raw figures: {file}")


def measure(part: str, asked: argparse.Namespace, scratch: Path) -> tuple[list[Row], Any]:
    if part == "inner":
        plan = inner.Plan(family=asked.family, base=asked.base, steps=asked.steps)
        return inner.run(asked.peer_python, scratch, plan, repeats=asked.repeats)
    if part == "budget":
        return budget.run(scratch, asked.family, repeats=asked.repeats)
    return generation.run(
        asked.peer_python, scratch, batch=16, new_tokens=asked.new_tokens, repeats=asked.repeats
    )


def render(rows: list[Row]) -> str:
    """A table with the columns as wide as their widest cell."""
    cells = [("", "ours", "peer", "ratio", "target")]
    cells += [(row.what, row.ours, row.peer, row.ratio, row.target) for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    main()
