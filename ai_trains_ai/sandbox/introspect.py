"""Run by a candidate interpreter (`python -I -S -B -c SOURCE`): prints which files it needs, as JSON.

It imports every extension module of its standard library (but for windows and terminals) and reads from its
own memory map which shared libraries they brought along. Standard library only; never imported by the
package.
"""

import contextlib
import json
import os
import sys

SKIPPED = (
    *("_test", "_ctypes_test", "_xx", "xx"),
    *("_tkinter", "_curses", "readline", "nis", "ossaudiodev", "_gdbm", "_dbm"),
)
"""Beginnings of module names: its own test modules, and what needs a screen, a terminal or a system
database."""


def main() -> None:
    stdlib = {os.path.dirname(os.path.realpath(os.__file__))}
    archives = []
    for entry in sys.path:
        if entry.endswith("lib-dynload") and os.path.isdir(entry):
            load_all(entry)
            stdlib.add(os.path.dirname(os.path.realpath(entry)))
        elif entry.endswith(".zip") and os.path.isfile(entry):
            archives.append(os.path.realpath(entry))
    print(
        json.dumps(
            {
                "version": list(sys.version_info[:2]),
                "python": os.path.realpath(sys.executable),
                "stdlib": sorted(stdlib),
                "files": archives + mapped_files(tuple(f"{folder}/" for folder in stdlib)),
            }
        )
    )


def load_all(folder: str) -> None:
    for name in sorted({name.partition(".")[0] for name in os.listdir(folder) if ".so" in name}):
        if not name.startswith(SKIPPED):
            # A module whose system library is missing does not work outside of the sandbox either.
            with contextlib.suppress(ImportError):
                __import__(name)


def mapped_files(inside: tuple[str, ...]) -> list[str]:
    """Files in this process's memory map, but for those in the standard library."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = {line.rstrip("\n").split(None, 5)[5] for line in maps if "/" in line}
    paths.discard(os.path.realpath(sys.executable))
    outside = (path for path in paths if path.startswith("/") and not path.startswith(inside))
    return sorted(path for path in outside if os.path.isfile(path))


main()
