"""The first program of every sandbox, run outside of it as `python -I -S -c BOOT FD ROOT`.

It exists because limits and a change of user must happen between fork and exec, and running Python there in
a process with threads (torch's) can deadlock. It imports little: each import is start-up time of every job.

    launcher ──spawn──> stage ──exec──> bwrap ──> job             spec["supervise"] is false
                        stage ──fork──> job                       true: reduced, container, unsafe
                          └─ becomes the supervisor, see supervisor.py

The status pipe takes one JSON object a line, as bwrap's --json-status-fd: `{"exit-code": n}` once a job that
really started has ended, `{"failed": "reason"}` when the sandbox could not be built. The job never holds it.
"""

from __future__ import annotations

import marshal
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ai_trains_ai.sandbox.spawn import StageSpec

_SIGKILL = 9
FAILED = 125
"""The stage's own exit code when there is no job's to pass on."""


def main() -> None:
    with open(int(sys.argv[1]), "rb") as file:
        spec: StageSpec = marshal.load(file)
    try:
        if spec["supervise"]:
            from ai_trains_ai.sandbox.supervisor import supervise

            code = supervise(spec)
        else:
            become(spec)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the launcher has to hear of it
        os.write(spec["status_fd"], b'{"failed": "%s"}\n' % _json_text(f"{type(error).__name__}: {error}"))
        code = FAILED
    os._exit(code)


def _json_text(text: str) -> bytes:
    """What json.dumps gives between the quotes, for ASCII; "?" for the rest. The json module itself may be
    out of reach by now: the user that we have become need not be able to read our Python's library."""
    escaped = (char if char.isprintable() and char not in '"\\' else f"\\u{ord(char):04x}" for char in text)
    return "".join(escaped).encode("ascii", "replace")


def become(spec: StageSpec) -> None:
    """Turn into spec["argv"] with the job's limits and user. Returns only by raising."""
    from ai_trains_ai.sandbox import prctl  # now: later we may be a user who cannot read this package

    limit(spec)
    change_user(spec)
    # bwrap asks for this too, but whoever died before it did so would be missed.
    prctl.prctl(prctl.SET_PDEATHSIG, _SIGKILL)
    if os.getppid() != spec["launcher"]:
        raise ProcessLookupError("whoever started this sandbox is gone")
    os.execve(spec["argv"][0], spec["argv"], spec["environment"])


def limit(spec: StageSpec) -> None:
    """Set soft and hard limits, never above the present hard ones."""
    for name, wanted in spec["rlimits"].items():
        kind = getattr(resource, name, None)
        if kind is not None:  # e.g. RLIMIT_MSGQUEUE exists on Linux alone
            _, hard = resource.getrlimit(kind)
            value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(kind, (value, value))


def change_user(spec: StageSpec) -> None:
    uid = spec["uid"]
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
