"""Runs that go on without ranks that were killed, where MPI can do that."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import diel, journal, mpi_implementation, processes_in, results, run_dir, workflow

TRAIN = """
import os, pathlib, time

def train(parameters, report):
    report(1, score=parameters["x"])
    here = pathlib.Path(__file__).parent
    if parameters["x"] in (7, 23):
        killed = here / f"killed.{parameters['x']}"
        if not killed.exists():
            killed.touch()
            if parameters["x"] == 23:
                os._exit(3)  # of this Open MPI's launcher tells nobody
            os.kill(os.getpid(), 9)
    time.sleep(0.01)
    return {"score": parameters["x"] % 10}
"""
TOML = """
[workflow]
on_rank_loss = "continue"
[[module]]
name = "master"
function = "modules.master:run"
[module.options]
objective = "score"
maximise = true
seed = 1
space = { x = { from = 0, to = 39, step = 1 } }
[[module]]
name = "trainer"
function = "modules.trainer:run"
copies = 4
options = { train = "./train.py:train" }
[[group]]
name = "search"
modules = ["master", "trainer"]
"""


COMPUTES = """
import os, pathlib, re

def kill_rank0(ctx):
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        try:
            names = (process / "environ").read_bytes().split(b"\\0")
        except OSError:
            continue
        if {b"PMIX_RANK=0", b"PMIX_NAMESPACE=" + os.environb[b"PMIX_NAMESPACE"]} <= set(names):
            os.kill(int(process.name), 9)
    re.match(r"(a+)+$", 64 * "a" + "b")  # for years, and no other thread runs meanwhile
"""
ALONE = """
[workflow]
on_rank_loss = "continue"
[[module]]
name = "alone"
function = "./m.py:kill_rank0"
[[group]]
name = "work"
modules = ["alone"]
"""


@pytest.fixture(autouse=True)
def _only_open_mpi() -> None:
    if mpi_implementation() != "Open MPI":
        pytest.skip("only Open MPI lets ranks live on when one is killed")


def test_a_sweep_goes_on_without_trainers_that_were_killed(tmp_path: Path) -> None:
    workflow(tmp_path, TOML, train=TRAIN)
    finished = diel("run", "w.toml", cwd=tmp_path)
    assert finished.status == 0, finished.output
    rows = [(row["trial"], row["x"], row["score"]) for row in results(tmp_path)]
    undisturbed = [(str(number), str(number), str(number % 10)) for number in range(40)]
    assert sorted(rows) == sorted(undisturbed)
    lost = [record for record in journal(tmp_path) if record["event"] == "RanksLost"]
    assert {record["policy"] for record in lost} == {"continue"}
    assert sum(len(record["ranks"]) for record in lost) == 2  # type: ignore[arg-type, misc]
    assert "the run goes on" in finished.stdout
    assert "warning: the run went on without 2 copies that failed:" in finished.stdout
    # What had killed a rank was tried beside another one.
    log = "".join(file.read_text() for file in (run_dir(tmp_path) / "logs").glob("trainer*"))
    assert log.count("on a rank that died: in a process of its own") == 2


def test_no_rank_that_computes_outlives_rank0(tmp_path: Path) -> None:
    workflow(tmp_path, ALONE, m=COMPUTES)
    finished = diel("run", "w.toml", cwd=tmp_path, timeout_s=60)
    assert finished.status == 1, finished.output
    assert "rank 0, the executive, has died" in finished.output
    assert not processes_in(tmp_path)
