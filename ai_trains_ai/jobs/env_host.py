"""Our side of a job's environment: start it in the sandbox, load its tasks, score completions, trust nothing.

    trainer ──score──> EnvHost ──pipe──> sandbox: env_child ──calls──> environment.py, the job's code

Attribution: until the child has answered our first message no line of the job has run, and a failure is
InfrastructureError. From then on the process does what the job's code makes of it: its death, silence,
garbage or lateness is AgentError. (Killing its own process must not buy a job a free retry.)
"""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from types import TracebackType
from typing import Any, Self

from ai_trains_ai.config import JobLimits
from ai_trains_ai.errors import AgentError, InfrastructureError, boundary
from ai_trains_ai.jobs.answers import (
    Scored,
    clean,
    garbled,
    object_of,
    results_of,
    rewards_of,
    scored_of,
    tasks_of,
)
from ai_trains_ai.jobs.starvation import Patience
from ai_trains_ai.jobs.wire import Wire, WireError
from ai_trains_ai.sandbox.base import MIB, Sandbox, SandboxLimits
from ai_trains_ai.sandbox.process import SandboxedProcess
from ai_trains_ai.types import EnvTask, Job

# No site-packages, nothing of the caller's folder or home; -I would ignore PYTHONHASHSEED as well.
_PYTHON_FLAGS = ("-s", "-S", "-P", "-B", "-X", "utf8")
_BOOT = "import sys; sys.path.insert(0, '.'); from env_child.boot import start; start()"
_START_SECONDS = 30.0
"""For an interpreter to start on a busy machine, before any code of the job runs."""
_END_SECONDS = 2.0
_PATIENCE = 5.0
"""A deadline moves, by up to this many times itself, while the machine is too busy to run the job."""
_MAX_LOAD_BYTES = 32 * 1024 * 1024
_MAX_TOTAL_CHARS = 4 * 1024 * 1024
_RESULT_BYTES = 16 * 1024
"""Most that one completion's result can take: numbers, or the text of an error."""


@dataclass(slots=True)
class ScoreStats:
    """What scoring has come to since the start of the process."""

    completions: int = 0
    errors: int = 0
    first_error: str = ""
    seconds: float = 0.0


class EnvHost:
    """A running environment. Implements `types.RewardSource`; use it as a context manager."""

    def __init__(self, process: SandboxedProcess, limits: JobLimits) -> None:
        self._process, self._limits = process, limits
        self._wire = Wire(process.stdin.fileno(), process.stdout.fileno())
        self._failure: AgentError | None = None
        self._closed = False
        self.stats = ScoreStats()
        self.tasks: tuple[EnvTask, ...] = ()
        self.rewards: tuple[tuple[str, float], ...] = ()
        """(name, weight) of each reward function, as the environment declares them."""

    @classmethod
    def start(cls, job: Job, sandbox: Sandbox, limits: JobLimits) -> Self:
        """Start the job's environment and load its tasks.

        Raises AgentError when the job's code is at fault, InfrastructureError when the sandbox is.
        """
        with boundary("starting the environment's sandbox"):
            argv = [sandbox.python, *_PYTHON_FLAGS, "-c", _BOOT]
            process = sandbox.start(argv, files=child_files(job), limits=sandbox_limits(limits))
        host = cls(process, limits)
        try:
            host._greet()
            host._load(job)
        except BaseException:
            host.close()
            raise
        return host

    def score(self, completions: Sequence[tuple[int, str]]) -> list[float]:
        """Return a finite reward for each (task index, completion), in order; 0.0 where a function raised.

        Raises AgentError when a value is not a number within the bound, when more functions raise than
        `limits.max_reward_errors` allows, or when the process fails.
        """
        scored = self.inspect(completions, parts=False)
        self.stats.completions += len(scored)
        for result in scored:
            if result.raised is not None:
                self.stats.errors += 1
                self.stats.first_error = self.stats.first_error or result.raised
        if self.stats.errors > allowed_errors(self.stats.completions, self._limits.max_reward_errors):
            message = (
                f"reward functions raised on {self.stats.errors} of {self.stats.completions} completions"
            )
            fix = "return a number for every text, also an empty or cut one"
            with self._distrust():
                raise AgentError("reward_error", f"{message}; the first: {self.stats.first_error}", fix)
        return [result.total for result in scored]

    def inspect(self, completions: Sequence[tuple[int, str]], *, parts: bool = True) -> list[Scored]:
        """Like `score`, with the parts of each reward, and without counting errors against the job."""
        if any(not 0 <= index < len(self.tasks) for index, _ in completions):
            raise IndexError("a completion for a task that the environment does not have")
        request = {"op": "score", "items": [[index, text] for index, text in completions], "parts": parts}
        began = time.monotonic()
        answer = self._call(
            request,
            f"scoring {len(completions)} completions",
            self._limits.score_seconds,
            4096 + _RESULT_BYTES * len(completions),
        )
        self.stats.seconds += time.monotonic() - began
        with self._distrust():
            results = results_of(answer, len(completions))
            return [
                scored_of(index, result, self._limits)
                for (index, _), result in zip(completions, results, strict=True)
            ]

    def close(self) -> None:
        """End the process with everything it started. Safe to call again."""
        if self._closed:
            return
        self._closed = True
        with boundary("ending the environment's sandbox"):
            try:
                self._process.kill()
            finally:
                self._process.stdin.close()
                self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _greet(self) -> None:
        try:
            with boundary("talking to the environment's process"):
                answer = self._wire.open(_START_SECONDS)
        except WireError as error:
            if error.kind == "closed":
                self._exit_code()  # raises with the sandbox's own reason, where it has one
            text = f"the sandboxed interpreter did not start: {error}; it wrote: {self._last_words()}"
            raise InfrastructureError(text) from None
        if answer != {"ready": True}:
            raise InfrastructureError("the sandboxed interpreter did not start: unexpected greeting")

    def _load(self, job: Job) -> None:
        limits = {
            "max_tasks": self._limits.max_tasks,
            "max_prompt_chars": self._limits.max_prompt_chars,
            "max_total_chars": _MAX_TOTAL_CHARS,
        }
        request = {"op": "load", "arguments": dict(job.environment_args), "limits": limits}
        answer = self._call(request, "loading the environment", self._limits.load_seconds, _MAX_LOAD_BYTES)
        with self._distrust():
            self.tasks = tasks_of(answer, self._limits)
            self.rewards = rewards_of(answer)

    def _call(self, request: dict[str, Any], what: str, seconds: float, max_answer: int) -> Mapping[str, Any]:
        """One exchange with the child. Raises AgentError for whatever the job's code makes of it."""
        if self._failure is not None:
            raise self._failure
        with self._distrust():
            try:
                with boundary("talking to the environment's process"):
                    patience = Patience(self._process.pid, seconds * _PATIENCE)
                    return object_of(self._wire.request(request, seconds, max_answer, patience.seconds))
            except WireError as error:
                raise self._blame(error, what, seconds) from None

    @contextmanager
    def _distrust(self) -> Iterator[None]:
        """After a failure the process may be in any state: end it, and fail in the same way from now on."""
        try:
            yield
        except AgentError as error:
            self._failure = error
            self.close()
            raise
        except InfrastructureError:
            self.close()
            raise

    def _blame(self, error: WireError, what: str, seconds: float) -> AgentError:
        if error.kind == "timeout":
            fix = "look for an endless loop or a wait; do less work a call"
            return AgentError("time", f"{what} took more than {seconds:g} s", fix)
        if error.kind == "closed":
            code, words = self._exit_code(), self._last_words()
            message = f"the environment's process ended (exit code {code}) while {what}"
            if code is None:
                message = f"the environment closed its pipe to us while {what}"
            message += f"; it wrote: {words}" if words else ""
            fix = f"do not end the process, and stay within {self._limits.memory_mb} MB of memory"
            return AgentError("process_ended", message, fix)
        if error.kind == "too_big":
            return AgentError(
                "protocol", f"{what} gave {error.detail}", "load fewer tasks or shorter prompts"
            )
        return garbled()

    def _exit_code(self) -> int | None:
        """None when the process only closed its pipe. Raises InfrastructureError when it never ran."""
        try:
            return self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def _last_words(self) -> str:
        lines = self._process.stderr().strip().splitlines()
        return clean(lines[-1], 200) if lines else ""


def allowed_errors(completions: int, share: float) -> float:
    """How many of `completions` may raise when `share` of all may: their expected number and two standard
    deviations of it, so that a job just within the share does not fail by chance in its first batch."""
    expected = share * completions
    return expected + 2.0 * math.sqrt(expected)


def sandbox_limits(limits: JobLimits) -> SandboxLimits:
    """The processor time is the whole training's: a single call has its own deadline."""
    return SandboxLimits(
        memory_bytes=limits.memory_mb * MIB, cpu_seconds=math.ceil(limits.train_seconds), processes=1
    )


def child_files(job: Job) -> dict[str, bytes]:
    """The job's files under job/, the serving package under env_child/."""
    package = resources.files("ai_trains_ai.jobs") / "env_child"
    files = {
        f"env_child/{entry.name}": entry.read_bytes()
        for entry in package.iterdir()
        if entry.name.endswith(".py")
    }
    return files | {f"job/{path}": content for path, content in job.files.items()}
