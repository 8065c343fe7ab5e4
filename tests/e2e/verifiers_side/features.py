"""An environment that uses every part of verifiers.v1 that the sandbox offers, to compare both sides by."""

from __future__ import annotations

import math

import verifiers.v1 as vf


class Knobs(vf.TaskConfig):
    share: float = 0.25
    words: list[str] = []  # noqa: RUF012


class Data(vf.TaskData):
    answer: str
    numbers: tuple[int, ...] = (1, 2)
    table: dict[str, float] = {}  # noqa: RUF012
    note: str | None = None

    @property
    def total(self) -> int:
        return sum(self.numbers)


class Base(vf.Task[Data, Knobs]):
    @vf.stop
    async def one_turn(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1

    @vf.reward
    async def hidden_by_the_subclass(self, trace) -> float:
        return 100.0

    @vf.reward(weight=0.1)
    async def zz_inherited(self, trace) -> float:
        return math.sqrt(2) * len(trace.last_reply)


class Question(Base):
    async def hidden_by_the_subclass(self, trace) -> float:
        return 50.0

    @vf.metric
    async def letters(self, trace) -> float:
        return len(trace.last_reply)

    @vf.metric
    async def several(self, trace) -> dict[str, float]:
        return {"a": 1, "b": trace.num_turns}

    @vf.reward(weight=1 / 3, priority=-1)
    async def late(self, trace) -> float:
        return trace.metrics["letters"] / 7 + trace.metrics["b"]

    @vf.reward(weight=0.7)
    async def right(self, trace, task) -> float:
        same = trace.last_reply == self.data.answer and task.answer == trace.task.data.answer
        return float(same)

    @vf.reward(weight=-0.3, priority=5)
    async def keyed(self, trace) -> dict[str, float]:
        return {"share": self.config.share, "total": self.data.total, "index": self.data.idx}

    @vf.reward
    async def shape(self, trace) -> float:
        roles = [message.role for message in trace.messages]
        raw = trace.assistant_messages[-1].content
        value = len(raw) + 10 * len(roles) + 100 * roles.index("user") + 0.001 * len(trace.transcript)
        value += len(trace.task.type) + len(self.data.prompt_text) + len(self.config.words)
        trace.info["seen"] = value
        return value % 97.0


class Settings(vf.TasksetConfig):
    num_tasks: int = 4
    style: str = "plain"
    task: Knobs = Knobs()


class Questions(vf.Taskset[Question, Settings]):
    def load(self):
        for i in range(self.config.num_tasks):
            prompt = f"{self.config.style} question {i}"
            if i % 2:
                prompt = [{"role": "user", "content": prompt}]
            system = "Be brief." if i % 3 == 0 else None
            data = Data(
                prompt=prompt, system_prompt=system, answer=str(i), numbers=[i, "2"], table={"x": i}, extra=1
            )
            yield Question(data, self.config.task)


__all__ = ["Questions"]
