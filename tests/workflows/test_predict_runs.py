"""The best network of a run scores new rows: whole runs, with several ranks and several sweeps."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest
from support import Finished, diel, run_dir, status_of, workflow

import dnn
from diel import open_run
from diel.errors import RunDirectoryError
from diel.loading.environment import THREAD_VARIABLES

pytest.importorskip("safetensors", reason="safetensors is not installed")

SWEEPS = """
[[module]]
name = "master"
function = "modules.master:run"
options = { space = { hidden = [[3], [5]], epochs = 2 } }
[[module]]
name = "trainer"
function = "modules.trainer:run"
processes = 2
options = { dataset = "csv", path = "mine.csv", training.parallel = "data" }

[[module]]
name = "alone"
function = "modules.master:run"
options = { space = { x = [0.5, 0.25] }, objective = "score", maximise = true, trainer = "mine" }
[[module]]
name = "mine"
function = "modules.trainer:run"
options = { train = "./m.py:train" }

[[group]]
name = "search"
modules = ["master", "trainer"]
[[group]]
name = "own"
depends = ["search"]
modules = ["alone", "mine"]
"""
MINE = """
import dnn

def data(report):
    return dnn.standardise(dnn.load_csv(report.folder / "mine.csv"))[0]

def train(parameters, report):
    return {"score": parameters["x"]}

def save_model(parameters, report, path):
    rows = data(report)
    network = dnn.NeuralNetwork(dnn.mlp(2, [3], 2), seed=report.seed)
    file = path.with_suffix(".safetensors")
    about = {**report.provenance, "trial": report.trial}
    network.save(file, data=rows, provenance=about)
    return file

train.save_model = save_model
"""


def rows(path: Path, seed: int) -> None:
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["dose", "age", "sick"])
        for _ in range(60):
            dose, age = draw.uniform(0, 1e-3), draw.uniform(20, 90)
            table.writerow([dose, age, int(dose * age > 0.02)])


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_networks_of_several_ranks_and_of_a_function_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def predict(*command: object) -> Finished:
        """Do within this process what a command does, which has been started by itself before."""
        capfd.readouterr()
        status = status_of(*command)
        return Finished(int(str(status or 0)), *capfd.readouterr(), 0.0)

    for variable in THREAD_VARIABLES:  # the command sets them: give them back afterwards
        monkeypatch.setenv(variable, "1")
    monkeypatch.chdir(tmp_path)
    rows(tmp_path / "mine.csv", 1)
    rows(tmp_path / "new.csv", 2)
    done = diel("run", workflow(tmp_path, SWEEPS, m=MINE), cwd=tmp_path)
    assert done.status == 0, done.output
    path = run_dir(tmp_path)
    run = open_run(path)
    assert run.sweeps == ["own.alone", "search.master"]
    with pytest.raises(RunDirectoryError, match=r"several sweeps: name one of own.alone, search"):
        run.best_model()
    model = run.best_model("search.master")
    best = max(
        run.trials("search.master", "rows"), key=lambda row: (row["accuracy"], -row["trial"])
    )
    assert model.provenance["trial"] == best["trial"]
    assert model.provenance["metrics"]["loss"] == best["loss"]
    held_out = dnn.train_validation_split(dnn.load_csv(tmp_path / "mine.csv"), 0.2, 0)[1]
    assert model.evaluate(held_out)["accuracy"] == best["accuracy"]
    assert model.evaluate(held_out)["loss"] == pytest.approx(best["loss"], rel=1e-5)
    mine = run.best_model("own.alone")
    assert (mine.provenance["score"], mine.provenance["trial"]) == (0.5, 0)
    report = (path / "report.html").read_text()
    assert f"diel predict {path} NEW.csv" in report

    # Another trial is trained again, once, and what that prints is in no table.
    other = 1 - best["trial"]
    command = ["predict", path, "new.csv", "--sweep", "search.master", "--trial", other]
    first, again = diel(*command, cwd=tmp_path), predict(*command)
    assert first.status == again.status == 0, first.output
    assert first.stdout == again.stdout
    assert first.stdout.startswith("row,predicted,probability\n1,")
    assert len(first.stdout.splitlines()) == 61
    assert "mine: 1 trainings a trial" in first.stderr
    assert "mine: 1 trainings a trial" not in again.stderr
    assert (path / "sweeps" / "search.master" / f"trial-{other}.safetensors").exists()

    # The average of two, which are chosen once.
    command = ["predict", path, "new.csv", "--sweep", "search.master", "--average", 2]
    first, again = diel(*command, cwd=tmp_path), predict(*command)
    assert first.status == again.status == 0, first.output
    assert first.stdout == again.stdout
    assert "the best trial alone" in first.stderr
    assert "log_loss" in first.stderr.splitlines()[-1]  # on the rows of new.csv
    average = run.best_models(2, "search.master")
    assert sum(count for _, count in average.provenance["members"]) == 2
    with pytest.raises(RunDirectoryError, match="1 to 100 models, not of 0"):
        run.best_models(0, "search.master")
    with pytest.raises(RunDirectoryError, match="only networks of dnn are averaged"):
        run.best_models(2, "own.alone")
    assert run.best_model("own.alone", trial=1).provenance["score"] == 0.25

    (tmp_path / "m.py").write_text("def train(parameters, report): ...\n")
    (path / "sweeps" / "own.alone" / "trial-1.safetensors").unlink()
    done = diel("predict", path, "new.csv", "--sweep", "own.alone", "--trial", 1, cwd=tmp_path)
    assert done.status == 2
    assert "no model of trial 1: ./m.py:train writes no models" in done.stderr
    done = predict("predict", path, "new.csv", "--sweep", "search.master", "--trial", 9)
    assert (done.status, done.stdout) == (2, "")
    assert "search.master of " in done.stderr
    assert "has no trial 9" in done.stderr


REGRESSION = """
[[module]]
name = "master"
function = "modules.master:run"
options = { space = { learning_rate = [0.02, 0.05], epochs = 20 } }
[[module]]
name = "trainer"
function = "modules.trainer:run"
options = { dataset = "csv", path = "homes.csv", reading = { target = ["price", "age"] } }

[[module]]
name = "labels"
function = "modules.master:run"
options = { space = { learning_rate = [0.05], epochs = 20 }, trainer = "tags" }
[[module]]
name = "tags"
function = "modules.trainer:run"
[module.options]
dataset = "csv"
path = "tags.csv"
reading = { label = "tags", label_separator = "|" }

[[group]]
name = "search"
modules = ["master", "trainer"]
[[group]]
name = "other"
depends = ["search"]
modules = ["labels", "tags"]
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_numbers_and_labels_are_predicted_column_by_column(tmp_path: Path) -> None:
    draw = random.Random(3)
    with (tmp_path / "homes.csv").open("w") as homes, (tmp_path / "tags.csv").open("w") as tags:
        homes.write("area,price,age\n")
        tags.write("area,tags\n")
        for _ in range(80):
            area = draw.uniform(20, 200)
            homes.write(f"{area:.1f},{3000 * area:.0f},{90 - area / 3:.1f}\n")
            tags.write(f"{area:.1f},{'big|dear' if area > 120 else 'small'}\n")
    done = diel("run", workflow(tmp_path, REGRESSION), cwd=tmp_path)
    assert done.status == 0, done.output
    path = run_dir(tmp_path)
    assert "by lowest rmse" in done.output
    assert "by highest exact_match" in done.output
    predicted = diel("predict", path, "homes.csv", "--sweep", "search.master", cwd=tmp_path)
    assert predicted.status == 0, predicted.output
    table = [*csv.reader(predicted.output.splitlines())]
    head = ["row", "predicted_price", "predicted_age", "residual_price", "residual_age"]
    first = next(number for number, row in enumerate(table) if row == head)
    homes = [*csv.DictReader((tmp_path / "homes.csv").read_text().splitlines())]
    for row, home in zip(table[first + 1 : first + 81], homes, strict=True):
        price, age = float(home["price"]), float(home["age"])
        assert float(row[1]) + float(row[3]) == pytest.approx(price, rel=1e-4)
        assert float(row[2]) == pytest.approx(age, abs=15)
    assert "whose targets are in the file" in predicted.output
    labels = diel("predict", path, "tags.csv", "--sweep", "other.labels", "--proba", cwd=tmp_path)
    assert labels.status == 0, labels.output
    assert "row,predicted_big,predicted_dear,predicted_small,probability of big" in labels.output
