"""What `ata tinker-server` refuses before it listens."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ai_trains_ai.cli import main
from ai_trains_ai.cli.tinker_server import is_loopback


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *((host, True) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "192.168.0.4", "example.org")),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) == expected


def test_an_open_address_needs_a_key(tmp_path: Path) -> None:
    command = ["tinker-server", "--host", "0.0.0.0", "--home", str(tmp_path)]
    done = CliRunner().invoke(main, command, env={"ATA_TINKER_KEY": ""})
    assert done.exit_code == 2
    assert "set ATA_TINKER_KEY" in done.output


@pytest.mark.parametrize("given", ["name", "=folder", "name=nowhere"])
def test_a_base_needs_a_name_and_a_folder(tmp_path: Path, given: str) -> None:
    done = CliRunner().invoke(main, ["tinker-server", "--base", given, "--home", str(tmp_path)])
    assert done.exit_code == 2
    assert "--base" in done.output
