"""Whose fault it is: before the job's first line runs, never the job's; and nothing is left behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psutil
import pytest

from ai_trains_ai.config import JobLimits
from ai_trains_ai.errors import AgentError, InfrastructureError
from ai_trains_ai.jobs.env_host import EnvHost
from ai_trains_ai.sandbox.base import Sandbox, SandboxLimits
from ai_trains_ai.sandbox.process import SandboxedProcess
from ai_trains_ai.testing.jobs import sample_job

LIMITS = JobLimits()


class Bent:
    """The machine's sandbox with another command, files or limits in place of the right ones."""

    trusted = False
    level = "bent"

    def __init__(self, inner: Sandbox, **changes: Any) -> None:
        self._inner, self._changes = inner, changes
        self.python = inner.python
        self.processes: list[SandboxedProcess] = []

    def start(
        self, argv: Sequence[str], *, files: Mapping[str, bytes], limits: SandboxLimits
    ) -> SandboxedProcess:
        if "error" in self._changes:
            raise self._changes["error"]
        argv = self._changes.get("argv", argv)
        files = dict(files) | self._changes.get("files", {})
        process = self._inner.start(argv, files=files, limits=self._changes.get("limits", limits))
        self.processes.append(process)
        return process


@pytest.mark.parametrize(
    "changes",
    [
        {"error": OSError(24, "Too many open files")},
        {"error": MemoryError()},
        {"files": {"env_child/main.py": b"raise SystemExit(3)"}},
        {"files": {"env_child/main.py": b"print('{}')\ndef main(): pass"}},
        {"files": {"env_child/channel.py": b"import no_such_module"}},
    ],
    ids=["start fails", "no memory", "ends at once", "says nonsense", "cannot import"],
)
def test_a_machine_that_cannot_run_the_interpreter_is_not_the_jobs_fault(
    changes: dict[str, Any], sandbox: Sandbox
) -> None:
    with pytest.raises(InfrastructureError):
        EnvHost.start(sample_job(), Bent(sandbox, **changes), LIMITS)


def test_the_reason_of_a_failed_start_is_shown(sandbox: Sandbox) -> None:
    bent = Bent(sandbox, files={"env_child/channel.py": b"import no_such_module"})
    with pytest.raises(InfrastructureError, match="no_such_module"):
        EnvHost.start(sample_job(), bent, LIMITS)


@pytest.mark.parametrize("part", ["head", "load", "reward"])
def test_nothing_runs_on_after_a_failure_or_after_the_end(part: str, sandbox: Sandbox) -> None:
    bent = Bent(sandbox)
    with pytest.raises(AgentError), EnvHost.start(sample_job(**{part: "1 / 0"}), bent, LIMITS) as host:
        host.score([(0, "1")])
    with EnvHost.start(sample_job(), bent, LIMITS) as host:
        assert host.score([(0, "1")]) == [1.0]
    host.close()
    for process in bent.processes:
        assert not psutil.pid_exists(process.pid)
        assert process.stdin.closed
        assert process.stdout.closed


def test_after_a_failure_every_call_fails_in_the_same_way(sandbox: Sandbox) -> None:
    with EnvHost.start(sample_job(reward="return None"), sandbox, LIMITS) as host:
        for _ in range(3):
            with pytest.raises(AgentError, match="returned None"):
                host.score([(0, "1")])


def test_a_trained_model_and_the_hidden_eval_never_enter_the_process(sandbox: Sandbox) -> None:
    """What the child is given: its own package and the job's files."""
    seen: dict[str, bytes] = {}

    class Spy(Bent):
        def start(self, argv: Sequence[str], *, files: Mapping[str, bytes], limits: SandboxLimits) -> Any:
            seen.update(files)
            return super().start(argv, files=files, limits=limits)

    with EnvHost.start(sample_job(files={"data.txt": b"x"}), Spy(sandbox), LIMITS):
        pass
    ours = {name for name in seen if name.startswith("env_child/")}
    assert set(seen) - ours == {"job/job.toml", "job/environment.py", "job/data.txt"}
    assert not any(b"ai_trains_ai" in seen[name] for name in ours)
