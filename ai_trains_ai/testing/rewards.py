"""A reward source that lives in the test's own process: `types.RewardSource` without sandbox or pipes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ai_trains_ai.types import EnvTask


class FakeRewards:
    """Scores completions with a function, and remembers what it was asked.

    prompts: one task each, in order.
    reward:  (task, completion text) -> reward; what it raises passes through, as from a real environment.
    """

    def __init__(self, prompts: Sequence[str], reward: Callable[[EnvTask, str], float]) -> None:
        self._tasks = tuple(EnvTask(index, prompt) for index, prompt in enumerate(prompts))
        self._reward = reward
        self.batches: list[list[tuple[int, str]]] = []

    @property
    def tasks(self) -> Sequence[EnvTask]:
        return self._tasks

    def score(self, completions: Sequence[tuple[int, str]]) -> list[float]:
        self.batches.append(list(completions))
        return [float(self._reward(self._tasks[index], text)) for index, text in completions]
