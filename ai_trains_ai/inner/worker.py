"""A warm worker process: torch imported once, bases kept in memory, one request at a time.

    python -m ai_trains_ai.inner.worker --parent=PID [--device=cpu] [--unsafe-no-sandbox]
                                        [--base NAME=FOLDER]...

    stdin  ── reader thread ──> queue ──> main thread: probe | train | sample | warm | ping | stop
    stdout <── events and the answer ──────────┘        (anything printed goes to stderr instead)

`inner.wire` describes the messages, `inner.workshop` does the work, `inner.client` is the other side.
End-of-file on stdin means that the driver is gone: the reader thread then kills this process and all in its
session, also in the middle of a job. The kernel's parent-death signal does the same should another process have
inherited the pipe.
"""

from __future__ import annotations

import argparse
import functools
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ai_trains_ai.errors import InfrastructureError
from ai_trains_ai.inner import wire
from ai_trains_ai.inner.workshop import Workshop
from ai_trains_ai.sandbox.prctl import SET_PDEATHSIG, prctl


def serve(channel: wire.Channel, workshop: Workshop) -> None:
    """Answer requests until told to stop."""
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(channel, requests), daemon=True).start()
    while True:
        request = requests.get()
        number, op = request.pop("id"), request.pop("op")
        if op == "stop":
            return

        def emit(event: str, payload: Mapping[str, Any], number: int = number) -> None:
            channel.send({"id": number, "event": event, **payload})

        try:
            answer = {"id": number, "result": workshop.handle(op, request, emit)}
        except Exception as error:  # noqa: BLE001 - the border: a failure becomes a message with its owner
            answer = {"id": number, "error": wire.encode_error(_attributed(error), traceback.format_exc())}
        channel.send(answer)
        warm_up()


@functools.cache
def warm_up() -> None:
    """Import what torch puts off until the first optimizer (over a second, once), while nobody waits for it."""
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])


def _attributed(error: Exception) -> Exception:
    """Running out of memory is the machine's failure, also when torch reports it as a RuntimeError."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return InfrastructureError(f"out of memory: {error}")
    return error


def _read(channel: wire.Channel, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    while True:
        try:
            message = channel.receive()
        except InfrastructureError as error:
            print(error, file=sys.stderr, flush=True)
            message = None
        if message is None:
            _end_session()
            return
        requests.put(message)


def _end_session() -> None:
    """Kill this process and whatever it started, now. The session is ours alone (see `_detach`)."""
    os.killpg(os.getpid(), signal.SIGKILL)


def _detach(parent: int) -> None:
    """Become a session leader, and die with `parent`.

    The kernel sends the parent-death signal when the *thread* that started us ends, so it only makes us look.
    """
    if os.getpgrp() != os.getpid():
        os.setsid()

    def on_signal(_number: int, _frame: object) -> None:
        if os.getppid() != parent:
            _end_session()

    signal.signal(signal.SIGUSR1, on_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    if sys.platform == "linux":
        prctl(SET_PDEATHSIG, signal.SIGUSR1)
    if os.getppid() != parent:
        _end_session()


def private_pipes() -> wire.Channel:
    """Take stdin and stdout for the messages; a stray print then goes to stderr and cannot corrupt them."""
    channel = wire.Channel(os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return channel


def main() -> None:
    parser = argparse.ArgumentParser(description="A warm worker; started by ata, not by hand.")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--unsafe-no-sandbox", action="store_true")
    parser.add_argument("--base", action="append", default=[], metavar="NAME=FOLDER")
    arguments = parser.parse_args()
    folders = {name: Path(folder) for name, _, folder in (item.partition("=") for item in arguments.base)}
    _detach(arguments.parent)
    channel = private_pipes()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    workshop = Workshop(
        unsafe_no_sandbox=arguments.unsafe_no_sandbox, folders=folders, device=arguments.device
    )
    serve(channel, workshop)


if __name__ == "__main__":
    main()
