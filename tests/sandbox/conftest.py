"""Fixtures for tests that run a job's code in the sandbox that this machine offers."""

from __future__ import annotations

import pytest

from ai_trains_ai.sandbox.base import Sandbox
from ai_trains_ai.sandbox.pick import pick_sandbox


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    return pick_sandbox()
