"""A process inside a sandbox, seen from outside: two pipes, the end of its error output, its end."""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO

from ai_trains_ai.errors import InfrastructureError

GRACE_SECONDS = 10.0
"""For a killed tree to be gone. A kernel under load needs milliseconds; more than this is a fault."""
_CHUNK = 1 << 16
_FLOOD_PAUSE_SECONDS = 0.005
"""After a full chunk of error output: a job that floods it must not take our processor time."""


class SandboxedProcess:
    """What `Sandbox.start` returns. As a context manager it kills the whole tree on the way out.

    The pipes are raw (unbuffered): poll `stdout.fileno()` to wait with a deadline, and expect short writes on
    `stdin`. Output that nobody reads blocks the job, not us; its error output is always drained and bounded.
    """

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        status_fd: int,
        *,
        stop_signal: signal.Signals,
        stderr_bytes: int,
        grace_seconds: float,
        on_gone: Callable[[], None],
    ) -> None:
        """popen: the stage (or what it became), with all three pipes. status_fd: reading end, owned from
        here.
        stop_signal: what makes it kill the job's tree, within grace_seconds. on_gone: called once, when
        nothing of it runs any more.
        """
        assert popen.stdin is not None
        assert popen.stdout is not None
        assert popen.stderr is not None
        self.stdin: IO[bytes] = popen.stdin
        self.stdout: IO[bytes] = popen.stdout
        self.pid = popen.pid
        self._popen = popen
        self._stop_signal = stop_signal
        self._grace = grace_seconds
        self._on_gone = on_gone
        self._stderr = _Tail(stderr_bytes)
        self._status = b""
        self._init_fd: int | None = None
        self._killed = False
        self._gone = False
        self._lock = threading.Lock()
        self._watcher = threading.Thread(
            target=self._watch, args=(status_fd,), name="sandbox-watcher", daemon=True
        )
        self._watcher.start()

    def stderr(self) -> str:
        """The end of the error output so far, with a note of how much went before it."""
        return self._stderr.text()

    def poll(self) -> int | None:
        """The exit code if it has ended, else None. Raises InfrastructureError as `wait` does."""
        return None if self._popen.poll() is None else self.wait(self._grace)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the job's end and return its exit code, 128 + n for signal n; 137 after `kill()`.

        Returns when nothing of the tree runs any more. Raises subprocess.TimeoutExpired if the job still runs
        after `timeout` seconds, and InfrastructureError if the sandbox could not be built, so that the job
        never
        ran: this is not the job's fault, and nothing that the job prints or returns can look like it.
        """
        self._popen.wait(timeout)
        self._await_tree()
        for line in self._status.decode("utf-8", "replace").splitlines():
            record = json.loads(line)
            if "failed" in record:
                raise InfrastructureError(f"sandbox: {record['failed']}")
            if "exit-code" in record:
                return int(record["exit-code"])
        if self._killed:
            return 128 + signal.SIGKILL
        raise InfrastructureError(
            f"sandbox: it ended without starting the job: {self.stderr().strip()[-1000:]}"
        )

    def kill(self) -> None:
        """Kill the whole tree and wait until it is gone. Does nothing if it has ended.

        Raises InfrastructureError if something survives.
        """
        if self._popen.poll() is None:
            self._killed = True
            self._popen.send_signal(self._stop_signal)
            try:
                self._popen.wait(self._grace)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                raise InfrastructureError("sandbox: its supervisor did not end in time") from None
        self._await_tree()

    def __enter__(self) -> SandboxedProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.stdin.close()
        self.stdout.close()

    def _await_tree(self) -> None:
        """After the stage's end: wait for the end of the PID namespace and for the last bytes of both
        pipes."""
        with self._lock:
            if self._gone:
                return
            self._watcher.join(self._grace)
            if self._init_fd is not None:
                poll = select.poll()
                poll.register(self._init_fd, select.POLLIN)
                if not poll.poll(self._grace * 1000):
                    raise InfrastructureError("sandbox: processes of the job survived it")
                os.close(self._init_fd)
                self._init_fd = None
            if self._watcher.is_alive():
                raise InfrastructureError("sandbox: somebody still holds the job's error pipe")
            self._gone = True
        self._on_gone()

    def _watch(self, status_fd: int) -> None:
        assert self._popen.stderr is not None
        stderr_fd = self._popen.stderr.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(stderr_fd, selectors.EVENT_READ)
            selector.register(status_fd, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    data = os.read(key.fd, _CHUNK)
                    if not data:
                        selector.unregister(key.fd)
                    elif key.fd == status_fd:
                        self._status += data
                        self._hold_init()
                    else:
                        self._stderr.add(data)
                        if len(data) == _CHUNK:
                            time.sleep(_FLOOD_PAUSE_SECONDS)
        os.close(status_fd)
        self._popen.stderr.close()

    def _hold_init(self) -> None:
        """Take a handle of the PID namespace's init as soon as bwrap tells its number: once init has ended,
        the kernel has ended everything in the namespace."""
        head, newline, _ = self._status.partition(b"\n")
        if self._init_fd is None and newline and b"child-pid" in head:
            try:
                self._init_fd = os.pidfd_open(json.loads(head)["child-pid"])
            except ProcessLookupError:
                return


class _Tail:
    """The last `size` bytes of a stream; safe across two threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept = bytearray()
        self._dropped = 0
        self._lock = threading.Lock()

    def add(self, data: bytes) -> None:
        with self._lock:
            self._kept += data
            excess = len(self._kept) - self._size
            if excess > 0:
                del self._kept[:excess]
                self._dropped += excess

    def text(self) -> str:
        with self._lock:
            text = self._kept.decode("utf-8", "replace")
            return f"[{self._dropped} bytes dropped] {text}" if self._dropped else text
