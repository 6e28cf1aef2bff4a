"""Runs of a part of a workflow: ``--only GROUP`` and ``--from GROUP``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import diel, mpirun_diel, records_of, run_dir, workflow

MODULES = """\
def make(ctx):
    ctx.tuples.tput("made", 42)

def use(ctx):
    return ctx.tuples.tread("made", timeout=0 if ctx.options["needs"] else None)

def tell(ctx):
    if ctx.options["fails"]:
        raise ValueError("not now")
"""
STUDY = """\
[parameters]
fails = false
[[module]]
name = "make"
function = "./m.py:make"
[[module]]
name = "use"
function = "./m.py:use"
options = { needs = true }
[[module]]
name = "tell"
function = "./m.py:tell"
options = { fails = "${fails}" }
[[group]]
name = "first"
modules = ["make"]
[[group]]
name = "then"
depends = ["first"]
modules = ["use"]
[[group]]
name = "last"
depends = ["then"]
modules = ["tell"]
"""


def groups_begun(folder: Path) -> list[str]:
    return [record["group"] for record in records_of(folder, "GroupStarted")]


@pytest.mark.parametrize("starts", [diel, mpirun_diel])
def test_a_part_runs_alone_and_goes_on_as_that_part(starts: object, tmp_path: Path) -> None:
    file = workflow(tmp_path, STUDY, m=MODULES)
    asked = ("run", file, "--only", "first", "--only", "last", "--set", "fails=true")
    first = diel(*asked, cwd=tmp_path) if starts is diel else mpirun_diel(3, *asked, cwd=tmp_path)
    assert "not now" in first.output
    assert "a part of the file (--only first --only last), with an empty tuple" in first.output
    directory = run_dir(tmp_path)
    refused = diel("run", "--resume", directory, "--only", "first", cwd=tmp_path)
    assert (refused.status, "--only is said when a run begins" in refused.stderr) == (2, True)
    assert diel("run", "--resume", directory, cwd=tmp_path).status == 1
    assert set(groups_begun(tmp_path)) == {"first", "last"}
    (listed,) = json.loads(diel("runs", "--json", cwd=tmp_path).stdout)
    assert listed["part"] == "--only first --only last"


def test_a_finished_run_repeats_a_group_and_what_depends_on_it(tmp_path: Path) -> None:
    file = workflow(tmp_path, STUDY, m=MODULES)
    assert diel("run", file, cwd=tmp_path).status == 0
    directory = run_dir(tmp_path)
    again = diel("run", "--resume", directory, "--from", "then", cwd=tmp_path)
    assert again.status == 0, again.output
    assert groups_begun(tmp_path) == ["first", "then", "last", "then", "last"]
    misspelt = diel("run", "--resume", directory, "--from", "than", cwd=tmp_path)
    assert misspelt.status == 2
    assert "did you mean then?" in misspelt.stderr
    assert "nothing is left" in diel("run", "--resume", directory, cwd=tmp_path).output
    drawn = diel("graph", file, "--from", "then", cwd=tmp_path)
    assert "last" in drawn.stdout
    assert "first" not in drawn.stdout
    assert "2 groups" in diel("check", file, "--from", "then", cwd=tmp_path).stdout
    assert "first" not in diel("explain", file, "--from", "then", cwd=tmp_path).stdout
