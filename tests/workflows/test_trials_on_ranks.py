"""Trials of trainers with several ranks: failures on one of them, and ranks that die."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import diel, journal, run_dir, workflow

from modules.sweep.trainer_loop import NOT_TRIED

FUNCTIONS = """
import os, signal
import numpy as np

def train(parameters, report):
    rank, kind = report.comm.rank, parameters["kind"]
    if kind == "both raise":
        raise ValueError("on all ranks")
    if kind in ("one raises", "one raises too") and rank == 1:
        raise ValueError("in the middle")
    if kind == "one dies" and rank == 1 and not os.path.exists(report.folder / "died"):
        (report.folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "always dies" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "one raises in MPI" and rank == 1:
        raise ValueError("while rank 0 waits in MPI")
    if kind == "one raises in MPI":
        report.comm.Barrier()
    ranks = np.ones(1)
    report.communicator.sum(ranks)  # where the other rank waits
    return {"score": float(ranks[0]), "rank": rank}
"""
SWEEP = """\
[[module]]
name = "master"
function = "modules.master:run"
[module.options]
objective = "score"
maximise = true
space = {{ kind = {kinds} }}
[[module]]
name = "trainer"
function = "modules.trainer:run"
processes = 2
options = {{ train = "./m.py:train" }}
[[group]]
name = "search"
modules = ["master", "trainer"]
"""


def sweep(folder: Path, *kinds: str) -> Path:
    return workflow(folder, SWEEP.format(kinds=json.dumps(kinds)), m=FUNCTIONS)


def trials(folder: Path) -> list[dict[str, Any]]:
    path = run_dir(folder) / "sweeps" / "search.master" / "trials.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    return sorted(records, key=lambda record: record["trial"])


def test_a_trial_that_fails_on_one_rank_fails_on_all_and_the_next_one_is_run(
    tmp_path: Path,
) -> None:
    sweep(tmp_path, "fine", "one raises", "again", "both raise", "one raises too", "last")
    finished = diel("run", "w.toml", cwd=tmp_path)
    assert finished.status == 0, finished.output
    found = trials(tmp_path)
    failed, fine = [1, 3, 4], [0, 2, 5]
    assert [record["trial"] for record in found if record["state"] == "failed"] == failed
    assert [found[k]["metrics"] for k in fine] == [{"score": 2.0, "rank": 0}] * 3
    assert found[1]["reason"] == found[4]["reason"] == "rank 1: ValueError: in the middle"
    assert found[3]["reason"] == "ValueError: on all ranks"
    log = (run_dir(tmp_path) / "logs" / "trainer.0.0.log").read_text()
    assert 'raise ValueError("in the middle")' in log  # the traceback of rank 1
    assert journal(tmp_path)[-1]["tuples_left"] == 0


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_a_copy_fails_whose_rank_cannot_be_told(tmp_path: Path) -> None:
    """A function that waits in MPI itself: the run names the cause, and ends."""
    sweep(tmp_path, "fine", "one raises in MPI", "last")
    finished = diel("run", "w.toml", cwd=tmp_path)
    assert finished.status == 1
    assert "ValueError: while rank 0 waits in MPI" in finished.output
    assert "m.py" in finished.output


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_a_sweep_goes_on_after_the_death_of_a_rank(tmp_path: Path) -> None:
    """A trial is tried twice: one that kills its rank each time is passed over from then on."""
    sweep(tmp_path, "fine", "one dies", "always dies", "last")
    commands = [["run", "w.toml"], *[["run", "--resume", "the run"]] * 3]
    for number, command in enumerate(commands):
        command = [str(run_dir(tmp_path)) if part == "the run" else part for part in command]
        finished = diel(*command, cwd=tmp_path)
        if number == 3:
            break
        assert finished.status == 1
        assert f"trial {min(number, 1) + 1} was under way on trainer.0" in finished.stderr
        assert f"diel run --resume {run_dir(tmp_path)} goes on" in finished.stderr
    assert finished.status == 0, finished.output
    found = trials(tmp_path)
    assert [record["trial"] for record in found if record["state"] == "failed"] == [2]
    assert found[2]["reason"] == NOT_TRIED
    assert [found[k]["metrics"]["score"] for k in (0, 1, 3)] == [2.0] * 3
    log = (run_dir(tmp_path) / "logs" / "master.0.0.log").read_text()
    for trial, care in ((1, "tried once more"), (2, "tried once more"), (2, "not tried again")):
        text = f"trial {trial} was under way on trainer.0 when the run was ended: it is {care}"
        assert log.count(text) == 1  # not for each of its ranks


NETWORK = """
import numpy as np
from dnn import SGD, Callback, NeuralNetwork, mlp
from dnn.distributed import DataParallel

class Raises(Callback):
    every_steps = 2

    def __init__(self, rank):
        self.rank = rank

    def on_steps(self, model):
        if self.rank == 1:
            raise ValueError("after two steps")

def run(ctx):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(400, 5)).astype("f4"), generator.integers(0, 3, 400)
    model = NeuralNetwork(mlp(5, [8], 3), optimizer=SGD(0.1), parallel=DataParallel(ctx.comm))
    callbacks = [Raises(ctx.comm.rank)]
    model.fit(x, y, epochs=1000, batch_size=20, callbacks=callbacks, progress=False)
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_a_rank_that_raises_between_two_steps_is_the_cause_of_the_end(tmp_path: Path) -> None:
    toml = '[[module]]\nname = "net"\nfunction = "./net.py:run"\nprocesses = 2\n'
    workflow(tmp_path, toml + '[[group]]\nname = "train"\nmodules = ["net"]\n', net=NETWORK)
    finished = diel("run", "w.toml", cwd=tmp_path)
    assert finished.status == 1
    assert "module 'net' failed: ValueError: after two steps" in finished.output
    assert "(rank 1 of the copy)" in finished.output
    assert 'raise ValueError("after two steps")' in finished.output  # in its traceback
