"""How long a process tree was ready to run and got no processor, so that a busy machine fails no job.

A deadline on the wall clock punishes a job for its neighbours. Linux counts, for each thread, the time it was
runnable but waiting (`/proc/PID/task/TID/schedstat`, second field, nanoseconds): zero for a job that sleeps
or hangs on a lock, the neighbours' share for one that computes. Deadlines move by that much, within a factor.
Where the kernel does not tell (macOS, no /proc), nothing moves.
"""

from __future__ import annotations

import os

Waits = dict[int, float]


def waits_of_tree(pid: int) -> Waits:
    """Thread id -> seconds it has waited for a processor, for every thread of `pid` and its descendants."""
    waits: Waits = {}
    pending, seen = [pid], set()
    while pending:
        process = pending.pop()
        if process in seen:
            continue
        seen.add(process)
        try:
            threads = os.listdir(f"/proc/{process}/task")
        except OSError:
            continue  # it has ended
        for thread in threads:
            try:
                with open(f"/proc/{process}/task/{thread}/schedstat", encoding="ascii") as file:
                    waits[int(thread)] = int(file.read().split()[1]) / 1e9
                with open(f"/proc/{process}/task/{thread}/children", encoding="ascii") as file:
                    pending += [int(child) for child in file.read().split()]
            except (OSError, ValueError, IndexError):
                continue
    return waits


class Patience:
    """The seconds to add to a deadline that began when this was made."""

    def __init__(self, pid: int, most: float) -> None:
        """`most` bounds the addition: a job may not make itself wait for ever."""
        self._pid, self._most = pid, most
        self._before = waits_of_tree(pid)

    def seconds(self) -> float:
        """How long the most starved thread has waited since the beginning, at most `most`."""
        now = waits_of_tree(self._pid)
        longest = max((wait - self._before.get(thread, 0.0) for thread, wait in now.items()), default=0.0)
        return min(longest, self._most)
