"""Checkpoints on disk, under the names that Tinker gives them.

    tinker://RUN/weights/NAME           ROOT/RUN/weights/NAME/          adapter and optimizer .safetensors
    tinker://RUN/sampler_weights/NAME   ROOT/RUN/sampler_weights/NAME/  adapter.safetensors

and a checkpoint.json beside them. A checkpoint appears whole, by a rename; one that has expired is gone for
every reader, and its files are removed when somebody lists or asks.
"""

from __future__ import annotations

import json
import re
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ai_trains_ai.errors import UsageError, boundary
from ai_trains_ai.tinker_server.adapter import AdapterConfig

Kind = Literal["training", "sampler"]
_SEGMENT: dict[str, Kind] = {"weights": "training", "sampler_weights": "sampler"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_-]{0,127}")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is known of a checkpoint without its tensors. Times are seconds since the epoch."""

    run: str
    kind: Kind
    name: str
    base_model: str
    adapter: AdapterConfig
    created: float
    expires: float | None
    size_bytes: int
    version: str
    """New for every save: a name that is saved again is another checkpoint to whoever caches it."""
    user_metadata: Mapping[str, str] | None

    @property
    def checkpoint_id(self) -> str:
        return f"{'weights' if self.kind == 'training' else 'sampler_weights'}/{self.name}"

    @property
    def path(self) -> str:
        return f"tinker://{self.run}/{self.checkpoint_id}"


@dataclass(frozen=True, slots=True)
class SaveRequest:
    run: str
    kind: Kind
    name: str
    base_model: str
    adapter: AdapterConfig
    overwrite: bool
    ttl_seconds: int | None = None
    user_metadata: Mapping[str, str] | None = None


def parse_path(path: str) -> tuple[str, str]:
    """tinker://RUN/weights/NAME -> (RUN, "weights/NAME"). Raises UsageError for anything else."""
    parts = path.removeprefix("tinker://").split("/")
    known = path.startswith("tinker://") and len(parts) == 3 and parts[1] in _SEGMENT
    if not known or not _RUN.fullmatch(parts[0]) or not _NAME.fullmatch(parts[2]):
        raise UsageError(
            f"{path!r} is no checkpoint path: tinker://RUN/weights/NAME or .../sampler_weights/NAME"
        )
    return parts[0], f"{parts[1]}/{parts[2]}"


class CheckpointStore:
    """root: created when the first checkpoint is saved."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def save(
        self, request: SaveRequest, adapter: Mapping[str, Tensor], optimizer: Mapping[str, Tensor] | None
    ) -> Checkpoint:
        """Raises UsageError for a bad name, or one that exists while overwrite is off."""
        if not _NAME.fullmatch(request.name):
            raise UsageError(
                f"checkpoint name {request.name!r}: use letters, digits, '.', '_', '-', at most 128"
            )
        segment = "weights" if request.kind == "training" else "sampler_weights"
        folder = self._root / request.run / segment / request.name
        with boundary(f"checkpoint {folder}"):
            if self._read(folder) is not None and not request.overwrite:
                raise UsageError(
                    f"tinker://{request.run}/{segment}/{request.name} exists: set overwrite, or rename"
                )
            scratch = folder.with_name(f".{request.name}.{uuid.uuid4().hex}")
            scratch.mkdir(parents=True)
            try:
                found = self._write(scratch, request, adapter, optimizer)
                if folder.exists():
                    shutil.rmtree(folder)
                scratch.rename(folder)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return found

    def _write(
        self,
        scratch: Path,
        request: SaveRequest,
        adapter: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor] | None,
    ) -> Checkpoint:
        save_file(dict(adapter), scratch / "adapter.safetensors")
        if optimizer is not None:
            save_file(dict(optimizer), scratch / "optimizer.safetensors")
        now = time.time()
        found = Checkpoint(
            run=request.run,
            kind=request.kind,
            name=request.name,
            base_model=request.base_model,
            adapter=request.adapter,
            created=now,
            expires=None if request.ttl_seconds is None else now + request.ttl_seconds,
            size_bytes=sum(file.stat().st_size for file in scratch.iterdir()),
            version=uuid.uuid4().hex,
            user_metadata=request.user_metadata,
        )
        self._write_meta(scratch, found)
        return found

    def find(self, path: str) -> Checkpoint:
        """Raises UsageError when there is none (or none any more), naming the newest of the same run."""
        run, checkpoint_id = parse_path(path)
        found = self._read(self._root / run / checkpoint_id)
        if found is not None:
            return found
        others = self.of_run(run)
        newest = f"; the newest of this run is {others[-1].path}" if others else ""
        raise UsageError(f"{path} does not exist, or has expired or been deleted{newest}")

    def load(self, found: Checkpoint) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Adapter and optimizer tensors; the second are empty for sampler weights."""
        folder = self._root / found.run / found.checkpoint_id
        with boundary(f"checkpoint {folder}"):
            try:
                adapter = load_file(folder / "adapter.safetensors")
                state = folder / "optimizer.safetensors"
                return adapter, load_file(state) if state.exists() else {}
            except SafetensorError as error:
                raise UsageError(f"{found.path} cannot be read: {error}") from error

    def of_run(self, run: str) -> list[Checkpoint]:
        """Oldest first; empty for a run that saved nothing."""
        if not _RUN.fullmatch(run):
            return []
        folders = [folder for segment in _SEGMENT for folder in (self._root / run / segment).glob("[!.]*")]
        found = [checkpoint for folder in folders if (checkpoint := self._read(folder)) is not None]
        return sorted(found, key=lambda checkpoint: checkpoint.created)

    def all(self) -> list[Checkpoint]:
        """Of every run, newest first."""
        runs = sorted(folder.name for folder in self._root.glob("[!.]*"))
        found = [checkpoint for run in runs for checkpoint in self.of_run(run)]
        return sorted(found, key=lambda checkpoint: -checkpoint.created)

    def delete(self, path: str) -> None:
        found = self.find(path)
        with boundary(f"checkpoint {found.path}"):
            shutil.rmtree(self._root / found.run / found.checkpoint_id)

    def set_ttl(self, path: str, ttl_seconds: int | None) -> None:
        """Let it expire that many seconds from now, or never."""
        found = self.find(path)
        expires = None if ttl_seconds is None else time.time() + ttl_seconds
        changed = {**_as_dict(found), "expires": expires}
        self._write_meta(self._root / found.run / found.checkpoint_id, _from_dict(changed))

    def _read(self, folder: Path) -> Checkpoint | None:
        meta = folder / "checkpoint.json"
        if not meta.is_file():
            return None
        found = _from_dict(json.loads(meta.read_text()))
        if found.expires is not None and found.expires <= time.time():
            shutil.rmtree(folder, ignore_errors=True)
            return None
        return found

    def _write_meta(self, folder: Path, checkpoint: Checkpoint) -> None:
        partial = folder / ".checkpoint.json.partial"
        partial.write_text(json.dumps(_as_dict(checkpoint), indent=2) + "\n")
        partial.replace(folder / "checkpoint.json")


def _as_dict(checkpoint: Checkpoint) -> dict[str, Any]:
    return asdict(checkpoint)


def _from_dict(data: dict[str, Any]) -> Checkpoint:
    return Checkpoint(**{**data, "adapter": AdapterConfig(**data["adapter"])})
