"""Runs that go on without ranks that were killed, where MPI can do that."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support import (
    diel,
    mpi_implementation,
    processes_in,
    records_of,
    results,
    run_dir,
    started_diel,
    wait_until,
    workflow,
)
from workflows.kills import family, rank_of

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
    own = pathlib.Path("/proc/self/environ").read_bytes().split(b"\\0")  # as it was at the start
    (job,) = (name for name in own if name.startswith(b"PMIX_NAMESPACE="))
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        try:
            names = (process / "environ").read_bytes().split(b"\\0")
        except OSError:
            continue
        if {b"PMIX_RANK=0", job} <= set(names):
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
USE_TUPLES = """
import pathlib, time
import numpy as np
from diel import ANY

HERE = pathlib.Path(__file__).parent

def give(ctx):
    tuples = ctx.tuples
    for number in range(40):
        tuples.tput(("job", number), number)
        tuples.tput((f"array {number % 10}", number), np.full(4000, number))  # on both servers
    tuples.dist_tput("whole", np.arange(1e6))
    tuples.flush()
    results = tuples.subscribe(("result", ANY))
    (HERE / "ready").touch()
    while not (HERE / "killed").exists():
        tuples.tput("late", bytes(5000))
        time.sleep(0.001)
    tuples.tput("go on", True)
    tuples.tput("go on", True)
    found = sorted(results.next()[1] for _ in range(40))
    assert found == list(range(40)), found
    for number in range(40):
        assert (tuples.tget((f"array {number % 10}", number)) == number).all()
    assert (tuples.dist_tget("whole") == np.arange(1e6)).all()
    assert tuples.tget("claimed") == 0
    tuples.collect("late")
    return tuples.increment("done", 0)

def take(ctx):
    tuples = ctx.tuples
    held = tuples.claim(("job", ctx.copy_index))
    tuples.tget("go on")  # waits while the server dies
    tuples.tput(("result", held.value), held.value)
    held.acknowledge()
    if ctx.copy_index == 0:
        tuples.tput("claimed", 0)
    while tuples.increment("taken") <= 38:
        with tuples.claim(("job", ANY)) as job:
            tuples.increment("done")
            tuples.tput(("result", job.value), job.value)
"""
WITH_TWINS = """
[workflow]
on_rank_loss = "continue"
[tuple_space]
servers = 2
replicas = 1
[[module]]
name = "give"
function = "./use.py:give"
[[module]]
name = "take"
function = "./use.py:take"
copies = 2
[[group]]
name = "work"
modules = ["give", "take"]
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
    lost = records_of(tmp_path, "RanksLost")
    assert {record["policy"] for record in lost} == {"continue"}
    assert sum(len(record["ranks"]) for record in lost) == 2  # type: ignore[arg-type, misc]
    assert "the run goes on" in finished.stdout
    assert "warning: the run went on without 2 copies that failed:" in finished.stdout
    # What had killed a rank was tried beside another one.
    log = "".join(file.read_text() for file in (run_dir(tmp_path) / "logs").glob("trainer*"))
    assert log.count("on a rank that died: in a process of its own") == 2


@pytest.mark.thorough
def test_no_rank_that_computes_outlives_rank0(tmp_path: Path) -> None:
    workflow(tmp_path, ALONE, m=COMPUTES)
    finished = diel("run", "w.toml", cwd=tmp_path, timeout_s=60)
    assert finished.status == 1, finished.output
    assert "rank 0, the executive, has died" in finished.output
    assert not processes_in(tmp_path)


def test_a_run_goes_on_without_a_tuple_server_that_has_a_twin(tmp_path: Path) -> None:
    workflow(tmp_path, WITH_TWINS, use=USE_TUPLES)
    with started_diel("run", "w.toml", cwd=tmp_path) as process:
        wait_until((tmp_path / "ready").exists)
        victim = next(pid for pid in family(process.pid) if rank_of(pid) == 1)
        os.kill(victim, signal.SIGKILL)
        (tmp_path / "killed").touch()
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, output + errors
    (lost,) = records_of(tmp_path, "RanksLost")
    assert (lost["ranks"], lost["policy"]) == ([1], "continue")
    assert "its tuples are on rank 2 too" in str(lost["explanation"])
    (given,) = records_of(tmp_path, "CopyFinished", module="give")
    assert given["returned"] == 38
    (ended,) = records_of(tmp_path, "RunEnded")
    assert ended["tuples_left"] == 42  # the results, and two counters
