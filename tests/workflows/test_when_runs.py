"""Conditions of groups in whole runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import WORKFLOWS, diel, records_of, run_dir, workflow

MODULES = """\
import time
from pathlib import Path

def solve(ctx):
    ctx.tuples.tput("error", 0.5)
    ctx.tuples.tput(("norm", 1), "small")

def fail(ctx):
    raise ValueError("always")

def once(ctx):
    if Path("fails").exists():
        Path("fails").unlink()
        journal = ctx.run_dir / "journal.jsonl"
        while "CheckpointSaved" not in journal.read_text().partition("GroupSkipped")[2]:
            time.sleep(0.01)
        raise ValueError("only this once")
    if ctx.group == "last":
        ctx.tuples.tget_nowait("error")
    return 7
"""
STUDY = """\
[parameters]
tolerance = 0.1
[workflow]
checkpoint_every = "1 ms"
[[module]]
name = "solve"
function = "./m.py:solve"
[[module]]
name = "fail"
function = "./m.py:fail"
on_failure = "continue"
[[module]]
name = "once"
function = "./m.py:once"
[[group]]
name = "solve"
modules = ["solve"]
[[group]]
name = "refine"
modules = ["fail"]
depends = ["solve"]
when = "value('error') > tolerance and value(['norm', 1]) == 'small'"
[[group]]
name = "inner"
modules = ["fail"]
[[group]]
name = "nest"
groups = ["inner"]
depends = ["refine"]
when = "outcome('refine') == 'finished' or value('nothing')"
[[group]]
name = "last"
modules = ["once"]
depends = ["nest"]
when = "outcome('refine') == 'failed' and outcome('nest') == 'skipped'"
[[group]]
name = "after"
modules = ["once"]
depends = ["last"]
when = "outcome('refine') == 'failed' and outcome('inner') == 'skipped' and value('error') == none"
"""


def test_what_was_skipped_stays_so_when_a_run_goes_on(tmp_path: Path) -> None:
    file = workflow(tmp_path, STUDY, m=MODULES)
    (tmp_path / "fails").touch()
    first = diel("run", "-n", 3, file, cwd=tmp_path)
    assert "only this once" in first.output
    (skipped,) = records_of(tmp_path, "GroupSkipped")
    assert skipped["group"] == "nest"
    assert skipped["values"] == {"value('nothing')": None, "outcome('refine')": "failed"}
    reason = (
        "when = \"outcome('refine') == 'finished' or value('nothing')\" is false: "
        "value('nothing'): no tuple, outcome('refine') = \"failed\""
    )
    assert f"group nest is skipped: {reason}" in first.stdout
    directory = run_dir(tmp_path)
    explained = diel("explain", directory, cwd=tmp_path).stdout
    assert f"nest    skipped: {reason}" in explained
    assert f"inner   skipped: inside nest: {reason}" in explained
    watched = diel("watch", "--once", directory, cwd=tmp_path).stdout
    assert f"○ nest    skipped  {reason[:30]}" in watched
    again = diel("run", "--resume", directory, cwd=tmp_path)
    assert again.status == 0, again.output
    assert len(records_of(tmp_path, "GroupSkipped")) == 1
    assert f"nest    skipped: {reason}" in diel("explain", directory, cwd=tmp_path).stdout
    returned = records_of(tmp_path, "CopyFinished", module="once")
    assert [record["group"] for record in returned] == ["last", "after"]


def test_a_condition_without_a_value_ends_the_run(tmp_path: Path) -> None:
    text = STUDY.replace("== 'small'", "> tolerance")
    finished = diel("run", workflow(tmp_path, text, m=MODULES), cwd=tmp_path)
    assert finished.status == 1
    assert "a group's condition has no value" in finished.stderr
    assert (
        "when = \"value('error') > tolerance and value(['norm', 1]) > tolerance\""
        in finished.stderr
    )
    assert 'group refine: "small" is compared with 0.1, and they are of' in finished.stderr
    assert (
        "tolerance = 0.1, value('error') = 0.5, value(['norm', 1]) = \"small\"" in finished.stderr
    )


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
@pytest.mark.parametrize(("cells", "skipped"), [(8, ["warn"]), (512, ["refine", "warn"])])
def test_a_result_is_refined_if_it_is_coarse(
    cells: int, skipped: list[str], tmp_path: Path
) -> None:
    finished = diel("run", WORKFLOWS / "refine.toml", "--set", f"cells={cells}", cwd=tmp_path)
    assert finished.status == 0, finished.output
    found = {record["group"] for record in records_of(tmp_path, "GroupSkipped")}
    assert found == {"draw", *skipped}
    (told,) = records_of(tmp_path, "CopyFinished", module="reporter")
    assert told["returned"] == pytest.approx(0.746824, abs=1e-4)
