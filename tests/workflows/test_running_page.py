"""The programs of one's own in docs/running.md do what the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support import ROOT, execute, mpiexec

PAGE = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


# One after the other, as two programs would do it.
BOTH = """
import runpy
for name in ("Executive", "IELExecutive"):
    try:
        runpy.run_path(f"{name}.py", run_name="__main__")
    except SystemExit as ended:
        assert not ended.code, (name, ended.code)
"""


@pytest.mark.usefixtures("once")
def test_the_drivers_of_the_page(tmp_path: Path) -> None:
    (study,) = [text for text in blocks("toml") if text.startswith("# study.toml")]
    (tmp_path / "study.toml").write_text(study)
    program, other, *_ = blocks("python")
    (tmp_path / "Executive.py").write_text(program)
    program = program[: program.index("executive =")] + other
    (tmp_path / "IELExecutive.py").write_text(program)
    finished = execute([*mpiexec(5), sys.executable, "-c", BOTH], cwd=tmp_path)
    assert finished.status == 0, finished.output
    logs = list((tmp_path / "runs").glob("*/logs/listener.0.0.log"))
    assert [log.read_text() for log in logs] == ["heard hello\n"] * 2
