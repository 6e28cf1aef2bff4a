"""docs/report.md does what it says; a run that is killed is given a report."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from support import ROOT, diel, execute, run_dir

PAGE = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```\w+\n# (\w+\.\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_the_files_of_the_page(tmp_path: Path) -> None:
    """A user's own folder of the name of ours does not stand in the way."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "__init__.py").write_text("raise SystemExit('mine')\n")
    assert sorted(FILES) == ["anywhere.py", "scan.py", "scan.toml"]
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    ran = diel("run", "scan.toml", cwd=tmp_path)
    assert ran.status == 0, ran.output
    assert "report:" not in ran.stdout
    reported = diel("report", run_dir(tmp_path), cwd=tmp_path)
    report = run_dir(tmp_path) / "report.html"
    assert (reported.status, reported.stdout) == (0, f"{report}\n"), reported.output
    text = report.read_text()
    assert "highest range m" in text
    assert "<b>91.74</b>" in text  # at 45 degrees
    assert "All 27 trials" in text
    assert re.search(r"rank \d on .*: scan.0", text)
    shutil.rmtree(tmp_path / "modules")  # what the page's own program imports is ours
    finished = execute([sys.executable, "-W", "error", "anywhere.py"], cwd=tmp_path)
    assert finished.status == 0, finished.output
    assert "What decides" in (tmp_path / "hill.html").read_text()
