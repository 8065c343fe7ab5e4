"""Rewrite the parts of the documents that the code decides, between their `generated` comments.

    python tests/golden/make_documents.py

`tests/unit/test_documents.py` compares them, so a document cannot fall behind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from ai_trains_ai.config import JobLimits
from ai_trains_ai.jobs.whitelist import OPTIONS
from ai_trains_ai.tasks.modes import START
from ai_trains_ai.tasks.registry import FAMILIES, HELD_OUT

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n\n)(.*?)(\n<!-- end -->)", re.DOTALL)
WAYS = {
    "careful": "works every step; right almost always",
    "sloppy": "a step may slip, and the slip is carried on",
    "early": "stops after some of the steps and answers with what it has",
    "hasty": "no working: a step or two in the head, a guess beyond that",
}
LIMITS = {
    "max_rollouts": "rollouts (`max_steps` × `batch_size`)",
    "max_training_tokens": "tokens sampled and trained on, upper estimate",
    "max_files": "files",
    "max_file_bytes": "bytes of one file",
    "max_total_bytes": "bytes of all files",
    "min_distinct_tasks": "distinct tasks, at least",
    "max_tasks": "tasks, at most",
    "max_prompt_chars": "characters of a prompt, at most",
    "load_seconds": "seconds for `load()`",
    "score_seconds": "seconds for scoring one step's batch",
    "train_seconds": "seconds for training",
    "memory_mb": "memory of the environment's process, MB",
    "reward_bound": "size of a reward, either sign",
    "max_reward_errors": "share of a step's completions on which rewards may raise",
}


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def value(given: object) -> str:
    if isinstance(given, bool):
        return str(given).lower()
    return (
        f"{given:,}" if isinstance(given, int) else f"{given:g}" if isinstance(given, float) else f'"{given}"'
    )


def keys() -> str:
    rows = [(f"`{dotted}`", option.accepts(), value(option.default)) for dotted, option in OPTIONS.items()]
    return table(("key under `[prime_rl]`", "accepts", "default"), rows)


def limits() -> str:
    current = JobLimits().model_dump()
    assert current.keys() == LIMITS.keys(), "a limit without a description"
    return table(("limit", "value"), [(text, value(current[name])) for name, text in LIMITS.items()])


def families() -> str:
    rows = [
        (
            f"`{family.name}`" + (" (held out)" if family.name == HELD_OUT else ""),
            family.goal,
            f"{family.published_baseline:.3f}",
        )
        for family in FAMILIES.values()
    ]
    return table(("family", "goal", "best untrained Qwen3 base in the published system"), rows)


def example() -> str:
    family = FAMILIES["string_pipeline"]
    task = family.spec().examples[2]
    return f"```\n{task.prompt}\n```\n\nIts worked solution:\n\n```\n{family.gold(task)}\n```\n"


def ways() -> str:
    assert START.keys() == WAYS.keys()
    return table(
        ("way", "begins", "what it does"), [(name, f"`{START[name]}`", WAYS[name]) for name in START]
    )


PARTS: dict[str, Callable[[], str]] = {
    "keys": keys,
    "limits": limits,
    "families": families,
    "example": example,
    "ways": ways,
}


def rewritten(text: str) -> str:
    return BLOCK.sub(lambda found: found[1] + PARTS[found[2]]() + found[4], text)


def main() -> None:
    for document in ROOT.glob("docs/*.md"):
        before = document.read_text()
        after = rewritten(before)
        if after != before:
            document.write_text(after)
            print(f"rewrote {document.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
