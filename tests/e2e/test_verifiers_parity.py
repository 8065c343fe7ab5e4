"""The sandbox's `verifiers.v1` and the real library give the same tasks and rewards, to the last digit.

Needs an extra environment with verifiers 0.4.0: the interpreter in ATA_VERIFIERS_PYTHON, else
`.venv-verifiers`, which `verifiers_side/make_environment.py` makes when it is missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ai_trains_ai.config import JobLimits
from ai_trains_ai.errors import AgentError
from ai_trains_ai.jobs.env_host import EnvHost
from ai_trains_ai.jobs.spec import load_job
from ai_trains_ai.sandbox.pick import pick_sandbox
from ai_trains_ai.tasks.registry import FAMILIES
from ai_trains_ai.tasks.starter import REWARDS, environment_source, starter_files
from ai_trains_ai.testing.jobs import environment_py

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SIDE = Path(__file__).with_name("verifiers_side")
LIMITS = JobLimits(load_seconds=60.0, score_seconds=60.0, reward_bound=1000.0)
TEXTS = (
    "",
    " ",
    "Answer:",
    "Answer: 3",
    "1: 3. 2: 4.\nAnswer: 7. ",
    "answer: North 4 Answer: 5",
    "été 🙂\n",
    "x" * 500,
)


@dataclass(frozen=True)
class Case:
    """One environment with the completions that both sides score. The first two are rolled out in full."""

    name: str
    source: str
    completions: list[tuple[int, str]]
    toml: str = ""
    arguments: tuple[tuple[str, Any], ...] = ()


def family_cases() -> Iterator[Case]:
    for name, family in FAMILIES.items():
        sources = {f"{name} starter": starter_files(name)["environment.py"]}
        for kind in REWARDS:
            sources[f"{name} {kind}"] = environment_source(name, levels=(1, 3, 5), reward=kind, num_tasks=80)
        tasks = [family.generate(seed, 2) for seed in range(3)]
        worked = [text for task in tasks for text in (family.gold(task), family.wrong(task))]
        completions = [(i % 60, text) for i, text in enumerate((*worked, *TEXTS))]
        for title, source in sources.items():
            yield Case(title, source, completions)


def feature_cases() -> Iterator[Case]:
    source = (SIDE / "features.py").read_text()
    completions = [(i % 4, text) for i, text in enumerate(("0", " 1 ", *TEXTS))]
    yield Case("features", source, completions)
    toml = '[environment]\nnum_tasks = 5\nstyle = "odd"\n[environment.task]\nshare = 0.125\nwords = ["a"]\n'
    arguments = {"num_tasks": 5, "style": "odd", "task": {"share": 0.125, "words": ["a"]}}
    yield Case("features with arguments", source, [(4, "4"), *completions], toml, tuple(arguments.items()))


CASES = {case.name: case for case in (*family_cases(), *feature_cases())}
REFUSED = {
    "unknown argument": Case("", environment_py(), [], "[environment]\nlevls = 3\n", (("levls", 3),)),
    "argument of another type": Case(
        "", environment_py(), [], '[environment]\nnum_tasks = "x"', (("num_tasks", "x"),)
    ),
    "no __all__": Case("", environment_py(tail="del __all__"), []),
    "two tasksets": Case("", environment_py(tail="class O(Problems): pass\n__all__ = ['O', 'Problems']"), []),
    "data of another type": Case("", environment_py(load="Data(prompt='a', answer=3)"), []),
    "missing field": Case("", environment_py(head="class X(vf.TaskData):\n    a: int\nX(prompt='a')"), []),
    "frozen data": Case("", environment_py(load="d = Data(prompt='a')\nd.answer = 'x'"), []),
    "no annotation": Case("", environment_py(head="class X(vf.TaskData):\n    a = 3"), []),
    "classic API": Case("", environment_py(head="vf.Rubric"), []),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the real library makes of every case, from one process: importing it takes long."""
    python = os.environ.get("ATA_VERIFIERS_PYTHON")
    if python is None:
        command = [sys.executable, SIDE / "make_environment.py"]
        made = subprocess.run(command, check=False, capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"no environment with verifiers could be made: {made.stderr[-500:]}")
        python = made.stdout.strip().splitlines()[-1]
    folder = tmp_path_factory.mktemp("environments")
    requests = []
    for number, case in enumerate((*CASES.values(), *REFUSED.values())):
        path = folder / f"environment{number}.py"
        path.write_text(case.source)
        rollouts = 2 if case.completions else 0
        request = {"path": str(path), "arguments": dict(case.arguments), "rollouts": rollouts}
        requests.append({**request, "completions": case.completions})
    done = subprocess.run(
        [python, SIDE / "library.py"],
        check=False,
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SIDE)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip((*CASES, *REFUSED), json.loads(done.stdout), strict=True))


def ours(case: Case) -> dict[str, Any]:
    toml = f'family = "ledger"\nbase_model = "nano-0.2m"\n{case.toml}'
    files = {"job.toml": toml.encode(), "environment.py": case.source.encode()}
    job, findings = load_job(files, LIMITS)
    assert job is not None, findings
    with EnvHost.start(job, pick_sandbox(), LIMITS) as host:
        return {
            "tasks": [[task.prompt, task.system_prompt] for task in host.tasks],
            "scored": host.inspect(case.completions),
        }


@pytest.mark.parametrize("name", CASES)
def test_same_tasks_and_rewards_as_the_library(name: str, library: dict[str, Any]) -> None:
    theirs, mine = library[name], ours(CASES[name])
    assert "refused" not in theirs, theirs
    assert mine["tasks"] == theirs["tasks"]
    assert len(mine["scored"]) == len(theirs["scored"])
    for scored, reference in zip(mine["scored"], theirs["scored"], strict=True):
        assert reference["errors"] == []
        assert scored.total == reference["total"]
        assert [[name, [score, weight]] for name, score, weight in scored.parts] == [
            list(item) for item in reference["parts"].items()
        ]
    for scored, reference in zip(mine["scored"], theirs["rollouts"], strict=False):
        assert reference["errors"] == []
        assert scored.total == reference["total"]


def test_whole_rollouts_were_run(library: dict[str, Any]) -> None:
    assert all(len(library[name]["rollouts"]) == 2 for name in CASES)


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_library_refuses_is_refused_here(name: str, library: dict[str, Any]) -> None:
    assert library[name].get("refused"), library[name]
    with pytest.raises(AgentError):
        ours(REFUSED[name])


def test_a_stop_without_a_type_fails_in_the_library_and_is_refused_here(tmp_path: Path) -> None:
    source = environment_source("ledger").replace("trace: vf.Trace) -> bool", "trace)")
    with pytest.raises(AgentError, match=r"one parameter of type vf\.Trace"):
        ours(Case("", source, []))
