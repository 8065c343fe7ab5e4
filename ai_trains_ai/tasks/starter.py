"""Job directories to start from: a self-contained environment.py around a family's generator."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ai_trains_ai.tasks.registry import family

RewardKind = Literal["exact", "partial", "format", "length", "constant"]

REWARDS: Mapping[str, str] = {
    "exact": "float(answer_of(reply) == self.data.answer.lower())",
    "partial": (
        "0.5 * float(answer_of(reply) == self.data.answer.lower())"
        " + 0.5 * share_of_steps(reply, self.data.steps)"
    ),
    "format": 'float("answer:" in reply.lower())',
    "length": "min(len(reply), 200) / 200",
    "constant": "1.0",
}
"""What the starter's reward line may say. Some of these teach nothing, which is for the agent to find out."""

_HEAD = '''"""Training environment for {family}: tasks and rewards."""

import random
import re

import verifiers.v1 as vf

LEVELS = {levels}
'''

_TAIL = """

def answer_of(reply):
    _, found, after = reply.lower().rpartition("answer:")
    return after.split("\\n")[0].strip(" .") if found else ""


def share_of_steps(reply, steps):
    written = [part.strip() for part in re.findall(r"(?:=|is) ([^.]*)\\.", reply)]
    return sum(a == b for a, b in zip(written, steps)) / len(steps)


class Data(vf.TaskData):
    answer: str
    steps: list[str]


class Problem(vf.Task[Data]):
    @vf.stop
    async def one_turn(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1

    @vf.reward(weight=1.0)
    async def reward(self, trace) -> float:
        reply = trace.last_reply
        return {reward}


class Config(vf.TasksetConfig):
    num_tasks: int = {num_tasks}
    seed: int = 0


class Problems(vf.Taskset[Problem, Config]):
    def load(self):
        rng = random.Random(self.config.seed)
        problems = []
        for _ in range(self.config.num_tasks):
            prompt, answer, steps = make(rng, rng.choice(LEVELS))
            problems.append(Problem(Data(prompt=prompt, answer=answer, steps=steps), self.config.task))
        return problems


__all__ = ["Problems"]
"""


def environment_source(
    name: str, *, levels: Sequence[int] = (1, 2), reward: str = "exact", num_tasks: int = 512
) -> str:
    """Return an environment.py that needs only the standard library and `verifiers.v1`.

    `reward` is a kind from `REWARDS` or any expression over `reply` and `self.data`.
    """
    source = inspect.getsource(family(name).source).split("import random\n", 1)[1].strip("\n")
    line = REWARDS.get(reward, reward)
    return (
        _HEAD.format(family=name, levels=tuple(levels))
        + "\n"
        + source
        + "\n"
        + _TAIL.replace("{reward}", line).replace("{num_tasks}", str(num_tasks))
    )


def job_toml(name: str, base_model: str = "nano-0.2m", settings: Mapping[str, Any] | None = None) -> str:
    """Return a job.toml. `settings` are dotted prime-rl keys, like {"trainer.optim.lr": 3e-4}."""
    lines = [f'family = "{name}"', f'base_model = "{base_model}"']
    tables: dict[str, list[str]] = {}
    for key, value in (settings or {}).items():
        table, _, leaf = key.rpartition(".")
        text = (
            f'"{value}"'
            if isinstance(value, str)
            else str(value).lower()
            if isinstance(value, bool)
            else str(value)
        )
        tables.setdefault(f"prime_rl.{table}" if table else "prime_rl", []).append(f"{leaf} = {text}")
    for table in sorted(tables):
        lines += ["", f"[{table}]", *tables[table]]
    return "\n".join(lines) + "\n"


def starter_files(name: str) -> dict[str, str]:
    """The `starter` scaffold: valid and mediocre. It trains the weaker base on short chains only."""
    return {
        "environment.py": environment_source(name),
        "job.toml": job_toml(name, settings={"max_steps": 10, "orchestrator.batch_size": 64}),
    }
