"""A small job whose environment can be made to misbehave at any place: tasks are `What is N + 1?`."""

from __future__ import annotations

from collections.abc import Mapping

from ai_trains_ai.config import JobLimits
from ai_trains_ai.jobs.spec import load_job
from ai_trains_ai.types import Job

_SOURCE = """
import verifiers.v1 as vf
{head}


class Data(vf.TaskData):
    answer: str = ""


class Problem(vf.Task[Data]):
    @vf.reward(weight=1.0)
    async def right(self, trace) -> float:
        reply = trace.last_reply
        {reward}


class Config(vf.TasksetConfig):
    num_tasks: int = 100


class Problems(vf.Taskset[Problem, Config]):
    def load(self):
        {load}
        numbers = range(self.config.num_tasks)
        return [Problem(Data(prompt=f"What is {{i}} + 1?", answer=str(i + 1))) for i in numbers]


__all__ = ["Problems"]
{tail}
"""
HONEST = "return float(reply == self.data.answer)"
"""The body of the reward that an undisturbed environment has."""


def environment_py(*, head: str = "", reward: str = HONEST, load: str = "", tail: str = "") -> str:
    """The environment's source. `head` runs at import, before all else; `load` at the start of load();
    `reward` is the body of the only reward, over `reply` and `self.data`; `tail` ends the import.
    """

    def indent(text: str) -> str:
        return text.replace("\n", "\n        ")

    return _SOURCE.format(head=head, reward=indent(reward), load=indent(load or "pass"), tail=tail)


def sample_job(
    *, toml: str = "", files: Mapping[str, bytes] | None = None, limits: JobLimits | None = None, **parts: str
) -> Job:
    """A job with that environment; `parts` are those of `environment_py`, `toml` is added to job.toml."""
    text = f'family = "ledger"\nbase_model = "nano-0.2m"\n{toml}'
    given = {"job.toml": text.encode(), "environment.py": environment_py(**parts).encode(), **(files or {})}
    job, findings = load_job(given, limits or JobLimits())
    if job is None:
        raise ValueError(f"the sample job is not readable: {findings}")
    return job
