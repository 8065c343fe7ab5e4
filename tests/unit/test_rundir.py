"""Paths, the eval secret, locks and the removal of old checkpoints."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ai_trains_ai.errors import InfrastructureError, UsageError
from ai_trains_ai.rundir import Home, _on_disk, hold, is_free


def test_where_the_state_lives(tmp_path: Path) -> None:
    environ = {"ATA_HOME": str(tmp_path / "a"), "XDG_STATE_HOME": str(tmp_path / "x")}
    assert Home.find(str(tmp_path / "o"), environ).path == tmp_path / "o"
    assert Home.find(None, environ).path == tmp_path / "a"
    del environ["ATA_HOME"]
    assert Home.find(None, environ).path == tmp_path / "x" / "ai-trains-ai"


def test_an_unusable_home_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match=r"state folder .*file/home: .*Not a directory"):
        Home(tmp_path / "file" / "home")


def test_the_secret_is_made_once_and_kept_private(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        secrets = set(threads.map(lambda _: Home(tmp_path).secret({}), range(8)))
    assert len(secrets) == 1
    (secret,) = secrets
    assert len(secret) == 32
    assert stat.S_IMODE(Home(tmp_path).secret_file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if "secret" in path.name] == ["eval_secret"]


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.secret({})
    home.secret_file.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        home.secret({})


def test_a_short_secret_is_refused_without_being_shown(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 16") as refused:
        Home(tmp_path).secret({"ATA_EVAL_SECRET": "hunter2"})
    assert "hunter2" not in str(refused.value)
    assert Home(tmp_path).secret({"ATA_EVAL_SECRET": "x" * 16}) == b"x" * 16


def test_a_lock_is_freed_by_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom ai_trains_ai.rundir import hold\n"
        "with hold(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    assert not is_free(path)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)
    assert is_free(path)


def test_a_lock_excludes_threads(tmp_path: Path) -> None:
    home, inside, most = Home(tmp_path), [0], [0]

    def work(_: int) -> None:
        with home.locked("x"):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            inside[0] -= 1

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(200)))
    assert most == [1]
    assert not list((tmp_path / "locks").iterdir()), "lock files pile up"


def test_a_lock_excludes_processes(tmp_path: Path) -> None:
    """Four processes count up in one file, 50 times each, reading and writing it back under the lock."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom ai_trains_ai.rundir import Home\n"
        "home, counter = Home(Path(sys.argv[1])), Path(sys.argv[1]) / 'counter'\n"
        "for _ in range(50):\n"
        "    with home.locked('x'):\n"
        "        counter.write_text(str(int(counter.read_text()) + 1))\n"
    )
    (tmp_path / "counter").write_text("0")
    children = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(4)]
    assert [child.wait(60) for child in children] == [0] * 4
    assert (tmp_path / "counter").read_text() == "200"


def make_runs(home: Home, count: int, size: int = 100) -> list[str]:
    names = []
    for number in range(count):
        run = home.path / "runs" / f"2024010{number}T000000-job-abc"
        (run / "checkpoint").mkdir(parents=True)
        (run / "checkpoint" / "model.safetensors").write_bytes(b"x" * size)
        (run / "result.json").write_text("{}")
        names.append(run.name)
    return names


def test_old_checkpoints_go_and_results_stay(tmp_path: Path) -> None:
    home = Home(tmp_path)
    names = make_runs(home, 5)
    assert sorted(home.collect_checkpoints(keep=2, max_bytes=10**9)) == names[:3]
    assert [name for name in names if home.run(name).checkpoint.exists()] == names[3:]
    assert all((home.run(name).path / "result.json").exists() for name in names)


def test_checkpoints_are_bounded_in_bytes(tmp_path: Path) -> None:
    home = Home(tmp_path)
    names = make_runs(home, 4)
    assert sorted(home.collect_checkpoints(keep=100, max_bytes=250)) == names[:2]
    # The newest stays even when it alone is over the bound.
    assert home.collect_checkpoints(keep=100, max_bytes=10) == names[2:3]
    assert home.run(names[3]).checkpoint.exists()


def test_a_checkpoint_in_use_stays(tmp_path: Path) -> None:
    home = Home(tmp_path)
    names = make_runs(home, 3)
    with hold(home.run(names[0]).lock):
        assert home.collect_checkpoints(keep=1, max_bytes=10**9) == [names[1]]
    assert home.collect_checkpoints(keep=1, max_bytes=10**9) == [names[0]]


def test_a_linked_checkpoint_is_not_followed(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    names = make_runs(home, 2)
    run = home.path / "runs" / "20230101T000000-x-y"
    run.mkdir()
    (run / "checkpoint").symlink_to(precious)
    assert home.collect_checkpoints(keep=1, max_bytes=10**9) == names[:1]
    assert (precious / "file").read_text() == "mine"


def test_a_full_disk_is_named_with_what_to_do() -> None:
    with (
        pytest.raises(InfrastructureError, match=r"free space on that disk, or choose another .*--home"),
        _on_disk("x"),
    ):
        Path("/dev/full").write_text("x")
