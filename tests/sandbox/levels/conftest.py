"""Every attack runs against every level of this machine, as the user we are and, if root, as another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
from sandbox_attack import Attack, Outcome, run

from ai_trains_ai.sandbox.base import Sandbox
from ai_trains_ai.sandbox.pick import LEVELS, examine
from ai_trains_ai.sandbox.runtime import inspect
from ai_trains_ai.sandbox.uids import FIRST

collect_ignore_glob = [] if sys.platform == "linux" else ["test_*"]
"""Elsewhere only containers are sandboxes; they are attacked on Linux."""

ANOTHER_USER = FIRST - 1
"""An ordinary user's number, outside of those that sandboxes take."""
_ROOT = Path(__file__).resolve().parents[3]
_BOXES = [*LEVELS, "bubblewrap as another user", "reduced as another user"]


class Box:
    """A level, as this user or as another one than root. `run` attacks it."""

    def __init__(self, level: str, attack: Callable[[Attack], Outcome], *, other_user: bool = False) -> None:
        self.level = level
        self.other_user = other_user
        self._attack = attack

    def run(self, source: str, **details: dict[str, object]) -> Outcome:
        return self._attack(Attack(source, **details))  # type: ignore[arg-type]


@pytest.fixture(scope="session", params=_BOXES)
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    level, _, other = request.param.partition(" as ")
    with _as_another_user(level) if other else _as_this_user(level) as it:
        yield it


@pytest.fixture(scope="session", params=[*LEVELS])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """A level in this very process."""
    return _level(request.param)


def _level(level: str) -> Sandbox:
    report = examine(level)
    if report.sandbox is None:
        pytest.skip(f"{level}: {report.reason}. Fix: {report.fix}")
    return report.sandbox


@contextmanager
def _as_this_user(level: str) -> Iterator[Box]:
    sandbox = _level(level)
    yield Box(level, lambda attack: run(sandbox, attack))


@contextmanager
def _as_another_user(level: str) -> Iterator[Box]:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    try:
        python = inspect(os.path.realpath("/usr/bin/python3"), ANOTHER_USER).python
    except LookupError as error:
        pytest.skip(f"no Python that another user can run: {error}")
    server = subprocess.Popen(
        [python, "-B", str(Path(__file__).parent / "sandbox_attack.py"), level],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(_ROOT)},
        cwd="/",
        user=ANOTHER_USER,
        group=ANOTHER_USER,
        extra_groups=[],
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None

    def attack(what: Attack) -> Outcome:
        server.stdin.write(json.dumps(asdict(what)) + "\n")
        server.stdin.flush()
        line = server.stdout.readline()
        if not line:
            pytest.fail(f"{level} cannot be used as another user: see the error output")
        return Outcome(**json.loads(line))

    with server:
        yield Box(level, attack, other_user=True)
        server.stdin.close()
