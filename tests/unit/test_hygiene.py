"""What the repository as a whole must be: no leftovers, no machine's paths, honest documents, small files."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import click
import pytest

from ai_trains_ai.cli import main as ata

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
DOCUMENTS = [path for path in FILES if path.suffix == ".md"]
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


def code_of(document: Path) -> list[str]:
    """The commands a document shows: lines of its fenced blocks, and its inline code."""
    text = document.read_text()
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return [line.removeprefix("$ ").strip() for block in blocks for line in block.splitlines()] + inline


def ata_commands() -> list[tuple[str, str]]:
    return [(short(d), line) for d in DOCUMENTS for line in code_of(d) if re.match(r"ata(?= |$)", line)]


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
    long = {short(path): lines for path in PYTHON if (lines := path.read_text().count("\n")) > 400}
    assert not long


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


@pytest.mark.parametrize("document", DOCUMENTS, ids=short)
def test_links_resolve(document: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (document.parent / name).resolve() if name else document
        if not file.exists():
            broken.append(f"{target}: no such file")
        elif anchor and anchor not in anchors(file):
            broken.append(f"{target}: no such heading")
    assert not broken, "\n".join(broken)


def anchors(document: Path) -> set[str]:
    """Heading anchors as code hosts make them: lower case, punctuation dropped, spaces as hyphens."""
    headings = re.findall(r"^#+ +(.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_documents_show_commands() -> None:
    assert {"ata job run", "ata job new", "ata job check", "ata baseline"} <= {
        " ".join(line.split()[:3]) if line.startswith("ata job") else " ".join(line.split()[:2])
        for _, line in ata_commands()
    }


def test_shown_commands_exist() -> None:
    missing = [f"{name}: {line}" for name, line in ata_commands() if unknown_part(line)]
    assert not missing, "\n".join(missing)


def unknown_part(line: str) -> str | None:
    """The first word of `ata ...` that is neither a command nor an option of the command before it."""
    command: click.Command = ata
    for word in line.split("#")[0].split("|")[0].split()[1:]:
        if word.startswith("-"):
            known = {opt for p in command.params for opt in (*p.opts, *p.secondary_opts)} | {"--help"}
            if word.split("=")[0] not in known:
                return word
        elif isinstance(command, click.Group):
            if word not in command.commands:
                return word
            command = command.commands[word]
    return None


def test_a_command_that_does_not_exist_is_noticed() -> None:
    assert unknown_part("ata fly") == "fly"
    assert unknown_part("ata --fly") == "--fly"


def test_shown_make_targets_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = {
        (short(d), line.split()[1])
        for d in DOCUMENTS
        for line in code_of(d)
        if re.match(r"make [a-z]+$", line)
    }
    assert {"demo", "test", "check", "bench"} <= targets
    assert not {(name, target) for name, target in shown if target not in targets}


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
