"""Which code and which weights a number came from: what the job cache and the baselines are keyed by."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ai_trains_ai.engine.bases import base_folder
from ai_trains_ai.errors import boundary

_PACKAGE = Path(__file__).resolve().parent.parent

SAMPLING = (
    "engine/*.py",
    "tasks/*.py",
    "tasks/generators/*.py",
    "scoring/evaluate.py",
    "scoring/hidden_eval.py",
    "fleet/scorer.py",
)
"""What decides an untrained base's score; `NOT_SAMPLING` is taken out of it."""

NOT_SAMPLING = frozenset({"train.py", "optim.py", "lora.py", "pretrain.py", "starter.py", "modes.py"})

TRAINING = (
    *SAMPLING,
    "algo/*.py",
    "inner/*.py",
    "jobs/*.py",
    "scoring/*.py",
    "config.py",
    "seeds.py",
)
"""What decides a trained model's score."""

LIBRARIES = ("torch", "tokenizers", "numpy")


@cache
def source_digest(patterns: tuple[str, ...], without: frozenset[str] = frozenset()) -> str:
    """sha256 over the package's source files that match: any edit makes earlier numbers another version's."""
    paths = {path for pattern in patterns for path in _PACKAGE.glob(pattern) if path.name not in without}
    assert paths, f"no source matches {patterns}"
    digest = hashlib.sha256()
    with boundary("reading the package's own source"):
        for path in sorted(paths):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(_PACKAGE)}\n{len(content)}\n".encode() + content)
    return digest.hexdigest()


@cache
def libraries() -> Mapping[str, str]:
    """Versions of what computes the numbers; another one may round otherwise."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def sampling_versions() -> dict[str, str]:
    return {"source": source_digest(SAMPLING, NOT_SAMPLING), **libraries()}


def training_versions() -> dict[str, str]:
    return {"source": source_digest(TRAINING), **libraries()}


@cache
def base_sha256(name: str) -> str:
    """sha256 over every file of a base's folder, tokenizer included, by name and content.

    Raises what `engine.bases.base_folder` raises: UsageError for an unknown name, InfrastructureError when
    the weights cannot be had.
    """
    folder = base_folder(name)
    digest = hashlib.sha256()
    with boundary(f"base {name}"):
        for path in sorted(folder.iterdir()):
            # A model card may be reworded without making another model.
            if path.is_file() and path.suffix != ".md":
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
                digest.update(f"{path.name}\n{content}\n".encode())
    return digest.hexdigest()
