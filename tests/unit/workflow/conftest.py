"""What tests of workflow files share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with what the files of `samples` name."""
    (tmp_path / "work.py").write_text("def master(ctx): ...\ndef train(ctx): ...\n")
    program = tmp_path / "report.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return tmp_path
