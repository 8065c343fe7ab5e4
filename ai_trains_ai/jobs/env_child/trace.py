"""`Trace` and scoring, as `verifiers.v1` (0.4) does it, for one finished single-turn rollout.

Runs inside the sandbox, stdlib only. Same order of calls and same arithmetic as the library. Stricter in one
point: a reward must be a plain int or float (the library also takes what `float()` converts, as True or "1").
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from .data import Record
from .task import AssistantMessage, State, SystemMessage, Task, UserMessage

_COROUTINE = 0x80  # inspect.CO_COROUTINE, without the cost of importing inspect
_LARGEST = sys.float_info.max
_LIFECYCLE = ("setup", "finalize", "stage_verifier", "toolsets", "runtime_env")


class BadValue(Exception):
    """A reward function returned something that is not a number."""


class Reward(Record):
    score: float
    weight: float = 1.0

    @property
    def value(self) -> float:
        return self.score * self.weight


class TraceTask:
    def __init__(self, task: Task) -> None:
        self.type, self.data = type(task).__name__, task.data


class Trace:
    """One finished single-turn rollout."""

    num_turns = 1
    num_branches = 1
    is_completed = True
    root_reply = None

    def __init__(self, task: Task, reply: str) -> None:
        data = task.data
        self.task = TraceTask(task)
        opening = [SystemMessage(content=data.system_prompt)] if data.system_prompt is not None else []
        prompt = (
            [UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt or [])
        )
        self.assistant_messages = [AssistantMessage(content=reply)]
        self.messages = [*opening, *prompt, *self.assistant_messages]
        self.tool_messages: list[Any] = []
        self.rewards: dict[str, Reward | None] = {}
        self.metrics: dict[str, float | None] = {}
        self.info: dict[str, Any] = {}
        self.errors: list[Any] = []
        self.state = task._argument(State)()

    @property
    def last_reply(self) -> str:
        return (self.assistant_messages[-1].content or "").strip()

    @property
    def last_message(self) -> Any:
        return self.messages[-1]

    @property
    def reward(self) -> float:
        return sum(reward.value for reward in self.rewards.values() if reward is not None)

    @property
    def transcript(self) -> str:
        blocks = (f"[{m.role}]" + (f"\n{m.content}" if m.content else "") for m in self.messages)
        return "\n\n".join(blocks)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"trace.{name} is not available here; use last_reply, num_turns, messages, assistant_messages, "
            "transcript, task, state, info, metrics or rewards"
        )

    def record_metric(self, name: str, value: Any) -> None:
        self.metrics[name] = float(value)

    def record_metrics(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self.record_metric(name, value)

    def record_reward(self, name: str, value: Any, weight: float = 1.0) -> None:
        if type(value) is not float and type(value) is not int:
            raise BadValue(f"`{name}` returned {_describe(value)}")
        if not -_LARGEST <= value <= _LARGEST:
            raise BadValue(f"`{name}` returned {_describe(value)}")
        self.rewards[name] = Reward(score=float(value), weight=float(weight))


def _describe(value: object) -> str:
    kind = type(value).__name__
    if type(value) is int and abs(value) > _LARGEST:
        return "an int beyond any float"
    if type(value) is float:
        return str(value)
    return (
        kind
        if value is None or not isinstance(value, str | bool | int | float)
        else f"{value!r:.40} ({kind})"
    )


async def score(task: Task, trace: Trace) -> None:
    """Run metrics, then rewards, and record both on the trace, in the library's order."""
    available = {"task": task.data, "trace": trace}
    metrics, rewards = task.hooks("metric"), task.hooks("reward")
    trace.metrics.update({fn.__name__: None for fn in metrics})
    trace.rewards.update({fn.__name__: None for fn in rewards})
    for fn in metrics:
        result = await _invoke(fn, available)
        if isinstance(result, Mapping):
            trace.metrics.pop(fn.__name__)
            trace.record_metrics(result)
        else:
            trace.record_metric(fn.__name__, result)
    results = [await _invoke(fn, available) for fn in rewards]
    for fn, result in zip(rewards, results, strict=True):
        weight = getattr(fn, "_vf_weight", 1.0)
        if not isinstance(result, Mapping):
            trace.record_reward(fn.__name__, result, weight)
            continue
        trace.rewards.pop(fn.__name__)
        for key, value in result.items():
            trace.record_reward(str(key), value, weight)


def _invoke(fn: Any, available: Mapping[str, Any]) -> Any:
    return fn(**{name: available[name] for name in _parameters(fn)[0] if name in available})


def _function(fn: Any) -> Any:
    """The function that a bound method, a static method or a decorator's wrapper stands for, or None."""
    fn = getattr(fn, "__func__", fn)
    while hasattr(fn, "__wrapped__"):
        fn = fn.__wrapped__
    return fn if isinstance(fn, types.FunctionType) else None


def _parameters(fn: Any) -> tuple[list[str], list[str]]:
    """(all, required) names of the parameters that a caller passes, without `self`."""
    function = _function(fn)
    code, bound = function.__code__, int(hasattr(fn, "__func__"))
    positional = list(code.co_varnames[: code.co_argcount])
    keywords = list(code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount])
    optional = len(function.__defaults__ or ())
    required = positional[bound : len(positional) - optional]
    required += [name for name in keywords if name not in (function.__kwdefaults__ or {})]
    return positional[bound:] + keywords, required


def hook_problems(task: Task) -> list[tuple[str, str, str]]:
    """(check, message, fix) for each hook that could not run here."""
    problems = []
    if not task.hooks("reward"):
        fix = "mark an async method with @vf.reward"
        problems.append(("rewards", f"{type(task).__name__} has no reward function", fix))
    for name in _LIFECYCLE:
        if getattr(type(task), name, None) is not None:
            message = f"{type(task).__name__}.{name} is never run: rollouts are single-turn"
            problems.append(("rewards", message, f"remove {name}"))
    for kind in ("reward", "metric", "stop"):
        for method in task.hooks(kind):
            problems += _method_problems(kind, method)
    return problems


def _method_problems(kind: str, method: Any) -> Iterable[tuple[str, str, str]]:
    name, function = method.__name__, _function(method)
    if function is None or not function.__code__.co_flags & _COROUTINE:
        yield "reward_async", f"{kind} `{name}` is not async", f"write `async def {name}(self, trace)`"
    elif kind == "stop":
        hints = typing.get_type_hints(function)
        if [hints.get(parameter) for parameter in _parameters(method)[0]] != [Trace]:
            fix = f"write `async def {name}(self, trace: vf.Trace) -> bool`; verifiers goes by the type"
            yield "rewards", f"stop `{name}` does not take one parameter of type vf.Trace", fix
    else:
        strange = [parameter for parameter in _parameters(method)[1] if parameter not in ("trace", "task")]
        if strange:
            fix = "take `trace` (and `task`, the task's data) only"
            yield "rewards", f"{kind} `{name}` takes `{strange[0]}`, which is not available", fix
        weight = getattr(method, "_vf_weight", 1.0)
        if type(weight) not in (int, float) or not abs(weight) < float("inf"):
            yield (
                "rewards",
                f"the weight of {kind} `{name}` is no finite number",
                "write @vf.reward(weight=1.0)",
            )
