"""Make the environment with the real verifiers library that the parity test compares with.

    python tests/e2e/verifiers_side/make_environment.py [FOLDER]

Installs about 600 MB into FOLDER (default: .venv-verifiers in the repository) and prints its interpreter.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

VERSION = "0.4.0"
DEFAULT = Path(__file__).resolve().parents[3] / ".venv-verifiers"


def make(folder: Path = DEFAULT) -> Path:
    """Return the interpreter of an environment with that version, made or completed where need be."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    probe = f"import importlib.metadata as m; raise SystemExit(m.version('verifiers') != {VERSION!r})"
    if subprocess.run([python, "-c", probe], check=False, capture_output=True).returncode:
        subprocess.run([python, "-m", "pip", "install", "--quiet", f"verifiers=={VERSION}"], check=True)
    return python


if __name__ == "__main__":
    print(make(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT))
