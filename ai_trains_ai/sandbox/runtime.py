"""Which files of this machine a sandboxed Python needs: interpreter, shared libraries, standard library.

Nothing else of the machine is shown inside. Third-party packages are left out even where they lie within the
standard library's directory: this very package may be one of them.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ai_trains_ai.sandbox.uids import FIRST

_SYSTEM_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
_OLDEST = (3, 11)
_THIRD_PARTY = ("site-packages", "dist-packages")
_LOADER_CACHE = "/etc/ld.so.cache"
_PT_INTERP = 3
_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Runtime:
    """Absolute paths; `files` and `directories` without symbolic links in them."""

    python: str
    loader: str | None
    """The dynamic loader's real path, None for a static interpreter."""
    files: tuple[str, ...]
    """The interpreter, the loader and the shared libraries."""
    links: tuple[tuple[str, str], ...]
    """(path, target) of the symbolic links through which the loader finds them."""
    directories: tuple[str, ...]
    """The standard library."""
    hidden: tuple[str, ...]
    """Directories beneath it that are not part of it."""


def find_runtime() -> Runtime:
    """The running interpreter's runtime, or the system's if sandboxes run as another user who cannot reach
    it.

    Raises LookupError, with one reason for each interpreter tried.
    """
    own = getattr(sys, "_base_executable", None) or sys.executable
    reasons = []
    for candidate in dict.fromkeys((os.path.realpath(own), *map(os.path.realpath, _SYSTEM_PYTHONS))):
        try:
            return inspect(candidate, FIRST if os.geteuid() == 0 else None)
        except LookupError as error:
            reasons.append(str(error))
    raise LookupError("; ".join(reasons))


@cache
def inspect(python: str, uid: int | None) -> Runtime:
    """Runtime of the interpreter at `python`, asked as user `uid` (None: as we are).

    Raises LookupError if that user cannot run it or it is older than 3.11.
    """
    source = (Path(__file__).parent / "introspect.py").read_text(encoding="utf-8")
    try:
        result = subprocess.run(
            [python, "-I", "-S", "-B", "-c", source],
            env={},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            user=uid,
            group=uid,
            extra_groups=[] if uid is not None else None,
            check=True,
        )
        found = json.loads(result.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        who = "" if uid is None else f" as user {uid}"
        raise LookupError(f"{python} does not run{who} ({error})") from error
    if tuple(found["version"]) < _OLDEST:
        raise LookupError(f"{python} is Python {found['version'][0]}.{found['version'][1]}, older than 3.11")
    return _runtime(found)


def _runtime(found: dict[str, list[str]] | dict[str, str]) -> Runtime:
    python = str(found["python"])
    links: dict[str, str] = {}
    files = {python}
    loader_name = _loader_of(python)
    for path in (*found["files"], *([loader_name] if loader_name else []), _LOADER_CACHE):
        for name in (path, *_aliases(path)):
            if os.path.exists(name):
                files.add(_follow(name, links))
    directories = tuple(os.path.realpath(path) for path in found["stdlib"])
    return Runtime(
        python=python,
        loader=os.path.realpath(loader_name) if loader_name else None,
        files=tuple(sorted(files)),
        links=tuple(sorted(links.items())),
        directories=directories,
        hidden=tuple(
            path
            for directory in directories
            for name in _THIRD_PARTY
            if os.path.isdir(path := os.path.join(directory, name))
        ),
    )


def _aliases(path: str) -> list[str]:
    """Links to a library beside it: programs ask for libz.so.1, the file is libz.so.1.2.13. And the ways to
    it from the root: a system that keeps /lib as a link to usr/lib still has programs that ask for /lib."""
    stem, dot, _ = os.path.basename(path).partition(".so")
    if not dot:
        return []
    real = os.path.realpath(path)
    folder = os.path.dirname(path)
    with os.scandir(folder) as entries:
        beside = [
            entry.path
            for entry in entries
            if entry.name.startswith(f"{stem}.so")
            and entry.is_symlink()
            and os.path.realpath(entry.path) == real
        ]
    short = [name.removeprefix("/usr") for name in (path, *beside) if name.startswith("/usr/lib")]
    return beside + short


def _follow(path: str, links: dict[str, str]) -> str:
    """The real file behind `path`; the links on the way are added to `links`."""
    done, rest = "", [part for part in path.split("/") if part]
    while rest:
        done, rest = f"{done}/{rest[0]}", rest[1:]
        if os.path.islink(done):
            target = os.readlink(done)
            links[done] = target
            joined = target if target.startswith("/") else f"{os.path.dirname(done)}/{target}"
            rest = [part for part in os.path.normpath(joined).split("/") if part] + rest
            done = ""
    return done


def _loader_of(python: str) -> str | None:
    """The loader's path that the program names (ELF's PT_INTERP), None if it names none."""
    with open(python, "rb") as file:
        head = file.read(64)
        if head[:5] != b"\x7fELF\x02":
            raise LookupError(f"{python} is not a 64-bit Linux program")
        (offset,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        for index in range(count):
            file.seek(offset + index * size)
            entry = file.read(size)
            kind, _, start, _, _, length = struct.unpack_from("<IIQQQQ", entry)
            if kind == _PT_INTERP:
                file.seek(start)
                return file.read(length).rstrip(b"\0").decode()
    return None
