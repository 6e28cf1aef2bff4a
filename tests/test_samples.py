"""Which tests are left out unless they are asked for."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from support import ROOT, execute

TESTS = """\
import pytest

@pytest.mark.sample(3)
@pytest.mark.parametrize("number", range(20))
def test_cases(number):
    pass

@pytest.mark.thorough
def test_long():
    pass

def test_quick():
    pass
"""


def test_some_cases_of_each_kind_are_run_and_the_rest_is_listed(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(TESTS)
    for name in ("conftest.py", "support.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)

    def listed(*arguments: str, how: str = "") -> list[str]:
        finished = execute(
            [
                *(sys.executable, "-m", "pytest", "--collect-only", "-q"),
                *("-o", "addopts=--import-mode=importlib", *arguments),
            ],
            cwd=tmp_path,
            environment={"DIEL_TESTS": how, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )
        return [line.split("::")[1] for line in finished.stdout.splitlines() if "::" in line]

    some, rest = listed(), listed("-m", "thorough")
    assert [name.partition("[")[0] for name in some] == ["test_cases"] * 3 + ["test_quick"]
    assert "test_long" in rest
    assert sorted(some + rest) == sorted(listed(how="thorough"))
    assert listed("tests/test_it.py::test_long") == ["test_long"]
