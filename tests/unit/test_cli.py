"""The command line on fake workers: what is on stdout, and the exit codes."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ai_trains_ai.cli import main as ata
from ai_trains_ai.cli.session import Services
from ai_trains_ai.config import EvalConfig
from ai_trains_ai.errors import AgentError, InfrastructureError
from ai_trains_ai.tasks.registry import FAMILIES
from ai_trains_ai.testing.workers import FakeWorker, Script
from ai_trains_ai.types import Finding

Ata = Callable[..., tuple[int, str, str]]


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def run(tmp_path: Path, script: Script, capsys: pytest.CaptureFixture[str]) -> Ata:
    """ata ARGUMENTS -> (exit code, stdout, stderr)."""
    services = Services(
        start_worker=script.start,
        environ={"ATA_HOME": str(tmp_path / "home")},
        settings={"base_hash": lambda name: f"hash of {name}", "evaluation": EvalConfig(items_per_level=10)},
    )

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = ata.main([str(argument) for argument in arguments], standalone_mode=False, obj=services)
        out, err = capsys.readouterr()
        assert not [worker for worker in script.started if worker.alive], "a worker is left"
        return code, out, err

    return call


def document(out: str) -> Any:
    """stdout as exactly one JSON document without NaN."""
    return json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


@pytest.fixture
def job(run: Ata, tmp_path: Path) -> Path:
    assert run("job", "new", "ledger", "--dir", tmp_path / "job")[0] == 0
    return tmp_path / "job"


def test_new_writes_a_job_that_is_valid(run: Ata, job: Path) -> None:
    assert sorted(path.name for path in job.iterdir()) == ["environment.py", "job.toml"]
    code, out, _ = run("job", "check", job)
    assert (code, out.split()[0]) == (0, "valid")


def test_new_overwrites_nothing(run: Ata, job: Path) -> None:
    before = {path.name: path.read_bytes() for path in job.iterdir()}
    code, out, err = run("job", "new", "dispatch", "--dir", job)
    assert (code, out) == (2, "")
    assert "not empty" in err
    assert {path.name: path.read_bytes() for path in job.iterdir()} == before


def test_new_names_the_families(run: Ata, tmp_path: Path) -> None:
    code, out, err = run("job", "new", "chess", "--dir", tmp_path / "x")
    assert (code, out) == (2, "")
    assert "calc_chain" in err
    assert not (tmp_path / "x").exists()


def test_check_json(run: Ata, job: Path, script: Script) -> None:
    code, out, _ = run("job", "check", job, "--json")
    assert code == 0
    assert document(out) == {"valid": True, "errors": [], "warnings": []}
    script.findings = lambda _job: (Finding("tasks", "too few", "more"), Finding("w", "odd", "", "warning"))
    code, out, _ = run("job", "check", job, "--json")
    assert code == 1
    assert document(out) == {
        "valid": False,
        "errors": [{"check": "tasks", "message": "too few", "fix": "more"}],
        "warnings": [{"check": "w", "message": "odd", "fix": ""}],
    }


def test_check_shows_every_problem_at_once(run: Ata, job: Path) -> None:
    (job / "job.toml").write_text('family = "ledger"\nbase_model = "nano-9b"\n[prime_rl]\nlerning_rate = 3\n')
    code, out, _ = run("job", "check", job, "--json")
    assert code == 1
    found = document(out)
    assert not found["valid"]
    assert found["errors"]
    assert all(error.keys() == {"check", "message", "fix"} and error["fix"] for error in found["errors"])


FIELDS = {
    "valid",
    "base_model",
    "pre",
    "best_pre",
    "post",
    "post_low",
    "post_high",
    "uplift",
    "reward",
    "seconds",
    "weights_sha256",
}


def test_run_json(run: Ata, job: Path) -> None:
    code, out, err = run("job", "run", job, "--json", "--seed", 4)
    assert code == 0
    found = document(out)
    assert found.keys() >= FIELDS
    assert found["reward"].keys() == {"total", "validation", "quality", "speed"}
    assert (found["valid"], found["base_model"], found["seed"]) == (True, "nano-0.2m", 4)
    assert 0 <= found["post_low"] <= found["post"] <= found["post_high"] <= 1
    assert re.fullmatch("[0-9a-f]{64}", found["weights_sha256"])
    assert re.search(r"step \d+/10 .* tokens/s .* left", err)
    # Served from the cache, the document says so and is otherwise the same.
    again = document(run("job", "run", job, "--json", "--seed", 4)[1])
    assert again == {**found, "from_cache": True}
    fresh = document(run("job", "run", job, "--json", "--seed", 4, "--no-cache")[1])
    own = {name: fresh[name] for name in ("seconds", "run", "checkpoint")}
    assert fresh == {**found, **own}
    assert Path(fresh["checkpoint"]).is_dir()


def test_run_for_people(run: Ata, job: Path) -> None:
    code, out, _ = run("job", "run", job)
    assert code == 0
    for word in ("probe", "training", "pre ", "post ", "uplift", "reward", "validation"):
        assert word in out
    # A curve: block characters with the first and the last value.
    assert re.search(r"[▁▂▃▄▅▆▇█]+ 0\.380", out)


def test_a_rejected_job_has_a_whole_document(run: Ata, job: Path) -> None:
    (job / "job.toml").write_text("family = ")
    code, out, _ = run("job", "run", job, "--json")
    assert code == 1
    found = document(out)
    assert found.keys() >= FIELDS
    assert (found["valid"], found["outcome"], found["post"], found["uplift"]) == (
        False,
        "rejected",
        None,
        None,
    )
    assert found["reward"] == {"total": 0.0, "validation": 0.0, "quality": 0.0, "speed": 0.0}
    assert found["errors"][0]["check"] == "toml"


def at_step_two(script: Script, error: BaseException) -> None:
    def on_step(_worker: FakeWorker, step: int) -> None:
        if step == 2:
            raise error

    script.on_step = on_step


def test_a_job_that_fails_exits_with_one(run: Ata, job: Path, script: Script) -> None:
    at_step_two(script, AgentError("reward_value", "nan", "return numbers"))
    code, out, _ = run("job", "run", job, "--json")
    assert code == 1
    found = document(out)
    assert (found["valid"], found["outcome"], found["reward"]["total"]) == (True, "failed", 0.0)
    assert found["errors"] == [{"check": "reward_value", "message": "nan", "fix": "return numbers"}]
    code, out, _ = run("job", "run", job)
    assert code == 1
    assert "return numbers" in out


def test_infrastructure_exits_with_three_and_no_reward(run: Ata, job: Path, script: Script) -> None:
    at_step_two(script, InfrastructureError("worker 5 died"))
    code, out, _ = run("job", "run", job, "--json")
    assert code == 3
    assert document(out) == {"error": {"kind": "infrastructure", "message": "worker 5 died"}}
    code, out, err = run("job", "run", job)
    assert (code, out) == (3, "")
    assert "worker 5 died" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["job", "run", "no-such-directory"],
        ["job", "run"],
        ["job", "fly"],
        ["fly"],
        ["baseline", "--family", "chess"],
        ["baseline", "--eval-seed", "many"],
        ["job", "new", "chess", "--dir", "x"],
    ],
)
def test_wrong_use_exits_with_two(run: Ata, arguments: list[str]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.strip()
    code, out, _ = run(*arguments, "--json")
    assert code == 2
    assert document(out)["error"]["kind"] == "usage"


def test_a_bug_is_a_document_too(run: Ata, job: Path, script: Script) -> None:
    at_step_two(script, TypeError("ours"))
    code, out, err = run("job", "run", job, "--json")
    assert code == 70
    assert document(out)["error"] == {"kind": "bug", "message": "TypeError: ours"}
    assert "Traceback" in err


def test_interrupted(run: Ata, job: Path, script: Script) -> None:
    at_step_two(script, KeyboardInterrupt())
    code, out, _ = run("job", "run", job, "--json")
    assert code == 130
    assert document(out)["error"]["kind"] == "interrupted"
    assert not script.started[-1].alive
    # The next run works, and nothing is left marked as running.
    script.on_step = lambda _worker, _step: None
    code, _, err = run("job", "run", job)
    assert code == 0
    assert "abandoned" not in err


def test_families(run: Ata) -> None:
    listed = document(run("families", "--json")[1])
    assert [row["family"] for row in listed] == list(FAMILIES)
    assert [row["family"] for row in listed if row["held_out"]] == ["triage"]
    assert all(row["example"]["prompt"] and row["example"]["answer"] for row in listed)
    code, out, _ = run("families")
    assert code == 0
    assert all(name in out for name in FAMILIES)


def test_help_is_for_everybody(run: Ata) -> None:
    for arguments in (
        [],
        ["job"],
        ["job", "run"],
        ["job", "new"],
        ["job", "check"],
        ["baseline"],
        ["doctor"],
    ):
        code, out, _ = run(*arguments, "--help")
        assert code == 0
        assert "Usage:" in out
    assert run("--version")[1].startswith("ata ")
    for arguments in ([], ["job"]):
        code, out, err = run(*arguments)
        assert (code, err) == (0, "")
        assert "Commands:" in out


def test_help_is_fast() -> None:
    """Below 0.3 s, in processor time: the machine may be busy."""

    def seconds(*command: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds("-m", "ai_trains_ai", "--help") for _ in range(5)) < 0.3


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, ai_trains_ai.cli; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "numpy", "pydantic", "tokenizers", "sqlite3"} & set(loaded.split())


def test_a_closed_pipe_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ai_trains_ai", "families"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(10) == 0


def test_baseline_json(run: Ata) -> None:
    pairs = ["--base", "nano-0.2m", "--base", "nano-0.8m", "--family", "ledger", "--family", "triage"]
    code, out, _ = run("baseline", *pairs, "--json")
    assert code == 0
    rows = document(out)
    assert [(row["family"], row["base"]) for row in rows] == [
        ("ledger", "nano-0.2m"),
        ("ledger", "nano-0.8m"),
        ("triage", "nano-0.2m"),
        ("triage", "nano-0.8m"),
    ]
    names = ["family", "base", "pass1", "pass1_low", "pass1_high", "pass8", "published"]
    assert all(list(row) == names for row in rows)
    assert all(row["pass1_low"] < row["pass1"] < row["pass1_high"] < 1 for row in rows)
    assert all(row["pass8"] > row["pass1"] for row in rows)
    assert {row["published"] for row in rows} == {0.242, 0.352}


def test_baselines_with_a_public_seed_are_the_same_everywhere(run: Ata, tmp_path: Path) -> None:
    pair = ["baseline", "--base", "nano-0.2m", "--family", "ledger", "--json"]
    here = document(run(*pair, "--eval-seed", 1, "--home", tmp_path / "a")[1])
    there = document(run(*pair, "--eval-seed", 1, "--home", tmp_path / "b")[1])
    assert here == there
    private = document(run(*pair, "--home", tmp_path / "a")[1])
    other = document(run(*pair, "--home", tmp_path / "b")[1])
    assert private != other


def test_baselines_in_parallel_are_the_same(run: Ata, tmp_path: Path) -> None:
    pairs = ["baseline", "--base", "nano-0.2m", "--eval-seed", 1, "--json"]
    one = document(run(*pairs, "--home", tmp_path / "a")[1])
    three = document(run(*pairs, "--home", tmp_path / "b", "--workers", 3)[1])
    assert one == three
    assert len(one) == len(FAMILIES)


def test_a_damaged_store_is_infrastructure(run: Ata, job: Path, tmp_path: Path) -> None:
    home = tmp_path / "damaged"
    home.mkdir()
    (home / "store.sqlite").write_text("not a database" * 500)
    code, out, _ = run("job", "run", job, "--json", "--home", home)
    assert code == 3
    assert str(home / "store.sqlite") in document(out)["error"]["message"]


PROGRAM = """
import sys
from ai_trains_ai.cli import main
from ai_trains_ai.cli.session import Services
from ai_trains_ai.testing.workers import Script
script = Script(seconds_a_step=0.5)
main(sys.argv[1:], obj=Services(start_worker=script.start, settings={"base_hash": str}))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_stop_cleanly(job: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    environ = {**os.environ, "ATA_HOME": str(tmp_path / "home")}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "job", "run", str(job), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "training nano" in line:
            break
    children = Path(f"/proc/{process.pid}/task").glob("*/children")
    workers = [int(pid) for path in children for pid in path.read_text().split()]
    assert workers
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == code
    assert document(out)["error"]["kind"] == "interrupted"
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def test_demo(run: Ata, script: Script) -> None:
    script.skill = lambda job: 0.95 if job.base_model == "nano-0.8m" else 0.55
    code, out, _ = run("demo", "--json")
    assert code == 0
    found = document(out)
    assert [job["name"] for job in found["jobs"]] == ["good", "mediocre", "broken"]
    good, mediocre, broken = found["jobs"]
    assert good["uplift_low"] > mediocre["uplift_high"]
    assert (broken["outcome"], broken["reward"]["total"]) == ("rejected", 0.0)
    assert any("group_size" in error["message"] + error["fix"] for error in broken["errors"])
    code, out, _ = run("demo")
    assert code == 0
    assert all(word in out for word in ("GOOD", "MEDIOCRE", "BROKEN", "rejected", "uplift", "▁", "fix:"))
    # Its jobs are there to be changed and run.
    assert run("job", "run", good["dir"])[0] == 0


def test_demo_says_when_it_did_not_go_as_meant(run: Ata, script: Script) -> None:
    at_step_two(script, AgentError("reward_value", "nan"))
    assert run("demo")[0] == 1


def test_doctor(run: Ata) -> None:
    code, out, _ = run("doctor", "--json")
    found = document(out)
    assert code == (0 if found["ready"] else 3)
    names = [check["name"] for check in found["checks"]]
    assert names[:4] == ["python", "torch", "cores", "state folder"]
    assert names[-2:] == ["sandbox", "worker"]
    assert all(check.keys() == {"name", "ok", "detail", "fix"} for check in found["checks"])
    assert found["ready"] == all(check["ok"] for check in found["checks"])
    assert run("doctor")[0] == code


def test_doctor_finds_what_is_broken(run: Ata, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "store.sqlite").write_text("not a database" * 500)
    code, out, _ = run("doctor", "--home", tmp_path / "bad", "--json")
    assert code == 3
    (check,) = [check for check in document(out)["checks"] if check["name"] == "state folder"]
    assert not check["ok"]
    assert "store.sqlite" in check["detail"]
