"""``diel predict`` with the file of a model, within this process."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import status_of

import dnn

pytest.importorskip("safetensors", reason="safetensors is not installed")

HEAD = ["patient", "dose", "age", "sick"]


def rows(path: Path, count: int = 40, seed: int = 0, head: list[str] = HEAD) -> list[list[str]]:
    draw = np.random.default_rng(seed)
    found = []
    for row in range(count):
        dose, age = draw.uniform(0, 1e-3), draw.uniform(20, 90)
        cells = {"patient": f"p-{row}", "dose": repr(dose), "age": repr(age)}
        cells["sick"] = str(int(dose * age > 0.02))
        found.append([cells[name] for name in head])
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *found])
    return found


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows(tmp_path / "mine.csv", 120, head=["age", "dose", "sick"])
    (train,) = dnn.standardise(*dnn.impute(dnn.load_csv("mine.csv")))
    network = dnn.NeuralNetwork(dnn.mlp(2, [8], 2), optimizer=dnn.SGD(0.3), seed=1)
    network.fit(train.x, train.y, epochs=20, progress=False)
    file = tmp_path / "model.safetensors"
    network.save(file, data=train, provenance={"trial": 7})
    return file


def test_predictions_are_a_table(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = rows(Path("new.csv"), seed=3)
    assert status_of("predict", model, "new.csv") == 0
    said = capsys.readouterr()
    found = list(csv.DictReader(said.out.splitlines()))
    assert list(found[0]) == ["row", "predicted", "probability"]
    assert [row["row"] for row in found] == [str(n) for n in range(1, 41)]
    right = [row["predicted"] == cells[3] for row, cells in zip(found, given, strict=True)]
    accuracy = f"accuracy {np.mean(right):.4g}"
    assert np.mean(right) > 0.8
    assert f"{accuracy}, mcc " in said.err
    assert "on these 40 rows, whose labels are in the file" in said.err
    assert "new.csv: the network was not trained on patient: not read" in said.err
    # Behind options too, where argparse takes the file to be left out before Python 3.13.
    done = status_of("predict", model, "--keep-columns", "--proba", "-o", "out.csv", "new.csv")
    assert done == 0
    assert capsys.readouterr().out.splitlines()[0] == "40 rows: out.csv"
    with open("out.csv", newline="") as file:
        written = list(csv.reader(file))
    ends = ["predicted", "probability", "probability of 0", "probability of 1"]
    assert written[0] == [*HEAD, *ends]
    assert [row[:4] for row in written[1:]] == given
    for row in written[1:]:
        shares = [float(cell) for cell in row[6:]]
        assert sum(shares) == pytest.approx(1, abs=1e-5)
        assert float(row[5]) == max(shares) == shares[int(row[4])]


def test_rows_without_names_or_labels(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bare.csv").write_text("30;0.0001\n80;0.0009\n")
    assert status_of("predict", model, "bare.csv", "--delimiter", ";", "--keep-columns") == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == "1,2,predicted,probability"
    assert [line.split(",")[2] for line in said.out.splitlines()[1:]] == ["0", "1"]
    assert said.err == ""
    Path("one.csv").write_text("dose\tage\tsick\n0.0009\t80\t1\n")
    assert status_of("predict", model, "one.csv", "--delimiter", r"\t") == 0
    assert "on this row, whose label is in the file" in capsys.readouterr().err


def test_rows_without_a_label_are_predicted_and_not_scored(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("some.csv").write_text("dose,age,sick\n0.0009,80,1\n0.0001,30,\n0.0001,25,0\n")
    assert status_of("predict", model, "some.csv") == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 4
    assert "accuracy 1, mcc 1, loss" in said.err
    assert "on the 2 of 3 rows whose labels are in the file" in said.err
    Path("none.csv").write_text("dose,age,sick\n0.0009,80,\n0.0001,30,\n")
    assert status_of("predict", model, "none.csv") == 0
    assert "no accuracy: label '' in line 2" in capsys.readouterr().err


def test_a_model_is_shown_and_written_as_onnx(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of("predict", model) == 0
    assert "samples      2 columns: age, dose (mine)" in capsys.readouterr().out
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    assert status_of("predict", model, "--onnx", "model.onnx") == 0
    assert "takes raw rows" in capsys.readouterr().err
    properties = {each.key: each.value for each in onnx.load("model.onnx").metadata_props}
    assert json.loads(properties["columns"]) == ["age", "dose"]
    assert json.loads(properties["provenance"]) == {"trial": 7}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone.safetensors", "new.csv"], "gone.safetensors: cannot be read"),
        (["nowhere", "new.csv"], "neither a run's directory nor a .safetensors file"),
        ([".", "new.csv"], "neither a run's directory nor a .safetensors file"),
        (["new.csv", "new.csv"], "new.csv: truncated, or no safetensors file"),
        (["weights.safetensors", "new.csv"], "it holds weights alone"),
        (["model.safetensors", "gone.csv"], "gone.csv: cannot be read"),
        (["model.safetensors", "."], "is no file of rows"),
        (["model.safetensors", "new.csv", "--trial", 3], "is no run's directory, which --sweep"),
        (["model.safetensors", "new.csv", "--average", 3], "run's directory, which --average goes"),
        (["model.safetensors", "new.csv", "--average", 3, "--trial", 1], "do not go together"),
        (["model.safetensors", "--average", 3, "--onnx", "m.onnx"], "take --trial N in its place"),
        (["model.safetensors", "new.csv", "-o", "new.csv"], "is the file of the rows"),
        (["model.safetensors", "new.csv", "-o", "no/out.csv"], "no/out.csv cannot be written"),
        (["model.safetensors", "new.csv", "-o", "/dev/null"], "--output /dev/null is no regular"),
        (["model.safetensors", "--onnx", "."], "--onnx . is no regular file"),
        (["model.safetensors", "--proba"], "--proba goes with a file of rows"),
        (["model.safetensors", "new.csv", "--delimiter", ";;"], "delimiter must be one character"),
        (["model.safetensors", "new.csv", "--delimiter", ""], "delimiter must be one character"),
        (["model.safetensors", "new.csv", "--delimiter", "\n"], "delimiter must be one character"),
        (["model.safetensors", "new.csv", "--delimiter", '"'], "delimiter must be one character"),
        (["model.safetensors", "other.csv"], "column 'dose' missing; is it 'doses'"),
        (["model.safetensors", "--onnx", "no/model.onnx"], "no/model.onnx: cannot be written"),
    ],
)
def test_mistakes_end_in_words(
    model: Path, arguments: list[Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--onnx" in arguments:
        pytest.importorskip("onnx", reason="onnx is not installed")
    rows(Path("new.csv"))
    Path("other.csv").write_text("age,doses\n1,2\n")
    dnn.NeuralNetwork(dnn.mlp(2, [8], 2)).save_safetensors("weights.safetensors")
    assert status_of("predict", *arguments) == 2
    assert words in capsys.readouterr().err


def test_images_are_predicted_file_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    for kind, value in (("dark", 20), ("light", 200)):
        Path("seen", kind).mkdir(parents=True)
        for number in range(4):
            pixels = np.full((2, 3, 3), value + number, np.uint8)
            image.fromarray(pixels).save(Path("seen", kind, f"{kind}{number}.png"))
    (train,) = dnn.standardise(dnn.load_image_folder("seen"))
    network = dnn.NeuralNetwork(dnn.mlp(18, [4], 2), optimizer=dnn.SGD(0.3), seed=1)
    network.fit(train.x, train.y, epochs=30, progress=False)
    network.save("model.safetensors", data=train)
    assert status_of("predict", "model.safetensors", "seen") == 0
    said = capsys.readouterr()
    found = list(csv.DictReader(said.out.splitlines()))
    assert [row["file"] for row in found][:2] == ["dark/dark0.png", "dark/dark1.png"]
    assert [row["predicted"] for row in found] == ["dark"] * 4 + ["light"] * 4
    assert "accuracy 1, " in said.err
    assert status_of("predict", "model.safetensors", "seen/light/light2.png") == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("light2.png,light,")
    Path("seen", "odd.png").write_bytes(b"no image")
    assert status_of("predict", "model.safetensors", "seen/odd.png") == 2
    assert "seen/odd.png: cannot be read as an image" in capsys.readouterr().err
