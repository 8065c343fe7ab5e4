"""Hidden-eval results with their per-item scores, and the baselines of untrained bases."""

from __future__ import annotations

import hashlib
import json
import time

from ai_trains_ai.store.database import Database
from ai_trains_ai.types import EvalResult


def _digest(result: EvalResult) -> str:
    content = [result.family, result.model, result.samples_per_item, [score.hex() for score in result.item_scores]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class EvalRecords:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, result: EvalResult) -> int:
        """Record `result` and return its id; the same scores of the same model are recorded once."""
        with self._database.write() as connection:
            digest = _digest(result)
            known = connection.execute("SELECT id FROM evals WHERE digest = ?", (digest,)).fetchone()
            if known is not None:
                return int(known[0])
            eval_id = connection.execute(
                "INSERT INTO evals (digest, family, model, accuracy, low, high, pass_k, samples_per_item, seconds, "
                "created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    digest,
                    result.family,
                    result.model,
                    result.accuracy,
                    result.low,
                    result.high,
                    result.pass_k,
                    result.samples_per_item,
                    result.seconds,
                    time.time(),
                ),
            ).lastrowid
            connection.executemany(
                "INSERT INTO eval_items (eval_id, position, score) VALUES (?, ?, ?)",
                [(eval_id, position, score) for position, score in enumerate(result.item_scores)],
            )
            assert eval_id is not None
            return eval_id

    def get(self, eval_id: int) -> EvalResult:
        row = self._database.row("SELECT * FROM evals WHERE id = ?", (eval_id,))
        assert row is not None, f"no eval {eval_id}"
        scores = self._database.rows("SELECT score FROM eval_items WHERE eval_id = ? ORDER BY position", (eval_id,))
        return EvalResult(
            family=row["family"],
            model=row["model"],
            accuracy=row["accuracy"],
            low=row["low"],
            high=row["high"],
            pass_k=row["pass_k"],
            item_scores=tuple(score["score"] for score in scores),
            samples_per_item=row["samples_per_item"],
            seconds=row["seconds"],
        )

    def baseline(self, eval_key: str) -> EvalResult | None:
        """The recorded baseline under `eval_key` (see `scoring.baseline`), or None when it was never measured."""
        row = self._database.row("SELECT eval_id FROM baselines WHERE eval_key = ?", (eval_key,))
        return None if row is None else self.get(row["eval_id"])

    def save_baseline(
        self, eval_key: str, result: EvalResult, *, base_sha256: str, secret_id: str, eval_config: str
    ) -> EvalResult:
        """Record a measured baseline and return what the store holds: the first measurement wins a race."""
        with self._database.write() as connection:
            connection.execute(
                "INSERT INTO baselines (eval_key, base, base_sha256, family, secret_id, eval_config, eval_id) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (eval_key) DO NOTHING",
                (
                    eval_key,
                    result.model,
                    base_sha256,
                    result.family,
                    secret_id,
                    eval_config,
                    self.add(result),
                ),
            )
            kept = self.baseline(eval_key)
            assert kept is not None
            return kept
