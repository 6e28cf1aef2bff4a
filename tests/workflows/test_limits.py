"""Copies that are told before their time ends, that are bound to cores, that share resources."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from support import (
    WORKFLOWS,
    check_end,
    diel,
    execute,
    mpirun_diel,
    records_of,
    run_dir,
    workflow,
)

TWO_CORES = len(os.sched_getaffinity(0)) >= 2
SHOWS = "import os; print(sorted(os.sched_getaffinity(0)))"
PINNED = """
[[module]]
name = "rank"
function = "./m.py:cores"
processes = 2
pin = "numa"
[[module]]
name = "program"
executable = ["{python}", "-c", "{shows}"]
processes = 2
copies = {copies}
pin = "cores"
[[group]]
name = "ranks"
modules = ["rank"]
iterations = 2
[[group]]
name = "programs"
modules = ["program"]
depends = ["ranks"]
"""
MODULE = """
import os

def cores(ctx):
    return ctx.comm.gather(sorted(os.sched_getaffinity(0)))
"""


@pytest.mark.usefixtures("once")
def test_a_program_saves_its_state_in_time_and_goes_on(tmp_path: Path) -> None:
    environment = {"DIEL_END_TIME": str(int(time.time()) + 3600)}
    file = WORKFLOWS / "in_time.toml"
    check_end(diel("run", file, cwd=tmp_path, environment=environment), tmp_path)
    failures = records_of(tmp_path, "ModuleFailed", module="steps")
    assert failures
    assert any(
        "exited with status 75 after SIGUSR1, sent by signal_before" in failure["error"]
        for failure in failures
    )
    returned = {
        record["module"]: record["returned"] for record in records_of(tmp_path, "CopyFinished")
    }
    assert returned["watcher"]["has_time_left"] is True
    report = returned["report"]
    assert report["steps"] == list(range(60))
    assert report["attempts"] > 1
    assert report["cores"] == 1
    assert 0 < report["time_left_s"] <= 3600
    (work,) = records_of(tmp_path, "GroupFinished", group="work")
    (other,) = records_of(tmp_path, "GroupStarted", group="other")
    assert work["time_s"] <= other["time_s"]
    (started,) = records_of(tmp_path, "RunStarted")
    assert started["resources"] == {"licence": 1}
    assert started["taken"] == {"steps": {"licence": 1}, "note": {"licence": 1}}


@pytest.mark.skipif(not TWO_CORES, reason="needs two cores")
@pytest.mark.usefixtures("once")
def test_ranks_and_programs_have_cores_of_their_own(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    text = PINNED.format(python=sys.executable, shows=SHOWS, copies=1)
    file = workflow(tmp_path, text, m=MODULE)
    command = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, "-m", "diel", "run"]
    check_end(execute([*command, file], cwd=tmp_path), tmp_path)
    for record in records_of(tmp_path, "CopyFinished", module="rank"):
        first, second = record["returned"]
        assert sorted([*first, *second]) == cores
    logs = run_dir(tmp_path) / "logs"
    assert (logs / "program.0.0.log").read_text() == f"{cores}\n"


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_ranks_that_others_have_started_are_refused_cores_too(tmp_path: Path) -> None:
    text = '[[module]]\nname = "m"\nexecutable = ["true"]\nthreads = 9999\npin = "cores"\n'
    file = workflow(tmp_path, f'{text}[[group]]\nname = "g"\nmodules = ["m"]\n')
    finished = mpirun_diel(3, "run", file, cwd=tmp_path)
    assert finished.status == 2, finished.output
    assert "pin of m: up to 9999 cores are bound at a time on" in finished.output
    assert "Traceback" not in finished.output
    assert len(records_of(tmp_path, "RunRefused")) == 1


@pytest.mark.skipif(not TWO_CORES, reason="needs two cores")
def test_more_pinned_ranks_than_cores_are_refused(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    text = PINNED.format(python=sys.executable, shows=SHOWS, copies=2)
    file = workflow(tmp_path, text, m=MODULE)
    command = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, "-m", "diel", "run"]
    finished = execute([*command, file], cwd=tmp_path)
    assert finished.status == 2, finished.output
    assert "pin of rank, program: up to 4 cores are bound at a time on" in finished.output
    assert "its 4 ranks may use 2: run fewer copies or threads" in finished.output
    assert "Traceback" not in finished.output
    assert not (tmp_path / "runs").exists()


def test_an_end_that_is_no_time_is_refused_before_any_rank_starts(tmp_path: Path) -> None:
    file = WORKFLOWS / "in_time.toml"
    finished = diel("run", file, cwd=tmp_path, environment={"DIEL_END_TIME": "soon"})
    assert finished.status == 2, finished.output
    assert "DIEL_END_TIME is 'soon', and has to be a Unix time" in finished.output
    assert not (tmp_path / "runs").exists()
