"""The serving package's parts, in this process: data classes, tasks, traces, scoring."""

from __future__ import annotations

import ast
import asyncio
import functools
import sys
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Literal, NewType, Optional

import pytest

from ai_trains_ai.jobs import env_child
from ai_trains_ai.jobs.env_child.data import DataError, Record
from ai_trains_ai.jobs.env_child.shim import PUBLIC, modules
from ai_trains_ai.jobs.env_child.task import (
    State,
    SystemMessage,
    Task,
    TaskConfig,
    TaskData,
    Taskset,
    TasksetConfig,
)
from ai_trains_ai.jobs.env_child.trace import BadValue, Trace, hook_problems, score

vf = modules()["verifiers.v1"]
Name = NewType("Name", str)


class Colour(Enum):
    RED = "red"


class Inner(Record):
    n: int


class Wide(Record):
    text: str = "x"
    whole: int = 0
    real: float = 0.0
    flag: bool = False
    words: list[str] = []  # noqa: RUF012
    pair: tuple[int, str] = (1, "a")
    many: tuple[int, ...] = ()
    bag: set[int] = set()  # noqa: RUF012
    table: dict[str, int] = {}  # noqa: RUF012
    either: int | str = 0
    maybe: Optional[str] = None  # noqa: UP045
    choice: Literal["a", "b", 3] = "a"
    inner: Inner | None = None
    anything: Any = None
    name: Name = Name("n")
    colour: Colour = Colour.RED
    bare: list = []  # type: ignore[type-arg] # noqa: RUF012
    shared: ClassVar[int] = 5
    _private = 3


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
        ("text", "a", "a"),
        ("whole", "5", 5),
        ("whole", 5.0, 5),
        ("whole", True, 1),
        ("real", 2, 2.0),
        ("real", "2.5", 2.5),
        ("flag", 1, True),
        ("flag", "no", False),
        ("words", ("a", "b"), ["a", "b"]),
        ("words", iter(["a"]), ["a"]),
        ("pair", [1, "b"], (1, "b")),
        ("many", [1, "2"], (1, 2)),
        ("bag", [1, 1], {1}),
        ("table", {"a": "1"}, {"a": 1}),
        ("either", "5", "5"),
        ("either", 5, 5),
        ("maybe", None, None),
        ("choice", 3, 3),
        ("inner", {"n": 2}, Inner(n=2)),
        ("inner", Inner(n=2), Inner(n=2)),
        ("anything", object, object),
        ("bare", (1, "a"), [1, "a"]),
    ],
)
def test_fields_convert_as_pydantic_does(field: str, given: Any, kept: Any) -> None:
    value = getattr(Wide(**{field: given}), field)
    assert value == kept
    assert type(value) is type(kept)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("text", 5),
        ("text", None),
        ("whole", "x"),
        ("whole", 1.5),
        ("whole", None),
        ("real", "x"),
        ("real", []),
        ("flag", 2),
        ("flag", "maybe"),
        ("words", "ab"),
        ("words", [1]),
        ("words", {"a": 1}),
        ("pair", [1]),
        ("table", [1]),
        ("table", {"a": "x"}),
        ("either", None),
        ("maybe", 3),
        ("choice", "c"),
        ("choice", 3.0),
        ("inner", {"m": 2}),
        ("colour", 5),
    ],
)
def test_fields_refuse_what_pydantic_refuses(field: str, given: Any) -> None:
    with pytest.raises(DataError, match=rf"Wide\.{field}|Inner\.n"):
        Wide(**{field: given})


def test_defaults_are_copied_and_missing_fields_are_all_named() -> None:
    one, two = Wide(), Wide()
    one.words.append("a")
    assert two.words == []

    class Two(Record):
        a: int
        b: str

    with pytest.raises(DataError, match=r"Two\.a is required; Two\.b is required"):
        Two()


def test_an_attribute_without_annotation_is_refused_as_in_pydantic() -> None:
    with pytest.raises(TypeError, match="answer needs a type annotation"):
        type("Bad", (TaskData,), {"answer": "x", "__module__": __name__})


def test_task_data_is_frozen_and_ignores_unknown_fields_while_configs_refuse_them() -> None:
    data = TaskData(prompt="p", unknown=3)
    with pytest.raises(DataError, match="frozen"):
        data.prompt = "q"
    assert data.model_copy(update={"idx": 4}).idx == 4
    with pytest.raises(DataError, match="has no field 'levls'"):
        TasksetConfig(levls=3)


def test_none_in_quotes_is_null_in_configs_and_text_in_data() -> None:
    class Limited(TasksetConfig):
        most: int | None = 3

    assert Limited(most="None").most is None
    assert TaskData(prompt="None").prompt == "None"


def test_container_fields_say_that_there_is_no_container() -> None:
    with pytest.raises(DataError, match="image needs a container"):
        TaskData(prompt="p", image="ubuntu")


class SumData(TaskData):
    answer: str


class SumConfig(TaskConfig):
    share: float = 0.25


class Both(Task[SumData, SumConfig]):  # type: ignore[misc]
    @vf.stop
    async def one_turn(self, trace: Trace) -> bool:
        return bool(trace.num_turns >= 1)

    @vf.metric
    async def length(self, trace: Any) -> float:
        return len(trace.last_reply)

    @vf.reward(weight=0.5)
    async def b_second(self, trace: Any) -> float:
        return float(trace.last_reply == self.data.answer) + trace.metrics["length"]

    @vf.reward(priority=1)
    async def a_third(self, trace: Any, task: Any) -> dict[str, float]:
        return {"x": self.config.share, "y": float(task.idx)}

    @vf.reward
    async def a_first(self, trace: Any) -> int:
        return 2


def scored(task: Any, reply: str) -> Trace:
    trace = Trace(task, reply)
    asyncio.run(score(task, trace))
    return trace


def test_scoring_runs_metrics_first_then_rewards_by_priority_and_name() -> None:
    task = Both(SumData(prompt="2+3", answer="5")).with_data(idx=7)
    assert [fn.__name__ for fn in task.hooks("reward")] == ["a_third", "a_first", "b_second"]
    trace = scored(task, " 5 ")
    assert trace.metrics == {"length": 1.0}
    assert {name: reward.value for name, reward in trace.rewards.items() if reward} == {
        "a_first": 2.0,
        "b_second": 1.0,
        "x": 0.25,
        "y": 7.0,
    }
    assert list(trace.rewards) == ["a_first", "b_second", "x", "y"]
    assert trace.reward == 10.25


def test_the_trace_of_a_single_turn() -> None:
    task = Both(SumData(prompt="q", answer="5", system_prompt="be brief"))
    trace = Trace(task, "  hi \n")
    assert trace.last_reply == "hi"
    assert [(m.role, m.content) for m in trace.messages] == [
        ("system", "be brief"),
        ("user", "q"),
        ("assistant", "  hi \n"),
    ]
    assert trace.transcript == "[system]\nbe brief\n\n[user]\nq\n\n[assistant]\n  hi \n"
    assert (trace.num_turns, trace.task.type, trace.task.data.answer) == (1, "Both", "5")
    assert isinstance(trace.state, State)
    with pytest.raises(AttributeError, match=r"trace\.nodes is not available here; use last_reply"):
        _ = trace.nodes


def test_a_prompt_may_be_one_message() -> None:
    data = TaskData(prompt=[{"role": "user", "content": "q"}, {"role": "system", "content": "s"}])
    assert isinstance(data.prompt, list)
    assert isinstance(data.prompt[1], SystemMessage)
    assert data.prompt_text == "q\n\ns"


@pytest.mark.parametrize("value", [None, True, "1", "x", {"a": None}, [1], 1j, object()])
def test_a_reward_that_is_no_plain_number_is_refused_by_name(value: Any) -> None:
    class Bad(Task[TaskData]):  # type: ignore[misc]
        @vf.reward
        async def odd(self, trace: Any) -> Any:
            return value

    with pytest.raises(BadValue, match=r"`a`|`odd`"):
        scored(Bad(TaskData(prompt="q")), "x")


def test_a_float_subclass_is_no_plain_number() -> None:
    class Sly(float):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = float.__hash__

    class Bad(Task[TaskData]):  # type: ignore[misc]
        @vf.reward
        async def odd(self, trace: Any) -> Any:
            return Sly(0.0)

    with pytest.raises(BadValue, match="Sly"):
        scored(Bad(TaskData(prompt="q")), "x")


def problems(**methods: Any) -> list[tuple[str, str, str]]:
    return hook_problems(type("Job", (Task,), methods)(TaskData(prompt="q")))


def test_hooks_that_could_not_run_are_named() -> None:
    async def fine(self: Any, trace: Any, task: Any = None) -> float:
        return 1.0

    def plain(self: Any, trace: Any) -> float:
        return 1.0

    async def wants(self: Any, completion: str) -> float:
        return 1.0

    assert problems(fine=vf.reward(fine)) == []
    assert problems()[0][1] == "Job has no reward function"
    assert problems(plain=vf.reward(plain))[0][:2] == ("reward_async", "reward `plain` is not async")
    assert "takes `completion`" in problems(wants=vf.reward(wants))[0][1]
    assert "weight" in problems(fine=vf.reward(weight="2")(fine))[0][1]
    assert "weight" in problems(fine=vf.reward(weight=float("nan"))(fine))[0][1]
    assert "Job.setup is never run" in problems(setup=plain, f=vf.reward(fine))[0][1]


def test_a_stop_goes_by_the_type_of_its_parameter_as_in_the_library() -> None:
    async def reward(self: Any, trace: Any) -> float:
        return 1.0

    async def typed(self: Any, trace: Trace) -> bool:
        return True

    async def untyped(self: Any, trace) -> bool:  # type: ignore[no-untyped-def]
        return True

    async def other(self: Any, request: int) -> bool:
        return True

    assert problems(r=vf.reward(reward), s=vf.stop(typed)) == []
    for stop in (untyped, other):
        ((check, message, fix),) = problems(r=vf.reward(reward), s=vf.stop(stop))
        assert check == "rewards"
        assert "one parameter of type vf.Trace" in message
        assert "trace: vf.Trace" in fix


def test_wrapped_reward_functions_are_called_as_the_library_does() -> None:
    def doubled(fn: Any) -> Any:
        @functools.wraps(fn)
        async def wrapper(*args: Any, **kwargs: Any) -> float:
            return 2 * float(await fn(*args, **kwargs))

        return wrapper

    class Job(Task[TaskData]):  # type: ignore[misc]
        @vf.reward
        @doubled
        async def wrapped(self, trace: Any, *, task: Any = None) -> float:
            return 1.5 + len(task.prompt)

    task = Job(TaskData(prompt="abc"))
    assert hook_problems(task) == []
    assert scored(task, "x").reward == 9.0


def test_type_arguments_are_found_through_inheritance() -> None:
    class Config(TasksetConfig):
        n: int = 3

    class Base(Taskset[Both, Config]):  # type: ignore[misc]
        def load(self) -> Any:
            return [Both(SumData(prompt=str(i), answer=""), self.config.task) for i in range(self.config.n)]

    class Derived(Base):
        pass

    assert Derived.config_type() is Config
    assert Derived.task_type() is Both
    assert Both.data_type() is SumData
    assert Both.config_type() is SumConfig
    assert [task.data.idx for task in Derived(Config(n=2))] == [0, 1]
    assert Both(SumData(prompt="", answer="")).config.share == 0.25


def test_load_must_give_tasks() -> None:
    class Bad(Taskset):
        def load(self) -> Any:
            return ["a"]

    with pytest.raises(TypeError, match=r"load\(\) gave a str, not a vf\.Task"):
        list(Bad(TasksetConfig()))


def test_missing_names_are_explained() -> None:
    with pytest.raises(
        AttributeError, match=r"verifiers\.v1 has no `Rubric` in the sandbox; it has: .*TaskData"
    ):
        _ = vf.Rubric
    with pytest.raises(AttributeError, match=r"import verifiers\.v1 as vf"):
        _ = modules()["verifiers"].Environment
    assert set(PUBLIC) <= set(dir(vf))


def test_the_package_imports_the_standard_library_and_itself_only() -> None:
    assert env_child.__file__ is not None
    files = sorted(Path(env_child.__file__).parent.glob("*.py"))
    assert len(files) >= 6
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            else:
                continue
            for name in names:
                assert name.split(".")[0] in sys.stdlib_module_names, (file.name, name)
