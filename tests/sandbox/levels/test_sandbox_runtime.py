"""Which Python is shown, and what of its installation is not.

The one here is a small copy with packages within its library, as Pythons that people build themselves have
them; a distribution's keeps them elsewhere.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_attack import Attack, run

from ai_trains_ai.sandbox.base import LevelUnavailable
from ai_trains_ai.sandbox.bubblewrap import Bubblewrap
from ai_trains_ai.sandbox.container import archive
from ai_trains_ai.sandbox.reduced import Reduced, landlock_rules
from ai_trains_ai.sandbox.runtime import Runtime, find_runtime, inspect
from ai_trains_ai.sandbox.uids import FIRST

UID = FIRST if os.geteuid() == 0 else None
_PACKAGES = ("collections", "ctypes", "encodings", "importlib", "json", "lib-dynload", "re")


@pytest.fixture(scope="module")
def installation() -> Iterator[Path]:
    """PREFIX with bin/, lib/ and, within the standard library, a package that holds a secret."""
    try:
        source = find_runtime()
    except LookupError as error:
        pytest.skip(str(error))
    library = Path(source.directories[0])
    with tempfile.TemporaryDirectory() as name:
        prefix = Path(os.path.realpath(name))
        prefix.chmod(0o755)
        copy = prefix / "lib" / library.name
        copy.mkdir(parents=True)
        (prefix / "bin").mkdir()
        shutil.copy(source.python, prefix / "bin")
        for path in library.glob("*.py"):
            if path.is_file():
                shutil.copy(path, copy)
        for package in _PACKAGES:
            if (library / package).is_dir():
                shutil.copytree(
                    library / package, copy / package, ignore=shutil.ignore_patterns("__pycache__")
                )
        (copy / "site-packages").mkdir()
        (copy / "site-packages" / "secret.py").write_text("ANSWER = 42")
        (copy / "way_in").symlink_to("site-packages")
        yield prefix


@pytest.fixture(scope="module")
def runtime(installation: Path) -> Runtime:
    (python,) = (installation / "bin").iterdir()
    return inspect(str(python), UID)


def test_an_installation_is_described(installation: Path, runtime: Runtime) -> None:
    assert Path(runtime.python).parent == installation / "bin"
    (library,) = runtime.directories
    assert Path(library).parent == installation / "lib"
    assert runtime.hidden == (f"{library}/site-packages",)
    assert runtime.python in runtime.files
    assert runtime.loader is None or runtime.loader in runtime.files
    for path in runtime.files:
        assert os.path.realpath(path) == path
    for path, target in runtime.links:
        assert os.readlink(path) == target


@pytest.mark.parametrize("level", [Bubblewrap, Reduced])
def test_packages_beside_the_standard_library_are_not_shown(level, runtime: Runtime) -> None:
    try:
        sandbox = level(runtime=runtime)
    except LevelUnavailable as error:
        pytest.skip(str(error))
    source = """
library = os.path.dirname(os.__file__)
sys.path += [f"{library}/site-packages", f"{library}/way_in"]
tell(prefix=sys.prefix, imported=attempt(__import__, "secret"),
     opened=[attempt(open, f"{library}/{name}/secret.py") for name in ("site-packages", "way_in")])
"""
    outcome = run(sandbox, Attack(source))
    if outcome.error is not None and level is Bubblewrap:
        pytest.skip(outcome.error)
    assert outcome.told["prefix"] == str(Path(runtime.python).parents[1])
    assert outcome.told["imported"] in ("ModuleNotFoundError", "EACCES")
    assert set(outcome.told["opened"]) <= {"ENOENT", "EACCES"}


def test_no_rule_and_no_archive_holds_a_package(runtime: Runtime) -> None:
    from ai_trains_ai.sandbox.landlock import READ_DIR, READ_FILE

    (hidden,) = runtime.hidden
    for path, rights in landlock_rules(runtime):
        assert not f"{hidden}/".startswith(f"{path}/") or rights == READ_DIR, path
        assert rights & READ_FILE or path in runtime.directories
    assert b"secret.py" not in archive(runtime)
    assert b"lib-dynload" in archive(runtime)


def test_a_python_that_the_jobs_user_cannot_reach_is_refused_with_the_reason(installation: Path) -> None:
    (python,) = (installation / "bin").iterdir()
    missing = str(python) + "-missing"
    with pytest.raises(LookupError, match="does not run"):
        inspect(missing, UID)
    if UID is None:
        pytest.skip("only root starts jobs as another user")
    installation.chmod(0o700)
    try:
        inspect.cache_clear()
        with pytest.raises(LookupError, match=f"does not run as user {UID}.*Permission denied"):
            inspect(str(python), UID)
    finally:
        installation.chmod(0o755)


def test_what_is_no_program_of_this_system_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "python3"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} -I -S -B -c 'print(\"no\")'\n")
    script.chmod(0o755)
    with pytest.raises(LookupError, match="does not run"):
        inspect(str(script), None)
