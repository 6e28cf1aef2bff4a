"""Trials of trainers with several ranks: failures on one of them, and ranks that die."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import as_one_workflow, diel, journal, run_dir, workflow

from modules.sweep.trainer_ranks import NOT_TRIED

FUNCTIONS = """
import os, signal
import numpy as np

def train(parameters, report):
    rank, kind = report.comm.rank, parameters["kind"]
    if kind == "both raise":
        raise ValueError("on all ranks")
    if kind in ("one raises", "one raises too") and rank == 1:
        raise ValueError("in the middle")
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
trainer = "trainer"
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


def trials(folder: Path, prefix: str = "") -> list[dict[str, Any]]:
    path = run_dir(folder) / "sweeps" / f"{prefix}search.{prefix}master" / "trials.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    return sorted(records, key=lambda record: record["trial"])


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of one run of two sweeps: of two ranks a trial, and of one to four."""
    folder = tmp_path_factory.mktemp("two")
    sweep(folder, "fine", "one raises", "again", "both raise", "one raises too", "last")
    of_two = (folder / "w.toml").read_text()
    groups(folder, "fine", "one raises", "last")
    of_any = (folder / "w.toml").read_text().replace("./m.py", "./g.py")
    toml = as_one_workflow({"two": of_two, "any": of_any})
    finished = diel("run", workflow(folder, toml, m=FUNCTIONS, g=GROUPS), cwd=folder)
    assert finished.status == 0, finished.output
    assert journal(folder)[-1]["tuples_left"] == 0
    return folder


def test_a_trial_that_fails_on_one_rank_fails_on_all_and_the_next_one_is_run(ran: Path) -> None:
    found = trials(ran, "two_")
    failed, fine = [1, 3, 4], [0, 2, 5]
    assert [record["trial"] for record in found if record["state"] == "failed"] == failed
    assert [found[k]["metrics"] for k in fine] == [{"score": 2.0, "rank": 0}] * 3
    assert found[1]["reason"] == found[4]["reason"] == "rank 1: ValueError: in the middle"
    assert found[3]["reason"] == "ValueError: on all ranks"
    log = (run_dir(ran) / "logs" / "two_trainer.0.0.log").read_text()
    assert 'raise ValueError("in the middle")' in log  # the traceback of rank 1


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
    """A trial is tried twice: one that kills its rank each time is passed over from then on.

    One that kills it once is in the next test of a death.
    """
    sweep(tmp_path, "fine", "always dies", "last")
    commands = [["run", "w.toml"], *[["run", "--resume", "the run"]] * 2]
    for number, command in enumerate(commands):
        command = [str(run_dir(tmp_path)) if part == "the run" else part for part in command]
        finished = diel(*command, cwd=tmp_path)
        if number == 2:
            break
        assert finished.status == 1
        assert "trial 1 was under way on trainer.0" in finished.stderr
        assert f"diel run --resume {run_dir(tmp_path)} goes on" in finished.stderr
    assert finished.status == 0, finished.output
    found = trials(tmp_path)
    assert [record["trial"] for record in found if record["state"] == "failed"] == [1]
    assert found[1]["reason"] == NOT_TRIED
    assert [found[k]["metrics"]["score"] for k in (0, 2)] == [2.0] * 2
    log = (run_dir(tmp_path) / "logs" / "master.0.0.log").read_text()
    for care in ("tried once more", "not tried again"):
        text = f"trial 1 was under way on trainer.0 when the run was ended: it is {care}"
        assert log.count(text) == 1  # not for each of its ranks


GROUPS = """
import os, signal, time
import numpy as np

def ranks(parameters):
    return parameters["size"]

def train(parameters, report):
    size, rank = parameters["size"], report.comm.rank
    assert report.comm.size == report.communicator.size == size
    here = report.folder / f"{parameters['kind']}.{rank}"
    is_last = rank == size - 1
    if parameters["kind"] == "one raises" and is_last:
        raise ValueError("on the last rank")
    if parameters["kind"] == "one dies" and size == 2 and is_last and not here.exists():
        here.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if parameters["kind"] == "cannot be told" and size == 2 and not here.exists():
        here.touch()
        if not is_last:
            raise ValueError("while rank 1 sleeps")
        time.sleep(3)
    ranks = np.ones(1)
    report.communicator.sum(ranks)
    return {"score": float(ranks[0]), "host": 0}
"""


SIZES = [1, 3, 2, 4]


def groups(folder: Path, *kinds: str, sizes: list[int] = SIZES, module: str = "") -> Path:
    text = SWEEP.format(kinds=f"{json.dumps(kinds)}, size = {sizes}")
    text = text.replace("processes = 2", f"processes = {max(sizes)}\n{module}")
    text = text.replace('"./m.py:train"', '"./m.py:train", ranks = "./m.py:ranks"')
    return workflow(folder, text, m=GROUPS)


def test_trials_have_the_ranks_that_their_points_need(ran: Path) -> None:
    found = trials(ran, "any_")
    assert len(found) == 3 * len(SIZES)
    for record in found:
        size, kind = record["parameters"]["size"], record["parameters"]["kind"]
        if kind == "one raises":
            at = f"rank {size - 1}: " if size > 1 else ""
            assert record["reason"] == f"{at}ValueError: on the last rank"
        else:
            assert record["metrics"] == {"score": size, "host": 0, "ranks": size}
            assert record["trainer"] % size == 0


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_a_sweep_in_groups_goes_on_after_the_death_of_a_rank(tmp_path: Path) -> None:
    groups(tmp_path, "fine", "one dies", "last")
    assert diel("run", "w.toml", cwd=tmp_path).status == 1
    before = trials(tmp_path)
    finished = diel("run", "--resume", run_dir(tmp_path), cwd=tmp_path)
    assert finished.status == 0, finished.output
    found = trials(tmp_path)
    assert [record for record in found if record in before] == before
    assert [record["metrics"]["score"] for record in found] == [1, 3, 2, 4] * 3
    log = (run_dir(tmp_path) / "logs" / "master.0.0.log").read_text()
    assert "was under way on trainer.0 when the run was ended: it is tried once more" in log


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("sizes", "module", "words"),
    [
        (SIZES, "retries = 1", "starts again: RankGroupFailed"),
        (
            [1, 2],
            'copies = 2\non_failure = "continue"',
            "the run goes on without it: RankGroupFailed",
        ),
    ],
    ids=["again", "without it"],
)
@pytest.mark.usefixtures("once")
def test_the_orders_of_a_copy_that_fails_are_given_out_again(
    sizes: list[int], module: str, words: str, tmp_path: Path
) -> None:
    groups(tmp_path, "fine", "cannot be told", "last", sizes=sizes, module=module)
    finished = diel("run", "w.toml", cwd=tmp_path)
    assert finished.status == 0, finished.output
    assert words in finished.output
    assert [record["metrics"]["score"] for record in trials(tmp_path)] == sizes * 3


NETWORKS = """\
[[module]]
name = "master"
function = "modules.master:run"
[module.options]
trainer = "trainer"
space = {{ hidden = [[8], [16]], learning_rate = [0.05, 0.1], epochs = 2 }}
[[module]]
name = "trainer"
function = "modules.trainer:run"
processes = {processes}
[module.options]
dataset = "digits"
{options}
[[group]]
name = "search"
modules = ["master", "trainer"]
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_networks_of_groups_are_those_of_copies_with_so_many_ranks(tmp_path: Path) -> None:
    """And of one rank, bit for bit, as many at once as there."""
    parallel, found = 'training.parallel = "data"', {}
    ways = {1: "", 2: parallel, 4: f'{parallel}\nranks = "hidden / 8"'}
    files = {
        f"on_{processes}": NETWORKS.format(processes=processes, options=options)
        for processes, options in ways.items()
    }
    workflow(tmp_path, as_one_workflow(files))
    finished = diel("run", "w.toml", cwd=tmp_path)
    assert finished.status == 0, finished.output
    for processes in ways:
        found[processes] = [record["metrics"] for record in trials(tmp_path, f"on_{processes}_")]
        for metrics in found[processes]:
            del metrics["training_time_s"]
    assert [metrics.pop("ranks") for metrics in found[4]] == [1, 1, 2, 2]
    assert found[4] == found[1][:2] + found[2][2:]


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
