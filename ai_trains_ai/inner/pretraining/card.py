"""The model card of a nano base."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ai_trains_ai.tasks.modes import MODES


def write_card(path: Path, facts: Mapping[str, Any]) -> None:
    """Write README.md with what the base is, what it was trained on, and what it measures."""
    shape = facts["recipe"]["shape"]
    lines = [
        "---",
        "license: apache-2.0",
        "library_name: transformers",
        "---",
        f"# {facts['name']}",
        "",
        f"A Llama-architecture language model with {facts['parameters']:,} parameters "
        f"({shape['num_layers']} layers, hidden size {shape['hidden_size']}), trained from scratch by "
        f"`ata pretrain {facts['name']}` on generated text of the six task families, and on nothing else. "
        "It is a base for reinforcement-learning experiments: it can solve the tasks when it works step by "
        "step, and often does not. It knows no language beyond these tasks.",
        "",
        "Trained first on worked solutions alone, then on a mixture of four ways of answering "
        "(`ai_trains_ai/tasks/modes.py`), dosed so that its accuracy matches a published baseline.",
        "",
        "Sampled accuracy at temperature 1 on levels 2 to 5, one sample on each of "
        f"{next(iter(facts['measured'].values()))['samples']} public tasks; `free` is as the model chooses, "
        "the other columns begin with that mode's first tokens.",
        "",
        "| family | free | " + " | ".join(MODES) + " |",
        "|---|---|" + "---|" * len(MODES),
    ]
    for family, measured in facts["measured"].items():
        modes = " | ".join(f"{measured['by_mode'][mode]:.3f}" for mode in MODES)
        lines.append(f"| {family} | {measured['free']:.3f} | {modes} |")
    lines += [
        "",
        f"Recipe sha256 `{facts['recipe_sha256']}`, corpus sha256 `{facts['corpus_sha256']}`, "
        f"weights sha256 `{facts['weights_sha256']}`.",
    ]
    path.write_text("\n".join(lines) + "\n")
