"""The system call filter, run by a small BPF machine: no kernel needed, and both processors are covered."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai_trains_ai.sandbox import syscalls
from ai_trains_ai.sandbox.seccomp import ARCHITECTURES, Policy, oci_profile, program

ALLOW, KILL = "allow", "kill"
ALL_CALLS = {**syscalls.ALWAYS, **syscalls.FORKING, **syscalls.KILLING, **syscalls.WRITING}
CLONE_THREAD, CLONE_VM, CLONE_NEWUSER = 0x10000, 0x100, 0x10000000
machines = pytest.mark.parametrize("machine", sorted(ARCHITECTURES))


def verdict(code: bytes, machine: str, number: int, *arguments: int, arch: int | None = None) -> str:
    """What the filter answers to one system call: allow, kill, or the name of an error."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("=IIQ6Q", number, ARCHITECTURES[machine][1] if arch is None else arch, 0, *padded)
    instructions = list(struct.iter_unpack("=HBBI", code))
    accumulator = position = 0
    for _ in range(len(instructions)):
        operation, yes, no, value = instructions[position]
        position += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif operation == 0x54:
            accumulator &= value
        elif operation == 0x15:
            position += yes if accumulator == value else no
        elif operation == 0x35:
            position += yes if accumulator >= value else no
        else:
            assert operation == 0x06
            if value >> 16 == 5:
                return errno.errorcode[value & 0xFFFF]
            return {0x7FFF0000: ALLOW, 0x80000000: KILL}[value]
    raise AssertionError("the filter does not end")


def number_of(name: str, machine: str) -> int:
    number = ALL_CALLS[name][ARCHITECTURES[machine][0]]
    assert number is not None
    return number


@machines
def test_what_is_not_in_the_table_is_refused(machine):
    code = program(Policy(fork=True, write=True), machine)
    known = {numbers[ARCHITECTURES[machine][0]] for numbers in ALL_CALLS.values()}
    for number in range(1024):
        answer = verdict(code, machine, number, 2**32 - 1)
        if number not in known:
            assert answer == ("ENOSYS" if number >= 424 else "EPERM"), number


@machines
def test_other_architectures_and_the_x32_numbers_get_nothing(machine):
    code = program(Policy(), machine)
    others = {value[1] for value in ARCHITECTURES.values()} | {0x40000003, 0x40000028}
    for arch in others - {ARCHITECTURES[machine][1]}:
        assert verdict(code, machine, number_of("read", machine), arch=arch) == KILL
    assert verdict(code, machine, number_of("read", machine)) == ALLOW
    assert verdict(code, machine, number_of("read", machine) | 0x40000000) == "ENOSYS"


@machines
def test_clone_makes_threads_and_never_namespaces(machine):
    namespaces = 0x7E020080
    threads, forks = program(Policy(), machine), program(Policy(fork=True), machine)

    @given(flags=st.integers(0, 2**64 - 1))
    def check(flags: int) -> None:
        number = number_of("clone", machine)
        only_threads = bool(flags & CLONE_THREAD) and not flags & namespaces
        assert (verdict(threads, machine, number, flags) == ALLOW) == only_threads
        assert (verdict(forks, machine, number, flags) == ALLOW) == (not flags & namespaces)

    check()


@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("clone", (CLONE_THREAD | CLONE_VM,), ALLOW),
        ("clone", (17,), "EPERM"),
        ("clone", (CLONE_THREAD | CLONE_NEWUSER,), "EPERM"),
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), "EPERM"),
        ("ioctl", (0, 0x5412 | 1 << 32), "EPERM"),
        ("fcntl", (0, 3), ALLOW),
        ("fcntl", (0, 8), "EPERM"),
        ("prctl", (15,), ALLOW),
        ("prctl", (1,), "EPERM"),
        ("prctl", (22,), "EPERM"),
        ("prlimit64", (0,), ALLOW),
        ("prlimit64", (1,), "EPERM"),
        ("socketpair", (1, 1 | 0o2000000), ALLOW),
        ("socketpair", (1, 2), "EPERM"),
        ("socketpair", (2, 1), "EPERM"),
        ("kill", (1, 9), ALLOW),
        ("openat", (0, 0, 0o1), ALLOW),
        ("truncate", (), "EPERM"),
        ("unlinkat", (), "EPERM"),
    ],
)
@machines
def test_arguments_are_looked_at(machine, name, arguments, answer):
    assert verdict(program(Policy(), machine), machine, number_of(name, machine), *arguments) == answer


@machines
def test_an_old_kernel_gets_a_stricter_filter(machine):
    """Where landlock knows nothing of signals and truncation, the filter refuses them itself."""
    code = program(Policy(signals=False, open_for_writing=False), machine)
    for name in ("kill", "tkill", "tgkill"):
        assert verdict(code, machine, number_of(name, machine), 1, 9) == "EPERM"
    for flags in (0o1, 0o2, 0o100, 0o1000, 0o2 | 0o2000000):
        assert verdict(code, machine, number_of("openat", machine), 0, 0, flags) == "EPERM"
    assert verdict(code, machine, number_of("openat", machine), 0, 0, 0o2000000) == ALLOW


@pytest.mark.parametrize(
    ("machine", "header"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("x86_64", "/usr/include/asm/unistd_64.h"),
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
    ],
)
def test_numbers_are_those_of_the_kernels_headers(machine, header):
    path = Path(header)
    if not path.exists():
        pytest.skip(f"{header} is not installed")
    lines = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)\s*$", path.read_text(), re.MULTILINE)
    official = {name: int(number) for name, number in lines}
    if machine == "aarch64":
        # The generic header names what a 64-bit processor calls by this number.
        official["newfstatat"] = official["fstatat"]
    column = ARCHITECTURES[machine][0]
    for name, numbers in ALL_CALLS.items():
        if numbers[column] is not None:
            assert official.get(name) == numbers[column], name
        elif machine == "x86_64":
            assert name not in official, name


def test_a_containers_profile_says_the_same():
    profile = oci_profile(Policy())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    plain = next(
        entry for entry in profile["syscalls"] if "args" not in entry and entry["action"] == "SCMP_ACT_ALLOW"
    )
    assert "read" in plain["names"]
    assert not {"clone", "fork", "ioctl", "socket", "ptrace", "mount"} & set(plain["names"])
    clones = [entry for entry in profile["syscalls"] if entry["names"] == ["clone"]]
    assert [entry["args"][0]["valueTwo"] for entry in clones] == [CLONE_THREAD]


def test_an_unknown_processor_is_refused():
    with pytest.raises(ValueError, match="riscv64"):
        program(Policy(), "riscv64")
