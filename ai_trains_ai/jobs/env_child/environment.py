"""Load the job's environment.py and score completions with it. Runs inside the sandbox, stdlib only."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from .shim import modules
from .task import Task, Taskset
from .trace import BadValue, Trace, hook_problems, score


class JobError(Exception):
    """The job is at fault: check, message, fix."""


class Environment:
    """A loaded environment: its tasks, and the way to run its coroutines."""

    def __init__(self, folder: str, arguments: dict[str, Any], limits: dict[str, int]) -> None:
        self.folder = folder
        os.chdir(folder)
        sys.path.append(folder)  # last: a job's file never hides a module of the standard library
        sys.modules.update(modules())
        with self._blame("environment_import", "environment.py could not be imported"):
            taskset_class = self._import()
        with self._blame("environment_load", "the taskset could not be built from [environment]"):
            taskset = taskset_class(taskset_class.config_type()(**arguments))
        with self._blame("environment_load", "load() failed"):
            self.tasks = self._load(taskset, limits)
        self._run = self._runner()

    def _import(self) -> type[Taskset]:
        """The one Taskset that `__all__` exports, as the library picks it."""
        path = os.path.join(self.folder, "environment.py")
        module = types.ModuleType("environment")
        module.__file__ = path
        sys.modules["environment"] = module
        with open(path, "rb") as file:
            source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
        names = getattr(module, "__all__", None)
        fix = 'end environment.py with __all__ = ["YourTaskset"]'
        if names is None:
            raise JobError("environment_import", "environment.py has no __all__", fix)
        exported = [getattr(module, name, None) for name in names]
        found = [c for c in exported if isinstance(c, type) and issubclass(c, Taskset) and c is not Taskset]
        if len(found) != 1:
            message = f"__all__ exports {len(found)} Taskset classes, not one"
            raise JobError("environment_import", message, fix)
        return found[0]

    def _load(self, taskset: Taskset, limits: dict[str, int]) -> list[Task]:
        tasks: list[Task] = []
        if taskset.INFINITE:
            raise JobError(
                "environment_load", "the taskset is INFINITE", "let load() return a fixed number of tasks"
            )
        for task in taskset:
            if len(tasks) == limits["max_tasks"]:
                message = f"load() gives more than {limits['max_tasks']} tasks"
                raise JobError("environment_load", message, "lower the number of tasks")
            tasks.append(task)
        for task in {type(task): task for task in tasks}.values():
            for problem in hook_problems(task):
                raise JobError(*problem)
        return tasks

    def describe(self, limits: dict[str, int]) -> dict[str, Any]:
        """What the host may know: prompts and the names and weights of rewards. Answers stay here."""
        prompts, size = [], 0
        for index, task in enumerate(self.tasks):
            prompt, system = _prompt(task.data, index), task.data.system_prompt
            size += len(prompt) + len(system or "")
            if len(prompt) + len(system or "") > limits["max_prompt_chars"]:
                message = f"the prompt of task {index} has {len(prompt) + len(system or '')} characters"
                fix = f"keep prompts to {limits['max_prompt_chars']} characters"
                raise JobError("environment_load", message, fix)
            if size > limits["max_total_chars"]:
                message = f"the prompts exceed {limits['max_total_chars']} characters in all"
                raise JobError("environment_load", message, "load fewer tasks or shorter prompts")
            prompts.append([prompt, system])
        hooks = self.tasks[0].hooks("reward") if self.tasks else []
        rewards = [[fn.__name__, float(getattr(fn, "_vf_weight", 1.0))] for fn in hooks]
        return {"tasks": prompts, "rewards": rewards}

    def score(self, items: list[list[Any]], with_parts: bool) -> list[dict[str, Any]]:
        """One result a completion: {"total": …} or {"raised": …} or {"bad": …}."""
        return [self._score_one(self.tasks[index], text, with_parts) for index, text in items]

    def _score_one(self, task: Task, completion: str, with_parts: bool) -> dict[str, Any]:
        trace = Trace(task, completion)
        try:
            self._run(score(task, trace))
            result: dict[str, Any] = {"total": trace.reward}
            if with_parts:
                scored = {name: entry for name, entry in trace.rewards.items() if entry is not None}
                result["parts"] = {name: [entry.score, entry.weight] for name, entry in scored.items()}
        except BadValue as error:
            return {"bad": str(error)}
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            return {"bad": f"a reward function ended with {type(error).__name__}"}
        except BaseException as error:  # noqa: BLE001 - whatever the job raises is its own, and is reported
            return {"raised": self.explain(error)}
        if not abs(trace.reward) < float("inf"):
            return {"bad": f"the weighted sum of rewards is {trace.reward}"}
        return result

    def _runner(self) -> Callable[[Coroutine[Any, Any, None]], None]:
        """asyncio takes as long to import as all the rest: only a job whose text names it pays for it."""
        names_it = any(b"asyncio" in source for source in self._sources())
        if names_it or "asyncio" in sys.modules:
            import asyncio

            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
            run: Callable[[Coroutine[Any, Any, None]], None] = loop.run_until_complete
            return run
        return _drive

    def _sources(self) -> Iterator[bytes]:
        for place, _, names in os.walk(self.folder):
            for name in names:
                if name.endswith(".py"):
                    with open(os.path.join(place, name), "rb") as file:
                        yield file.read()

    def _blame(self, check: str, message: str) -> _Blame:
        return _Blame(self, check, message)

    def explain(self, error: BaseException) -> str:
        """`environment.py, line 12, in load: KeyError: 'x'`, from the innermost frame in the job's files."""
        place, trace = "", error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if code.co_filename.startswith(self.folder):
                inside = "" if code.co_name == "<module>" else f", in {code.co_name}"
                place = f"{code.co_filename[len(self.folder) + 1 :]}, line {trace.tb_lineno}{inside}: "
            trace = trace.tb_next
        if isinstance(error, SyntaxError):
            place = f"{os.path.basename(error.filename or '?')}, line {error.lineno}: "
        try:
            text = str(error.msg if isinstance(error, SyntaxError) else error)
        except BaseException:  # noqa: BLE001 - an exception class of the job whose __str__ fails
            text = "(its message cannot be shown)"
        return f"{place}{type(error).__name__}: {text}"[:1000]


def _drive(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing but other coroutines."""
    while True:
        try:
            waits_for = coroutine.send(None)
        except StopIteration:
            return
        if waits_for is not None:
            coroutine.throw(RuntimeError("only coroutines can be awaited; import asyncio for an event loop"))


class _Blame:
    """Turn whatever the job's code raises inside the block into a JobError that says where."""

    def __init__(self, environment: Environment, check: str, message: str) -> None:
        self.environment, self.check, self.message = environment, check, message

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, JobError):
            return
        fix = "correct it there"
        if isinstance(error, ImportError):
            fix = "import only the standard library, verifiers.v1 and the job's own files"
        elif isinstance(error, SystemExit):
            fix = "remove the call that ends the process"
        elif isinstance(error, MemoryError):
            fix = "use less memory"
        raise JobError(self.check, f"{self.message}: {self.environment.explain(error)}", fix) from None


def _prompt(data: Any, index: int) -> str:
    """The one user message of a task."""
    prompt = data.prompt
    if isinstance(prompt, list):
        users = [message.content for message in prompt if message.role == "user"]
        if len(users) != 1 or len(prompt) != 1:
            message = f"the prompt of task {index} has {len(prompt)} messages"
            fix = "give one user message; put the system text into system_prompt"
            raise JobError("environment_load", message, fix)
        prompt = users[0]
    if not isinstance(prompt, str) or not prompt.strip():
        raise JobError("environment_load", f"task {index} has no prompt", "give every TaskData a prompt")
    return prompt
