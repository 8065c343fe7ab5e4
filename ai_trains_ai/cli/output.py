"""What goes where: the answer to stdout, one JSON document with --json; progress and remarks to stderr."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document to stdout.")


def emit_json(document: Any) -> None:
    """The only way to stdout of a command that was asked for JSON."""
    click.echo(json.dumps(document, indent=2, allow_nan=False))


class ProgressLine:
    """One line on stderr that is rewritten in place on a terminal, and printed now and then elsewhere."""

    EVERY_SECONDS = 5.0

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._last = 0.0
        self._shown = ""

    def show(self, text: str, *, always: bool = False) -> None:
        """Threads may share a line. always: one that must not be skipped where output is no terminal."""
        with self._lock:
            self._show(text, always)

    def _show(self, text: str, always: bool) -> None:
        now = time.monotonic()
        if self.terminal:
            width = max(20, _terminal_width() - 1)
            line = text[:width]
            click.echo("\r" + line.ljust(len(self._shown)), nl=False, err=True)
            self._shown = line
        elif always or now - self._last >= self.EVERY_SECONDS:
            click.echo(text, err=True)
            self._last = now

    def clear(self) -> None:
        if self.terminal and self._shown:
            click.echo("\r" + " " * len(self._shown) + "\r", nl=False, err=True)
            self._shown = ""


def _terminal_width() -> int:
    import shutil

    return shutil.get_terminal_size().columns


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Columns as wide as they need to be; the first row is the heading. right: columns to align right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)
