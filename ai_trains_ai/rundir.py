"""The only file that knows paths.

HOME/                      --home, or ATA_HOME, or ~/.local/state/ai-trains-ai
  store.sqlite             the run store
  eval_secret              0600; what the hidden eval is regenerated from (or ATA_EVAL_SECRET)
  locks/NAME.lock          held while somebody works on NAME; free when its holder dies, however it dies
  demo/JOB/                the jobs of `ata demo`
  pretraining/NAME-RECIPE/ the stages of an `ata pretrain` under way
  bases/NAME/              the bases it built
  runs/RUN/
    run.json               command line, version, commit, resolved config
    job/                   the job's files as they were read
    checkpoint/            what our trainer wrote
    result.json            the outcome, as `--json` prints it
    lock                   held while the run is worked on
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ai_trains_ai.errors import InfrastructureError, UsageError

HOME_VARIABLE = "ATA_HOME"
SECRET_VARIABLE = "ATA_EVAL_SECRET"
SECRET_BYTES = 32
SHORTEST_SECRET = 16


@dataclass(frozen=True)
class RunDir:
    """One run's folder."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    def write_job(self, files: Mapping[str, bytes]) -> None:
        """Keep the job's files as they were read. Paths were checked by whoever read them."""
        with _on_disk(f"run directory {self.path}"):
            for name, content in files.items():
                target = self.path / "job" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)

    def write_json(self, name: str, document: Any) -> None:
        """Write `name` whole or not at all."""
        with _on_disk(f"run directory {self.path}"):
            partial = self.path / f".{name}.partial"
            partial.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
            partial.replace(self.path / name)


class Home:
    """The state folder; created on first use, readable by its owner alone.

    Raises InfrastructureError when it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        with _on_disk(f"state folder {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            (self.path / "runs").mkdir(exist_ok=True)
            (self.path / "locks").mkdir(exist_ok=True)

    @staticmethod
    def find(option: str | None, environ: Mapping[str, str]) -> Home:
        """The folder of `--home`, else of ATA_HOME, else under the XDG state folder."""
        if option or environ.get(HOME_VARIABLE):
            return Home(Path(option or environ[HOME_VARIABLE]))
        state = environ.get("XDG_STATE_HOME") or "~/.local/state"
        return Home(Path(state) / "ai-trains-ai")

    @property
    def store(self) -> Path:
        return self.path / "store.sqlite"

    @property
    def demo(self) -> Path:
        """Where `ata demo` writes its jobs."""
        return self.path / "demo"

    @property
    def bases(self) -> Path:
        """Where `ata pretrain` puts what it built, unless told otherwise."""
        return self.path / "bases"

    @property
    def pretraining(self) -> Path:
        """The states of bases being built, so that an interrupted one goes on."""
        return self.path / "pretraining"

    @property
    def secret_file(self) -> Path:
        return self.path / "eval_secret"

    def secret(self, environ: Mapping[str, str]) -> bytes:
        """The eval secret: ATA_EVAL_SECRET, else the file, made at random on first use.

        Never log or record what this returns. Raises UsageError for a secret that is too short to be one
        and for a file that others may read.
        """
        given = environ.get(SECRET_VARIABLE)
        if given is not None:
            if len(given.encode()) < SHORTEST_SECRET:
                raise UsageError(
                    f"{SECRET_VARIABLE} needs at least {SHORTEST_SECRET} bytes; unset it to use a random one"
                )
            return given.encode()
        with _on_disk(f"eval secret {self.secret_file}"):
            try:
                return self._read_secret()
            except FileNotFoundError:
                pass
            # Written aside and linked into place: two processes at once agree on one, and none reads half
            # of it.
            partial = self.path / f".eval_secret.{os.getpid()}.{secrets.token_hex(4)}"
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(secrets.token_bytes(SECRET_BYTES))
                    file.flush()
                    os.fsync(file.fileno())
                with suppress(FileExistsError):
                    os.link(partial, self.secret_file)
            finally:
                partial.unlink(missing_ok=True)
            return self._read_secret()

    def _read_secret(self) -> bytes:
        descriptor = os.open(self.secret_file, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
            if mode & 0o077:
                raise UsageError(f"{self.secret_file} may be read by others (mode {mode:o}): chmod 600 it")
            secret = file.read(4096)
        if len(secret) < SHORTEST_SECRET:
            raise UsageError(
                f"{self.secret_file} holds {len(secret)} bytes: remove it to have a new one made"
            )
        return secret

    @staticmethod
    def new_run_id(label: str) -> str:
        return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{label}-{secrets.token_hex(3)}"

    def new_run(self, label: str) -> RunDir:
        """A fresh folder whose name sorts by time and is unique: TIME-label-RANDOM."""
        path = self.path / "runs" / self.new_run_id(label)
        with _on_disk(f"run directory {path}"):
            path.mkdir()
        return RunDir(path)

    def run(self, run_id: str) -> RunDir:
        return RunDir(self.path / "runs" / run_id)

    @contextmanager
    def locked(self, name: str, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Wait for, then hold, the lock called `name`, against other threads and other processes.

        on_wait: called first when somebody else holds it.
        The lock's file is there only while somebody wants it: thousands of jobs leave none behind.
        """
        path = self.path / "locks" / f"{name}.lock"
        while True:
            with hold(path, on_wait) as file:
                if not _is_at(file, path):
                    continue  # its last holder removed it while we waited: others lock a new file by now
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return

    def collect_checkpoints(self, *, keep: int, max_bytes: int) -> list[str]:
        """Remove checkpoints beyond the newest `keep` or beyond `max_bytes` in all; return the runs that
        lost theirs.

        The newest checkpoint always stays, and so does that of a run somebody is working on. Scores, curves
        and rollouts are in the store and are never removed.
        """
        removed: list[str] = []
        kept, total = 0, 0
        for run in sorted((self.path / "runs").iterdir(), reverse=True):
            checkpoint = RunDir(run).checkpoint
            if checkpoint.is_symlink() or not checkpoint.is_dir():
                continue
            size = sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())
            fits = kept == 0 or (kept < keep and total + size <= max_bytes)
            if fits or not is_free(RunDir(run).lock):
                kept, total = kept + 1, total + size
                continue
            shutil.rmtree(checkpoint, ignore_errors=True)
            removed.append(run.name)
        return removed


_FIXES = {
    errno.ENOSPC: "free space on that disk",
    errno.EDQUOT: "free some of your quota there",
    errno.EROFS: "the disk is read-only",
    errno.EACCES: "make it writable for this user",
    errno.EPERM: "make it writable for this user",
}


@contextmanager
def _on_disk(what: str) -> Iterator[None]:
    """Name the failure of a disk with its path and what to do."""
    try:
        yield
    except OSError as error:
        fix = _FIXES.get(error.errno or 0)
        advice = f". Fix: {fix}, or choose another folder with --home or {HOME_VARIABLE}" if fix else ""
        raise InfrastructureError(f"{what}: {error}{advice}") from error


@contextmanager
def hold(path: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[IO[bytes]]:
    """Wait for, then hold, a lock on the file. The kernel frees it when the holder ends, kill -9 included."""
    with _on_disk(f"lock {path}"):
        # O_CLOEXEC, Python's default: a worker must not inherit, and so prolong, its orchestrator's lock.
        file = open(path, "ab")  # noqa: SIM115 (closed below)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def is_free(path: Path) -> bool:
    """Whether nobody holds the lock."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Whether the open file is still the one that `path` names."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
