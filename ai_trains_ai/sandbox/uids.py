"""One user number a running sandbox, when we are root: limits and signals then stop at its own processes."""

from __future__ import annotations

import os
import random
import socket

from ai_trains_ai.errors import InfrastructureError

FIRST, COUNT = 60_600, 512
"""Within 60578-61183, which systemd's UID table leaves unused, and below 65536, so that it exists in
containers."""


class UidLease:
    """A user number that no other sandbox on this machine has, until `release()`.

    Held as an abstract unix socket: the kernel frees it when its holder dies, and there is no file to clean
    up.
    """

    def __init__(self) -> None:
        """Raises InfrastructureError if all are taken."""
        offsets = random.sample(range(COUNT), COUNT)
        for offset in offsets:
            holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                holder.bind(f"\0ai-trains-ai/uid/{FIRST + offset}")
            except OSError:
                holder.close()
                continue
            self.uid = FIRST + offset
            self._holder = holder
            return
        raise InfrastructureError(f"sandbox: all {COUNT} user numbers from {FIRST} on are in use")

    def release(self) -> None:
        self._holder.close()


def lease_if_root() -> UidLease | None:
    """None for an ordinary user, who cannot become another one."""
    return UidLease() if os.geteuid() == 0 else None
