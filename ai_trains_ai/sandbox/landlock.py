"""Landlock through `ctypes`: after `Ruleset.enforce()` the process opens what its rules grant and nothing
else.

Source: the kernel's userspace-api/landlock. What landlock does not know, whatever the version: stat() and
readlink() on any path, chmod(), chown(), utime(). Seccomp refuses those that change something.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct

from ai_trains_ai.sandbox import prctl

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | 1 << 15
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH = 1
_VERSION_FLAG = 1

HANDLED_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
"""ABI version -> every file access it can refuse; later versions as 5."""
_NETWORK_SINCE, _NETWORK = 4, 0b11
_SCOPES_SINCE, _SCOPES = 6, 0b11
"""Abstract unix sockets and signals stay inside the domain."""

TRUNCATE_SINCE = 3
SIGNALS_SINCE = _SCOPES_SINCE

_libc = ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """The kernel's landlock version, 0 where it has none or a filter of the surroundings hides it."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)))


class Ruleset:
    """Paths and what may be done beneath them. Raises OSError where the kernel refuses."""

    def __init__(self) -> None:
        version = abi()
        if not version:
            raise OSError("this kernel offers no landlock")
        self._handled = HANDLED_FILES[min(version, max(HANDLED_FILES))]
        network = _NETWORK if version >= _NETWORK_SINCE else 0
        scopes = _SCOPES if version >= _SCOPES_SINCE else 0
        attributes = struct.pack("=QQQ", self._handled, network, scopes)
        self.fd = _checked(_libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0))

    def allow(self, path: str, rights: int) -> None:
        """Grant `rights` on `path` and, for a directory, on everything beneath it."""
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                rights &= _FILE_RIGHTS
            rule = struct.pack("=Qi", rights & self._handled, fd)
            _checked(_libc.syscall(_ADD_RULE, self.fd, _RULE_PATH_BENEATH, rule, 0))
        finally:
            os.close(fd)

    def enforce(self) -> None:
        """Restrict the calling process and its descendants, for good. Sets no_new_privs."""
        prctl.prctl(prctl.SET_NO_NEW_PRIVS, 1)
        _checked(_libc.syscall(_RESTRICT_SELF, self.fd, 0))
        os.close(self.fd)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"landlock: {os.strerror(number)}")
    return result
