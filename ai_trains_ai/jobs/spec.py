"""The job directory: job.toml and environment.py in, one frozen `Job` out, or all that is wrong with it.

job.toml          family, base_model, [environment] arguments, [prime_rl] hyperparameters
environment.py    a verifiers v1 Taskset; other files beside it are the environment's own
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ai_trains_ai.config import JobLimits
from ai_trains_ai.errors import AgentError
from ai_trains_ai.jobs.prime_rl import check_prime_rl, nearest, stray_table
from ai_trains_ai.jobs.refusals import RENAMED
from ai_trains_ai.jobs.snapshot import JOB_TOML, check_files, take_snapshot
from ai_trains_ai.jobs.whitelist import OPTIONS, TABLES, show, table_title
from ai_trains_ai.types import Finding, Job

TOP_LEVEL = ("family", "base_model", "environment", "prime_rl")
_FORMER = {
    "model": "base_model",
    "base": "base_model",
    "env": "environment",
    "spec": "family",
    "task": "family",
}
_MAX_DEPTH = 16
_PLUGGED = ("rewards", "metrics", "stops", "judges")


def read_job(directory: Path, limits: JobLimits) -> Job:
    """Return the job in `directory`. Raises AgentError that names every problem of its files."""
    job, findings = load_job(directory, limits)
    if job is None:
        errors = [finding for finding in findings if finding.severity == "error"]
        raise AgentError(
            errors[0].check, "; ".join(f.message for f in errors), "; ".join(f.fix for f in errors)
        )
    return job


def load_job(source: Path | Mapping[str, bytes], limits: JobLimits) -> tuple[Job | None, list[Finding]]:
    """Return (job, findings) of a directory or of files in memory; no job when a finding is an error.

    Raises UsageError when `source` is no directory.
    """
    if isinstance(source, Path):
        snapshot = take_snapshot(source, limits)
        files, findings = snapshot.files, snapshot.findings
    else:
        files, findings = dict(source), check_files(source, limits)
    try:
        table, more = _parse_toml(files[JOB_TOML].decode())
    except (KeyError, UnicodeDecodeError):
        return None, findings  # said so already
    findings = findings + more
    if table is None:
        return None, findings
    job, more = _build(files, table)
    return (None if findings else job), findings + more


def _parse_toml(text: str) -> tuple[dict[str, Any] | None, list[Finding]]:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return None, [_toml_finding(text, str(error))]
    except (RecursionError, ValueError) as error:  # nesting, or a number of thousands of digits
        return None, [Finding("toml", f"{JOB_TOML}: {type(error).__name__}", "write plain tables and values")]
    if _too_deep(table):
        return None, [Finding("toml", f"{JOB_TOML}: nested too deeply", "write plain tables and values")]
    return table, []


def _toml_finding(text: str, message: str) -> Finding:
    """tomllib names line and column; add what stands there."""
    lines = text.splitlines()
    message = message.replace("(at end of document)", f"(at line {len(lines)}, the last)")
    found = re.search(r"\(at line (\d+)", message)
    line = int(found[1]) if found else 0
    shown = f": {lines[line - 1].strip()[:80]!r}" if 0 < line <= len(lines) else ""
    return Finding("toml", f"{JOB_TOML}: {message}{shown}", "correct the TOML syntax there")


def _too_deep(table: Mapping[str, Any]) -> bool:
    """Dotted keys nest without limit; walked level by level, since recursion would be the attack's target."""
    level: list[Any] = [table]
    for _ in range(_MAX_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _build(files: Mapping[str, bytes], table: Mapping[str, Any]) -> tuple[Job | None, list[Finding]]:
    findings = _top_level(table)
    family = _text(table, "family", 'family = "calc_chain"', findings)
    base_model = _text(table, "base_model", 'base_model = "nano-0.8m"', findings)
    arguments = table.get("environment", {})
    findings += _environment_arguments(arguments)
    prime_rl = table.get("prime_rl", {})
    if not isinstance(prime_rl, dict):
        findings.append(Finding("values", f"prime_rl is a table, not {show(prime_rl)}", "write [prime_rl]"))
        return None, findings
    checked = check_prime_rl(prime_rl)
    findings += checked.findings
    if checked.config is None or any(finding.severity == "error" for finding in findings):
        return None, findings
    config = checked.config.model_dump()
    others = {path: content for path, content in files.items() if path != JOB_TOML}
    settings = {"family": family, "base_model": base_model, "environment": arguments, "prime_rl": config}
    job = Job(
        files=dict(files),
        base_model=base_model,
        environment_args=arguments,
        prime_rl=config,
        explicit_keys=checked.explicit_keys,
        content_sha256=content_sha256(others, settings),
        family=family,
    )
    return job, findings


def content_sha256(files: Mapping[str, bytes], settings: Mapping[str, Any]) -> str:
    """Identity of a job: its files byte by byte, job.toml by what it says rather than how it is written.

    Comments, order and spelled-out defaults in job.toml do not change it. Parts are length-prefixed.
    """
    digest = hashlib.sha256()
    canonical = json.dumps(
        settings, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":")
    )
    for part in (
        b"job 1",
        canonical.encode(),
        *(x for path in sorted(files) for x in (path.encode(), files[path])),
    ):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _text(table: Mapping[str, Any], key: str, example: str, findings: list[Finding]) -> str:
    value = table.get(key)
    if isinstance(value, str) and value:
        return value
    what = "is missing" if key not in table else f"must be text, not {show(value)}"
    findings.append(Finding("keys", f"{JOB_TOML}: {key} {what}", f"write, at the top of the file: {example}"))
    return ""


def _top_level(table: Mapping[str, Any]) -> list[Finding]:
    """Keys at the top of job.toml that do not belong there, each with its place."""
    findings = []
    for key, value in table.items():
        if key in TOP_LEVEL:
            continue
        if key in TABLES and isinstance(value, dict):
            findings += stray_table(key, value)
            continue
        leaf = next((dotted for dotted in OPTIONS if OPTIONS[dotted].key == key), RENAMED.get(key))
        if key in _FORMER:
            fix = f"did you mean `{_FORMER[key]}`, at the top of {JOB_TOML}?"
        elif near := nearest(key, list(TOP_LEVEL)):
            fix = f"did you mean `{near}`, at the top of {JOB_TOML}?"
        elif leaf and OPTIONS[leaf].key == key:
            fix = f"`{key}` belongs in table {table_title(OPTIONS[leaf].table)}"
        elif leaf:
            fix = f"did you mean `{OPTIONS[leaf].key}`, in table {table_title(OPTIONS[leaf].table)}?"
        else:
            fix = f"remove it; at the top stand: {', '.join(TOP_LEVEL)}"
        findings.append(Finding("keys", f"unknown key `{key}` at the top of {JOB_TOML}", fix))
    return findings


def _environment_arguments(arguments: object) -> list[Finding]:
    """`[environment]` feeds the job's own TasksetConfig: plain values, nothing that names code or paths."""
    if not isinstance(arguments, dict):
        return [Finding("values", f"environment is a table, not {show(arguments)}", "write [environment]")]
    findings = []
    for key in ("id", "system_prompt"):
        if key in arguments:
            reason = "names an installed package" if key == "id" else "names a file to read"
            fix = "remove it" if key == "id" else "set system_prompt on the TaskData in environment.py"
            findings.append(
                Finding("refused", f"`{key}` in [environment] is not a job's to set: it {reason}", fix)
            )
    task = arguments.get("task")
    for key in _PLUGGED:
        if isinstance(task, dict) and key in task:
            message = f"`{key}` in [environment.task] is not a job's to set: it would import code"
            findings.append(Finding("refused", message, "write an async method in environment.py"))
    return findings + _plain_values(arguments)


def _plain_values(arguments: Mapping[str, Any]) -> list[Finding]:
    pending: list[tuple[str, Any]] = list(arguments.items())
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict):
            pending += [(f"{path}.{key}", child) for key, child in value.items()]
        elif isinstance(value, list):
            pending += [(path, child) for child in value]
        elif isinstance(value, float) and not math.isfinite(value):
            return [Finding("values", f"`{path}` in [environment] is not finite", "use a finite number")]
        elif not isinstance(value, bool | int | float | str):
            return [Finding("values", f"`{path}` in [environment] is a {type(value).__name__}", "use text")]
    return []
