"""The job directory: snapshot, job.toml, identity."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai_trains_ai.config import JobLimits
from ai_trains_ai.errors import AgentError, UsageError
from ai_trains_ai.jobs.spec import load_job, read_job
from ai_trains_ai.tasks.starter import starter_files
from ai_trains_ai.types import Finding

LIMITS = JobLimits()


def starter(family: str = "ledger") -> dict[str, bytes]:
    return {name: text.encode() for name, text in starter_files(family).items()}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def with_toml(text: str) -> list[Finding]:
    job, findings = load_job(starter() | {"job.toml": text.encode()}, LIMITS)
    assert (job is None) == any(finding.severity == "error" for finding in findings)
    return findings


def test_a_starter_is_read_as_written(tmp_path: Path) -> None:
    job = read_job(write(tmp_path, starter()), LIMITS)
    assert dict(job.files) == starter()
    assert (job.family, job.base_model) == ("ledger", "nano-0.2m")
    assert job.explicit_keys == ("max_steps", "orchestrator.batch_size")
    assert job.prime_rl["max_steps"] == 10
    assert job.environment_args == {}
    assert len(job.content_sha256) == 64


def test_files_in_memory_and_in_a_directory_are_the_same_job(tmp_path: Path) -> None:
    files = starter() | {"words/list.txt": b"a b c"}
    assert read_job(write(tmp_path, files), LIMITS) == load_job(files, LIMITS)[0]


def test_what_is_no_part_of_a_job_is_skipped(tmp_path: Path) -> None:
    extra = {".git/config": b"x", ".hidden": b"x", "__pycache__/a.pyc": b"\0"}
    job = read_job(write(tmp_path, starter() | extra), LIMITS)
    assert dict(job.files) == starter()


def test_identity_follows_meaning_of_job_toml_and_bytes_of_the_rest() -> None:
    def sha(**changes: bytes) -> str:
        files = starter() | {name.replace("_", "."): content for name, content in changes.items()}
        job, findings = load_job(files, LIMITS)
        assert job is not None, findings
        return job.content_sha256

    toml = starter()["job.toml"]
    assert sha() == sha(job_toml=b"# a comment\n" + toml)
    assert sha() == sha(job_toml=toml + b"group_size = 8\n[prime_rl.trainer.optim]\nlr = 0.0001\n")
    different = [
        sha(),
        sha(job_toml=toml + b"group_size = 16\n"),
        sha(job_toml=toml + b"[environment]\nnum_tasks = 128\n"),
        sha(job_toml=toml + b"[environment]\nnum_tasks = 128.0\n"),
        sha(job_toml=toml.replace(b"nano-0.2m", b"nano-0.8m")),
        sha(job_toml=toml.replace(b"ledger", b"dispatch")),
        sha(environment_py=starter()["environment.py"] + b"\n"),
        sha(notes_txt=b""),
    ]
    assert len(set(different)) == len(different)


def test_missing_files_are_named_and_the_rest_is_still_checked(tmp_path: Path) -> None:
    assert [f.message for f in load_job(tmp_path, LIMITS)[1]] == [
        "job.toml is missing",
        "environment.py is missing",
    ]
    (tmp_path / "job.toml").write_text("max_steps = 3")
    messages = [finding.message for finding in load_job(tmp_path, LIMITS)[1]]
    assert messages[0] == "environment.py is missing"
    assert "unknown key `max_steps` at the top of job.toml" in messages


def test_no_directory_is_the_callers_mistake(tmp_path: Path) -> None:
    for path in (tmp_path / "none", write(tmp_path, {"file": b""}) / "file"):
        with pytest.raises(UsageError, match="no job directory"):
            load_job(path, LIMITS)


def test_links_pipes_and_sockets_are_refused_without_being_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hidden answers")
    job = write(tmp_path / "job", starter())
    (job / "link.txt").symlink_to(secret)
    (job / "folder").symlink_to(tmp_path)
    os.mkfifo(job / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(job / "s"))
        _, findings = load_job(job, LIMITS)
    assert [finding.message for finding in findings] == [
        "folder is a link",
        "link.txt is a link",
        "pipe.txt is not a plain file",
        "s is not a plain file",
    ]


def test_a_linked_environment_is_refused(tmp_path: Path) -> None:
    job = write(tmp_path / "job", {"job.toml": starter()["job.toml"]})
    (tmp_path / "other.py").write_bytes(starter()["environment.py"])
    (job / "environment.py").symlink_to(tmp_path / "other.py")
    with pytest.raises(AgentError, match=r"environment\.py is a link"):
        read_job(job, LIMITS)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"environment.py": b"#" * (64 * 1024 + 1)}, "environment.py is too big"),
        ({f"{i}.txt": b"" for i in range(15)}, "17 files"),
        ({f"{i}.txt": b"x" * 60_000 for i in range(5)}, "bytes in all"),
        ({"environment.py": b"x = 1\ny = '\xff'\n"}, "environment.py, line 2: not UTF-8"),
        ({"a.txt": b"a\0b"}, "a.txt contains a zero byte"),
        ({"model.safetensors": b"x"}, "model.safetensors is of a kind that no job has"),
        ({"a.so": b"x"}, "a.so is of a kind"),
        ({"a/b/c/d/e.txt": b"x"}, "'a/b/c/d/e.txt' is not allowed"),
        ({"a b.txt": b"x"}, "'a b.txt' is not allowed"),
        ({"../b.txt": b"x"}, "'../b.txt' is not allowed"),
        ({"/etc/b.txt": b"x"}, "'/etc/b.txt' is not allowed"),
        ({"é.txt": b"x"}, "is not allowed"),
        ({"job.toml": b"\xff"}, "job.toml, line 1: not UTF-8"),
    ],
)
def test_sizes_counts_names_and_encodings(files: dict[str, bytes], message: str) -> None:
    job, findings = load_job(starter() | files, LIMITS)
    assert job is None
    assert any(message in finding.message for finding in findings), findings
    assert all(finding.check == "files" and finding.fix for finding in findings)


def test_a_huge_file_is_not_read_whole(tmp_path: Path) -> None:
    job = write(tmp_path, starter())
    with open(job / "big.txt", "wb") as file:
        file.truncate(1 << 40)
    _, findings = load_job(job, LIMITS)
    assert [finding.message for finding in findings] == ["big.txt is too big"]


def test_a_folder_of_many_entries_is_not_walked_to_its_end(tmp_path: Path) -> None:
    job = write(tmp_path, starter())
    for index in range(300):
        (job / f"d{index}").mkdir()
    assert "too many files or folders" in [finding.message for finding in load_job(job, LIMITS)[1]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("base_model = ", ["line 1", "base_model ="]),
        ('family = "ledger"\nb = = 3\n', ["line 2, column 5", "'b = = 3'"]),
        ("a = 1\na = 2\n", ["line 2"]),
        ("x = [\n1,", ["line 2"]),
        ("x = " + "[" * 5000, ["job.toml"]),
        ("x = " + "1" * 5000, ["job.toml"]),
        (".".join("a" * 500) + " = 1", ["nested too deeply"]),
    ],
)
def test_toml_errors_carry_the_line(text: str, words: list[str]) -> None:
    findings = with_toml(text)
    assert [finding.check for finding in findings] == ["toml"]
    for word in words:
        assert word in findings[0].message


HEAD = 'family = "ledger"\nbase_model = "nano-0.8m"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('base_model = "nano-0.8m"', ["family is missing", 'family = "calc_chain"']),
        ('family = "ledger"\nbase_model = 3', ["base_model must be text, not 3"]),
        (HEAD + 'model = "x"', ["`model`", "`base_model`"]),
        (HEAD + 'bas_model = "x"', ["`bas_model`", "`base_model`"]),
        (HEAD + "max_steps = 3", ["`max_steps` belongs in table [prime_rl]"]),
        (HEAD + "learning_rate = 3", ["`lr`, in table [prime_rl.trainer.optim]"]),
        (HEAD + "zzzzzzzzzz = 3", ["family, base_model, environment, prime_rl"]),
        (HEAD + "prime_rl = 3", ["prime_rl is a table"]),
        (HEAD + "environment = 3", ["environment is a table"]),
        (HEAD + "[orchestrator]\nbatch_size = 64", ["write [prime_rl.orchestrator]"]),
        (HEAD + '[environment]\nid = "x"', ["names an installed package"]),
        (HEAD + '[environment]\nsystem_prompt = "/etc/passwd"', ["names a file to read"]),
        (HEAD + '[environment.task.rewards.x]\nfn = "os.system"', ["it would import code"]),
        (HEAD + "[environment]\nx = inf", ["`x` in [environment] is not finite"]),
        (HEAD + "[environment]\nx = 2020-01-01", ["`x` in [environment] is a date"]),
        (HEAD + "[environment.a]\nb = [[nan]]", ["`a.b` in [environment] is not finite"]),
    ],
)
def test_keys_at_the_top_and_environment_arguments(text: str, words: list[str]) -> None:
    findings = with_toml(text)
    assert len(findings) == 1, findings
    for word in words:
        assert word in f"{findings[0].message}; {findings[0].fix}"


def test_environment_arguments_are_kept() -> None:
    text = HEAD + '[environment]\nlevels = [1, 2]\nname = "x"\nflag = true\n[environment.task]\nshare = 0.5'
    job, _ = load_job(starter() | {"job.toml": text.encode()}, LIMITS)
    assert job is not None
    assert job.environment_args == {"levels": [1, 2], "name": "x", "flag": True, "task": {"share": 0.5}}


def test_read_job_names_all_problems_at_once(tmp_path: Path) -> None:
    job = write(tmp_path, {"job.toml": b"max_step = 1\n[prime_rl]\nbatch_size = 3\n"})
    with pytest.raises(AgentError) as caught:
        read_job(job, LIMITS)
    for word in ("environment.py", "max_step", "batch_size", "family", "base_model"):
        assert word in caught.value.message
    assert caught.value.fix


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_job_toml_whatever_crashes_the_reader(content: bytes) -> None:
    job, findings = load_job(starter() | {"job.toml": content}, LIMITS)
    assert job is None
    assert findings
