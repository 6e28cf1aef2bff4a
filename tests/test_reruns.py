"""Which tests are run once more when they fail, and that the end of the output names them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from support import ROOT, execute

FAILS_ONCE = """\
from pathlib import Path

def test_it():
    count = Path(__file__).with_suffix(".count")
    count.write_text(count.read_text() + "." if count.exists() else ".")
    assert count.read_text() != "."
"""


def test_whole_runs_are_run_once_more_and_named(tmp_path: Path) -> None:
    pytest.importorskip("pytest_rerunfailures", reason="pytest-rerunfailures is not installed")
    tests = tmp_path / "tests"
    once_more = ("workflows/test_run.py", "cluster/test_hosts.py", "test_under_mpi.py")
    never = ("unit/test_pure.py", "gui/test_page.py")
    for place in (*once_more, *never):
        (tests / place).parent.mkdir(parents=True, exist_ok=True)
        (tests / place).write_text(FAILS_ONCE)
    for name in ("conftest.py", "support.py"):
        shutil.copy(ROOT / "tests" / name, tests)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    finished = execute([sys.executable, "-m", "pytest", "-q", "-n", "0"], cwd=tmp_path)
    assert finished.status == 1
    assert f"{len(never)} failed, {len(once_more)} passed, {len(once_more)} rerun" in (
        finished.stdout
    )
    for place in once_more:
        assert f"RERUN tests/{place}::test_it" in finished.stdout
        assert f"failed at first: tests/{place}::test_it" in finished.stdout
        assert (tests / place).with_suffix(".count").read_text() == ".."
    for place in never:
        assert (tests / place).with_suffix(".count").read_text() == "."
