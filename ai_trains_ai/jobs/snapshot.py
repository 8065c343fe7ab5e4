"""Read a job directory once, into memory, following no link and trusting no size."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ai_trains_ai.config import JobLimits
from ai_trains_ai.errors import InfrastructureError, UsageError, boundary
from ai_trains_ai.types import Finding

JOB_TOML = "job.toml"
ENVIRONMENT = "environment.py"
SUFFIXES = frozenset({".py", ".toml", ".txt", ".md", ".json", ".jsonl", ".csv", ".tsv"})
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_MAX_DEPTH = 4
_MAX_ENTRIES = 256
_IGNORED = frozenset({"__pycache__"})


@dataclass(slots=True)
class Snapshot:
    """The files of a job directory as they were at one moment, and what is wrong with them."""

    files: dict[str, bytes] = field(default_factory=dict)
    """Relative path with forward slashes -> content."""
    findings: list[Finding] = field(default_factory=list)


def take_snapshot(directory: Path, limits: JobLimits) -> Snapshot:
    """Return the job's files. Nobody reads the directory again afterwards.

    Names that start with a dot and `__pycache__` are no part of a job and are skipped. Links, devices and
    pipes are refused without being opened. Raises UsageError when there is no such directory.
    """
    snapshot = Snapshot()
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        root = os.open(directory, flags)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"no job directory at {directory}: {error.strerror}") from None
    except OSError as error:
        raise InfrastructureError(f"cannot open {directory}: {error}") from error
    try:
        with boundary(f"reading {directory}"):
            _read_folder(root, "", snapshot, limits, [0])
    finally:
        os.close(root)
    snapshot.findings += check_files(snapshot.files, limits)
    return snapshot


def check_files(files: Mapping[str, bytes], limits: JobLimits) -> list[Finding]:
    """Names, count, sizes and encoding of a job's files, wherever they come from."""
    findings = []
    for name in (JOB_TOML, ENVIRONMENT):
        if name not in files:
            findings.append(
                Finding("files", f"{name} is missing", f"write {name} at the top of the job directory")
            )
    if len(files) > limits.max_files:
        findings.append(_error(f"{len(files)} files", f"keep to {limits.max_files} files"))
    total = sum(map(len, files.values()))
    if total > limits.max_total_bytes:
        findings.append(_error(f"{total} bytes in all", f"keep to {limits.max_total_bytes} bytes in all"))
    for path, content in sorted(files.items()):
        findings += _check_path(path)
        if len(content) > limits.max_file_bytes:
            findings.append(_error(f"{path} is too big", f"keep every file to {limits.max_file_bytes} bytes"))
            continue
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            line = content[: error.start].count(b"\n") + 1
            findings.append(_error(f"{path}, line {line}: not UTF-8 text", "save the file as UTF-8"))
        else:
            if "\0" in text:
                findings.append(_error(f"{path} contains a zero byte", "a job consists of text files"))
    return findings


def _error(message: str, fix: str) -> Finding:
    return Finding("files", message, fix)


def _check_path(path: str) -> list[Finding]:
    parts = path.split("/")
    if len(parts) > _MAX_DEPTH or not all(_NAME.fullmatch(part) for part in parts):
        return [_error(f"file name {path!r} is not allowed", "use letters, digits, _ - and . in names")]
    if Path(path).suffix not in SUFFIXES:
        return [_error(f"{path} is of a kind that no job has", f"allowed: {', '.join(sorted(SUFFIXES))}")]
    return []


def _read_folder(folder: int, prefix: str, snapshot: Snapshot, limits: JobLimits, seen: list[int]) -> None:
    """Read one folder by its descriptor: a folder swapped for a link in between is not followed."""
    for name in sorted(os.listdir(folder)):
        if name.startswith(".") or name in _IGNORED:
            continue
        path = prefix + name
        seen[0] += 1
        if seen[0] > _MAX_ENTRIES or path.count("/") >= _MAX_DEPTH:
            snapshot.findings.append(_error("too many files or folders", f"keep to {limits.max_files} files"))
            return
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            continue  # deleted while we looked: it is not in this snapshot
        if stat.S_ISDIR(mode):
            child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                _read_folder(child, path + "/", snapshot, limits, seen)
            finally:
                os.close(child)
        elif stat.S_ISREG(mode):
            _read_file(folder, name, path, snapshot, limits)
        else:
            kind = "a link" if stat.S_ISLNK(mode) else "not a plain file"
            snapshot.findings.append(
                _error(f"{path} is {kind}", "put the file itself into the job directory")
            )


def _read_file(folder: int, name: str, path: str, snapshot: Snapshot, limits: JobLimits) -> None:
    """O_NONBLOCK: a pipe put in the file's place must not hang us."""
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            snapshot.findings.append(_error(f"{path} is not a plain file", "put the file itself there"))
            return
        snapshot.files[path] = file.read(limits.max_file_bytes + 1)
