"""The run store: every value that passed between the parts, in one SQLite file."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from ai_trains_ai.errors import boundary
from ai_trains_ai.store.database import Database
from ai_trains_ai.store.evals import EvalRecords
from ai_trains_ai.store.events import EventRecords
from ai_trains_ai.store.runs import RunRecords


class Store:
    """Opens or creates the store at `path`. Safe for several threads and several processes at once.

    Each recording method is one transaction; `transaction()` joins several. What a method returned from is
    on disk: kill -9 at any moment loses nothing recorded. Raises InfrastructureError, naming the path and
    the fix, when the disk is full or fails, and UsageError for a file that is not a store of this version.
    """

    def __init__(self, path: Path) -> None:
        with boundary(f"run store {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
        self.database = Database(path)
        self.transaction = self.database.write
        self.evals = EvalRecords(self.database)
        self.runs = RunRecords(self.database, self.evals)
        self.events = EventRecords(self.database)

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
