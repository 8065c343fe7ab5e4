"""The `[prime_rl]` keys a job may set, read off `config.PrimeRlConfig`, and what each accepts in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ai_trains_ai.config import PrimeRlConfig

OPTIONS_OF_TYPE: Mapping[str, Mapping[str, frozenset[str]]] = {
    "trainer.optim": {
        "adamw": frozenset({"lr", "weight_decay", "max_norm", "betas1", "betas2"}),
        "muon": frozenset({"lr", "weight_decay", "max_norm", "mu", "betas1", "betas2"}),
        "sgd": frozenset({"lr", "weight_decay", "max_norm", "momentum", "nesterov"}),
        "sign_sgd": frozenset({"lr", "weight_decay", "max_norm"}),
    },
    "trainer.scheduler": {
        "constant": frozenset(),
        "linear": frozenset({"warmup_steps", "decay_steps", "min_lr"}),
        "cosine": frozenset({"warmup_steps", "min_lr"}),
    },
}
"""Which options exist for which `type`, as in prime-rl, where each type is a class of its own."""


@dataclass(frozen=True, slots=True)
class Option:
    """One key that holds a value. Bounds are inclusive unless `above` / `below` says otherwise."""

    dotted: str
    kind: str
    """"integer", "number", "boolean" or "string"."""
    default: Any
    nullable: bool = False
    choices: tuple[str, ...] = ()
    low: float | None = None
    above: float | None = None
    high: float | None = None
    below: float | None = None

    @property
    def table(self) -> str:
        return self.dotted.rpartition(".")[0]

    @property
    def key(self) -> str:
        return self.dotted.rpartition(".")[2]

    def accepts(self) -> str:
        """What a value must be, for people: "a whole number from 1 to 2000"."""
        if len(self.choices) == 1:
            return f'"{self.choices[0]}"'
        if self.choices:
            return "one of " + ", ".join(f'"{choice}"' for choice in self.choices)
        if self.kind == "boolean":
            return "true or false"
        noun = "a whole number" if self.kind == "integer" else "a number"
        return noun + self._range() + (', or "None" for none' if self.nullable else "")

    def _range(self) -> str:
        if self.low is not None and self.high is not None:
            return f" from {self.low:g} to {self.high:g}"
        bounds = (
            ("at least", self.low),
            ("above", self.above),
            ("at most", self.high),
            ("below", self.below),
        )
        text = " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)
        return f" of {text}" if text.startswith("at ") else f" {text}" if text else ""

    def problem(self, value: object) -> str | None:
        """Say what is wrong with `value` for this key, or None when it is accepted."""
        if value is None and self.nullable:
            return None
        if self.kind == "boolean":
            fits = type(value) is bool
        elif self.kind == "string":
            fits = value in self.choices
        elif self.kind == "integer":
            fits = type(value) is int and self._within(value)
        else:
            fits = type(value) in (int, float) and self._within(value)  # type: ignore[arg-type]
        return None if fits else f"{self.dotted} must be {self.accepts()}, not {show(value)}"

    def _within(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.high is None or value <= self.high)
            and (self.below is None or value < self.below)
        )


def show(value: object) -> str:
    """A TOML value as its author wrote it, shortened."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = value if len(value) <= 40 else value[:37] + "..."
        return f'"{text}" (text)'
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        return "a list"
    text = str(value) if not isinstance(value, int) or abs(value) < 10**40 else "a number of over 40 digits"
    return text if len(text) <= 60 else text[:57] + "..."


Leaf = tuple[str, dict[str, Any]]


def json_schema_leaves(schema: Mapping[str, Any]) -> Iterator[Leaf]:
    """Yield (dotted key, value schema) of a pydantic JSON schema, tables resolved, unions of tables merged.

    A value schema holds `type`, `enum`, `default`, `nullable` and the bounds as JSON schema names them. The
    tests read prime-rl's published schema with the same function.
    """
    definitions = schema.get("$defs", {})

    def variants(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        if "$ref" in node:
            yield from variants(definitions[node["$ref"].rpartition("/")[2]])
        elif "anyOf" in node or "oneOf" in node:
            for part in node.get("anyOf", node.get("oneOf", ())):
                yield from variants(part)
        else:
            yield node

    def walk(node: Mapping[str, Any], path: str, default: dict[str, Any]) -> Iterator[Leaf]:
        values: list[Mapping[str, Any]] = []
        for part in variants(node):
            if part.get("properties"):
                for name, child in part["properties"].items():
                    inner = {"default": child["default"]} if "default" in child else {}
                    yield from walk(child, f"{path}.{name}" if path else name, inner)
            else:
                values.append(part)
        real = [value for value in values if value.get("type") != "null"]
        if real:
            yield path, {**real[0], **default, "nullable": len(real) < len(values)}

    yield from walk(schema, "", {})


def _option(dotted: str, schema: Mapping[str, Any]) -> Option:
    choices = tuple(schema.get("enum", ())) or ((schema["const"],) if "const" in schema else ())
    return Option(
        dotted=dotted,
        kind=schema["type"],
        default=schema.get("default"),
        nullable=schema["nullable"],
        choices=choices,
        low=schema.get("minimum"),
        above=schema.get("exclusiveMinimum"),
        high=schema.get("maximum"),
        below=schema.get("exclusiveMaximum"),
    )


OPTIONS: Mapping[str, Option] = {
    dotted: _option(dotted, leaf) for dotted, leaf in json_schema_leaves(PrimeRlConfig.model_json_schema())
}
"""Dotted key -> option, in the order of `PrimeRlConfig`."""

TABLES: frozenset[str] = frozenset(
    ".".join(dotted.split(".")[:depth]) for dotted in OPTIONS for depth in range(dotted.count(".") + 1)
)
"""Dotted table names; "" is `[prime_rl]` itself."""


def table_title(table: str) -> str:
    """`trainer.optim` -> `[prime_rl.trainer.optim]`."""
    return f"[prime_rl.{table}]" if table else "[prime_rl]"


def keys_in(table: str) -> list[str]:
    """The keys and sub-tables that stand directly in a table."""
    prefix = f"{table}." if table else ""
    names = (dotted[len(prefix) :].split(".")[0] for dotted in OPTIONS if dotted.startswith(prefix))
    return list(dict.fromkeys(names))
