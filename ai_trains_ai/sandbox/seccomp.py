"""The seccomp filter that every level puts on a job's process: an allowlist, as BPF and as an OCI profile.

Sources: seccomp(2), the kernel's `linux/filter.h` and `linux/seccomp.h`, and the OCI runtime specification.

Refused calls get EPERM. Those with numbers from 424 on get ENOSYS instead, because C libraries try new
calls (`clone3`, `openat2`) first and fall back only on that answer. A program for another architecture
(32-bit calls on a 64-bit kernel) kills the process; x32 calls match no number and are refused.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass
from typing import Any

from ai_trains_ai.sandbox import syscalls

ARCHITECTURES = {
    "x86_64": (0, 0xC000003E, "SCMP_ARCH_X86_64"),
    "aarch64": (1, 0xC00000B7, "SCMP_ARCH_AARCH64"),
}
"""Machine -> column of the system call table, AUDIT_ARCH constant, name in an OCI profile."""

_LOAD, _AND, _JUMP_EQ, _JUMP_GE, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_RET_ALLOW, _RET_ERRNO, _RET_KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NR, _ARCH, _ARGS = 0, 4, 16
_WHOLE = 0xFFFFFFFF

_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020080
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME."""
_OPEN_CHANGES = 0o3 | 0o100 | 0o1000
"""O_ACCMODE, O_CREAT, O_TRUNC: opening that needs none of them changes nothing."""

_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032)
"""F_DUPFD F_GETFD F_SETFD F_GETFL F_SETFL F_GETLK F_SETLK F_SETLKW F_DUPFD_CLOEXEC F_GETPIPE_SZ. Not
F_SETOWN: it makes the kernel send SIGIO to any process of the same user."""
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS TIOCGWINSZ FIONREAD FIONBIO FIONCLEX FIOCLEX. Not TIOCSTI, which types into the caller's
terminal."""
_PRCTL = (2, 3, 15, 16, 23, 39, 0x53564D41)
"""PR_GET_PDEATHSIG GET_DUMPABLE SET_NAME GET_NAME CAPBSET_READ GET_NO_NEW_PRIVS SET_VMA. Not
PR_SET_PDEATHSIG: it would let a job outlive whoever started it."""


@dataclass(frozen=True, slots=True)
class Condition:
    """`arguments[index] & mask == value`, on the lower 32 bits: all that the kernel reads of these
    arguments."""

    index: int
    value: int
    mask: int = _WHOLE


@dataclass(frozen=True, slots=True)
class Policy:
    """What differs between sandboxes; everything else is fixed.

    fork:    new processes, not threads alone.
    signals: sending signals; True where a PID namespace, another user or landlock keeps them inside.
    write:   changing files; True for a sandbox with a scratch directory.
    open_for_writing: opening for writing at all, True where something else decides which paths (a read-only
             mount, landlock that knows of truncation).
    """

    fork: bool = False
    signals: bool = True
    write: bool = False
    open_for_writing: bool = True


Alternatives = tuple[tuple[Condition, ...], ...]


def rules(policy: Policy) -> dict[str, Alternatives]:
    """System call name -> conditions, of which one alternative must hold; () means always allowed."""
    clone_mask = _CLONE_NAMESPACES | (0 if policy.fork else _CLONE_THREAD)
    allowed: dict[str, Alternatives] = dict.fromkeys(syscalls.ALWAYS, ())
    if policy.fork:
        allowed |= dict.fromkeys(syscalls.FORKING, ())
    if policy.signals:
        allowed |= dict.fromkeys(syscalls.KILLING, ())
    if policy.write:
        allowed |= dict.fromkeys(syscalls.WRITING, ())
    if not policy.open_for_writing:
        allowed["open"] = ((Condition(1, 0, _OPEN_CHANGES),),)
        allowed["openat"] = ((Condition(2, 0, _OPEN_CHANGES),),)
    allowed["clone"] = ((Condition(0, 0 if policy.fork else _CLONE_THREAD, clone_mask),),)
    allowed["fcntl"] = tuple((Condition(1, command),) for command in _FCNTL)
    allowed["ioctl"] = tuple((Condition(1, command),) for command in _IOCTL)
    allowed["prctl"] = tuple((Condition(0, option),) for option in _PRCTL)
    allowed["prlimit64"] = ((Condition(0, 0),),)
    # AF_UNIX and SOCK_STREAM: a datagram socket could be sent to any address without connect().
    allowed["socketpair"] = ((Condition(0, 1), Condition(1, 1, 0xF)),)
    return allowed


def supported() -> bool:
    return platform.machine() in ARCHITECTURES


def program(policy: Policy, machine: str | None = None) -> bytes:
    """The filter as an array of `struct sock_filter`, for prctl(PR_SET_SECCOMP) and for `bwrap --seccomp`.

    machine: as platform.machine() names it; by default this one.

    Raises ValueError on an architecture whose system call numbers are not in the table.
    """
    column, audit_arch, _ = _architecture(machine or platform.machine())
    numbers = {**syscalls.ALWAYS, **syscalls.FORKING, **syscalls.KILLING, **syscalls.WRITING}
    code = [
        (_LOAD, 0, 0, _ARCH),
        (_JUMP_EQ, 1, 0, audit_arch),
        (_RETURN, 0, 0, _RET_KILL),
        (_LOAD, 0, 0, _NR),
    ]
    for name, alternatives in rules(policy).items():
        number = numbers[name][column]
        if number is not None:
            block = _block(alternatives)
            code += [(_JUMP_EQ, 0, len(block), number), *block]
    code += [
        (_JUMP_GE, 1, 0, syscalls.FIRST_SHARED),
        (_RETURN, 0, 0, _RET_ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _RET_ERRNO | errno.ENOSYS),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _block(alternatives: Alternatives) -> list[tuple[int, int, int, int]]:
    if not alternatives:
        return [(_RETURN, 0, 0, _RET_ALLOW)]
    block: list[tuple[int, int, int, int]] = []
    for conditions in alternatives:
        tests: list[tuple[int, int, int, int]] = []
        for condition in conditions:
            tests.append((_LOAD, 0, 0, _ARGS + 8 * condition.index))
            if condition.mask != _WHOLE:
                tests.append((_AND, 0, 0, condition.mask))
            tests.append((_JUMP_EQ, 0, 0, condition.value))
        # A test that fails jumps behind this alternative's RETURN.
        for position, (operation, _, _, value) in enumerate(tests):
            if operation == _JUMP_EQ:
                tests[position] = (_JUMP_EQ, 0, len(tests) - position, value)
        block += [*tests, (_RETURN, 0, 0, _RET_ALLOW)]
    block.append((_RETURN, 0, 0, _RET_ERRNO | errno.EPERM))
    assert len(block) < 256, "BPF jumps are 8 bits"
    return block


def oci_profile(policy: Policy) -> dict[str, Any]:
    """The same filter as a container engine's `--security-opt seccomp=FILE` takes it, as plain data."""
    _, _, name = _architecture(platform.machine())
    entries: list[dict[str, Any]] = []
    plain = [call for call, alternatives in rules(policy).items() if not alternatives]
    entries.append({"names": sorted(plain), "action": "SCMP_ACT_ALLOW"})
    for call, alternatives in rules(policy).items():
        for conditions in alternatives:
            tests = [
                {"index": c.index, "value": c.mask, "valueTwo": c.value, "op": "SCMP_CMP_MASKED_EQ"}
                for c in conditions
            ]
            entries.append({"names": [call], "action": "SCMP_ACT_ALLOW", "args": tests})
    entries.append({"names": ["clone3", "openat2"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS})
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,
        "architectures": [name],
        "syscalls": entries,
    }


def _architecture(machine: str) -> tuple[int, int, str]:
    if machine not in ARCHITECTURES:
        raise ValueError(f"no system call table for {machine}: only {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[machine]
