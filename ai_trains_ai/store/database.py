"""One SQLite file: WAL, whole transactions, and operating-system failures named with their path and fix."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ai_trains_ai.errors import InfrastructureError, UsageError
from ai_trains_ai.store.schema import APPLICATION_ID, MIGRATIONS

BUSY_SECONDS = 60.0
"""How long a writer waits for another process's transaction; ours take milliseconds."""

_FIXES = {
    sqlite3.SQLITE_FULL: "free space on that disk (or point --home or ATA_HOME at another), then run again",
    sqlite3.SQLITE_IOERR: "check that disk's free space, quota and health, then run again",
    sqlite3.SQLITE_CANTOPEN: "check that the folder exists, has free space and is writable",
    sqlite3.SQLITE_READONLY: "make the file and its folder writable for this user",
    sqlite3.SQLITE_PERM: "make the file and its folder readable and writable for this user",
    sqlite3.SQLITE_BUSY: "another process holds the store; end it or wait",
    sqlite3.SQLITE_LOCKED: "another process holds the store; end it or wait",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; restore a copy, or move it away to start afresh",
    sqlite3.SQLITE_NOTADB: "the file is no run store; move it away or point --home elsewhere",
    sqlite3.SQLITE_NOMEM: "free memory, then run again",
    sqlite3.SQLITE_PROTOCOL: "the store needs a local disk; point --home at one that is no network share",
}


def _infrastructure(error: sqlite3.Error, path: Path) -> InfrastructureError | None:
    """The machine's failure behind an SQLite error, or None when the error is a bug of ours."""
    code = getattr(error, "sqlite_errorcode", None)
    # Extended result codes carry the primary one in the low byte.
    fix = _FIXES.get(code & 0xFF) if code is not None else None
    if fix is None:
        return None
    return InfrastructureError(
        f"run store {path}: {error} ({error.sqlite_errorname}). Nothing recorded is lost: {fix}"
    )


class Database:
    """A connection that threads may share; other processes may hold their own on the same file.

    Raises InfrastructureError when the disk or the file lets it down, and leaves the file at the last
    committed transaction. `sqlite3.IntegrityError` and SQL mistakes are bugs of ours and pass through.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._depth = 0
        with self._named():
            self._connection = sqlite3.connect(
                path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        try:
            with self._named():
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._refuse_strangers()
        self._connection.execute("PRAGMA journal_mode = WAL")
        # FULL: what was reported as recorded also survives a power cut, not only kill -9.
        self._connection.execute("PRAGMA synchronous = FULL")
        with self.write():
            version = self._version()
            if version > len(MIGRATIONS):
                raise UsageError(
                    f"{self.path} was written by a newer version of ai-trains-ai (schema {version}, this one "
                    f"knows {len(MIGRATIONS)}): upgrade, or point --home at another folder"
                )
            for migration in MIGRATIONS[version:]:
                for statement in migration:
                    self._connection.execute(statement)
            if version < len(MIGRATIONS):
                self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self._connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    def _refuse_strangers(self) -> None:
        application = self._connection.execute("PRAGMA application_id").fetchone()[0]
        tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and application != APPLICATION_ID:
            raise UsageError(f"{self.path} is another program's database: point --home at another folder")

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            named = _infrastructure(error, self.path)
            if named is None:
                raise
            raise named from error

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction: everything inside is recorded, or nothing is. Nested use joins the outer one."""
        with self._lock, self._named():
            if self._depth:
                yield self._connection
                return
            # IMMEDIATE takes the write lock at once: a later upgrade could fail with "busy" without waiting.
            self._connection.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # A full disk may have rolled back already.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._depth -= 1

    def rows(self, sql: str, parameters: tuple[Any, ...] | dict[str, Any] = ()) -> list[sqlite3.Row]:
        with self._lock, self._named():
            cursor = self._connection.execute(sql, parameters)
            cursor.row_factory = sqlite3.Row
            return cursor.fetchall()

    def row(self, sql: str, parameters: tuple[Any, ...] | dict[str, Any] = ()) -> sqlite3.Row | None:
        """The only row, or None. Asserts that there are not two."""
        found = self.rows(sql, parameters)
        assert len(found) <= 1, f"{len(found)} rows where one was expected: {sql}"
        return found[0] if found else None

    def insert(self, table: str, values: Mapping[str, Any], *, keep: str = "") -> tuple[int, bool]:
        """Insert one row; with `keep` (unique columns), leave a row that is there already as it is.

        Returns the row's number, meaningless when nothing was inserted, and whether it was.
        """
        columns = ", ".join(values)
        marks = ", ".join("?" * len(values))
        conflict = f" ON CONFLICT ({keep}) DO NOTHING" if keep else ""
        with self.write() as connection:
            cursor = connection.execute(
                f"INSERT INTO {table} ({columns}) VALUES ({marks}){conflict}", tuple(values.values())
            )
            return cursor.lastrowid or 0, cursor.rowcount > 0

    def integrity(self) -> str:
        """SQLite's own verdict on the file: "ok", or what is damaged."""
        return str(self.rows("PRAGMA integrity_check")[0][0])

    def close(self) -> None:
        with self._lock:
            self._connection.close()
