"""The documents say what is there: links resolve, shown commands exist, tables agree with the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import click
import pytest

from ai_trains_ai.cli import main as ata
from ai_trains_ai.config import PrimeRlConfig
from ai_trains_ai.tasks.registry import FAMILIES
from tests.golden import make_documents

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")])
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def code_of(document: Path) -> list[str]:
    """The commands a document shows: lines of its fenced blocks, and its inline code."""
    text = document.read_text()
    inline = re.findall(r"`([^`\n]+)`", FENCED.sub("", text))
    return [
        line.removeprefix("$ ").strip() for block in FENCED.findall(text) for line in block.splitlines()
    ] + inline


def ata_commands() -> list[tuple[str, str]]:
    return [(short(d), line) for d in DOCUMENTS for line in code_of(d) if re.match(r"ata(?= |$)", line)]


def unknown_part(line: str) -> str | None:
    """The first word of `ata ...` that is neither a command nor an option of the command before it."""
    command: click.Command = ata
    for word in re.split(r"[#|>&]", line)[0].split()[1:]:
        if word.startswith("-"):
            known = {opt for p in command.params for opt in (*p.opts, *p.secondary_opts)} | {"--help"}
            if word.split("=")[0] not in known:
                return word
        elif isinstance(command, click.Group):
            if word not in command.commands:
                return word
            command = command.commands[word]
    return None


def anchors(document: Path) -> set[str]:
    """Heading anchors as code hosts make them: lower case, punctuation dropped, spaces as hyphens."""
    headings = re.findall(r"^#+ +(.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_expected_documents_are_there() -> None:
    expected = {"README.md", "AGENTS.md", "CHANGELOG.md"}
    expected |= {f"docs/{name}.md" for name in ("concepts", "job-format", "families", "decisions", "sandbox")}
    assert expected <= {short(document) for document in DOCUMENTS}


@pytest.mark.parametrize("document", DOCUMENTS, ids=short)
def test_links_resolve(document: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", document.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (document.parent / name).resolve() if name else document
        if not file.exists():
            broken.append(f"{target}: no such file")
        elif anchor and anchor not in anchors(file):
            broken.append(f"{target}: no such heading")
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("document", DOCUMENTS, ids=short)
def test_named_files_exist(document: Path) -> None:
    named = set(re.findall(r"`((?:ai_trains_ai|docs|tests|bench|configs)/[\w./-]*\w)`", document.read_text()))
    assert not {name for name in named if not (ROOT / name).exists()}


def test_every_package_has_a_line() -> None:
    packages = {
        path.parent.name for path in (ROOT / "ai_trains_ai").glob("*/*") if path.suffix in (".py", "")
    }
    guide = (ROOT / "AGENTS.md").read_text()
    assert not {name for name in packages - {"__pycache__"} if f"`ai_trains_ai/{name}/`" not in guide}


def test_documents_show_the_main_commands() -> None:
    shown = " ".join(line for _, line in ata_commands())
    for command in ("job new", "job check", "job run", "baseline", "families"):
        assert f"ata {command}" in shown


def test_shown_commands_exist() -> None:
    missing = [f"{name}: {line}" for name, line in ata_commands() if unknown_part(line)]
    assert not missing, "\n".join(missing)


def test_a_command_that_does_not_exist_is_noticed() -> None:
    assert unknown_part("ata fly") == "fly"
    assert unknown_part("ata job fly") == "fly"
    assert unknown_part("ata job run DIR --fly") == "--fly"


def test_shown_make_targets_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = {
        (short(d), match.group(1))
        for d in DOCUMENTS
        for line in code_of(d)
        if (match := re.match(r"make ([a-z]+)", line))
    }
    assert {"demo", "test", "check", "bench"} <= targets
    assert not {(name, target) for name, target in shown if target not in targets}


@pytest.mark.parametrize("document", DOCUMENTS, ids=short)
def test_generated_parts_are_up_to_date(document: Path) -> None:
    text = document.read_text()
    assert text == make_documents.rewritten(text), "run: python tests/golden/make_documents.py"


def test_every_generated_part_is_shown() -> None:
    shown = [found[1] for d in DOCUMENTS for found in make_documents.BLOCK.findall(d.read_text())]
    assert sorted(shown) == sorted(make_documents.PARTS)


def test_the_job_formats_example_is_accepted() -> None:
    text = (ROOT / "docs/job-format.md").read_text()
    example = tomllib.loads(text.split("```toml\n")[1].split("```")[0])
    PrimeRlConfig.model_validate(example["prime_rl"])
    assert example["family"] in FAMILIES
