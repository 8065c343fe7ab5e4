"""Check what a job's environment answered. Pure functions over parsed JSON; every refusal is an AgentError.

The process behind the pipe runs the job's code, so any shape and any value may arrive. Numbers must be exact
JSON numbers, finite and bounded; texts are shortened and lose their control characters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ai_trains_ai.config import JobLimits
from ai_trains_ai.errors import AgentError
from ai_trains_ai.types import EnvTask


@dataclass(frozen=True, slots=True)
class Scored:
    """One completion's reward. `raised` is set when a reward function raised; the total is 0.0 then."""

    total: float
    parts: tuple[tuple[str, float, float], ...] = ()
    """(name, score, weight) of each reward, where asked for."""
    raised: str | None = None


def object_of(answer: Any) -> Mapping[str, Any]:
    """The answer as an object; an error that it carries is raised."""
    if not isinstance(answer, dict):
        raise garbled()
    if "error" not in answer:
        return answer
    error = answer["error"]
    texts = [error.get(key) if isinstance(error, dict) else None for key in ("check", "message", "fix")]
    if not all(type(text) is str for text in texts):
        raise garbled()
    check, message, fix = (
        clean(str(text), limit) for text, limit in zip(texts, (32, 1000, 300), strict=True)
    )
    raise AgentError(check, message, fix)


def tasks_of(answer: Mapping[str, Any], limits: JobLimits) -> tuple[EnvTask, ...]:
    """The tasks of a `load` answer: [[prompt, system prompt or null], ...]."""
    tasks = answer.get("tasks")
    if not isinstance(tasks, list) or len(tasks) > limits.max_tasks:
        raise garbled()
    return tuple(_task(index, item, limits) for index, item in enumerate(tasks))


def _task(index: int, item: Any, limits: JobLimits) -> EnvTask:
    if not isinstance(item, list) or len(item) != 2:
        raise garbled()
    prompt, system = item
    if type(prompt) is not str or not (system is None or type(system) is str):
        raise garbled()
    if len(prompt) + len(system or "") > limits.max_prompt_chars:
        raise garbled()
    return EnvTask(index, prompt, system)


def rewards_of(answer: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """The (name, weight) pairs of a `load` answer."""
    rewards = answer.get("rewards")
    if not isinstance(rewards, list):
        raise garbled()
    found = []
    for reward in rewards:
        if not (isinstance(reward, list) and len(reward) == 2 and type(reward[0]) is str):
            raise garbled()
        found.append((clean(reward[0], 80), _number(reward[1])))
    return tuple(found)


def results_of(answer: Mapping[str, Any], count: int) -> list[Any]:
    """The results of a `score` answer, one for each of `count` completions."""
    results = answer.get("results")
    if not isinstance(results, list) or len(results) != count:
        raise garbled()
    return results


def scored_of(task: int, result: Any, limits: JobLimits) -> Scored:
    """One result: {"total": …, "parts": …} or {"raised": text} or {"bad": text}."""
    if not isinstance(result, dict):
        raise garbled()
    if type(result.get("raised")) is str:
        return Scored(0.0, raised=clean(result["raised"], 500))
    if type(result.get("bad")) is str:
        message = f"task {task}: {clean(result['bad'], 300)}"
        raise AgentError("reward_value", message, "return a plain finite number, like float(…)")
    total = _number(result.get("total"))
    bound = limits.reward_bound
    if abs(total) > bound:
        message = f"task {task}: a reward of {total:g}, outside ±{bound:g}"
        raise AgentError("reward_bounds", message, f"keep the weighted sum of rewards within ±{bound:g}")
    return Scored(total, _parts(result.get("parts", {})))


def _parts(parts: Any) -> tuple[tuple[str, float, float], ...]:
    if not isinstance(parts, dict):
        raise garbled()
    found = []
    for name, value in parts.items():
        if not isinstance(value, list) or len(value) != 2:
            raise garbled()
        found.append((clean(name, 80), _number(value[0]), _number(value[1])))
    return tuple(found)


def _number(value: Any) -> float:
    """An exact, finite JSON number. True, False, null, texts and what overflows a float are none."""
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise garbled() from None
    if type(value) is float and math.isfinite(value):
        return value
    raise garbled()


def clean(text: str, limit: int) -> str:
    """Text of the job for a terminal: one line, no control characters, shortened."""
    line = "".join(char if char.isprintable() else " " for char in text[: 4 * limit])
    return line if len(line) <= limit else line[: limit - 1] + "…"


def garbled() -> AgentError:
    message = "the environment's process sent something that is not an answer"
    return AgentError("protocol", message, "only return values; print() is fine, other descriptors are not")
