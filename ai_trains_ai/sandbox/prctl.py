"""prctl(2) through `ctypes`, and the seccomp filter that is installed with it."""

from __future__ import annotations

import ctypes
import os

SET_PDEATHSIG, SET_DUMPABLE, SET_SECCOMP, SET_CHILD_SUBREAPER, SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38
_SECCOMP_MODE_FILTER = 2


class _FilterProgram(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def prctl(option: int, *values: int) -> None:
    """Raises OSError where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, *(ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4])):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def install_filter(program: bytes) -> None:
    """Put a seccomp filter (an array of `struct sock_filter`) on the calling thread and all it becomes."""
    prctl(SET_NO_NEW_PRIVS, 1)
    structure = _FilterProgram(len(program) // 8, program)
    prctl(SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(structure))
