"""The modules `verifiers` and `verifiers.v1` that environment.py imports in the sandbox."""

from __future__ import annotations

import types
from typing import Any

from . import task, trace


def _marker(kind: str) -> Any:
    """`@vf.reward` and `@vf.reward(weight=0.5, priority=1)`."""

    def decorator(func: Any = None, weight: float = 1.0, priority: int = 0) -> Any:
        def mark(f: Any) -> Any:
            setattr(f, kind, True)
            setattr(f, f"{kind}_priority", priority)
            f._vf_weight = weight
            return f

        return mark if func is None else mark(func)

    return decorator


PUBLIC: dict[str, Any] = {
    "AssistantMessage": task.AssistantMessage,
    "Reward": trace.Reward,
    "State": task.State,
    "SystemMessage": task.SystemMessage,
    "Task": task.Task,
    "TaskConfig": task.TaskConfig,
    "TaskData": task.TaskData,
    "Taskset": task.Taskset,
    "TasksetConfig": task.TasksetConfig,
    "Trace": trace.Trace,
    "UserMessage": task.UserMessage,
    "metric": _marker("metric"),
    "reward": _marker("reward"),
    "stop": _marker("stop"),
}


def modules() -> dict[str, types.ModuleType]:
    """`verifiers` and `verifiers.v1`, for sys.modules."""
    root, v1 = types.ModuleType("verifiers"), types.ModuleType("verifiers.v1")

    def missing(name: str) -> Any:
        raise AttributeError(f"verifiers.v1 has no `{name}` in the sandbox; it has: {', '.join(PUBLIC)}")

    def missing_in_root(name: str) -> Any:
        raise AttributeError(f"verifiers has no `{name}`; write `import verifiers.v1 as vf`")

    v1.__dict__.update(PUBLIC, __all__=list(PUBLIC), __getattr__=missing)
    root.__dict__.update(v1=v1, __path__=[], __getattr__=missing_in_root)
    return {"verifiers": root, "verifiers.v1": v1}
