"""The files that the README shows run as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import ROOT, diel, run_dir


@pytest.mark.usefixtures("once")
def test_the_study_of_the_readme(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    files = re.findall(r"```(?:python|toml)\n# (\w+\.(?:py|toml))\n(.*?)```", text, re.DOTALL)
    assert [name for name, _ in files] == ["solver.py", "source.py", "study.toml"]
    for name, content in files:
        (tmp_path / name).write_text(content)
    finished = diel("run", "study.toml", cwd=tmp_path)
    assert finished.status == 0, finished.output
    assert finished.stderr == ""
    log = (run_dir(tmp_path) / "logs" / "plot.0.0.log").read_text()
    total = sum(range(1000))
    assert [float(number) for number in re.findall(r"\d+\.\d*", log)] == [
        copy * total for copy in (1, 2, 3, 4)
    ]
