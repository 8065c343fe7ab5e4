"""The `[prime_rl]` part of a job: a whitelisted subset of prime-rl's own keys, with helpful refusals.

Every problem is reported at once. Keys are those of prime-rl at `PRIME_RL_COMMIT`; it renames keys often, so
the pin stands here alone and a test compares the whitelist with prime-rl's published schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from ai_trains_ai.config import PrimeRlConfig
from ai_trains_ai.errors import AgentError
from ai_trains_ai.jobs.refusals import BY_NAME, MOVED, RENAMED
from ai_trains_ai.jobs.refusals import TABLES as REFUSED_TABLES
from ai_trains_ai.jobs.whitelist import OPTIONS, OPTIONS_OF_TYPE, TABLES, keys_in, show, table_title
from ai_trains_ai.types import Finding

PRIME_RL_COMMIT = "559b44772e47"


_NULLABLE = frozenset(
    {"trainer.model.lora", *(dotted for dotted, option in OPTIONS.items() if option.nullable)}
)


@dataclass(slots=True)
class Checked:
    """What `check_prime_rl` found. `config` is None exactly when a finding is an error."""

    config: PrimeRlConfig | None = None
    explicit_keys: tuple[str, ...] = ()
    findings: list[Finding] = field(default_factory=list)


def parse_prime_rl(table: Mapping[str, Any]) -> PrimeRlConfig:
    """Return the resolved config, or raise AgentError with all the problems in its message."""
    checked = check_prime_rl(table)
    errors = [finding for finding in checked.findings if finding.severity == "error"]
    if checked.config is None:
        text = "; ".join(finding.message for finding in errors)
        raise AgentError(errors[0].check, text, "; ".join(finding.fix for finding in errors))
    return checked.config


def check_prime_rl(table: Mapping[str, Any]) -> Checked:
    """Check a job's `[prime_rl]` table, as TOML gives it."""
    values: dict[str, Any] = {}
    findings = list(_walk(table, "", values))
    findings += _unknown_to_type(values)
    findings += _combinations(values)
    if any(finding.severity == "error" for finding in findings):
        return Checked(None, tuple(values), findings)
    try:
        config = PrimeRlConfig.model_validate(_nested(values))
    except ValidationError as error:
        findings += [_from_pydantic(dict(problem)) for problem in error.errors(include_url=False)]
        return Checked(None, tuple(values), findings)
    return Checked(config, tuple(values), findings)


def stray_table(name: str, table: Mapping[str, Any]) -> list[Finding]:
    """Findings for a prime-rl table that stands at the top of job.toml instead of under `[prime_rl]`."""
    problem = Finding("keys", f"[{name}] stands at the top of job.toml", f"write [prime_rl.{name}]")
    return [problem, *_walk(table, name, {})]


def _walk(table: Mapping[str, Any], path: str, values: dict[str, Any]) -> Iterator[Finding]:
    """Collect accepted values by dotted key; yield a finding for everything else."""
    for key, value in table.items():
        dotted = f"{path}.{key}" if path else key
        if value == "None" and dotted in _NULLABLE:
            value = None  # prime-rl's way of writing null in TOML
        if dotted in OPTIONS:
            problem = OPTIONS[dotted].problem(value)
            if problem:
                goal = OPTIONS[dotted].accepts()
                yield Finding("values", problem, f"set `{key}` in {table_title(path)} to {goal}")
            else:
                values[dotted] = value
        elif dotted in TABLES:
            if isinstance(value, Mapping):
                if dotted in _NULLABLE:
                    values[dotted] = {}  # an empty table switches it on, with its defaults
                yield from _walk(value, dotted, values)
            elif value is not None:
                names = ", ".join(keys_in(dotted))
                yield Finding(
                    "values",
                    f"{dotted} is a table, not {show(value)}",
                    f"write {table_title(dotted)} and below it: {names}",
                )
        else:
            yield from _refuse(key, value, path, dotted)


def _refuse(key: str, value: Any, path: str, dotted: str) -> Iterator[Finding]:
    """Say why a key or table is not accepted, and what to write instead."""
    name, where = f"`{key}`", table_title(path)
    inner = isinstance(value, Mapping)
    if dotted in MOVED:
        goal = MOVED[dotted]
        yield Finding("keys", f"no table {table_title(dotted)}", f"it belongs at {table_title(goal)}")
        if inner:
            yield from _walk(value, goal, {})
        return
    refusal = REFUSED_TABLES.get(dotted) or BY_NAME.get(key)
    if refusal is not None:
        what = f"{table_title(dotted)}" if inner else f"{name} in {where}"
        yield Finding("refused", f"{what} is not a job's to set: {refusal.reason}", refusal.fix)
        return
    if inner:
        found = False
        for child, child_value in value.items():
            found = True
            yield from _refuse(child, child_value, dotted, f"{dotted}.{child}")
        if found:
            return
    yield Finding("keys", f"unknown key {name} in {where}", _suggest(key, path))


def _suggest(key: str, path: str) -> str:
    """The fix for an unknown key: where it belongs, its present name, the nearest name, or what there is."""
    here = f"{path}.{key}" if path else key
    if key in RENAMED:
        return _did_you_mean(RENAMED[key])
    elsewhere = [dotted for dotted in OPTIONS if dotted.rpartition(".")[2] == key and dotted != here]
    if elsewhere:
        tables = " or ".join(table_title(OPTIONS[dotted].table) for dotted in elsewhere)
        return f"`{key}` belongs in table {tables}"
    tables_elsewhere = [table for table in TABLES if table.rpartition(".")[2] == key]
    if tables_elsewhere:
        return f"the table belongs at {table_title(min(tables_elsewhere))}"
    near = nearest(key, keys_in(path) if path in TABLES else [], edits_per_letter=0.5)
    if near:
        return f"did you mean `{near}`, in table {table_title(path)}?"
    anywhere = {OPTIONS[dotted].key: dotted for dotted in reversed(list(OPTIONS))}
    near = nearest(key, [*anywhere, *RENAMED])
    if near:
        return _did_you_mean(anywhere.get(near) or RENAMED[near])
    if path in TABLES:
        return f"remove it; {table_title(path)} has: {', '.join(keys_in(path))}"
    return f"remove it; the tables are: {', '.join(table_title(table) for table in sorted(TABLES))}"


def _did_you_mean(dotted: str) -> str:
    return f"did you mean `{OPTIONS[dotted].key}`, in table {table_title(OPTIONS[dotted].table)}?"


def nearest(word: str, known: list[str], *, edits_per_letter: float = 0.34) -> str | None:
    """The known word that is nearest in edits, if within a share of the word's length, one to three."""
    limit = max(1, min(3, int(len(word) * edits_per_letter)))
    distance, best = min(((edit_distance(word, other), other) for other in known), default=(limit + 1, ""))
    return best if distance <= limit else None


def edit_distance(a: str, b: str) -> int:
    """Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`."""
    before: list[int] = []
    last = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        row = [i]
        for j, y in enumerate(b, start=1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]


def _unknown_to_type(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Options that exist for other types of optimizer or scheduler only."""
    for table, by_type in OPTIONS_OF_TYPE.items():
        default = OPTIONS[f"{table}.type"].default
        chosen = values.get(f"{table}.type", default)
        for dotted in values:
            if OPTIONS.get(dotted) is None or OPTIONS[dotted].table != table or OPTIONS[dotted].key == "type":
                continue
            key = OPTIONS[dotted].key
            if key in by_type[chosen]:
                continue
            types = [name for name, keys in by_type.items() if key in keys]
            note = "" if f"{table}.type" in values else " (the default)"
            yield Finding(
                "keys",
                f'`{key}` in {table_title(table)} does not exist for type = "{chosen}"{note}',
                "remove it, or set type = " + " or ".join(f'"{name}"' for name in types),
            )


def _combinations(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Values that are each fine and fail together, as prime-rl or torch would only say in mid-run."""

    def get(dotted: str) -> Any:
        return values.get(dotted, OPTIONS[dotted].default)

    max_steps = get("max_steps")
    kind, warmup = get("trainer.scheduler.type"), get("trainer.scheduler.warmup_steps")
    decay = get("trainer.scheduler.decay_steps")
    if kind == "linear" and warmup + decay > max_steps:
        yield Finding(
            "values",
            f"warmup_steps {warmup} and decay_steps {decay} together exceed max_steps {max_steps}",
            f"in [prime_rl.trainer.scheduler] make them {max_steps} or less together",
        )
    if kind == "linear" and warmup + decay == 0:
        yield Finding(
            "values",
            'type = "linear" with neither warmup_steps nor decay_steps',
            'in [prime_rl.trainer.scheduler] set one of them, or type = "constant"',
        )
    if kind == "cosine" and warmup >= max_steps:
        yield Finding(
            "values",
            f"warmup_steps {warmup} leaves no step of max_steps {max_steps} for the cosine",
            f"set warmup_steps in [prime_rl.trainer.scheduler] below {max_steps}",
        )
    if kind != "constant" and get("trainer.scheduler.min_lr") > get("trainer.optim.lr"):
        yield Finding(
            "values",
            f"min_lr {get('trainer.scheduler.min_lr'):g} is above lr {get('trainer.optim.lr'):g}",
            "set min_lr in [prime_rl.trainer.scheduler] to lr or less",
        )
    nesterov = get("trainer.optim.type") == "sgd" and get("trainer.optim.nesterov")
    if nesterov and not get("trainer.optim.momentum"):
        yield Finding(
            "values",
            "nesterov (on by default) needs a momentum above 0",
            "set nesterov = false, or raise momentum",
        )
    tokens, seq_len = get("orchestrator.train.sampling.max_completion_tokens"), get("seq_len")
    if tokens >= seq_len:
        yield Finding(
            "values",
            f"max_completion_tokens {tokens} leaves no room for a prompt in seq_len {seq_len}",
            "raise seq_len in [prime_rl], or lower max_completion_tokens",
        )
    batch, group = get("orchestrator.batch_size"), get("orchestrator.group_size")
    if batch % group:
        below, above = batch - batch % group, batch - batch % group + group
        choice = f"{below} or {above}" if below else f"{above}"
        yield Finding(
            "values",
            f"batch_size {batch} is not a multiple of group_size {group}",
            f"set batch_size in [prime_rl.orchestrator] to {choice}",
        )
    if group == 1:
        yield Finding(
            "values",
            "group_size 1 teaches nothing: an advantage is a reward minus its group's mean",
            "set group_size in [prime_rl.orchestrator] to 4 or more",
            "warning",
        )


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """{"a.b": 1} -> {"a": {"b": 1}}."""
    tree: dict[str, Any] = {}
    for dotted, value in values.items():
        node = tree
        *path, key = dotted.split(".")
        for part in path:
            node = node.setdefault(part, {})
        node.setdefault(key, value)
    return tree


def _from_pydantic(problem: Mapping[str, Any]) -> Finding:
    """A rule that only the config class knows."""
    dotted = ".".join(str(part) for part in problem["loc"])
    table = dotted if dotted in TABLES else dotted.rpartition(".")[0]
    return Finding("values", f"{dotted}: {problem['msg']}", f"change it in {table_title(table)}")
