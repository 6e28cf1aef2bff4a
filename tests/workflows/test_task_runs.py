"""Tasks of executables: whatever fails, what is done is not done again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support import check_end, diel, records_of, run_dir, workflow

FAILING = """\
[[module]]
name = "case"
executable = ["sh", "-c", "echo {task} >> cases; test -e mended || test {task} != 7 || exit 3"]
tasks = 20
max_failures = "10%"
[[module]]
name = "other"
executable = ["sh", "-c", "echo other >> others"]
[[module]]
name = "table"
function = "./m.py:table"
[[group]]
name = "each"
modules = ["case"]
[[group]]
name = "beside"
modules = ["other"]
depends = ["each"]
[[group]]
name = "together"
modules = ["table"]
depends = ["each"]
"""
TABLE = """\
def table(ctx):
    ctx.results.declare(["cases"], objective="cases")
    ctx.results.add({"cases": len((ctx.folder / "cases").read_text().split())})
"""


@pytest.mark.usefixtures("once")
def test_a_finished_run_repeats_the_tasks_that_failed(tmp_path: Path) -> None:
    finished = diel("run", workflow(tmp_path, FAILING, m=TABLE), cwd=tmp_path)
    check_end(finished, tmp_path)
    assert "19 of 20 tasks, 1 failed: 7" in finished.stdout
    assert f"to repeat what failed: diel run --resume {run_dir(tmp_path)}" in finished.stdout
    (failed,) = records_of(tmp_path, "TaskFailed")
    assert failed["error"].endswith("exited with status 3")
    cases = tmp_path / "cases"
    assert sorted(map(int, cases.read_text().split())) == [*range(20)]

    (tmp_path / "mended").touch()
    again = diel("run", "--resume", run_dir(tmp_path), cwd=tmp_path)
    assert again.status == 0, again.output
    assert "failed" not in again.stdout
    assert sorted(map(int, cases.read_text().split())) == sorted([*range(20), 7])
    # What came after the failed task is done once more, and has its results once.
    assert (run_dir(tmp_path) / "results.csv").read_text().split() == ["cases", "21"]
    assert (tmp_path / "others").read_text().split() == ["other", "other"]
    last = diel("run", "--resume", run_dir(tmp_path), cwd=tmp_path)
    assert "has finished: nothing is left to run" in last.stdout


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_too_many_failed_tasks_fail_the_module(tmp_path: Path) -> None:
    file = workflow(tmp_path, FAILING.replace('"10%"', "0"), m=TABLE)
    finished = diel("run", file, cwd=tmp_path)
    assert finished.status == 1, finished.output
    assert "1 of 20 tasks have failed, and none may (max_failures); task 7: sh" in finished.stderr
    (tmp_path / "mended").touch()
    again = diel("run", "--resume", run_dir(tmp_path), cwd=tmp_path)
    assert again.status == 0, again.output
    done = Counter(map(int, (tmp_path / "cases").read_text().split()))
    assert done[7] == 2
    assert done[0] == done[1] == 1
