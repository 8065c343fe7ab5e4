"""The store under threads, processes, kill -9 and a full disk."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ai_trains_ai.errors import InfrastructureError, UsageError
from ai_trains_ai.store import schema
from ai_trains_ai.store.database import Database
from ai_trains_ai.store.store import Store
from ai_trains_ai.types import EvalResult


def child(code: str, *arguments: str) -> subprocess.Popen[str]:
    program = "import sys\nfrom pathlib import Path\nfrom ai_trains_ai.store.store import Store\n" + code
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_failed_transaction_leaves_nothing(tmp_path: Path) -> None:
    with Store(tmp_path / "s") as store:

        def midway() -> None:
            with store.transaction():
                store.events.add("first")
                store.events.add("second")
                raise RuntimeError("midway")

        with pytest.raises(RuntimeError, match="midway"):
            midway()
        assert store.events.all() == []
        store.events.add("after", x=1)
        assert [event["kind"] for event in store.events.all()] == ["after"]


def test_equal_evals_are_recorded_once(tmp_path: Path) -> None:
    one = EvalResult("ledger", "m", 0.5, 0.1, 0.9, 0.5, (1.0, 0.0), 1, 2.0)
    with Store(tmp_path / "s") as store:
        assert store.evals.add(one) == store.evals.add(one)


def test_the_first_baseline_wins(tmp_path: Path) -> None:
    one = EvalResult("ledger", "m", 0.5, 0.1, 0.9, 0.5, (1.0, 0.0), 1, 2.0)
    two = EvalResult("ledger", "m", 1.0, 0.1, 1.0, 0.5, (1.0, 1.0), 1, 2.0)
    with Store(tmp_path / "s") as store:
        names = {"base_sha256": "b", "secret_id": "s", "eval_config": "{}"}
        assert store.evals.save_baseline("k", one, **names) == one
        assert store.evals.save_baseline("k", two, **names) == one
        assert store.evals.baseline("other") is None


def test_a_run_has_one_result(tmp_path: Path) -> None:
    with Store(tmp_path / "s") as store:
        store.runs.begin(
            "r", job_sha256="j", family="f", base_model="b", seed=0, cache_key=None, trusted=True
        )
        store.runs.end("r", "missing", "a machine died")
        assert store.runs.state("r") == "missing"
        store.runs.end("r", "abandoned", "later")
        assert store.runs.state("r") == "missing"
        with pytest.raises(sqlite3.IntegrityError):
            store.runs.begin(
                "r", job_sha256="j", family="f", base_model="b", seed=0, cache_key=None, trusted=True
            )


def test_references_are_enforced(tmp_path: Path) -> None:
    with (
        Store(tmp_path / "s") as store,
        pytest.raises(sqlite3.IntegrityError),
        store.transaction() as connection,
    ):
        connection.execute(
            "INSERT INTO cache_hits (run_id, cache_key, submission, at) VALUES ('none', 'k', 1, 0)"
        )


def test_threads_share_a_store(tmp_path: Path) -> None:
    with Store(tmp_path / "s") as store:

        def work(name: int) -> None:
            for number in range(25):
                store.events.add("tick", thread=name, number=number)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        events = store.events.all()
    assert len(events) == 100
    for name in range(4):
        assert [e["number"] for e in events if e["thread"] == name] == list(range(25))


def test_processes_share_a_store(tmp_path: Path) -> None:
    """Four processes create the same store at the same moment and write to it; nothing is lost, nobody
    fails.
    """
    code = (
        "store = Store(Path(sys.argv[1]))\n"
        "for number in range(30):\n    store.events.add('tick', process=sys.argv[2], number=number)\n"
    )
    children = [child(code, str(tmp_path / "s"), str(name)) for name in range(4)]
    for process in children:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    with Store(tmp_path / "s") as store:
        assert len(store.events.all()) == 120
        assert store.database.integrity() == "ok"


def test_kill_9_loses_nothing_recorded(tmp_path: Path) -> None:
    """Whatever the child had said was recorded is there, in order, after kill -9 at an arbitrary moment."""
    code = (
        "store = Store(Path(sys.argv[1]))\n"
        "for number in range(10**6):\n"
        "    store.events.add('tick', number=number)\n"
        "    print(number, flush=True)\n"
    )
    for pause in (0.0, 0.05, 0.13):
        path = tmp_path / f"s{pause}"
        process = child(code, str(path))
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        said = process.communicate(timeout=30)[0].split("\n")
        last = max([0, *(int(line) for line in said[:-1])])
        with Store(path) as store:
            numbers = [event["number"] for event in store.events.all()]
            assert numbers == list(range(len(numbers)))
            assert len(numbers) >= last + 1
            assert store.database.integrity() == "ok"


FILL = """
import resource, signal
from ai_trains_ai.errors import InfrastructureError
store = Store(Path(sys.argv[1]))
# The kernel refuses growth beyond this, as a full disk or a quota does.
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
try:
    for number in range(10**6):
        with store.transaction():
            store.events.add('tick', number=number, filler='x' * 3000)
            store.events.add('tock', number=number)
        print(number, flush=True)
except InfrastructureError as error:
    print('refused:', error, flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store.events.add('room again')
    store.close()
"""


def test_a_refused_write_is_named_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s"
    process = child(FILL, str(path))
    out, errors = process.communicate(timeout=60)
    lines = out.splitlines()
    assert process.returncode == 0, errors
    assert lines[-1].startswith(f"refused: run store {path}"), lines[-1]
    recorded = int(lines[-2]) + 1
    with Store(path) as store:
        kinds = [event["kind"] for event in store.events.all()]
        # The pair that was refused left neither of its halves, and the same process could go on.
        assert kinds == ["tick", "tock"] * recorded + ["room again"]
        assert store.database.integrity() == "ok"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_disk_is_named_and_loses_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    try:
        store = Store(disk / "s")
        recorded = 0

        def fill() -> None:
            nonlocal recorded
            while True:
                store.events.add("tick", number=recorded, filler="x" * 3000)
                recorded += 1

        with pytest.raises(InfrastructureError, match="free space") as refused:
            fill()
        assert str(disk / "s") in str(refused.value)
        assert recorded > 10
        store.close()
        with sqlite3.connect(f"file:{disk / 's'}?mode=ro", uri=True) as connection:
            assert connection.execute("SELECT count(*) FROM events").fetchone()[0] == recorded
            assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        connection.close()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match=str(tmp_path / "file")):
        Store(tmp_path / "file" / "s")


def test_strangers_and_damage_are_refused(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other")
    other.execute("CREATE TABLE theirs (x)")
    other.commit()
    other.close()
    with pytest.raises(UsageError, match="another program's database"):
        Store(tmp_path / "other")
    (tmp_path / "text").write_text("not a database, but long enough to be read as one" * 50)
    with pytest.raises(InfrastructureError, match="no run store"):
        Store(tmp_path / "text")


def test_migrations_run_once_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path / "s") as store:
        store.events.add("old")
    later = (*schema.MIGRATIONS, ("CREATE TABLE episodes (id TEXT PRIMARY KEY) STRICT",))
    monkeypatch.setattr("ai_trains_ai.store.database.MIGRATIONS", later)
    for _ in range(2):
        database = Database(tmp_path / "s")
        assert database.rows("SELECT * FROM episodes") == []
        assert len(database.rows("SELECT * FROM events")) == 1
        database.close()
    monkeypatch.undo()
    with pytest.raises(UsageError, match="newer version"):
        Store(tmp_path / "s")


def test_rlimit_is_back_to_normal() -> None:
    # The test above lowers the limit in a child only.
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
