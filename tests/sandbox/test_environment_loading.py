"""Environments that cannot be imported or loaded say why; those that can may use the standard library."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from test_environment_channel import HONEST_REWARDS, refused, rewards

from ai_trains_ai.config import JobLimits
from ai_trains_ai.jobs import env_child
from ai_trains_ai.jobs.env_host import _BOOT, _PYTHON_FLAGS, EnvHost, child_files
from ai_trains_ai.sandbox.base import Sandbox
from ai_trains_ai.testing.jobs import HONEST, sample_job

TWO = "class Other(Problems): pass\n__all__ = ['Other', 'Problems']"


@pytest.mark.parametrize(
    ("parts", "check", "words"),
    [
        ({"head": "x = = 1"}, "environment_import", ["environment.py, line 3", "SyntaxError"]),
        ({"head": "import numpy"}, "environment_import", ["line 3", "numpy", "standard library"]),
        ({"head": "import pydantic"}, "environment_import", ["pydantic", "verifiers.v1"]),
        ({"head": "from verifiers.v1 import Rubric"}, "environment_import", ["Rubric"]),
        ({"head": "vf.Environment"}, "environment_import", ["Environment", "TaskData"]),
        ({"head": "import verifiers\nverifiers.Rubric"}, "environment_import", ["import verifiers.v1 as vf"]),
        ({"tail": "del __all__"}, "environment_import", ["no __all__"]),
        ({"tail": "__all__ = []"}, "environment_import", ["exports 0 Taskset classes"]),
        ({"tail": TWO}, "environment_import", ["exports 2 Taskset classes"]),
        ({"tail": "class Bad(vf.TaskData):\n    answer = 3"}, "environment_import", ["type annotation"]),
        ({"load": "1 / 0"}, "environment_load", ["in load: ZeroDivisionError"]),
        ({"load": "return None"}, "environment_load", ["NoneType"]),
        ({"load": "return ['a']"}, "environment_load", ["gave a str"]),
        (
            {"load": "Data(prompt='a', answer=3)"},
            "environment_load",
            ["must be str, not '3'"],
        ),
        ({"load": "return [Problem(Data(prompt=''))]"}, "environment_load", ["task 0 has no prompt"]),
        ({"load": "return [Problem(Data())]"}, "environment_load", ["task 0 has no prompt"]),
        (
            {"load": "return [Problem(Data(prompt='x' * 9000))]"},
            "environment_load",
            ["9000 characters", "8000"],
        ),
        ({"load": "return (Problem(Data(prompt='x')) for _ in iter(int, 1))"}, "environment_load", ["20000"]),
        (
            {"load": "return [Problem(Data(prompt='x' * 7000))] * 2000"},
            "environment_load",
            ["characters in all"],
        ),
        ({"load": "raise MemoryError"}, "environment_load", ["MemoryError", "less memory"]),
        ({"load": "return [Problem(Data(prompt='\\ud800'))]"}, "protocol", []),
        ({"tail": "Problems.INFINITE = True"}, "environment_load", ["INFINITE"]),
        ({"tail": "Problem.setup = lambda self, trace, runtime: None"}, "rewards", ["setup is never run"]),
        ({"tail": "del Problem.right"}, "rewards", ["no reward function"]),
        ({"tail": "Problem.right = vf.reward(lambda self, trace: 1.0)"}, "reward_async", ["not async"]),
        ({"toml": "[environment]\nnum_taks = 5"}, "environment_load", ["num_taks", "num_tasks"]),
        ({"toml": '[environment]\nnum_tasks = "many"'}, "environment_load", ["Config.num_tasks must be int"]),
    ],
)
def test_what_cannot_be_loaded_says_why(
    parts: dict[str, str], check: str, words: list[str], sandbox: Sandbox
) -> None:
    error = refused(sample_job(**parts), sandbox)  # type: ignore[arg-type]
    assert error.check == check
    for word in words:
        assert word in f"{error.message} {error.fix}"


def test_arguments_come_from_job_toml(sandbox: Sandbox) -> None:
    with EnvHost.start(sample_job(toml="[environment]\nnum_tasks = 5"), sandbox, JobLimits()) as host:
        assert len(host.tasks) == 5


def test_asyncio_works_where_a_job_uses_it(sandbox: Sandbox) -> None:
    body = "import asyncio\nawait asyncio.sleep(0.001)\nawait asyncio.gather(asyncio.sleep(0))\n"
    assert rewards(sample_job(reward=body + HONEST), sandbox) == HONEST_REWARDS


def test_coroutines_of_the_job_are_awaited_without_asyncio(sandbox: Sandbox) -> None:
    head = "async def helper(a, b):\n    return float(a == b)\n"
    assert rewards(sample_job(head=head, reward="return await helper(reply, self.data.answer)"), sandbox) == (
        HONEST_REWARDS
    )


def test_other_files_of_the_job_can_be_imported_and_read(sandbox: Sandbox) -> None:
    job = sample_job(
        head="import helper, os\nTEXT = open(os.path.dirname(__file__) + '/data/words.txt').read()",
        reward="text = open('data/words.txt').read()\n"
        "return helper.right(reply, self.data.answer) + len(TEXT) + len(text)",
        files={"helper.py": b"def right(a, b):\n    return float(a == b)\n", "data/words.txt": b"abc"},
    )
    assert rewards(job, sandbox) == [7.0, 6.0, 7.0, 6.0]


def test_a_jobs_file_never_hides_the_standard_library(sandbox: Sandbox) -> None:
    job = sample_job(
        head="import random, json, textwrap",
        reward="return float(callable(json.dumps) and callable(random.shuffle) and callable(textwrap.wrap))",
        files={"random.py": b"", "json.py": b"", "asyncio.py": b"", "textwrap.py": b"", "env_child.py": b""},
    )
    assert rewards(job, sandbox) == [1.0] * 4


def test_start_up_costs_well_under_half_a_second_of_processor_time(tmp_path: Path) -> None:
    """The interpreter, our package and a small environment, to the first answer; both execs included."""
    assert env_child.__file__ is not None
    for name, content in child_files(sample_job()).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    hello = b'{"key": "00"}'
    limits = b'{"max_tasks":999,"max_prompt_chars":999,"max_total_chars":99999}'
    load = b'{"op":"load","arguments":{},"limits":' + limits + b"}"
    requests = b"".join(len(body).to_bytes(4, "big") + body for body in (hello, load))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *_PYTHON_FLAGS, "-c", _BOOT],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        input=requests,
        capture_output=True,
        check=True,
        timeout=60,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert b"What is 99 + 1?" in done.stdout, done.stderr
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert seconds < 0.4
