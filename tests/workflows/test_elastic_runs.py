"""A training killed in the middle of an epoch on two ranks goes on with one, and with three."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support import diel, records_of, run_dir, workflow

pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")

TRAINING = """
import os, signal
from pathlib import Path

import numpy as np

from dnn import SGD, Callback, Checkpoint, NeuralNetwork, mlp
from dnn.distributed import DataParallel

EPOCHS = 3

def samples():
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, 90)
    return (generator.normal(size=(90, 5)) + 2 * np.eye(5)[y]).astype("f4"), y

def network(comm=None):
    scheme = DataParallel(comm) if comm is not None and comm.size > 1 else None
    layers = mlp(5, [8], 3, "tanh")
    optimizer = SGD(0.1, 0.9)
    return NeuralNetwork(layers, optimizer=optimizer, seed=3, device="numpy", parallel=scheme)

class Killed(Callback):
    every_steps = 4

    def __init__(self, rank):
        self.rank = rank

    def on_steps(self, model):
        if len(model.history) == 1 and self.rank == 1:  # the second epoch, after 4 of its 6 steps
            os.kill(os.getpid(), signal.SIGKILL)

def described(model):
    history = model.history
    return {
        "parameters": np.concatenate([p.ravel() for p in model.state_dict().values()]).tolist(),
        "loss": history.loss,
        "visited": [sum(counted[:-1]) for _, counted in history.tallies],
        "steps": history.steps,
    }

def run(ctx):
    file = ctx.folder / ctx.options.get("file", "written")
    model = network(ctx.comm)
    callbacks = [Checkpoint(file, every_steps=2)]
    if file.exists():
        model.load(file)
        assert (len(model.history), model._progress.steps) == (1, ctx.options["steps"])
    else:
        callbacks.append(Killed(ctx.comm.rank))
    epochs = EPOCHS - len(model.history)
    model.fit(*samples(), epochs=epochs, batch_size=16, callbacks=callbacks, progress=False)
    return described(model)
"""
KILLED = """\
[[module]]
name = "two"
function = "./m.py:run"
processes = 2
[[group]]
name = "train"
modules = ["two"]
"""
GOES_ON = """\
[[module]]
name = "one"
function = "./m.py:run"
options = {{ file = "for one", steps = {steps} }}
[[module]]
name = "three"
function = "./m.py:run"
processes = 3
options = {{ file = "for three", steps = {steps} }}
[[group]]
name = "train"
modules = ["one", "three"]
"""


@pytest.mark.usefixtures("once")
def test_killed_on_two_ranks_it_goes_on_with_one_and_with_three(tmp_path: Path) -> None:
    workflow(tmp_path, KILLED, m=TRAINING)
    killed = diel("run", "w.toml", cwd=tmp_path)
    assert killed.status == 1
    names: dict[str, object] = {}
    exec(compile(TRAINING, "m.py", "exec"), names)
    once, left = names["network"](), names["network"]()  # type: ignore[operator]
    once.fit(*names["samples"](), epochs=3, batch_size=16, progress=False)  # type: ignore[operator]
    left.load(tmp_path / "written")
    steps = left._progress.steps
    assert steps in (2, 4)  # rank 0 may have been killed before it wrote the second one
    shutil.rmtree(run_dir(tmp_path))
    for name in ("for one", "for three"):
        shutil.copy(tmp_path / "written", tmp_path / name)
    workflow(tmp_path, GOES_ON.format(steps=steps))
    finished = diel("run", "w.toml", cwd=tmp_path)
    assert finished.status == 0, finished.output
    ended = records_of(tmp_path, "CopyFinished")
    found = {record["module"]: record["returned"] for record in ended}
    expected = names["described"](once)  # type: ignore[operator]
    assert expected["visited"] == [90] * 3
    for name in ("one", "three"):
        for what, value in expected.items():
            assert found[name][what] == pytest.approx(value, rel=1e-4, abs=1e-6), (name, what)
