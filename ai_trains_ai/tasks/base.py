"""What a task family is. A family's page holds its goal, its parser and its worked solution.

The generator (`generators/`) computes answers while it writes the prompt; `Family.solve` reads the prompt
alone and works it out again. The two share no code, so each checks the other without a model.
"""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar

from ai_trains_ai.seeds import derive
from ai_trains_ai.types import Task, TaskSpec

MAX_LEVEL = 8
_ANSWER = re.compile(r"answer\s*:", re.IGNORECASE)


def normalise(text: str) -> str:
    """Lower-case, single spaces, no surrounding quotes or final full stop."""
    return " ".join(text.lower().split()).strip(" .\"'")


def extract_answer(completion: str) -> str | None:
    """Return what follows the last "Answer:" on its line, normalised, or None when there is none."""
    _, *after = _ANSWER.split(completion)
    return (normalise(after[-1].split("\n", 1)[0]) or None) if after else None


class Family(ABC):
    """A generator of tasks, with everything needed to explain, solve and score them.

    A subclass describes one step machine: `parse` reads the prompt into a start state and
    operations, `apply` does one operation, `explain` and `show` write it, `conclude` reads the answer.
    """

    name: ClassVar[str]
    published_baseline: ClassVar[float]
    """Accuracy of the best untrained Qwen3 base in the published system."""
    goal: ClassVar[str]
    answer_form: ClassVar[str]
    source: ModuleType
    """The generator's module, with `make(rng, level) -> (prompt, answer, steps)`."""

    def generate(self, seed: int, level: int) -> Task:
        """Return the task number `seed` of `level` steps (1..8): the same one, always."""
        if not 1 <= level <= MAX_LEVEL:
            raise ValueError(f"level {level} is outside 1..{MAX_LEVEL}")
        rng = random.Random(derive(seed, "task", self.name, level))
        prompt, answer, steps = self.source.make(rng, level)
        return Task(self.name, level, seed, prompt, answer, tuple(steps))

    def score(self, completion: str, task: Task) -> float:
        """1.0 when the completion's extracted answer is the task's, else 0.0."""
        return float(extract_answer(completion) == normalise(task.answer))

    def solve(self, prompt: str) -> tuple[str, tuple[str, ...]] | None:
        """Work a prompt out from its text alone: (answer, steps), or None when it has another format."""
        parsed = self.parse(prompt)
        if parsed is None:
            return None
        state, operations, context = parsed
        steps = []
        for operation in operations:
            state = self.apply(state, operation, context)
            if state is None:
                return None
            steps.append(self.show(state))
        return self.conclude(state, context), tuple(steps)

    def work(
        self, prompt: str, rng: random.Random, *, slip: float = 0.0, stop_after: int | None = None
    ) -> tuple[list[str], str]:
        """Write the working of a prompt: the start, then "operation = result" a step, and the answer.

        Each line quotes what it uses, so that working a task out is looking up and small sums, one at a time.

        slip: chance that a step's result is a random one, carried on from there. stop_after: steps done.
        """
        parsed = self.parse(prompt)
        assert parsed is not None, f"not a {self.name} prompt: {prompt!r}"
        state, operations, context = parsed
        lines = [self.opening(state)]
        for operation in operations[:stop_after]:
            before, state = state, self.apply(state, operation, context)
            if state is None:
                state = self.random_state(rng, context)
            how = self.explain(operation, before, state)
            if rng.random() < slip:
                state = self.slip(state, rng, context)
            lines.append(f"{how} {self.show(state)}")
        lines += self.closing(state, context)
        return lines, self.conclude(state, context)

    def gold(self, task: Task) -> str:
        """The worked solution as a completion."""
        return write_up(*self.work(task.prompt, random.Random(0)))

    def wrong(self, task: Task) -> str:
        """A well-formed completion whose answer is not the task's."""
        rng = random.Random(derive(task.seed, "wrong", task.prompt))
        while True:
            guess = self.guess(task.prompt, rng)
            if normalise(guess) != normalise(task.answer):
                return f"Answer: {guess}"

    def guess(self, prompt: str, rng: random.Random) -> str:
        """An answer of the right form, drawn without working."""
        parsed = self.parse(prompt)
        assert parsed is not None
        return self.conclude(self.random_state(rng, parsed[2]), parsed[2])

    def spec(self) -> TaskSpec:
        """What the trainer agent is told. The three examples have public seeds, outside any hidden eval."""
        examples = tuple(
            self.generate(derive(0, "public example", i), level) for i, level in enumerate((2, 3, 4))
        )
        return TaskSpec(
            family=self.name,
            goal=self.goal,
            constraints=(
                "Training tasks come from your environment.py; the evaluation uses tasks you will not see.",
                'Replies end with a line that contains "Answer:" and the answer.',
            ),
            evaluation=(
                "The trained model answers hidden tasks of 2 to 5 steps, sampled at temperature 1; "
                f'the text after the last "Answer:" must be {self.answer_form}.'
            ),
            examples=examples,
        )

    @abstractmethod
    def parse(self, prompt: str) -> tuple[Any, list[Any], Any] | None:
        """(start state, operations, context), or None when the prompt is not of this family's format."""

    @abstractmethod
    def apply(self, state: Any, operation: Any, context: Any) -> Any:
        """The state after one operation; None when the prompt does not determine it."""

    @abstractmethod
    def explain(self, operation: Any, before: Any, after: Any) -> str:
        """The operation as the worked solution writes it, up to its "=" or "is"."""

    def closing(self, state: Any, context: Any) -> list[str]:
        """What the answer quotes beyond the steps."""
        return []

    def opening(self, state: Any) -> str:
        """The start state as the worked solution restates it."""
        return self.show(state)

    @abstractmethod
    def show(self, state: Any) -> str:
        """The state as the worked solution writes it."""

    @abstractmethod
    def conclude(self, state: Any, context: Any) -> str:
        """The answer that the final state gives."""

    @abstractmethod
    def random_state(self, rng: random.Random, context: Any) -> Any:
        """A plausible state, for guesses."""

    def slip(self, state: Any, rng: random.Random, context: Any) -> Any:
        """What a slip makes of a state."""
        return self.random_state(rng, context)


def write_up(steps: Sequence[str], answer: str) -> str:
    """`Steps 1: … = … . 2: … = … . Answer: …`, the form of a worked solution."""
    return " ".join(["Steps", *(f"{k}: {step}." for k, step in enumerate(steps)), f"Answer: {answer}"])
