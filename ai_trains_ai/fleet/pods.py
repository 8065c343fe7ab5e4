"""The pods that were rented, as the store has them: written before a pod is created, kept after its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ai_trains_ai.store.database import Database

PodState = Literal["intended", "booting", "ready", "busy", "ending", "gone"]


@dataclass(frozen=True, slots=True)
class PodRecord:
    """dollars: per hour. touched: when its dead-man timer was last reset. Times are wall-clock seconds."""

    name: str
    pod_id: str | None
    state: PodState
    gpu: str
    cloud: str
    dollars: float
    created: float
    touched: float
    idle_since: float | None
    ended: float | None
    reason: str | None

    def cost(self, now: float) -> float:
        """Dollars up to now. Counted from the intent on, so never below the bill."""
        return self.dollars * ((now if self.ended is None else self.ended) - self.created) / 3600.0


class PodRecords:
    """The pods of one pool: those whose names begin with `prefix`."""

    def __init__(self, database: Database, prefix: str, now: Callable[[], float]) -> None:
        self._database = database
        self._prefix = prefix
        self._now = now

    def intend(self, name: str, gpu: str, cloud: str, dollars: float) -> None:
        assert name.startswith(self._prefix), name
        now = self._now()
        values = {"name": name, "state": "intended", "gpu": gpu, "cloud": cloud, "dollars": dollars}
        self._database.insert("pods", {**values, "created": now, "touched": now})

    def created(self, name: str, pod_id: str, dollars: float) -> None:
        """The service has it. The pod's timer began at the latest now."""
        self._set(
            name,
            "state = CASE state WHEN 'intended' THEN 'booting' ELSE state END, pod_id = ?, dollars = ?",
            (pod_id, dollars),
        )

    def ready(self, name: str) -> None:
        self._set(name, "state = 'ready', idle_since = ?", (self._now(),))

    def touched(self, name: str) -> None:
        self._set(name, "touched = ?", (self._now(),))

    def ending(self, name: str, reason: str) -> None:
        """It is to be terminated; the first reason stays."""
        self._set(name, "state = 'ending', idle_since = NULL, reason = coalesce(reason, ?)", (reason,))

    def gone(self, name: str, reason: str, at: float | None = None) -> None:
        """at: when its bill ended, if not now."""
        self._set(
            name,
            "state = 'gone', ended = ?, reason = coalesce(reason, ?)",
            (self._now() if at is None else at, reason),
        )

    def take(self) -> PodRecord | None:
        """Make the pod that has been idle for the shortest time busy: the others may then be given up."""
        with self._database.write():
            row = self._database.row(
                "SELECT name FROM pods WHERE state = 'ready' AND substr(name, 1, ?) = ?"
                " ORDER BY idle_since DESC, name LIMIT 1",
                (len(self._prefix), self._prefix),
            )
            if row is None:
                return None
            self._set(row["name"], "state = 'busy', idle_since = NULL", ())
            return self.get(row["name"])

    def get(self, name: str) -> PodRecord:
        row = self._database.row("SELECT * FROM pods WHERE name = ?", (name,))
        assert row is not None, f"no pod {name}"
        return PodRecord(**dict(row))

    def all(self) -> list[PodRecord]:
        rows = self._database.rows(
            "SELECT * FROM pods WHERE substr(name, 1, ?) = ? ORDER BY created, name",
            (len(self._prefix), self._prefix),
        )
        return [PodRecord(**dict(row)) for row in rows]

    def live(self) -> list[PodRecord]:
        """All that may be costing money, oldest first."""
        return [record for record in self.all() if record.state != "gone"]

    def _set(self, name: str, assignments: str, values: tuple[object, ...]) -> None:
        """A pod that is gone stays gone: whoever comes late changes nothing."""
        with self._database.write() as connection:
            connection.execute(
                f"UPDATE pods SET {assignments} WHERE name = ? AND state <> 'gone'", (*values, name)
            )
