"""What tests of the commands share."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.cli.journals import Journal

from diel.run.directory import RunDirectory


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    (tmp_path / "w.toml").write_text("")
    return RunDirectory.create(tmp_path, "w", tmp_path / "w.toml")


@pytest.fixture
def journal(directory: RunDirectory) -> Journal:
    return Journal(directory)
