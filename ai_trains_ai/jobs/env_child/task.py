"""`Task`, `Taskset` and their data, as `verifiers.v1` (0.4) has them, for single-turn environments.

Runs inside the sandbox, stdlib only. Same names and same order of calls as the library, so that one
environment.py gives equal tasks and rewards under both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal

from .data import DataError, Record

_CONTAINER_FIELDS = frozenset(
    {
        "agent_user",
        "artifact_max_bytes",
        "artifacts",
        "image",
        "network_allow",
        "network_block",
        "resources",
        "skills",
        "timeout",
        "workdir",
    }
)


class SystemMessage(Record):
    role: Literal["system"] = "system"
    content: str


class UserMessage(Record):
    role: Literal["user"] = "user"
    content: str


class AssistantMessage(Record):
    role: Literal["assistant"] = "assistant"
    content: str | None = None


class TaskData(Record):
    """What a task is made of. `idx` is set by the taskset."""

    _frozen = True
    idx: int | None = None
    id: str | None = None
    name: str | None = None
    description: str | None = None
    prompt: str | list[SystemMessage | UserMessage | AssistantMessage] | None = None
    system_prompt: str | None = None

    @classmethod
    def _prepare(cls, values: dict[str, Any]) -> dict[str, Any]:
        refused = sorted(_CONTAINER_FIELDS & values.keys())
        if refused:
            raise DataError(
                f"{cls.__name__}: {', '.join(refused)} needs a container; rollouts here have none"
            )
        return dict(values)

    @property
    def prompt_text(self) -> str:
        if isinstance(self.prompt, str):
            return self.prompt
        return "\n\n".join(message.content for message in self.prompt or [] if message.content)


class _Config(Record):
    _extra = "forbid"

    @classmethod
    def _prepare(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {key: None if value == "None" else value for key, value in values.items()}


class TaskConfig(_Config):
    """Knobs of a task, passed to each task by the taskset."""


class TasksetConfig(_Config):
    """Knobs of load(); `[environment]` in job.toml sets them."""

    id: str = ""
    task: TaskConfig = TaskConfig()

    @property
    def name(self) -> str:
        return self.id


class State(Record):
    """Scratch space of one rollout, `trace.state`."""

    artifacts: dict[str, Any] = {}  # noqa: RUF012 - a field default, copied for each instance


class _Generic:
    """`Task[Data, Config]` is a base class that remembers its arguments."""

    _arguments: ClassVar[tuple[Any, ...]] = ()

    def __class_getitem__(cls, arguments: Any) -> type:
        arguments = arguments if isinstance(arguments, tuple) else (arguments,)
        return type(cls.__name__, (cls,), {"_arguments": arguments, "__module__": cls.__module__})

    @classmethod
    def _argument(cls, bound: type) -> Any:
        """The most derived type argument that is a `bound`, or `bound` itself."""
        for base in cls.__mro__:
            for argument in vars(base).get("_arguments", ()):
                if isinstance(argument, type) and issubclass(argument, bound):
                    return argument
        return bound


class Task(_Generic):
    NEEDS_CONTAINER: ClassVar[bool] = False

    def __init__(self, data: Any, config: Any = None) -> None:
        self.data = data
        self.config = config if config is not None else self.config_type()()

    def with_data(self, **update: Any) -> Any:
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__, data=self.data.model_copy(update=update))
        return clone

    def with_system_prompt(self, system_prompt: str) -> Any:
        return self.with_data(system_prompt=system_prompt)

    def hooks(self, kind: str) -> list[Callable[..., Any]]:
        """The methods marked `@vf.<kind>`, highest priority first, then by name."""
        names = {
            name
            for base in type(self).__mro__
            for name, f in vars(base).items()
            if callable(f) and hasattr(f, kind)
        }
        # An undecorated override suppresses a decorated base method.
        methods = [method for name in names if hasattr(method := getattr(self, name), kind)]
        return sorted(methods, key=lambda m: (-getattr(m, f"{kind}_priority", 0), m.__name__))

    @classmethod
    def data_type(cls) -> Any:
        return cls._argument(TaskData)

    @classmethod
    def config_type(cls) -> Any:
        return cls._argument(TaskConfig)


class Taskset(_Generic):
    INFINITE: bool = False

    def __init__(self, config: Any) -> None:
        self.config = config
        self.system_prompt = None

    def load(self) -> Iterable[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no load()")

    def __iter__(self) -> Any:
        for index, task in enumerate(self.load()):
            if not isinstance(task, Task):
                raise TypeError(f"load() gave a {type(task).__name__}, not a vf.Task")
            yield task.with_data(idx=index)

    @classmethod
    def task_type(cls) -> Any:
        return cls._argument(Task)

    @classmethod
    def config_type(cls) -> Any:
        return cls._argument(TasksetConfig)
