"""The pick tries levels, believes no level, and says what is missing."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ai_trains_ai.errors import InfrastructureError, UsageError
from ai_trains_ai.sandbox.base import SandboxLimits
from ai_trains_ai.sandbox.pick import LEVELS, PROPERTIES, examine, pick_sandbox, probe
from ai_trains_ai.sandbox.unsafe import Unsafe


def test_every_promise_is_found_broken_without_a_sandbox():
    """The probe can fail: each property that a plain process lacks is named."""
    broken = {line.partition(":")[0] for line in probe(Unsafe())}
    assert broken >= {"files", "writing", "network", "forking", "privileges"}
    assert broken <= PROPERTIES


def test_a_level_that_holds_is_returned_with_no_complaint(sandbox):
    assert probe(sandbox) == []
    assert sandbox.trusted
    assert pick_sandbox(only=sandbox.level).level == sandbox.level


def test_the_strongest_level_that_holds_is_picked():
    for level in LEVELS:
        if examine(level).sandbox is not None:
            assert pick_sandbox().level == level
            return
    with pytest.raises(InfrastructureError, match="no sandbox works"):
        pick_sandbox()


def test_a_missing_level_is_refused_with_reason_and_fix(monkeypatch):
    monkeypatch.setenv("PATH", "")
    report = examine("bubblewrap")
    assert report.sandbox is None
    assert report.reason == "bwrap is not installed"
    with pytest.raises(InfrastructureError) as caught:
        pick_sandbox(only="bubblewrap")
    message = str(caught.value)
    assert "bubblewrap: bwrap is not installed. Fix: install it" in message
    assert "--unsafe-no-sandbox" in message
    assert "docker is not installed; podman is not installed" in examine("container").reason


@pytest.fixture
def fake_bwrap(tmp_path, monkeypatch) -> Callable[[str], None]:
    """Put a shell script first on PATH, by the name of bwrap, where other users can run it too."""

    def install(script: str) -> None:
        (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
        for path in (tmp_path / "bwrap", tmp_path, *tmp_path.parents[:2]):
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return install


def test_an_installed_level_that_does_not_start_is_refused_with_its_own_words(fake_bwrap):
    fake_bwrap("echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1")
    report = examine("bubblewrap")
    assert report.sandbox is None
    assert "setting up uid map: Permission denied" in report.reason
    assert "user namespaces" in report.fix or "sysctl" in report.fix


def test_a_level_that_only_pretends_is_refused(fake_bwrap):
    """A bwrap that ignores every option and runs the command: it starts, and isolates nothing."""
    fake_bwrap('while [ "$1" != "--" ]; do shift; done; shift; exec "$@"')
    assert examine("bubblewrap").sandbox is None


def test_a_level_with_one_hole_is_refused_by_its_name(fake_bwrap):
    """The real bwrap, but with one directory of the machine shown inside."""
    real = shutil.which("bwrap")
    if real is None or examine("bubblewrap").sandbox is None:
        pytest.skip("bubblewrap does not work on this machine")
    folder = os.path.realpath(tempfile.gettempdir())
    fake_bwrap(f'exec {real} --bind {folder} {folder} "$@"')
    report = examine("bubblewrap")
    assert report.sandbox is None
    assert [part.partition(":")[0] for part in report.reason.split("; ")] == ["files", "writing"]


def test_no_sandbox_only_for_those_who_ask(monkeypatch):
    sandbox = pick_sandbox(unsafe=True)
    assert (sandbox.level, sandbox.trusted) == ("unsafe", False)
    assert "unsafe" not in LEVELS
    with pytest.raises(UsageError, match="bubblewrap, container, reduced"):
        pick_sandbox(only="unsafe")


def test_the_documents_example_runs(capsys):
    document = (Path(__file__).resolve().parents[3] / "docs" / "sandbox.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
    if all(examine(level).sandbox is None for level in LEVELS):
        pytest.skip("no level holds on this machine")
    exec(example, {})
    assert capsys.readouterr().out == "b'42\\n' 0\n"


def test_unsafe_runs_and_ends_a_job():
    sandbox = Unsafe()
    argv = [sandbox.python, "-I", "-S", "-B", "main.py"]
    with sandbox.start(
        argv,
        files={"main.py": b"import os; print(dict(os.environ).keys() - {'LC_CTYPE'})"},
        limits=SandboxLimits(),
    ) as process:
        assert process.stdout.read() == b"set()\n"
        assert process.wait(20) == 0


def test_limits_that_make_no_sense_are_refused():
    for name in ("memory_bytes", "cpu_seconds", "processes", "threads", "open_files", "stderr_bytes"):
        with pytest.raises(ValueError, match=name):
            SandboxLimits(**{name: 0})
    with pytest.raises(ValueError, match="scratch_bytes"):
        SandboxLimits(scratch_bytes=-1)


def test_a_relative_program_is_refused():
    with pytest.raises(ValueError, match="absolute"):
        Unsafe().start(["python"], files={}, limits=SandboxLimits())
    with pytest.raises(ValueError, match="absolute"):
        Unsafe().start([], files={}, limits=SandboxLimits())
