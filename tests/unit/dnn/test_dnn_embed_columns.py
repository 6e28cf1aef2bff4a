"""Trained vectors in place of columns of categories: values, gradients, ensembles, files."""

from __future__ import annotations

from pathlib import Path

import cuda_emulator
import fake_cupy
import numpy as np
import pytest

import dnn
from dnn import (
    ConfigurationError,
    DataError,
    EmbedColumns,
    Ensemble,
    NeuralNetwork,
    ShapeError,
    graph,
)
from dnn.backend import Ops
from dnn.backend.cuda.ops import CudaOps
from dnn.backend.device import Device
from dnn.graph.operation import with_models

COUNT = (5, 4)


def samples(rows: int = 40, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    codes = [draw.integers(0, count, rows) for count in COUNT]
    return np.column_stack([draw.normal(size=(rows, 2)), *codes]).astype(np.float32)


def layers(units: int | list[int] | None = None) -> list[dnn.Layer]:
    return [dnn.Input(4), EmbedColumns([*COUNT], units), dnn.FullyConnected(3)]


def as_one_hot(x: np.ndarray) -> np.ndarray:
    """Return columns of 0 and 1 in place of those of categories, all 0 for number 0."""
    parts = [np.eye(count)[x[:, 2 + at].astype(int)][:, 1:] for at, count in enumerate(COUNT)]
    return np.column_stack([x[:, :2], *parts])


def test_vectors_are_those_of_the_numbers() -> None:
    model = NeuralNetwork(layers([3, 2]), seed=1)
    assert model._network.layers[1].units == (3, 2)
    x = samples()
    arrays = {name: np.array(array) for name, array in model.parameters.items()}
    weights = [arrays[f"embed_columns_1.weight_{at}"] for at in (1, 2)]
    for weight in weights:
        weight[0] = 0
    parts = [weight[x[:, 2 + at].astype(int)] for at, weight in enumerate(weights)]
    after, bias = (arrays[f"fully_connected_1.{name}"] for name in ("weight", "bias"))
    expected = np.column_stack([x[:, :2], *parts]) @ after + bias
    np.testing.assert_allclose(model(x), expected, rtol=1e-5, atol=1e-6)
    assert NeuralNetwork(layers())._network.layers[1].units == (3, 2)
    assert EmbedColumns(1000).units == (50,)
    assert EmbedColumns([9, 9], 4).units == (4, 4)


def test_a_step_moves_the_vectors_as_a_layer_for_columns_of_0_and_1_does() -> None:
    """What an embedding computes is a product with columns of 0 and 1."""
    torch = pytest.importorskip("torch")
    x, y = samples(), np.arange(40) % 3
    model = NeuralNetwork(layers([3, 2]), optimizer=dnn.SGD(0.5), seed=1, dtype="float64")
    start = {name: torch.tensor(np.array(array)) for name, array in model.parameters.items()}
    model.fit(x, y, epochs=1, batch_size=40, progress=False)
    for value in start.values():
        value.requires_grad_()
    vectors = [start[f"embed_columns_1.weight_{at}"] for at in (1, 2)]
    hot = torch.tensor(as_one_hot(x))
    read = torch.cat([hot[:, :2], hot[:, 2:6] @ vectors[0][1:], hot[:, 6:] @ vectors[1][1:]], 1)
    out = read @ start["fully_connected_1.weight"] + start["fully_connected_1.bias"]
    torch.nn.functional.cross_entropy(out, torch.tensor(y)).backward()
    for name, array in model.parameters.items():
        expected = (start[name] - 0.5 * start[name].grad).detach().numpy()
        np.testing.assert_allclose(np.array(array), expected, rtol=1e-9, atol=1e-12)


def test_networks_of_an_ensemble_are_as_alone() -> None:
    x, y = samples(), np.arange(40) % 3
    together = Ensemble(layers(), "softmax_cross_entropy", dnn.SGD([0.1, 0.2]), seeds=[3, 4])
    together.fit(x, y, epochs=3)
    for seed, rate, found in zip((3, 4), (0.1, 0.2), together.evaluate(x, y), strict=True):
        alone = NeuralNetwork(layers(), optimizer=dnn.SGD(rate), seed=seed)
        alone.fit(x, y, epochs=3, progress=False)
        assert alone.evaluate(x, y) == found


@pytest.mark.skipif(cuda_emulator.COMPILER is None, reason="there is no C++ compiler")
def test_a_gpu_takes_the_same_vectors() -> None:
    """Kernels are run on the CPU; see `cuda_emulator`."""
    ops = CudaOps(Device("cuda"), fake_cupy, fake_cupy.Blas())
    x = graph.placeholder((40, 4), "f4")
    weights = [graph.placeholder((count, 3), "f4") for count in COUNT]
    layer = EmbedColumns([*COUNT], 3)
    layer.name, layer.dtype = "embed_columns_1", np.dtype("f4")
    layer.build((4,))
    layer.weights = weights
    y = layer.forward(x)
    wanted = [y, *graph.gradients(graph.sum(y * y), weights)]
    draw = np.random.default_rng(2)
    each = [
        {x: samples(seed=seed)} | {w: draw.normal(size=w.shape).astype("f4") for w in weights}
        for seed in range(2)
    ]
    alone = [graph.evaluate(wanted, feeds, ops) for feeds in each]
    for feeds, found in zip(each, alone, strict=True):
        for mine, oracle in zip(found, graph.evaluate(wanted, feeds, Ops()), strict=True):
            np.testing.assert_allclose(mine, oracle, rtol=1e-5, atol=1e-6)
    now = with_models(wanted, 2, {x, *weights})
    feeds = {now[node]: np.stack([feeds[node] for feeds in each]) for node in (x, *weights)}
    together = graph.evaluate([now[node] for node in wanted], feeds, ops)
    for mine, parts in zip(together, zip(*alone, strict=True), strict=True):
        np.testing.assert_array_equal(mine, np.stack(parts))


def test_onnx_has_the_same_vectors(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    model = NeuralNetwork(layers(), seed=1)
    model.export_onnx(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    x = samples()
    np.testing.assert_allclose(session.run(["y"], {"x": x})[0], model(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("number", [-1, 5, 1.5])
def test_numbers_without_a_vector_are_named(number: float) -> None:
    x = samples()
    x[7, 2] = number
    model = NeuralNetwork(layers())
    words = rf"embed_columns_1: x has {number:g} in row 7, column 2, but .* vectors for 0 \.\. 4"
    for call in (lambda: model.predict(x), lambda: model.fit(x, np.zeros(40, int))):
        with pytest.raises(DataError, match=words):
            call()


@pytest.mark.parametrize("count", [[], [1], [2, 0], 1, "5", ["a"]])
def test_counts_that_are_none(count: object) -> None:
    with pytest.raises(ConfigurationError, match="count"):
        EmbedColumns(count)  # type: ignore[arg-type]


def test_units_and_samples_that_do_not_fit() -> None:
    with pytest.raises(ConfigurationError, match="3 units for 2 columns"):
        EmbedColumns([3, 3], [1, 1, 1])
    for first in (dnn.Input(1), dnn.Input(2, 2)):
        with pytest.raises(ShapeError, match="takes vectors of at least 2 numbers"):
            NeuralNetwork([first, EmbedColumns([3, 3]), dnn.FullyConnected(2)])
