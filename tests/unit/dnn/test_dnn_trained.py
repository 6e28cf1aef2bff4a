"""A trained network takes raw samples: what was done to those of the training is in its file."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dnn
from dnn import (
    CheckpointError,
    ConfigurationError,
    DataError,
    Dataset,
    Input,
    LabelError,
    NeuralNetwork,
    SequenceInput,
    ShapeError,
    TrainedModel,
    impute,
    mlp,
    standardise,
)
from dnn.data.columns import Columns
from dnn.data.preparation import STEPS, Pixels, prepared, step_of
from dnn.layer_tables import described_layers, layer_kinds, rebuilt_layers
from dnn.layers import Layer

safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")

NAMES = ["age", "weight", "dose", "sick"]


def table(path: Path, rows: int = 60, seed: int = 0, names: list[str] | None = None) -> Path:
    """Write a table with a missing cell in each tenth row; sick follows from the dose."""
    draw = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        write = csv.writer(file)
        write.writerow(NAMES)
        for row in range(rows):
            age, weight, dose = draw.uniform(20, 90), draw.uniform(40, 120), draw.uniform(0, 1e-3)
            cells = {"age": "?" if row % 10 == 3 else repr(age), "weight": repr(weight)}
            write.writerow([*cells.values(), repr(dose), int(dose * weight > 0.04)])
    return path


def trained(
    data: Dataset,
    layers: list[Layer] | None = None,
    loss: str = "softmax_cross_entropy",
    **more: Any,
) -> tuple[NeuralNetwork, Dataset, Dataset]:
    """Return a network, the prepared rows that it was trained on, and the raw rows held out."""
    raw, held_out = dnn.train_validation_split(data, 0.25, seed=1)
    train, validation = standardise(*impute(raw, held_out))
    model = NeuralNetwork(layers or mlp(data.features, [6], data.classes), loss, seed=1, **more)
    model.fit(train.x.reshape(-1, *model._network.input_shape), train.y, epochs=8, progress=False)
    assert validation.preparation == train.preparation
    return model, train, held_out


@pytest.fixture
def of_table(tmp_path: Path) -> tuple[NeuralNetwork, Dataset, Path]:
    data = dnn.load_csv(table(tmp_path / "mine.csv"), "sick", missing=["?"])
    model, train, held_out = trained(data)
    file = tmp_path / "model.safetensors"
    model.save(file, data=train, provenance={"trial": 3, "score": 0.1 + 0.2})
    return model, held_out, file


def test_raw_rows_score_what_the_network_scored(
    of_table: tuple[NeuralNetwork, Dataset, Path],
) -> None:
    network, held_out, file = of_table
    model = dnn.load(file)
    (ready,) = (prepared(held_out.x, model.preparation),)
    assert np.isnan(held_out.x).any()
    scores = network.evaluate(ready, held_out.y)
    assert model.evaluate(held_out) == scores
    assert model.evaluate(held_out.x.astype(np.float64), held_out.y) == scores
    bare = NeuralNetwork(mlp(3, [6], 2))
    dnn.load_checkpoint(bare, file, parameters_only=True)
    raw = np.nan_to_num(held_out.x, nan=50.0)
    assert bare.evaluate(raw, held_out.y)["accuracy"] < scores["accuracy"]  # why it is needed
    assert model.provenance == {"trial": 3, "score": 0.1 + 0.2}
    assert np.array_equal(model.predict_proba(held_out), network.predict_proba(ready))
    assert np.array_equal(model(held_out), network(ready))
    assert np.array_equal(model.predict(held_out), model.predict_class(held_out))
    prepared_part = standardise(*impute(held_out))[0]
    with pytest.raises(DataError, match="prepared in another way"):
        model.predict(prepared_part)


def test_columns_are_found_by_name_in_any_order(
    of_table: tuple[NeuralNetwork, Dataset, Path], tmp_path: Path
) -> None:
    model = dnn.load(of_table[2])
    table(tmp_path / "new.csv", 20, seed=7)
    scores = model.evaluate(tmp_path / "new.csv")
    with (tmp_path / "new.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = {name: [row[name] for row in rows] for name in ["sick", "dose", "age", "weight"]}
    assert model.evaluate(columns) == scores
    columns["patient"] = [f"p-{row}" for row in range(len(rows))]
    assert model.evaluate(columns) == scores
    labels = [int(cell) for cell in columns.pop("sick")]
    assert model.evaluate(columns, labels) == scores
    found = model.predict_file(tmp_path / "new.csv")
    assert found.metrics == scores
    assert found.rows.names == tuple(NAMES)
    assert [row[3] for row in found.rows.cells] == found.rows.labels == [*map(str, labels)]
    pandas = pytest.importorskip("pandas")
    assert model.evaluate(pandas.read_csv(tmp_path / "new.csv", na_values="?")) == scores


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("age,weight\n1,2\n", r"column 'dose' missing \(there are: age, weight\)"),
        ("age,weight,Dose\n1,2,3\n", "column 'dose' missing; is it 'Dose'"),
        ("age,weight,dose,dose\n1,2,3,4\n", "two columns 'dose'"),
        ("age,weight,dose\n1,many,3\n", "line 2, column 'weight': 'many' is no number"),
        ("age,weight,dose\n1,,3\n", r"line 2, column 'weight': the cell is empty \(missing cells"),
        ("age,weight,dose\n1,2,inf\n", "column 'dose': 'inf' is not finite"),
        ("age,weight,dose\n1,2,1_0\n", "column 'dose': '1_0' is no number"),
        ("age,weight,dose\n1,2,1e300\n", r"line 2, column 'dose': 1e\+300 is too large"),
        ("age,weight,dose\n1,2\n", "line 2: 2 cells, not 3"),
        ("age,weight,dose\n", "no rows below"),
        (
            "1,2,3,4,5\n",
            "5 columns, without names, and 3 columns are wanted, or 4 with the label in",
        ),
        ("", "no rows"),
    ],
)
def test_rows_that_do_not_fit_are_named(
    of_table: tuple[NeuralNetwork, Dataset, Path], tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "new.csv").write_text(text)
    with pytest.raises(DataError, match=words) as caught:
        dnn.load(of_table[2]).predict(tmp_path / "new.csv")
    assert "new.csv" in str(caught.value) or "row" in str(caught.value)


def test_files_without_names_are_read_by_places(
    of_table: tuple[NeuralNetwork, Dataset, Path], tmp_path: Path
) -> None:
    model = dnn.load(of_table[2])
    (tmp_path / "bare.csv").write_text("30,60,0.0001\n?,90,0.0009\n")
    (tmp_path / "labelled.csv").write_text("30,60,0.0001,0\n?,90,0.0009,7\n")
    whole = model.predict([[30, 60, 1e-4], [np.nan, 90, 9e-4]]).tolist()
    assert model.predict(tmp_path / "bare.csv").tolist() == whole
    found = model.predict_file(tmp_path / "labelled.csv")
    assert found.values.tolist() == whole
    assert found.metrics == {}
    assert "no accuracy: label '7' in line 2 is none of the classes 0, 1" in found.rows.notes[-1]
    with pytest.raises(LabelError, match="label '7' in line 2"):
        model.evaluate(tmp_path / "labelled.csv")


@pytest.mark.parametrize(
    ("rows", "error", "words"),
    [
        ([1.0, 2.0, 3.0], ShapeError, r"a single sample is a row, \[sample\]"),
        (np.zeros((2, 4)), ShapeError, "leave out the column of the labels"),
        (np.zeros((2, 2)), ShapeError, r"\(n, 3\) is wanted"),
        ([["a", "b", "c"]], DataError, "must be numbers"),
        (np.zeros((0, 3)), DataError, "no rows"),
        (np.full((1, 3), np.inf), DataError, "row 0, column 'age': inf is too large"),
        ([[1, 2, 3e38]], DataError, "row 0, column 'dose': 3e[+]38 is too large"),
        ({"age": [1], "weight": [1, 2], "dose": [1]}, DataError, "vectors of one length"),
        ({"age": ["x"], "weight": [1], "dose": [1]}, DataError, "row 0, column 'age': 'x'"),
        (Path("no such file.csv"), DataError, "cannot be read"),
    ],
)
def test_arrays_that_do_not_fit_are_named(
    of_table: tuple[NeuralNetwork, Dataset, Path], rows: Any, error: type, words: str
) -> None:
    with pytest.raises(error, match=words):
        dnn.load(of_table[2]).predict(rows)
    with pytest.raises(DataError, match="no labels to compare with"):
        dnn.load(of_table[2]).evaluate(np.zeros((1, 3)))


def test_what_a_model_is_can_be_read(of_table: tuple[NeuralNetwork, Dataset, Path]) -> None:
    model = dnn.load(of_table[2])
    lines = str(model).splitlines()
    for begin, end in [
        ("trial", "3"),
        ("score", "0.3"),
        ("samples", "3 columns: age, weight, dose (mine)"),
        ("preparation", "impute: missing cells become the median of their column"),
        ("classes", "0, 1"),
    ]:
        assert any(line.split(None, 1) == [begin, end] for line in lines), (begin, end, lines)
    assert "fully_connected_2" in model.summary()
    assert repr(model).startswith("TrainedModel(impute, standardise, NeuralNetwork(3 -> 6 -> 2")


# -- layers ----------------------------------------------------------------------------------------

SEQUENCE = SequenceInput(5, 3)
NETWORKS: dict[str, list[Layer]] = {
    "mlp": mlp(4, [8], 3, "gelu"),
    "no bias": [Input(3), dnn.FullyConnected(4, bias=False), dnn.LayerNorm(1e-3), dnn.Output(4)],
    "lenet5": dnn.lenet5(),
    "resnet18": dnn.resnet18((3, 32, 32), 3),
    "densenet121": dnn.densenet121((3, 32, 32), 3),
    "sequences": [
        SEQUENCE,
        dnn.LSTM(4, layers=2, bidirectional=True, lengths=SEQUENCE, initial="trained",
                 layer_norm=True, return_sequences=True, dropout=0.1),
        dnn.GRU(3, lengths=SEQUENCE, bias=False),
        dnn.FullyConnected(2),
    ],
    "simple recurrent": [Input(5, 3), dnn.RNN(4, "relu"), dnn.RadialBasis(0.5, trained=False),
                         dnn.FullyConnected(2)],
    "words": [Input(5, dtype=int), dnn.Embedding(10, 4, padding=0), dnn.Flatten(),
              dnn.FullyConnected(2)],
    "categories": [Input(4), dnn.EmbedColumns([3, 7], [2, 3]), dnn.FullyConnected(2)],
    "convolution of sequences": [
        Input(4, 9), dnn.Conv1D(6, 3, stride=2, padding=1, dilation=2, groups=2), dnn.Flatten(),
        dnn.FullyConnected(2),
    ],
    "images": [
        Input(3, 8, 8),
        dnn.Conv2D(4, (3, 1), stride=(1, 2), padding=((1, 0), (0, 2)), dilation=2),
        dnn.BatchNorm(0.8, 1e-3),
        dnn.MaxPool2D((2, 1), stride=1, padding=0),
        dnn.Upsample2D(2),
        dnn.AvgPool2D(2, counts_padding=True, padding=1),
        dnn.SpatialDropout(0.1),
        dnn.Activation("elu"),
        dnn.Concat([dnn.Conv2D(2, 1)]),
        dnn.ChannelShuffle(3),
        dnn.Concat([dnn.ChannelSlice(3, 3), dnn.LayerNorm2D(1e-3)], [dnn.ChannelSlice(3)]),
        dnn.Gate([dnn.GlobalAvgPool2D(), dnn.Reshape(6, 1, 1), dnn.Conv2D(6, 1)]),
        dnn.Residual([dnn.LayerScale(0.5), dnn.StochasticDepth(0.2)]),
        dnn.Residual([dnn.Conv2D(6, 3, padding="same")]),
        dnn.Residual([dnn.Conv2D(4, 3, padding="same")], [dnn.Conv2D(4, 1)]),
        dnn.GlobalAvgPool2D(),
        dnn.Dropout(0.2),
        dnn.FullyConnected(12),
        dnn.Reshape(3, 4),
        dnn.Flatten(),
    ],
}  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_comes_out_as_it_went_in(name: str, tmp_path: Path) -> None:
    layers = NETWORKS[name]
    tables = json.loads(json.dumps(described_layers(layers)))
    again = rebuilt_layers(tables)
    assert described_layers(again) == tables
    if name in ("densenet121", "resnet18"):  # which take long to compile
        assert dnn.summary(again) == dnn.summary(layers)
        return
    model = NeuralNetwork(again, seed=3)
    draw = np.random.default_rng(0)
    shape, dtype = model._network.input_shape, model._network.input_dtype
    x = draw.uniform(0, 1, (6, *shape)).astype(np.float32)
    if dtype == np.intp:
        x = draw.integers(0, 10, (6, *shape))
    if name == "categories":
        x[:, 2:] = draw.integers(0, 3, (6, 2))
    if name == "sequences":
        x[:, -1, 0] = [1, 2, 3, 4, 5, 5]
    model.fit(x, np.arange(6) % 2, epochs=2, progress=False)
    model.save(tmp_path / "model")
    loaded = dnn.load(tmp_path / "model")
    assert np.array_equal(loaded(x), model(x))
    if name == "images":
        assert model._network.states["batch_norm_1.mean"].any()


def test_every_kind_of_layer_is_in_a_network_here() -> None:
    text = json.dumps([described_layers(layers) for layers in NETWORKS.values()])
    assert {kind for kind in layer_kinds() if f'"type": "{kind}"' not in text} == set()


def test_a_layer_or_a_loss_of_your_own_is_named(tmp_path: Path) -> None:
    class Twice(dnn.Layer):
        def forward(self, x: Any) -> Any:
            return x * 2

    class Mine(dnn.SoftmaxCrossEntropy):
        pass

    own = dnn.Activation(lambda x: x * 3)
    for layers, loss, words in [
        ([Input(2), Twice(), dnn.FullyConnected(2)], None, "twice_1: Twice is a layer of your own"),
        ([Input(2), own, dnn.FullyConnected(2)], None, "its function is one of your own"),
        (mlp(2, [2], 2), Mine(), "Mine is a loss of your own"),
    ]:
        model = NeuralNetwork(layers, loss or "softmax_cross_entropy")
        model.save(tmp_path / "own")
        with pytest.raises(CheckpointError, match=words) as caught:
            dnn.load(tmp_path / "own")
        assert "build it, and use load_checkpoint" in str(caught.value)
        dnn.load_checkpoint(model, tmp_path / "own")


@pytest.mark.parametrize("loss", ["binary_cross_entropy", "mean_squared_error"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_losses_and_precisions(loss: str, dtype: Any, tmp_path: Path) -> None:
    data = dnn.load_csv(table(tmp_path / "mine.csv"), missing=["?"])
    model, train, raw = trained(data, mlp(3, [4], 1), loss, dtype=dtype)
    model.save(tmp_path / "model", data=train)
    loaded = dnn.load(tmp_path / "model")
    ready = prepared(raw.x, train.preparation)
    assert np.array_equal(loaded(raw), model(ready))
    assert loaded.network._network.precision.name == dtype
    if loss == "binary_cross_entropy":
        assert loaded.classes == (0, 1)
        assert loaded.evaluate(raw) == model.evaluate(ready, raw.y)
    else:
        assert loaded.classes == ()
        assert np.array_equal(loaded.predict(raw), model.predict(ready))
        with pytest.raises(ConfigurationError, match="gives no classes"):
            loaded.predict_class(raw)


def test_weights_of_classes_and_averages_of_parameters(tmp_path: Path) -> None:
    data = dnn.load_csv(table(tmp_path / "mine.csv"), missing=["?"])
    loss: Any = dnn.SoftmaxCrossEntropy(class_weight=[1.0, 3.0], label_smoothing=0.1)
    loss = loss + dnn.L2(1e-3)
    model, train, raw = trained(data, None, loss, optimizer=dnn.SGD(0.1, average=0.9))
    model.save(tmp_path / "model", data=train)
    loaded = dnn.load(tmp_path / "model")
    assert loaded.evaluate(raw) == model.evaluate(prepared(raw.x, train.preparation), raw.y)


def test_of_networks_trained_at_once_each_can_be_written(tmp_path: Path) -> None:
    data = dnn.load_csv(table(tmp_path / "mine.csv"), missing=["?"])
    train, raw = standardise(*impute(data, data))[0], data
    ensemble = dnn.Ensemble(mlp(3, [4], 2), seeds=[1, 2])
    ensemble.fit(train.x, train.y, epochs=3)
    for k in range(2):
        model = NeuralNetwork(mlp(3, [4], 2), optimizer=ensemble.optimizer)
        ensemble.copy_to(k, model)
        model.save(tmp_path / f"{k}", data=train)
        assert np.array_equal(dnn.load(tmp_path / f"{k}")(raw), ensemble(train.x)[k])


# -- preparation -----------------------------------------------------------------------------------


def images(dtype: Any = np.uint8) -> Dataset:
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (48, 192)).astype(np.uint8)
    if dtype != np.uint8:
        x = (x / 255).astype(dtype)
    y = draw.integers(0, 3, 48)
    names = ("cat", "dog", "emu")
    return Dataset(x, y, 3, "animals", "one scale", (3, 8, 8), names)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("by", ["one scale", "columns", "none"])
def test_images(dtype: Any, by: str, tmp_path: Path) -> None:
    data = images(dtype)
    train, held_out = standardise(data.take(slice(0, 32)), data.take(slice(32, 48)), by=by)
    layers = [
        Input(3, 8, 8),
        dnn.Conv2D(3, 3),
        dnn.BatchNorm(),
        dnn.Flatten(),
        dnn.FullyConnected(3),
    ]
    model = NeuralNetwork(layers, seed=1)
    model.fit(train.images, train.y, epochs=2, progress=False)
    model.save(tmp_path / "model", data=train)
    loaded = dnn.load(tmp_path / "model")
    raw = data.take(slice(32, 48))
    expected = model(held_out.images)
    for rows in (raw, raw.x, raw.images):
        assert np.array_equal(loaded(rows), expected)
    assert loaded.predict_class(raw)[0] in ("cat", "dog", "emu")
    names = np.array(data.class_names)[raw.y]
    assert loaded.evaluate(raw.images, names) == loaded.evaluate(raw)
    with pytest.raises(LabelError, match="'eel' in row 0 is none of the classes cat, dog, emu"):
        loaded.evaluate(raw, ["eel"] * 16)
    if dtype == np.uint8:
        assert np.array_equal(loaded(raw.x.astype(int)), expected)
        with pytest.raises(DataError, match=r"0 .. 255 as uint8, and there is"):
            loaded(raw.x.astype(np.float32))
        with pytest.raises(DataError, match=r"bytes are in 0 .. 255, not 0 .. 256"):
            loaded(np.full((1, 192), 256) * np.arange(192).clip(0, 1))


def test_pixels_are_those_of_images_that_nothing_changes_at_random() -> None:
    data = images(np.float32)
    for change in (dnn.Crop(6), dnn.Crop((9, 10), padding=2), dnn.Crop(12, 2, "reflect")):
        still = dnn.Images(data.images, [change])
        (step,) = still.still()
        assert np.array_equal(step.apply(data.x).reshape(still.shape), still[:])
        again = step_of(json.loads(json.dumps({"step": "pixels", **step.to_json()})))
        assert again == step
    assert dnn.Images(data.images, [dnn.Shift(2), dnn.Flip(), dnn.Cutout(3)]).still() == ()


def test_steps_are_exact_in_json() -> None:
    draw = np.random.default_rng(5)
    numbers = draw.normal(size=(20, 4)).astype(np.float32) ** 5
    numbers[3, 2] = np.nan
    data = Dataset(numbers, draw.integers(0, 2, 20), 2, "draws")
    (train,) = standardise(*impute(data))
    steps = [
        step_of(json.loads(json.dumps({"step": s.name, **s.to_json()}))) for s in train.preparation
    ]
    assert np.array_equal(prepared(data.x, steps), train.x)
    assert tuple(steps) == train.preparation
    assert {step.name for step in steps} < set(STEPS)


# -- files that are something else -----------------------------------------------------------------


def rewritten(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what a checkpoint says of itself, with a checksum that fits."""
    import zlib

    raw = file.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    about = json.loads(header["__metadata__"]["dnn"])
    change(about)
    text = json.dumps(about)
    metadata = {"dnn": text, "crc32": str(zlib.crc32(text.encode()))}
    file.write_bytes(safetensors.save(safetensors.load(raw), metadata=metadata))


def in_model(*path: Any, to: Any) -> Callable[[dict[str, Any]], object]:
    def change(about: dict[str, Any]) -> None:
        place: Any = about["model"]
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = to

    return change


STEP = ("data", "preparation", 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda about: about.pop("model"), "of an earlier dnn, which does not hold the network"),
        (in_model("version", to=2), "of version 2, written by dnn .*: use that dnn"),
        (in_model("layers", to=7), "description of the network is wrong"),
        (in_model("layers", to=[]), "no list of tables"),
        (in_model("layers", 1, "type", to="telepathy"), "unknown type of layer 'telepathy'"),
        (in_model("layers", 1, "units", to=10**9), "6,000,000,002 parameters, and there are 38"),
        (in_model("layers", 1, "units", to="many"), "units must be an integer"),
        (in_model("layers", 1, "wings", to=2), "unknown argument of fully_connected 'wings'"),
        (in_model("layers", 1, to={"type": "gru", "layers": 10**9}), "layers in a layer"),
        (in_model("layers", 0, "shape", to=[4]), "parameters, and there are"),
        (in_model("loss", to="hinge"), "unknown loss 'hinge'"),
        (in_model("data", "class_names", to=["a"]), "1 names of classes"),
        (in_model("data", "class_names", to=[1, 2]), "class_names are texts"),
        (in_model("data", "features", to=4), "impute is for 3 features, and not for 4"),
        (in_model("data", "preparation", to=[]), None),
        (in_model(*STEP, "step", to="sorcery"), "there is no step 'sorcery'"),
        (in_model(*STEP, "mean", to=[1.0]), "each mean has a deviation above 0"),
        (in_model(*STEP, "deviation", to=[0, 1, 1]), "a deviation above 0"),
        (in_model(*STEP, "mean", to=[1, 2, float("nan")]), "numbers must be finite"),
        (in_model(*STEP, "mean", to=[1, 2, 10**400]), "numbers must be finite"),
        (in_model("data", "preparation", 0, "medians", to=[1, 2, 1e300]), "numbers in float32"),
        (in_model("versions", to=7), "versions and provenance are tables"),
        (in_model("provenance", to=[["a", 1]]), "versions and provenance are tables"),
        (in_model(*STEP, "mean", to="x"), "a list of numbers is wanted"),
        (in_model("data", "columns", "labels", to=3), "labels: a dict is wanted, not a int"),
        (in_model("data", "columns", "features", to=[1]), "features: a str is wanted, not a int"),
        (in_model("data", to={}), "is wrong: 'name'"),
        (lambda about: about.update(architecture={}), "is wrong: 'precision'"),
        (lambda about: about.update(architecture=None), "is wrong"),
    ],
)  # fmt: skip
def test_descriptions_that_are_wrong(
    of_table: tuple[NeuralNetwork, Dataset, Path], change: Any, words: str | None
) -> None:
    file = of_table[2]
    rewritten(file, change)
    if words is None:
        assert isinstance(dnn.load(file), TrainedModel)
        return
    with pytest.raises(CheckpointError, match=words) as caught:
        dnn.load(file)
    assert str(file) in str(caught.value)


def test_a_number_beyond_all_sizes(tmp_path: Path) -> None:
    layers = [Input(1, 4, 4), dnn.Conv2D(2, 3), dnn.BatchNorm(), dnn.Flatten(), dnn.Output(8)]
    NeuralNetwork(layers).save(tmp_path / "model")
    rewritten(tmp_path / "model", in_model("layers", 1, "filters", to=10**29))
    with pytest.raises(CheckpointError, match="description of the network is wrong"):
        dnn.load(tmp_path / "model")


def test_damaged_and_foreign_files(
    of_table: tuple[NeuralNetwork, Dataset, Path], tmp_path: Path
) -> None:
    network, _, file = of_table
    raw = file.read_bytes()
    network.save_safetensors(tmp_path / "weights.safetensors")
    with pytest.raises(CheckpointError, match="holds weights alone, which load_safetensors"):
        dnn.load(tmp_path / "weights.safetensors")
    place = raw.index(b"median") + 14  # a digit of a number in the preparation
    for at, digit in enumerate(raw[place : place + 30], start=place):
        if digit in b"123456789":
            file.write_bytes(raw[:at] + bytes([digit - 1]) + raw[at + 1 :])
            with pytest.raises(CheckpointError, match="damaged: its checksum"):
                dnn.load(file)
    for cut in (0, 5, 100, len(raw) // 2, len(raw) - 1):
        file.write_bytes(raw[:cut])
        with pytest.raises(CheckpointError, match=r"model.safetensors: truncated"):
            dnn.load(file)
    file.unlink()
    os.mkfifo(file)
    for wrong, words in [
        (file, "is no file"),
        (tmp_path, "is no file"),
        ("none", "cannot be read"),
    ]:
        with pytest.raises(CheckpointError, match=words):
            dnn.load(wrong)


def test_data_that_the_network_was_not_trained_on(tmp_path: Path) -> None:
    data = dnn.load_csv(table(tmp_path / "mine.csv"), missing=["?"])
    with pytest.raises(ShapeError, match="a sample of mine has 3 values, and the network takes"):
        NeuralNetwork(mlp(4, [4], 2)).save(tmp_path / "model", data=data)
    with pytest.raises(ConfigurationError, match="values of JSON are wanted"):
        NeuralNetwork(mlp(3, [4], 2)).save(tmp_path / "model", provenance={"x": object()})
    assert not (tmp_path / "model").exists()


def test_the_columns_of_cleveland(tmp_path: Path) -> None:
    rows = ["63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,?,6.0,0"] * 8
    rows += ["67.0,1.0,4.0,160.0,286.0,0.0,2.0,108.0,1.0,1.5,2.0,3.0,3.0,2"] * 8
    (tmp_path / "heart.data").write_text("\n".join(rows))
    data = dnn.load_cleveland(tmp_path / "heart.data")
    (train,) = standardise(*impute(data))
    model = NeuralNetwork(mlp(13, [4], 2), seed=1)
    model.fit(train.x, train.y, epochs=20, progress=False)
    model.save(tmp_path / "model", data=train)
    loaded = dnn.load(tmp_path / "model")
    assert loaded.evaluate(tmp_path / "heart.data") == model.evaluate(train.x, train.y)
    assert loaded.columns == data.columns
    assert Columns.from_json(json.loads(json.dumps(data.columns.to_json()))) == data.columns
    assert isinstance(Pixels((1, 2, 2), [0, 1], [1, -1]).apply(np.ones((1, 4))), np.ndarray)


# -- ONNX ------------------------------------------------------------------------------------------


def test_an_onnx_model_takes_raw_rows(
    of_table: tuple[NeuralNetwork, Dataset, Path], tmp_path: Path
) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    loaded = dnn.load(of_table[2])
    cases: list[tuple[TrainedModel, Dataset]] = [(loaded, of_table[1])]
    data = dnn.load_csv(tmp_path / "mine.csv", missing=["?"])
    model, train, raw = trained(data, mlp(3, [4], 1), "binary_cross_entropy", dtype="float64")
    model.save(tmp_path / "two", data=train)
    cases.append((dnn.load(tmp_path / "two"), raw))
    for dtype, change in ((np.uint8, None), (np.float32, dnn.Crop((9, 6), padding=1))):
        animals = images(dtype)
        (ready,) = standardise(animals)
        shape = (3, 8, 8)
        if change is not None:
            still = dnn.Images(ready.images, [change])
            ready = Dataset(**{**vars(ready), "preparation": (*ready.preparation, *still.still())})
            shape = still.shape[1:]
        layers = [Input(*shape), dnn.Conv2D(3, 3), dnn.Flatten(), dnn.FullyConnected(3)]
        NeuralNetwork(layers, seed=2).save(tmp_path / "images", data=ready)
        cases.append((dnn.load(tmp_path / "images"), animals))
    for model_, raw in cases:
        model_.export_onnx(tmp_path / "model.onnx")
        session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
        y, odds = session.run(None, {"x": raw.x})
        assert np.allclose(y, model_(raw), atol=1e-5)
        assert np.allclose(odds, model_.predict_proba(raw), atol=1e-6)
        properties = session.get_modelmeta().custom_metadata_map
        assert json.loads(properties["classes"]) == list(model_.classes)
    assert json.loads(properties["classes"]) == ["cat", "dog", "emu"]
