"""What happened, in order: restarts, retries, cache hits, removals. For people and for metrics, never for
control.
"""

from __future__ import annotations

import json
import time
from typing import Any

from ai_trains_ai.store.database import Database


class EventRecords:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, kind: str, run_id: str | None = None, **payload: Any) -> None:
        with self._database.write() as connection:
            connection.execute(
                "INSERT INTO events (at, run_id, kind, payload) VALUES (?, ?, ?, ?)",
                (time.time(), run_id, kind, json.dumps(payload)),
            )

    def all(self, run_id: str | None = None) -> list[dict[str, Any]]:
        """Events in order, of one run or of all, as {at, run_id, kind, ...payload}."""
        where = "" if run_id is None else "WHERE run_id = ? "
        rows = self._database.rows(
            f"SELECT * FROM events {where}ORDER BY id", () if run_id is None else (run_id,)
        )
        return [
            {"at": row["at"], "run_id": row["run_id"], "kind": row["kind"], **json.loads(row["payload"])}
            for row in rows
        ]
