"""`ata` as a person starts it: its own process, real workers, real sandbox, one state folder a module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest


@dataclass
class Ata:
    """Starts commands, and knows every process that any of them ever started."""

    home: Path
    seen: dict[int, psutil.Process] = field(default_factory=dict)

    def start(self, *arguments: object, **environ: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ai_trains_ai", *map(str, arguments)]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "ATA_HOME": str(self.home), **environ},
        )

    def run(self, *arguments: object, **environ: str) -> tuple[int, Any, str]:
        """(exit code, the document on stdout, stderr) of a command with --json."""
        process = self.start(*arguments, "--json", **environ)
        out, err = process.communicate(timeout=280)
        return process.returncode, json.loads(out), err

    def family(self, process: subprocess.Popen[str]) -> list[psutil.Process]:
        """Everything the process has started so far, remembered for `leftovers`."""
        children = psutil.Process(process.pid).children(recursive=True)
        self.seen.update({child.pid: child for child in children})
        return children

    def leftovers(self, seconds: float = 10.0) -> list[str]:
        """Remembered processes that are still there after a while."""
        deadline = time.monotonic() + seconds
        while True:
            # psutil compares start times: a reused pid is no leftover. A zombie is its parent's matter.
            left = [p for p in self.seen.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
            if not left or time.monotonic() > deadline:
                return [f"{p.pid} {' '.join(p.cmdline())[:100]}" for p in left]
            time.sleep(0.05)


MakeJob = Callable[..., Path]


def wait_for(process: subprocess.Popen[str], words: str) -> str:
    """Read the command's progress until a line holds `words`; fail if it ends before."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if words in line:
            return said
    pytest.fail(f"ended before it said {words!r}:\n{said}")
