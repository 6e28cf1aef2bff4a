"""The workflow that ``diel new-module`` writes runs as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import diel, journal


@pytest.mark.thorough
def test_a_new_module_runs(tmp_path: Path) -> None:
    assert diel("new-module", "adder", cwd=tmp_path).status == 0
    finished = diel("run", "adder.toml", cwd=tmp_path)
    assert finished.status == 0, finished.output
    assert finished.stderr == ""
    assert f"adder.0 returned {sum(range(1000))}" in finished.stdout
    assert journal(tmp_path)[-1]["tuples_left"] == 0
