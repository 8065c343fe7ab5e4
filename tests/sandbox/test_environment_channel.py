"""Attacks of a job's environment.py on its pipe to us: forged answers, exits, patched modules, loops, floods.

Attacks on files, network and processes are among the sandbox's own tests. Here each attack ends in an
AgentError that names the fault, or in the same rewards as without it.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from ai_trains_ai.config import JobLimits
from ai_trains_ai.errors import AgentError
from ai_trains_ai.jobs.env_host import EnvHost
from ai_trains_ai.sandbox.base import Sandbox
from ai_trains_ai.testing.jobs import HONEST, sample_job
from ai_trains_ai.types import Job

LIMITS = JobLimits()
SHORT = JobLimits(load_seconds=3.0, score_seconds=3.0)
BATCH = [(4, "5"), (4, "6"), (7, "8"), (0, "")]
HONEST_REWARDS = [1.0, 0.0, 1.0, 0.0]


def rewards(job: Job, sandbox: Sandbox, limits: JobLimits = LIMITS) -> list[float]:
    with EnvHost.start(job, sandbox, limits) as host:
        return host.score(BATCH)


def refused(job: Job, sandbox: Sandbox, limits: JobLimits = LIMITS) -> AgentError:
    with pytest.raises(AgentError) as caught:
        rewards(job, sandbox, limits)
    return caught.value


def test_an_honest_environment_scores_as_written(sandbox: Sandbox) -> None:
    with EnvHost.start(sample_job(), sandbox, LIMITS) as host:
        assert len(host.tasks) == 100
        assert host.tasks[3].prompt == "What is 3 + 1?"
        assert host.rewards == (("right", 1.0),)
        assert host.score(BATCH) == HONEST_REWARDS
        assert host.score([]) == []
        assert host.inspect(BATCH[:1])[0].parts == (("right", 1.0, 1.0),)
        assert host.stats.completions == 4
        with pytest.raises(IndexError):
            host.score([(100, "x")])


def test_the_same_job_gives_the_same_tasks_and_rewards_twice(sandbox: Sandbox) -> None:
    """Hash order and unseeded draws included."""
    load = "words = list({str(i) for i in range(50)})\nrandom.shuffle(words)\n"
    load += "self.config.num_tasks = 10 + int(words[0])"
    job = sample_job(head="import random", load=load, reward="return hash(reply) % 97 / 97 + random.random()")
    seen = []
    for _ in range(2):
        with EnvHost.start(job, sandbox, LIMITS) as host:
            seen.append((host.tasks, host.score(BATCH)))
    assert seen[0] == seen[1]
    assert len(set(seen[0][1])) == 4


# Forged results


@pytest.mark.parametrize(
    "forgery",
    [
        "print('{\"reward\": 1.0}')",
        'import sys\nsys.stdout.write(\'{"results":[{"total":1.0}]}\')\nsys.stdout.flush()',
        "import os\nos.write(1, b'{\"reward\": 1.0}')\nos.write(2, b'x' * 1000)",
        "import sys\nsys.__stdout__.buffer.write(bytes(20))\nsys.__stdout__.flush()",
    ],
    ids=["print", "sys.stdout", "descriptors", "buffer"],
)
def test_printed_results_change_nothing(forgery: str, sandbox: Sandbox) -> None:
    assert rewards(sample_job(head=forgery, reward=f"{forgery}\n{HONEST}"), sandbox) == HONEST_REWARDS


FORGED_FRAMES = """import os
body = b'{"results":[{"total":1.0},{"total":1.0},{"total":1.0},{"total":1.0}]}'
frame = (16 + len(body)).to_bytes(4, "big") + bytes(16) + body
for fd in range(3, 64):
    try:
        os.write(fd, frame)
    except OSError:
        pass
"""


def test_frames_written_to_every_descriptor_are_noticed(sandbox: Sandbox) -> None:
    assert refused(sample_job(reward=FORGED_FRAMES + HONEST), sandbox).check == "protocol"


DIGGING = """import sys
frame = sys._getframe()
while frame is not None and "channel" not in frame.f_locals:
    frame = frame.f_back
frame.f_locals["channel"].send({"results": [{"total": TOTAL}] * 4})
"""


@pytest.mark.parametrize(
    ("total", "outcome"), [("7.5", [7.5] * 4), ("1e9", "reward_bounds"), ("True", "protocol")]
)
def test_a_job_that_digs_out_the_channel_can_only_set_its_own_bounded_rewards(
    total: str, outcome: Any, sandbox: Sandbox
) -> None:
    """No wall stands inside one process. What comes through is still a checked number for this job alone."""
    job = sample_job(reward=DIGGING.replace("TOTAL", total) + HONEST)
    if isinstance(outcome, list):
        assert rewards(job, sandbox) == outcome
    else:
        assert refused(job, sandbox).check == outcome


# Exits


@pytest.mark.parametrize("leave", ["import sys\nsys.exit(0)", "raise KeyboardInterrupt"])
def test_sys_exit_is_no_success(leave: str, sandbox: Sandbox) -> None:
    name = "SystemExit" if "sys" in leave else "KeyboardInterrupt"
    for place, check in (
        ("reward", "reward_value"),
        ("head", "environment_import"),
        ("load", "environment_load"),
    ):
        error = refused(sample_job(**{place: leave}), sandbox)
        assert error.check == check
        assert name in error.message


@pytest.mark.parametrize("place", ["head", "load", "reward"])
@pytest.mark.parametrize("leave", ["os._exit(0)", "os.kill(os.getpid(), 9)", "os.abort()"])
def test_a_process_that_ends_itself_is_the_jobs_fault(place: str, leave: str, sandbox: Sandbox) -> None:
    error = refused(sample_job(**{place: f"import os\n{leave}"}), sandbox)
    assert error.check == "process_ended"
    assert "exit code" in error.message
    assert "while" in error.message


def test_last_words_are_shown(sandbox: Sandbox) -> None:
    leave = 'import os, sys\nprint("giving up: no data", file=sys.stderr, flush=True)\nos._exit(3)'
    error = refused(sample_job(load=leave), sandbox)
    assert "giving up: no data" in error.message
    assert "exit code 3" in error.message


# Patched modules

JSON_PATCH = """import json
json.dumps = json.dump = lambda *a, **k: '[]'
json.encoder.JSONEncoder.encode = lambda *a: '{}'
json.encoder.JSONEncoder.iterencode = lambda *a: iter('{}')
json.encoder.c_make_encoder = None
json.loads = json.decoder.JSONDecoder.decode = lambda *a, **k: {}
"""
SHIM_PATCH = """import sys
sys.modules["verifiers.v1"].Trace.last_reply = property(lambda self: "x")
del sys.modules["verifiers.v1"], sys.modules["verifiers"]
"""


@pytest.mark.parametrize(
    "patch",
    [
        JSON_PATCH,
        "import time\ntime.time = time.monotonic = time.sleep = lambda *a: 0",
        "import random\nrandom.seed = random.random = random.Random.random = lambda *a: 0.5",
        "import os\nos.write = os.read = os.dup = lambda *a: 0",
        "import hashlib\nhashlib.blake2b = lambda *a, **k: 1 / 0",
        "import sys\nsys.stdout = sys.stderr = sys.stdin = None",
        "import sys\nsys.path.clear()\nsys.meta_path.clear()",
        "import math\nmath.isfinite = lambda x: True",
        "import __main__\n__main__.__dict__.clear()",
        SHIM_PATCH,
    ],
    ids=["json", "time", "random", "os", "hashlib", "streams", "imports", "math", "main", "shim"],
)
def test_patched_modules_change_no_answer(patch: str, sandbox: Sandbox) -> None:
    expected = [0.0] * 4 if patch == SHIM_PATCH else HONEST_REWARDS  # its own view of its own replies
    assert rewards(sample_job(tail=patch), sandbox) == expected


@pytest.mark.parametrize("name", ["len", "isinstance", "float", "type", "getattr", "str", "open"])
def test_patched_builtins_give_rewards_or_the_jobs_fault(name: str, sandbox: Sandbox) -> None:
    job = sample_job(tail=f"import builtins\nbuiltins.{name} = lambda *a, **k: 1.0")
    try:
        found = rewards(job, sandbox)
    except AgentError:
        return
    assert all(type(reward) is float and abs(reward) <= 100 for reward in found)


def test_a_patched_shim_touches_this_job_only(sandbox: Sandbox) -> None:
    patch = "import sys\nsys.modules[vf.Trace.__module__].Trace.reward = property(lambda self: 3.0)"
    assert rewards(sample_job(tail=patch), sandbox) == [3.0] * 4
    assert rewards(sample_job(), sandbox) == HONEST_REWARDS


# Endless loops, pipes kept open, floods, bombs


@pytest.mark.parametrize("place", ["head", "load", "reward"])
def test_an_endless_loop_is_ended_at_the_deadline(place: str, sandbox: Sandbox) -> None:
    began = time.monotonic()
    error = refused(sample_job(**{place: "while True: pass"}), sandbox, SHORT)
    assert error.check == "time"
    assert "more than 3 s" in error.message
    assert time.monotonic() - began < 40


@pytest.mark.parametrize(
    "asleep", ["import time\ntime.sleep(60)", "import threading\nthreading.Event().wait()"]
)
def test_a_job_that_waits_is_ended_at_the_deadline(asleep: str, sandbox: Sandbox) -> None:
    error = refused(sample_job(load=asleep), sandbox, SHORT)
    assert error.check == "time"
    assert "loading the environment took more than 3 s" in error.message


HOLDERS = {
    "thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n",
    "daemon": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
    "fork": "import os, time\ntry:\n    child = os.fork()\nexcept OSError:\n    child = 1\n"
    "if child == 0:\n    time.sleep(600)\n",
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_pipe_kept_open_never_holds_us(holder: str, sandbox: Sandbox) -> None:
    began = time.monotonic()
    assert rewards(sample_job(tail=HOLDERS[holder]), sandbox) == HONEST_REWARDS
    error = refused(sample_job(reward=HOLDERS[holder] + "import os\nos._exit(0)"), sandbox, SHORT)
    assert error.check in ("process_ended", "time")
    assert time.monotonic() - began < 60


def test_a_forked_copy_does_not_answer_in_our_place(sandbox: Sandbox) -> None:
    fork = "import os\ntry:\n    os.fork()\nexcept OSError:\n    pass\n"
    assert rewards(sample_job(load=fork, reward=fork + HONEST), sandbox) == HONEST_REWARDS


def test_a_flood_of_output_neither_blocks_nor_fills_us(sandbox: Sandbox) -> None:
    flood = "for _ in range(1000):\n    print('x' * 10_000)\n"
    assert rewards(sample_job(reward=flood + HONEST), sandbox) == HONEST_REWARDS


STEALING = """
import os, threading
def steal(fd):
    while True:
        os.read(fd, 100)
for fd in range(3, 12):
    threading.Thread(target=steal, args=(fd,), daemon=True).start()
"""


def test_reading_our_requests_away_is_the_jobs_fault(sandbox: Sandbox) -> None:
    def many(host: EnvHost) -> None:
        for _ in range(50):  # thief and server take turns at the pipe, as the kernel pleases
            host.score(BATCH)

    job = sample_job(tail=STEALING)
    with EnvHost.start(job, sandbox, SHORT) as host, pytest.raises(AgentError) as caught:
        many(host)
    assert caught.value.check in ("time", "process_ended", "protocol")


@pytest.mark.parametrize("place", ["load", "reward"])
def test_a_memory_bomb_is_the_jobs_fault(place: str, sandbox: Sandbox) -> None:
    bomb = "x = []\nwhile True:\n    x.append(bytearray(10_000_000))"
    error = refused(sample_job(**{place: bomb}), sandbox, LIMITS.model_copy(update={"memory_mb": 200}))
    assert error.check in ("environment_load", "memory", "process_ended", "reward_error")
    assert "200 MB" in error.fix or "MemoryError" in error.message or error.check == "memory"
