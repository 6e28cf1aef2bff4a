"""Values that a command line gives to a run: it keeps them when it goes on, and shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import diel, mpirun_diel, records_of, run_dir, workflow

MODULES = """\
from pathlib import Path

def solve(ctx):
    if Path("fails").exists():
        Path("fails").unlink()
        raise ValueError("only this once")
    return ctx.options
"""
STUDY = """\
[parameters]
dt = 0.1
case = { choices = ["dam", "tank"], default = "dam" }
[[module]]
name = "solve"
function = "./m.py:solve"
options = { dt = "${dt}", case = "${case}", cells = 8 }
[[module]]
name = "say"
executable = ["echo", "${case} by ${dt}, in copy {copy}"]
[[group]]
name = "first"
modules = ["solve"]
[[group]]
name = "then"
depends = ["first"]
modules = ["say"]
"""
GIVEN = ("--set", "dt=0.05", "--set", "case=tank", "--set", "module.solve.options.cells=64")


@pytest.mark.parametrize("starts", [diel, mpirun_diel])
def test_a_run_goes_on_with_what_it_was_given(starts: object, tmp_path: Path) -> None:
    file = workflow(tmp_path, STUDY, m=MODULES)
    (tmp_path / "fails").touch()
    if starts is diel:
        first = diel("run", file, *GIVEN, cwd=tmp_path)
    else:
        first = mpirun_diel(3, "run", file, *GIVEN, cwd=tmp_path)
    assert "only this once" in first.output
    directory = run_dir(tmp_path)
    again = diel("run", "--resume", directory, "--set", "dt=1", cwd=tmp_path)
    assert again.status == 2
    assert "--set is said when a run begins" in again.stderr
    second = diel("run", "--resume", directory, cwd=tmp_path)
    assert second.status == 0, second.output
    finished = records_of(tmp_path, "CopyFinished")
    assert finished[0]["returned"] == {"dt": 0.05, "case": "tank", "cells": 64}
    assert (directory / "logs" / "say.0.0.log").read_text() == "tank by 0.05, in copy 0\n"
    assert file.read_text() == STUDY
    (listed,) = json.loads(diel("runs", "--json", cwd=tmp_path).stdout)
    set_keys = {"module.solve.options.cells": 64}
    assert listed["parameters"] == {"dt": 0.05, "case": "tank", **set_keys}
    assert "dt=0.05 case=tank" in diel("runs", cwd=tmp_path).stdout
