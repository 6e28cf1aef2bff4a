"""What "Adding something" in docs/architecture.md promises: each thing is added in one file.

One of each is added to a copy of the packages; then it is offered where such things are, and works.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

# File: what is put into it, before a line that is there; at its end without one.
ADDED = {
    "dnn/graph/operations/activations.py": (
        "",
        '''

@rectifier
def squared_relu(x: Node) -> Node:
    """Return the square of `relu`."""
    y = relu(x)
    return y * y
''',
    ),
    "dnn/graph/operations/comparisons.py": (
        "",
        '''

@register
class SoftSign(Elementwise):
    """``x / (1 + |x|)``, between -1 and 1."""

    formula = Formula("soft_sign", "x", "x / (1 + abs(x))")
    kinds = "f"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        root = apply("abs", node.inputs[0]) + 1.0
        return (dy / (root * root),)


soft_sign = unary(SoftSign)
__all__ += ["soft_sign"]
''',
    ),
    "diel/cli/commands.py": (
        "",
        '''

def greet(options: argparse.Namespace) -> int:
    """Print a greeting; return the exit code."""
    print("hello,", options.name)
    return 0


COMMANDS += (
    Command(
        "greet",
        "greet somebody",
        "Greet somebody.",
        lambda parser: parser.add_argument("name") and None,
        "diel.cli.commands:greet",
    ),
)
''',
    ),
    "diel/executive/batch_scripts.py": (
        '}\n"""All batch schedulers',
        """\
    "oar": BatchScheduler(
        name="OAR",
        sentinel="#OAR",
        options=lambda job: [f"-n {job.name}", f"-l core={job.ranks}"],
        job_variable="OAR_JOB_ID",
        within_job="OAR_NODEFILE",
        submit='oarsub -S "$script"',
        submit_stdin=("oarsub", "-S"),
    ),
""",
    ),
    "modules/strategies/backwards.py": (
        "",
        '''\
"""The points of a space from the last one to the first."""

from typing import Annotated, Any

from pydantic import Field

from ..space import Space
from .catalogue import strategy


@strategy("backwards")
class Backwards:
    """Goes through the points of a space from the last one on."""

    def __init__(
        self,
        space: Space,
        seed: int,
        stride: Annotated[int, Field(ge=1, description="points from one trial to the next")] = 1,
    ) -> None:
        self._space, self._stride = space, stride

    def ask(self, trial: int) -> dict[str, Any] | None:
        index = self._space.size - 1 - trial * self._stride
        return self._space.point(index) if index >= 0 else None

    def tell(self, trial: int, parameters: dict[str, Any], score: float | None) -> None: ...
''',
    ),
    "modules/report/figures.py": (
        "",
        '''

@figure
def endings(known: Known) -> Figure | None:
    """Describe when trials ended."""
    rows = known.view.top
    layer = Layer("dots", "cloud", "a trial", [0.5] * len(rows), [0.5] * len(rows))
    axes = Axis("time", LinearScale(0.0, 1.0)), Axis("trial", LinearScale(0.0, 1.0))
    plot = Plot(*axes, [layer], "when trials ended")
    return Figure("endings", "When trials ended", "A dot for each.", [plot], known.view.tell)
''',
    ),
}

# Runs in the copy, and prints what it finds there.
LOOK = r"""
import contextlib, io, json, os, sys
import numpy as np
import dnn
from dnn import catalogue, graph
from diel.cli.main import main
from diel.executive.batch_scripts import SCHEDULERS, batch_job
from diel.executive.launch import is_one_machine
from diel.gui.forms import fields_of
from modules.hyperparameters import Hyperparameters, loss_of, optimizer_of
from modules.networks import layers_of
from pathlib import Path
from modules.master import Options, option_variants
from modules.report import Moment, Sweep, write_report
from modules.report.figures import figures_of
from modules.report.data import SweepView, RowSelection
from modules.search import Search

def diel(*arguments):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(arguments)
    return out.getvalue()

found = {"places": [dnn.__file__, sys.modules["diel"].__file__]}

space = {field.label: field for field in fields_of(Options)}["space"]
found["activations of the form"] = space.starts["activation"]
wanted = Hyperparameters(activation="squared_relu", hidden=[4])
layers = layers_of(wanted, 3, 2)
model = dnn.NeuralNetwork(layers, loss_of(wanted), optimizer_of(wanted, 8), device="numpy", seed=1)
x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
history = model.fit(x, np.arange(8) % 2, epochs=2, progress=False)
found["losses"] = history.loss
table = {"type": "activation", "function": "squared_relu"}
found["layer"] = dnn.layers_from_tables([table])[0].function

x = graph.placeholder((3,), "float64")
y = graph.soft_sign(x)
feeds = {x: [1.0, -3.0, 0.0]}
found["operation"] = y.eval(feeds).tolist()
found["gradient"] = graph.grad(graph.sum(y), x).eval(feeds).tolist()

found["help"] = diel("--help")
found["command"] = diel("greet", "world")
found["completion"] = diel("completion", "bash")
found["batch help"] = diel("batch", "--help")
found["script"] = diel("batch", "w.toml", "--scheduler", "oar")
os.environ["OAR_JOB_ID"] = "17"
found["job"] = batch_job(), is_one_machine({"OAR_NODEFILE": "/f"})
found["schedulers of the page"] = [each.name for each in SCHEDULERS.values()]

fields = {field.label: field for field in fields_of(Options)}
found["strategies of the form"] = fields["strategy"].choices
found["help of the form"] = fields["strategy"].help
model = option_variants()["strategy"][1]["backwards"]
found["options of the form"] = [[field.label, field.default] for field in fields_of(model)]
asked = {"space": {"a": [1, 2, 3, 4]}, "trials": 5}
table = {"name": "backwards", "stride": 2}
search = Search(Options.model_validate({**asked, "strategy": table}))
found["points"] = [search.ask(trial) for trial in range(3)]

sweep = Sweep("study", "accuracy", True, ("a",))
rows = [{"trial": n, "a": n, "accuracy": n / 9, "state": "finished"} for n in range(9)]
selection = RowSelection(sweep)
selection.add(rows)
figure = figures_of(SweepView.of(selection, Moment()), None)["endings"]
found["drawn"] = figure.draw(600.0)
found["for Plotly"] = figure.plotly()["data"][0]["x"]
write_report(Path("report.html"), sweep, rows, Moment())
found["report"] = Path("report.html").read_text()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what a Python that imports the copy finds."""
    copy = tmp_path_factory.mktemp("copy")
    for package in ("diel", "dnn", "modules"):
        shutil.copytree(ROOT / package, copy / package)
    for name, (before, text) in ADDED.items():
        file = copy / name
        there = file.read_text() if file.exists() else ""
        assert not before or there.count(before) == 1, f"{name} has no place for a row"
        head, line, tail = there.partition(before) if before else (there, "", "")
        file.write_text(head + text + line + tail)
    (copy / "w.toml").write_text(
        '[workflow]\nname = "w"\n[[module]]\nname = "m"\nexecutable = ["true"]\n'
        '[[group]]\nname = "g"\nmodules = ["m"]\n'
    )
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert all(Path(place).is_relative_to(copy) for place in answer["places"])
    return answer


def test_an_activation(found: dict[str, Any]) -> None:
    assert "squared_relu" in found["activations of the form"]
    assert found["layer"] == "squared_relu"
    assert found["losses"][1] < found["losses"][0]


def test_an_operation(found: dict[str, Any]) -> None:
    assert found["operation"] == [0.5, -0.75, 0.0]
    assert found["gradient"] == [0.25, 0.0625, 1.0]


def test_a_command(found: dict[str, Any]) -> None:
    assert found["command"] == "hello, world\n"
    assert "greet somebody" in found["help"]
    assert "greet" in found["completion"]


def test_a_batch_scheduler(found: dict[str, Any]) -> None:
    assert "Flux or OAR" in " ".join(found["help"].split())
    assert "lsf,flux,oar" in found["batch help"]
    assert "flux batch, oarsub -S" in " ".join(found["batch help"].split())
    assert "oar" in found["completion"]
    assert "#OAR -n w\n#OAR -l core=" in found["script"]
    assert found["job"] == ["17", False]
    assert found["schedulers of the page"][-1] == "OAR"


def test_a_strategy(found: dict[str, Any]) -> None:
    assert "backwards" in found["strategies of the form"]
    assert "backwards, one of an installed package" in found["help of the form"]
    assert found["options of the form"] == [["stride", "1"]]
    assert found["points"] == [{"a": 4}, {"a": 2}, None]


def test_a_figure(found: dict[str, Any]) -> None:
    assert "when trials ended" in found["drawn"]
    assert len(found["for Plotly"]) == 9
    assert "When trials ended" in found["report"]
