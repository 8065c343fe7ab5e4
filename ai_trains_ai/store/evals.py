"""Hidden-eval results with their per-item scores, and the baselines of untrained bases."""

from __future__ import annotations

import hashlib
import json
import time

from ai_trains_ai.store.database import Database
from ai_trains_ai.types import EvalResult


def _digest(result: EvalResult) -> str:
    scores = [score.hex() for score in result.item_scores]
    content = [result.family, result.model, result.samples_per_item, scores]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class EvalRecords:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, result: EvalResult) -> int:
        """Record `result` and return its id; the same scores of the same model are recorded once."""
        digest = _digest(result)
        with self._database.write() as connection:
            known = connection.execute("SELECT id FROM evals WHERE digest = ?", (digest,)).fetchone()
            if known is not None:
                return int(known[0])
            eval_id, _ = self._database.insert(
                "evals",
                {
                    "digest": digest,
                    "family": result.family,
                    "model": result.model,
                    "accuracy": result.accuracy,
                    "low": result.low,
                    "high": result.high,
                    "pass_k": result.pass_k,
                    "samples_per_item": result.samples_per_item,
                    "seconds": result.seconds,
                    "created": time.time(),
                },
            )
            connection.executemany(
                "INSERT INTO eval_items (eval_id, position, score) VALUES (?, ?, ?)",
                [(eval_id, position, score) for position, score in enumerate(result.item_scores)],
            )
            return eval_id

    def get(self, eval_id: int) -> EvalResult:
        row = self._database.row("SELECT * FROM evals WHERE id = ?", (eval_id,))
        assert row is not None, f"no eval {eval_id}"
        scores = self._database.rows(
            "SELECT score FROM eval_items WHERE eval_id = ? ORDER BY position", (eval_id,)
        )
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
        """The recorded baseline under `eval_key` (see `scoring.baseline`), or None when never measured."""
        row = self._database.row("SELECT eval_id FROM baselines WHERE eval_key = ?", (eval_key,))
        return None if row is None else self.get(row["eval_id"])

    def measured(self, family: str, secret_id: str, eval_config: str) -> set[str]:
        """Names of the bases that have a baseline of this eval, whatever version of the code measured it."""
        rows = self._database.rows(
            "SELECT DISTINCT base FROM baselines WHERE family = ? AND secret_id = ? AND eval_config = ?",
            (family, secret_id, eval_config),
        )
        return {row["base"] for row in rows}

    def save_baseline(
        self, eval_key: str, result: EvalResult, *, base_sha256: str, secret_id: str, eval_config: str
    ) -> EvalResult:
        """Record a measured baseline and return what the store holds: the first measurement wins a race."""
        with self._database.write():
            values = {
                "eval_key": eval_key,
                "base": result.model,
                "base_sha256": base_sha256,
                "family": result.family,
                "secret_id": secret_id,
                "eval_config": eval_config,
                "eval_id": self.add(result),
            }
            self._database.insert("baselines", values, keep="eval_key")
            kept = self.baseline(eval_key)
            assert kept is not None
            return kept
