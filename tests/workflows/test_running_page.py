"""The program of one's own in docs/running.md does what the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support import ROOT, execute, mpiexec

PAGE = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")


def block(kind: str, number: int) -> str:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[number]


@pytest.mark.sample
@pytest.mark.parametrize("manner", ["Executive", "IELExecutive"])
def test_the_driver_of_the_page(manner: str, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(block("toml", 0))
    program = block("python", 0)
    if manner == "IELExecutive":
        program = program[: program.index("executive =")] + block("python", 1)
    (tmp_path / "driver.py").write_text(program)
    finished = execute([*mpiexec(5), sys.executable, "driver.py"], cwd=tmp_path)
    assert finished.status == 0, finished.output
    (log,) = (tmp_path / "runs").glob("*/logs/listener.0.0.log")
    assert log.read_text() == "heard hello\n"
