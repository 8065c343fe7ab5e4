"""`ata tinker-server`: the local Tinker-compatible server."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
from pathlib import Path

import click

from ai_trains_ai.cli.session import home_option
from ai_trains_ai.errors import UsageError
from ai_trains_ai.rundir import Home

KEY_VARIABLE = "ATA_TINKER_KEY"


@click.command("tinker-server")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8765, show_default=True, type=click.IntRange(0, 65535))
@click.option(
    "--base",
    "bases",
    multiple=True,
    metavar="NAME=FOLDER",
    help="A further base model, from a Hugging Face folder. Repeatable.",
)
@click.option("--precision", default="fp32", show_default=True, type=click.Choice(["fp32", "mixed", "bf16"]))
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="cpu, cuda or mps.")
@click.option("--seed", default=0, show_default=True, help="Of adapters and samples that ask for none.")
@home_option
def tinker_server(
    host: str, port: int, bases: tuple[str, ...], precision: str, device: str, seed: int, home: str | None
) -> int:
    """Serve the tinker SDK's training and sampling on this machine.

    Point the SDK at it: TINKER_BASE_URL=http://127.0.0.1:8765. On a loopback address any TINKER_API_KEY
    will do, unless ATA_TINKER_KEY sets one; elsewhere ATA_TINKER_KEY is needed. Checkpoints go to the state
    folder.
    """
    key = os.environ.get(KEY_VARIABLE) or None
    if key is None and not is_loopback(host):
        raise UsageError(
            f"{host} can be reached from other machines: set {KEY_VARIABLE} to a secret key first"
        )
    extra = dict(_named_folder(given) for given in bases)
    if missing := [
        name for name in ("starlette", "uvicorn", "zstandard") if not importlib.util.find_spec(name)
    ]:
        raise UsageError(f"{', '.join(missing)} missing: pip install 'ai-trains-ai[server]'")
    import torch
    import uvicorn

    from ai_trains_ai.tinker_server.app import create_app
    from ai_trains_ai.tinker_server.models import BaseModels
    from ai_trains_ai.tinker_server.service import Service

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    folder = Home.find(home, os.environ).path / "tinker"
    service = Service(BaseModels(extra, device), folder, precision=precision, seed=seed)  # type: ignore[arg-type]
    uvicorn.run(create_app(service, api_key=key), host=host, port=port, log_level="info", access_log=False)
    return 0


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _named_folder(given: str) -> tuple[str, Path]:
    name, _, folder = given.partition("=")
    if not name or not folder:
        raise UsageError(f"--base {given!r}: write NAME=FOLDER")
    if not (Path(folder) / "config.json").is_file():
        raise UsageError(f"--base {name}: {folder} holds no config.json")
    return name, Path(folder)
