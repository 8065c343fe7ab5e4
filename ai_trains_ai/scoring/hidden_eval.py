"""The hidden eval of one family: its items, its name in the store, and the seeds it is sampled with."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from ai_trains_ai.config import EvalConfig
from ai_trains_ai.seeds import derive
from ai_trains_ai.tasks.hidden import hidden_items
from ai_trains_ai.types import Task


@dataclass(frozen=True)
class EvalSecret:
    """What the items are regenerated from, and the name it may be recorded under.

    The name reveals nothing about a random secret; the bytes appear in no representation.
    """

    value: bytes = field(repr=False)
    id: str

    @staticmethod
    def private(value: bytes) -> EvalSecret:
        return EvalSecret(value, "private-" + hashlib.sha256(b"eval secret id\n" + value).hexdigest()[:16])

    @staticmethod
    def public(seed: int) -> EvalSecret:
        """A secret that everybody can name: for tables that others shall reproduce, never for rewarding an
        agent.
        """
        return EvalSecret(f"public eval seed {seed:020d}".encode(), f"public-{seed}")


@dataclass(frozen=True)
class HiddenEval:
    """The items of one family under one secret, in a fixed order. Answers never leave the process that
    holds this.
    """

    family: str
    config: EvalConfig
    secret_id: str
    items: tuple[Task, ...] = field(repr=False)

    @staticmethod
    def of(family: str, secret: EvalSecret, config: EvalConfig) -> HiddenEval:
        items = hidden_items(family, secret.value, config.levels, config.items_per_level)
        return HiddenEval(family, config, secret.id, items)

    @property
    def seed(self) -> int:
        """Seed of the sampling: the same for every model, so that base and trained model are compared
        alike.
        """
        return derive(0, "hidden eval", self.family)

    def key(self, versions: Mapping[str, str]) -> str:
        """Name of this eval's numbers in the store; `versions` names the code that computes them."""
        parts = [
            self.family,
            self.secret_id,
            self.config.model_dump_json(),
            *(f"{k}={versions[k]}" for k in sorted(versions)),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()
