"""What the repository as a whole must be: no leftovers, no machine's paths, small files, pinned versions."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEGABYTE = 1 << 20
FORBIDDEN = {
    # The lookbehind lets "a/tmp/b" and "https://host/root/" pass: only absolute paths are a machine's.
    "a machine's path": re.compile(r"(?<![\w.:/])/(?:work|farm|root|tmp|home)/[A-Za-z_.]"),
    "work left open": re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b"),
    "a tracker's number": re.compile(
        r"(?i)\b(?:issues?|pull request|PR)[ -]?(?:#|no\. ?)?\d+\b|(?<![\w&/#])#\d{1,5}\b"
    ),
    "something like a key": re.compile(
        r"\b(?:AKIA[0-9A-Z]{16}|gh[pousr]_\w{30,}|hf_[A-Za-z]{30,}|sk-[\w-]{30,}|rpa_\w{30,}|tml-[\w-]{30,})"
        r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    ),
}  # fmt: skip


def repository_files() -> list[Path]:
    """What git tracks, and what it would track if it were added."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = (ROOT / name for name in listed.stdout.decode().split("\0") if name)
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


FILES = repository_files()
PYTHON = [path for path in FILES if path.suffix == ".py"]


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def texts() -> list[tuple[Path, str]]:
    found = []
    for path in FILES:
        data = path.read_bytes()
        if b"\0" not in data[:8192] and path.name not in ("tokenizer.json", "LICENSE"):
            found.append((path, data.decode()))
    return found


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_texts_are_free_of(kind: str) -> None:
    pattern = FORBIDDEN[kind]
    found = [
        f"{short(path)}:{number}: {line.strip()[:90]}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def test_the_patterns_find_what_they_are_for() -> None:
    examples = {
        "a machine's path": "open('/" + "root/x')",
        "work left open": "# TO" + "DO later",
        "a tracker's number": "see issue" + " 12",
        "something like a key": "key = 'hf_" + "a" * 34 + "'",
    }
    assert examples.keys() == FORBIDDEN.keys()
    for kind, line in examples.items():
        assert FORBIDDEN[kind].search(line), kind


def test_python_files_are_short() -> None:
    long = []
    for path in PYTHON:
        lines, limit = path.read_text().count("\n"), 500 if short(path).startswith("tests/") else 400
        if lines > limit:
            long.append(f"{short(path)} has {lines} lines, more than {limit}")
    assert not long, "\n".join(long)


def test_functions_are_short() -> None:
    long = []
    for path in PYTHON:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > 80:
                    long.append(f"{short(path)}:{node.lineno} {node.name} has {lines} lines")
    assert not long, "\n".join(long)


def test_shipped_data_stays_small() -> None:
    sizes = {short(path): path.stat().st_size for path in FILES}
    assert not {name: size for name, size in sizes.items() if size > 10 * MEGABYTE}
    assert sum(size for name, size in sizes.items() if name.startswith("ai_trains_ai/")) < 20 * MEGABYTE


def test_toml_files_parse() -> None:
    files = [path for path in FILES if path.suffix == ".toml"]
    assert ROOT / "pyproject.toml" in files
    for path in files:
        tomllib.loads(path.read_text())


def test_direct_dependencies_are_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    wanted += (ROOT / "bench/requirements.txt").read_text().split("\n")
    names = {m.group().lower() for r in wanted if not r.startswith("#") and (m := re.match(r"[\w.-]+", r))}
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert names <= pins.keys()


def test_the_version_is_one() -> None:
    import ai_trains_ai

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert ai_trains_ai.__version__ == project["version"]
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text()
