"""The launcher's environment, memory, descriptors and kernel objects stay its own."""

from __future__ import annotations

import ctypes
import os
import platform
import tempfile

import pytest

from ai_trains_ai.sandbox.base import SandboxLimits

HARMLESS = {"PWD", "LC_CTYPE"}
ENGINES_OWN = {"PATH", "TERM", "container", "HOSTNAME", "HOME"}


def test_no_environment_variable_comes_in(box):
    names = box.run("tell(names=sorted(os.environ))").told["names"]
    assert set(names) <= HARMLESS | (ENGINES_OWN if box.level == "container" else set())


def test_no_process_shows_the_launchers_environment(box):
    """`--clearenv` alone would leave it in /proc/1/environ."""
    result = box.run(
        """
seen = []
for number in [*range(1, 64), facts["launcher"], os.getppid(), "self"]:
    for name in ("environ", "cmdline", "maps"):
        try:
            with open(f"/proc/{number}/{name}", "rb") as file:
                seen.append(file.read().decode("utf-8", "replace"))
        except OSError:
            pass
tell(seen=seen)
"""
    ).told
    everything = "\n".join(result["seen"])
    assert "HOME=/root" not in everything
    assert "PYTEST_CURRENT_TEST" not in everything
    assert "PYTHONPATH=" not in everything
    if box.level != "container":
        assert everything == ""


def test_the_launchers_memory_cannot_be_read(box):
    result = box.run(
        """
pid = facts["launcher"]
trace, read_memory, get_fd, open_pid = facts["numbers"]
buffer = ctypes.create_string_buffer(8)
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
local = Piece(ctypes.cast(buffer, ctypes.c_void_p), 8)
remote = Piece(facts["address"], 8)
tell(
    seize=syscall(trace, 0x4206, pid, 0, 0),
    vm_read=syscall(read_memory, pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0),
    pidfd=syscall(open_pid, pid, 0),
    getfd=syscall(get_fd, 0, 0, 0),
    mem=attempt(open, f"/proc/{pid}/mem", "rb"),
    own=attempt(open, "/proc/self/mem", "rb") if facts["level"] != "container" else "EACCES",
    bytes=buffer.raw.hex(),
)
""",
        facts={
            "numbers": _numbers("ptrace", "process_vm_readv", "pidfd_getfd", "pidfd_open"),
            "address": _SECRET,
        },
    ).told
    assert result.pop("bytes") == "00" * 8
    assert set(result.values()) <= {"EPERM", "ENOSYS", "ENOENT", "EACCES"}, result


def test_no_descriptor_is_inherited(sandbox):
    """Not even one that the launcher left open for its children."""
    with tempfile.TemporaryFile() as secret:
        os.set_inheritable(secret.fileno(), True)
        source = "import os\nfor fd in range(3, 1024):\n try: os.fstat(fd); print(fd)\n except OSError: pass"
        argv = [sandbox.python, "-I", "-S", "-B", "-c", source]
        with sandbox.start(argv, files={}, limits=SandboxLimits()) as process:
            assert process.stdout.read() == b""
            assert process.wait(20) == 0


def test_kernel_objects_are_out_of_reach(box):
    """System V memory, keyrings, BPF, performance counters, namespaces, mounts, io_uring: refused as
    calls."""
    names = (
        *(
            "shmget",
            "msgget",
            "semget",
            "add_key",
            "keyctl",
            "request_key",
            "bpf",
            "perf_event_open",
            "userfaultfd",
        ),
        *(
            "unshare",
            "setns",
            "mount",
            "umount2",
            "pivot_root",
            "chroot",
            "swapon",
            "reboot",
            "init_module",
            "kexec_load",
        ),
        *("io_uring_setup", "memfd_create", "memfd_secret", "open_by_handle_at", "fanotify_init", "mknodat"),
        *("setuid", "setgid", "setgroups", "capset", "personality", "quotactl", "clone3", "process_madvise"),
        *("mount_setattr", "fsopen", "open_tree", "move_mount", "kcmp", "lookup_dcookie"),
    )
    numbers = {
        name: number for name, number in zip(names, _numbers(*names), strict=True) if number is not None
    }
    result = box.run(
        """
zero = [ctypes.c_long(0)] * 5
tell(**{name: syscall(number, ctypes.c_long(facts["clone_newuser"] if name == "unshare" else 0), *zero)
        for name, number in facts["numbers"].items()})
""",
        facts={"numbers": numbers, "clone_newuser": 0x10000000},
    ).told
    assert len(result) > 25
    assert set(result.values()) <= {"EPERM", "ENOSYS"}, result


_BUFFER = ctypes.create_string_buffer(b"a secret")
_SECRET = ctypes.addressof(_BUFFER)

_X86_64 = {
    **{
        "ptrace": 101,
        "process_vm_readv": 310,
        "pidfd_getfd": 438,
        "pidfd_open": 434,
        "shmget": 29,
        "msgget": 68,
    },
    **{"semget": 64, "add_key": 248, "keyctl": 250, "request_key": 249, "bpf": 321, "perf_event_open": 298},
    **{"userfaultfd": 323, "unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155},
    **{
        "chroot": 161,
        "swapon": 167,
        "reboot": 169,
        "init_module": 175,
        "kexec_load": 246,
        "io_uring_setup": 425,
    },
    **{
        "memfd_create": 319,
        "memfd_secret": 447,
        "open_by_handle_at": 304,
        "fanotify_init": 300,
        "mknodat": 259,
    },
    **{"setuid": 105, "setgid": 106, "setgroups": 116, "capset": 126, "personality": 135},
    **{"quotactl": 179, "clone3": 435, "process_madvise": 440, "mount_setattr": 442, "fsopen": 430},
    **{"open_tree": 428, "move_mount": 429, "kcmp": 312, "lookup_dcookie": 212},
}
_ARM = {
    **{
        "ptrace": 117,
        "process_vm_readv": 270,
        "pidfd_getfd": 438,
        "pidfd_open": 434,
        "shmget": 194,
        "msgget": 186,
    },
    **{"semget": 190, "add_key": 217, "keyctl": 219, "request_key": 218, "bpf": 280, "perf_event_open": 241},
    **{
        "userfaultfd": 282,
        "unshare": 97,
        "setns": 268,
        "mount": 40,
        "umount2": 39,
        "pivot_root": 41,
        "chroot": 51,
    },
    **{"swapon": 224, "reboot": 142, "init_module": 105, "kexec_load": 104, "io_uring_setup": 425},
    **{
        "memfd_create": 279,
        "memfd_secret": 447,
        "open_by_handle_at": 265,
        "fanotify_init": 262,
        "mknodat": 33,
    },
    **{"setuid": 146, "setgid": 144, "setgroups": 159, "capset": 91, "personality": 92, "clone3": 435},
    **{"process_madvise": 440, "mount_setattr": 442, "fsopen": 430, "open_tree": 428, "move_mount": 429},
}


def _numbers(*names: str) -> list[int | None]:
    table = {"x86_64": _X86_64, "aarch64": _ARM}.get(platform.machine())
    if table is None:
        pytest.skip("system call numbers of this processor are not in this test")
    return [table.get(name) for name in names]
