"""What a job can read, and that it can write nothing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import ai_trains_ai
from ai_trains_ai import errors
from ai_trains_ai.sandbox.base import SandboxLimits

MIB = 1 << 20


@pytest.fixture
def readable() -> Iterator[str]:
    """A file that every user of this machine may read, in a directory that everyone may change: only the
    sandbox stands before them."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        file = Path(folder, "hidden_eval.json")
        file.write_text("the answers")
        file.chmod(0o666)
        yield str(file)


def test_files_of_the_machine_cannot_be_read(box, readable):
    paths = [readable, errors.__file__, os.path.expanduser("~/.profile"), "/etc/shadow", "/etc/hostname"]
    result = box.run(
        'tell(**{path: attempt(open, path, "rb") for path in facts["paths"]})', facts={"paths": paths}
    ).told
    if box.level == "container":
        # It has files of its own by these names.
        del result["/etc/hostname"]
        result.pop("/etc/shadow", None)
    assert set(result.values()) <= {"ENOENT", "EACCES"}, result


def test_directories_of_the_machine_cannot_be_listed(box, readable):
    folders = [
        str(Path(readable).parent),
        str(Path(ai_trains_ai.__file__).parent),
        os.path.expanduser("~"),
        "/home",
    ]
    result = box.run(
        'tell(**{path: attempt(os.listdir, path) for path in facts["paths"]})', facts={"paths": folders}
    ).told
    assert set(result.values()) <= {"ENOENT", "EACCES"}, result


def test_bubblewrap_shows_the_interpreter_and_the_job_only(box):
    if box.level != "bubblewrap":
        pytest.skip("only here the whole tree is ours")
    result = box.run(
        """
found = [f"{base}/{name}".replace("//", "/") for base, _, names in os.walk("/") for name in names]
library = os.path.dirname(os.__file__)
expected = (library, "/usr/lib", "/lib", "/job/", "/dev/")
tell(strange=[path for path in found if not path.startswith(expected) and ".so" not in path],
     devices=sorted(os.listdir("/dev")), top=sorted(os.listdir("/")), proc=os.path.exists("/proc"))
"""
    ).told
    assert result["devices"] == ["null", "random", "urandom", "zero"]
    assert not result["proc"]
    assert "home" not in result["top"]
    interpreter = [path for path in result["strange"] if "/bin/python3" in path]
    assert len(interpreter) == 1, result
    assert set(result["strange"]) - set(interpreter) <= {"/etc/ld.so.cache"}, result


def test_third_party_packages_are_not_there(box):
    result = box.run(
        """
import site
sys.path += [*site.getsitepackages(), os.path.dirname(os.__file__) + "/site-packages"]
tell(**{name: attempt(__import__, name) for name in ("ai_trains_ai", "pip", "torch", "numpy")})
"""
    ).told
    assert set(result.values()) <= {"ModuleNotFoundError", "EACCES"}, result


def test_the_standard_library_works(box):
    result = box.run(
        """
import asyncio, concurrent.futures, datetime, decimal, hashlib, random, re, sqlite3, ssl, threading, zoneinfo

async def double(x):
    await asyncio.sleep(0.001)
    return await asyncio.to_thread(lambda: 2 * x)

async def main():
    return await asyncio.gather(*map(double, range(5)))

with concurrent.futures.ThreadPoolExecutor(4) as pool:
    squares = list(pool.map(lambda x: x * x, range(5)))
with open(os.devnull, "w") as null:
    print("nothing", file=null)
tell(doubles=asyncio.run(main()), squares=squares, sha=hashlib.sha256(b"x").hexdigest()[:6],
     random=len(os.urandom(4)), rows=sqlite3.connect(":memory:").execute("select 1").fetchall(),
     cwd=sorted(os.listdir(".")))
""",
        files={"more/data.txt": "x"},
    )
    assert result.told == {
        "doubles": [0, 2, 4, 6, 8],
        "squares": [0, 1, 4, 9, 16],
        "sha": "2d7116",
        "random": 4,
        "rows": [[1]],
        "cwd": ["attack.py", "facts.json", "more"],
    }, result


def test_nothing_can_be_changed(box, readable):
    outcome = box.run(
        """
own, target = os.path.abspath("attack.py"), facts["target"]
results = {path: [attempt(open, path, "ab"), attempt(open, path, "r+b"), attempt(os.utime, path)]
           for path in (own, target, sys.executable, os.__file__)}
for path in (own, target):
    results[path] += [
        attempt(open, path, "wb"), attempt(os.truncate, path, 0), attempt(os.open, path, os.O_RDONLY |
        os.O_TRUNC), attempt(os.chmod, path, 0o777), attempt(os.chown, path, os.getuid(), os.getgid()),
        attempt(os.setxattr, path, "user.a", b"1"), attempt(os.link, path, path + "3"), attempt(os.rename,
        path, path + "2"), attempt(os.unlink, path),
    ]

def make(how, path, undo=os.unlink, *arguments):
    how(path, *arguments)
    undo(path)

for folder in (".", "/", "/tmp", "/var/tmp", "/dev/shm", "/dev", "/run", "/job", os.path.dirname(target)):
    path = f"{folder}/new-{os.getpid()}"
    results["new in " + folder] = [
        attempt(make, open, path, os.unlink, "wb"), attempt(make, os.mkdir, path, os.rmdir),
        attempt(make, os.mkfifo, path), attempt(make, lambda new: os.symlink(target, new), path),
        attempt(make, os.mknod, path, os.unlink, 0o600 | 0o020000, 0x101),
    ]
tell(**results)
""",
        facts={"target": readable},
    )
    for path, results in outcome.told.items():
        assert set(results) <= {"EPERM", "EACCES", "EROFS", "ENOENT", "ENOSYS"}, (path, results)
    assert Path(readable).read_text() == "the answers"
    assert os.listdir(Path(readable).parent) == ["hidden_eval.json"]


def test_devices_cannot_be_opened(box):
    names = [
        "mem",
        "kmem",
        "port",
        "kmsg",
        "vda",
        "sda",
        "nvme0n1",
        "loop-control",
        "fuse",
        "kvm",
        "tty",
        "ptmx",
        "console",
    ]
    result = box.run(
        'tell(**{name: attempt(os.open, f"/dev/{name}", os.O_RDONLY) for name in facts["names"]})',
        facts={"names": names},
    ).told
    if box.level == "container":
        # Its own, without a terminal behind it.
        del result["ptmx"]
    assert set(result.values()) <= {"ENOENT", "EACCES", "EPERM", "ENXIO"}, result


@pytest.mark.parametrize("name", ["../escape", "/etc/escape", "a/../../escape", "", "a\0b", "./x"])
def test_file_names_that_lead_out_are_refused(sandbox, name):
    with pytest.raises(ValueError, match="plain relative path"):
        sandbox.start([sandbox.python], files={name: b""}, limits=SandboxLimits())


def test_scratch_space_is_bounded(box):
    outcome = box.run(
        """
results = []
for number in range(64):
    try:
        with open(f"/tmp/{number}", "wb") as file:
            file.write(bytes(1 << 18))
    except OSError as error:
        results.append(errno.errorcode[error.errno])
        break
written = sum(os.stat(f"/tmp/{name}").st_size for name in os.listdir("/tmp"))
tell(results=results, written=written, elsewhere=attempt(open, "new", "wb"))
""",
        limits={"scratch_bytes": MIB},
    )
    if box.level == "reduced":
        assert outcome.error is not None
        assert "scratch" in outcome.error
        return
    assert outcome.told["results"] == ["ENOSPC"]
    assert 0 < outcome.told["written"] <= MIB
    assert outcome.told["elsewhere"] == "EROFS"
