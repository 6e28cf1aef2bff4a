"""Runs whose ranks die are started again by their launcher, as often as they may be."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import diel, journal, mpi_implementation, mpirun_diel, records_of, run_dir, workflow

MODULES = """\
import os, signal, time
import numpy as np

def kill_once(ctx):
    total = ctx.tuples.tget("sum") + ctx.iteration[-1]
    mark = ctx.folder / "killed"
    if ctx.iteration[-1] == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    ctx.tuples.tput("sum", total)

def prepare(ctx):
    ctx.tuples.tput("sum", 0)

def report(ctx):
    return ctx.tuples.tget("sum")

def kill(ctx):
    os.kill(os.getpid(), signal.SIGKILL)

def wait_for(ctx, text):
    deadline_s = time.monotonic() + 30
    while text not in (ctx.run_dir / "journal.jsonl").read_text():
        if time.monotonic() > deadline_s:
            raise TimeoutError(text)
        time.sleep(0.01)

def long(ctx):
    restored = ctx.restored
    if restored is None:
        ctx.tuples.tput("begun", 1)
        wait_for(ctx, '"number": 2')  # checkpoints by time: no iteration has finished
    state = restored or {"step": 0, "sum": np.zeros(2)}
    for step in range(state["step"], 6):
        state = {"step": step + 1, "sum": state["sum"] + step}
        ctx.checkpoint(state)
        if step == 3 and restored is None:
            wait_for(ctx, "long.0.0.work.0_4.zip")
            os.kill(os.getpid(), signal.SIGKILL)
    return [restored["step"], state["sum"].tolist(), ctx.tuples.collect("begun")[0][1]]

def fail(ctx):
    raise ValueError("not a matter of ranks")
"""
STUDY = """\
[workflow]
restarts = 4
[[module]]
name = "prepare"
function = "./m.py:prepare"
[[module]]
name = "add"
function = "./m.py:kill_once"
[[module]]
name = "report"
function = "./m.py:report"
[[group]]
name = "first"
modules = ["prepare"]
[[group]]
name = "loop"
depends = ["first"]
modules = ["add"]
iterations = 4
[[group]]
name = "last"
depends = ["loop"]
modules = ["report"]
"""
ONE = """\
[[module]]
name = "bad"
function = "./m.py:{function}"
[[group]]
name = "work"
modules = ["bad"]
"""


def test_a_run_whose_rank_is_killed_goes_on_by_itself(tmp_path: Path) -> None:
    workflow(tmp_path, STUDY, m=MODULES)
    finished = diel("run", "w.toml", cwd=tmp_path)
    assert finished.status == 0, finished.output
    records = journal(tmp_path)
    returned = [record["returned"] for record in records if record["event"] == "CopyFinished"]
    assert returned[-1] == 0 + 1 + 2 + 3
    (lost,) = records_of(tmp_path, "RunLost")
    explanation = str(lost["explanation"])
    assert "was killed by SIGKILL" in explanation
    if mpi_implementation() == "Open MPI":  # MPICH's mpiexec does not say which rank
        assert "module add.0" in explanation
        assert lost["ranks"] == [2]
    assert (lost["restart"], lost["on_ranks"]) == (1, 3)
    (resumed,) = records_of(tmp_path, "RunResumed")
    assert resumed["restart"] == 1
    assert finished.output.count(explanation) == 1  # the cause is named once
    assert f"{explanation}: starts again on 3 ranks, restart 1" in finished.stdout
    assert "finished after" in finished.stdout
    assert "restarted once" in finished.stdout
    listed = diel("runs", cwd=tmp_path)
    assert "finished" in listed.stdout
    assert "restarted once" in listed.stdout


@pytest.mark.thorough
def test_a_run_that_gets_no_further_is_given_up(tmp_path: Path) -> None:
    workflow(tmp_path, ONE.format(function="kill"), m=MODULES)
    finished = diel("run", "--restarts", 9, "w.toml", cwd=tmp_path)
    assert finished.status == 1
    assert "not started again: it has died 3 times in a row" in finished.stderr
    assert f"to go on with it: diel run --resume {run_dir(tmp_path)}" in finished.stderr
    assert [lost.get("restart", 0) for lost in records_of(tmp_path, "RunLost")] == [1, 2, 0]
    assert "Traceback" not in finished.output


def test_a_long_module_goes_on_from_the_state_that_it_had_saved(tmp_path: Path) -> None:
    settings = '[workflow]\nrestarts = 1\ncheckpoint_every = "100 ms"\n'
    toml = settings + ONE.format(function="long").replace('"bad"', '"long"')
    workflow(tmp_path, toml, m=MODULES)
    finished = diel("run", "w.toml", cwd=tmp_path)
    assert finished.status == 0, finished.output
    (ended,) = records_of(tmp_path, "CopyFinished")
    assert ended["returned"] == [4, [15.0, 15.0], 1]
    # Of six versions those are left that the last two checkpoints name, and what came after.
    assert len(list((run_dir(tmp_path) / "states").iterdir())) < 6


def test_restarts_need_a_launcher_of_ours(tmp_path: Path) -> None:
    workflow(tmp_path, ONE.format(function="fail"), m=MODULES)
    refused = mpirun_diel(2, "run", "--restarts", 1, "w.toml", cwd=tmp_path)
    assert refused.status == 2
    assert "--restarts is for the diel run that starts mpiexec" in refused.stderr
