"""Declared inputs and outputs: what is up to date is not run again, also after a kill."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
from support import THOROUGH, diel, killed_diel, workflow

STEP = """\
import sys, time
from pathlib import Path

def work(name, source, target):
    with open("begun.txt", "a") as log:
        log.write(f"{name}\\n")
    with open(target, "w") as file:
        for line in Path(source).read_text().split():
            file.write(f"{line}{name}\\n")
            file.flush()
            time.sleep(0.01)

def middle(ctx):
    if ctx.comm.rank == 0:
        work("m", "made/first.txt", "made/middle.txt")

if __name__ == "__main__":
    work(*sys.argv[1:])
"""
PIPELINE = f"""\
[[module]]
name = "first"
executable = ["{sys.executable}", "steps.py", "f", "raw.txt", "made/first.txt"]
inputs = ["raw.txt"]
outputs = ["made/first.txt"]
[[module]]
name = "middle"
function = "./steps.py:middle"
processes = 2
inputs = ["made/first.txt"]
outputs = ["made/middle.txt"]
[[module]]
name = "last"
executable = ["{sys.executable}", "steps.py", "l", "made/middle.txt", "made/last.txt"]
inputs = ["made/middle.txt"]
outputs = ["made/last.txt"]
[[group]]
name = "one"
modules = ["first"]
[[group]]
name = "two"
modules = ["middle"]
depends = ["one"]
[[group]]
name = "three"
modules = ["last"]
depends = ["two"]
"""
LINES = [str(number) for number in range(8)]
STEPS = {"first.0.one.0": "f", "middle.0.two.0": "m", "last.0.three.0": "l"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "raw.txt").write_text("\n".join(LINES))
    return workflow(tmp_path, PIPELINE, steps=STEP)


def steps_begun(folder: Path) -> str:
    log = folder / "begun.txt"
    return "".join(log.read_text().split()) if log.exists() else ""


def begun(folder: Path) -> str:
    """Return the steps that have begun since it was asked before."""
    names = steps_begun(folder)
    (folder / "begun.txt").write_text("")
    return names


def test_only_what_is_not_up_to_date_runs(file: Path, tmp_path: Path) -> None:
    assert diel("run", file, cwd=tmp_path).status == 0
    assert begun(tmp_path) == "fml"
    again = diel("run", file, cwd=tmp_path)
    assert begun(tmp_path) == ""
    assert "up to date, and not run: first.0, middle.0, last.0" in again.stdout
    (tmp_path / "made" / "middle.txt").unlink()
    explained = diel("explain", file, cwd=tmp_path).stdout
    assert "output missing: made/middle.txt" in explained
    assert "middle may make its input anew" in explained
    assert diel("run", file, cwd=tmp_path).status == 0
    assert begun(tmp_path) == "m"  # it makes the same as before, so nothing follows
    assert diel("run", file, "--force", "--from", "two", cwd=tmp_path).status == 0
    assert begun(tmp_path) == "ml"
    (tmp_path / "raw.txt").unlink()
    for command in ("check", "run"):
        refused = diel(command, file, cwd=tmp_path)
        assert (refused.status, 'input "raw.txt" of module "first"' in refused.stderr) == (2, True)


KILLS = 3
"""Of one pipeline in a row: 30 in all, if tests are thorough."""


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(10 if THOROUGH else 1))
def test_a_killed_run_leaves_nothing_that_counts_as_made(
    file: Path, tmp_path: Path, seed: int
) -> None:
    if seed % 2:  # every other time one rank makes it
        file.write_text(PIPELINE.replace("processes = 2\n", ""))
    draw, made = random.Random(seed), ""
    for _ in range(KILLS):
        killed_diel(
            *("run", file),
            cwd=tmp_path,
            when=lambda: bool(steps_begun(tmp_path)),
            delay_s=draw.uniform(0.0, 0.12) * (len(STEPS) - len(made)),  # each takes 0.1 s
        )
        # What was made is not made again, and what is made now was begun in its turn.
        reached = made + begun(tmp_path)
        assert "fml".startswith(reached)
        made = recorded_as_made(tmp_path, file)
        assert reached.startswith(made)
    again = diel("run", file, cwd=tmp_path)
    assert again.status == 0, again.output
    assert made + begun(tmp_path) == "fml"
    expected = "".join(f"{line}fml\n" for line in LINES)
    assert (tmp_path / "made" / "last.txt").read_text() == expected


def recorded_as_made(folder: Path, file: Path) -> str:
    """Return the steps whose outputs count as made."""
    made = ""
    for name, step in STEPS.items():
        record = folder / ".diel" / file.stem / f"{name}.json"
        if record.exists() and json.loads(record.read_text())["state"] == "made":
            made += step
    return made
