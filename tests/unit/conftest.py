"""What unit tests share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import Finished, execute


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., Finished]:
    """Return what runs a script in a process of its own, in `tmp_path`, its first argument."""

    def run(script: str, **environment: str) -> Finished:
        command: list[object] = [sys.executable, "-W", "error", "-c", script, tmp_path]
        return execute(command, cwd=tmp_path, environment=environment)

    return run
