"""Run inside a sandbox by pick.py: tries what must not work, and prints what it found, as JSON.

Usage: python -I -S -B checks.py, with facts.json beside it. One entry for each property: null if
it holds, else what was possible. Then it waits to be killed. Standard library only; never imported by the
package.
"""

import ctypes
import errno
import json
import os
import resource
import socket
import sys
import time
from typing import Any

Facts = dict[str, Any]

HARMLESS_VARIABLES = {"PWD", "LC_CTYPE", "PATH", "TERM", "container", "HOSTNAME", "HOME"}
"""Set by bwrap, Python or a container engine, from nothing of the launcher's."""


def files(facts: Facts) -> str | None:
    for path in facts["unreadable"]:
        try:
            with open(path, "rb"):
                return f"{path} could be opened"
        except OSError:
            continue
    return None


def writing(facts: Facts) -> str | None:
    for folder in (".", "/", "/tmp", "/var/tmp", "/dev/shm", "/dev", *facts["folders"]):
        try:
            os.close(os.open(f"{folder}/written", os.O_WRONLY | os.O_CREAT, 0o600))
            return f"a file could be made in {folder}"
        except OSError:
            continue
    with open("/dev/null", "wb") as null:
        null.write(b"x")
    return None


def environment(_: Facts) -> str | None:
    extra = set(os.environ) - HARMLESS_VARIABLES
    return f"variables from outside: {sorted(extra)}" if extra else None


def descriptors(_: Facts) -> str | None:
    for fd in range(3, 256):
        try:
            os.fstat(fd)
            return f"descriptor {fd} is open"
        except OSError:
            continue
    return None


def network(facts: Facts) -> str | None:
    try:
        with socket.create_connection(("127.0.0.1", facts["port"]), timeout=1):
            return "a connection to the machine's loopback succeeded"
    except OSError:
        return None


def processes(facts: Facts) -> str | None:
    if facts["launcher"] <= 3:
        return None  # in a PID namespace of its own, these numbers are its own processes'
    try:
        os.kill(facts["launcher"], 0)
        return "the launcher can be signalled"
    except OSError:
        return None


def forking(_: Facts) -> str | None:
    try:
        child = os.fork()
    except OSError:
        return None
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return "a process could be forked"


def memory(facts: Facts) -> str | None:
    try:
        bytearray(facts["memory_bytes"])
        return "more memory than allowed could be had"
    except MemoryError:
        return None


def limits(_: Facts) -> str | None:
    for kind in ("RLIMIT_CPU", "RLIMIT_NPROC", "RLIMIT_NOFILE", "RLIMIT_CORE"):
        if resource.getrlimit(getattr(resource, kind))[1] == resource.RLIM_INFINITY:
            return f"{kind} is not limited"
    return None


def privileges(_: Facts) -> str | None:
    if os.getuid() == 0:
        return "it runs as root"
    libc = ctypes.CDLL(None, use_errno=True)
    get_no_new_privs, clone_newuser = 39, 0x10000000
    if libc.prctl(get_no_new_privs, 0, 0, 0, 0) != 1:
        return "set-user-ID programs still work"
    if libc.unshare(clone_newuser) == 0 or ctypes.get_errno() != errno.EPERM:
        return "the system call filter is missing"
    return None


def main() -> None:
    with open("facts.json", encoding="utf-8") as file:
        facts = json.load(file)
    properties = (
        files, writing, environment, descriptors, network, processes, forking, memory, limits, privileges
    )  # fmt: skip
    print(json.dumps({check.__name__: check(facts) for check in properties}))
    sys.stdout.flush()
    time.sleep(3600)


main()
