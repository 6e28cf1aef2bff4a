"""Statistics of graphs before they run, and both of their printed forms."""

import importlib.util

import numpy as np
import pytest

import dnn
from dnn import graph, ops_for
from dnn.errors import ConfigurationError


def test_statistics_by_hand():
    x = graph.placeholder((4, 3), "float32", "x")
    w = graph.variable((3, 2), "float32", "w")
    y = graph.tanh(x @ w)
    y.name = "layer"
    loss = graph.sum(y * 2.0)
    found = graph.statistics([loss])
    layer, other, total = found.rows
    assert layer == ("layer", 2, 6, 64, 24, 48 + 8)
    assert other == ("other", 3, 0, 40, 0, 8 + 8)
    assert total == ("total", 5, 6, 104, 24, 72)
    assert found.total is total
    assert found.arena_bytes >= 48 + 32
    assert str(found).splitlines()[-2].split() == ["total", "5", "6", "104", "24", "72"]
    assert graph.statistics(graph.graph_of([loss])) == found


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "tf32"])
@pytest.mark.parametrize(
    "layers",
    [
        lambda: dnn.mlp(6, [8], 3),
        lambda: dnn.lenet5(),
        lambda: [dnn.SequenceInput(4, 3), dnn.LSTM(5), dnn.FullyConnected(2)],
    ],
)
def test_both_forms_compute_as_much(layers, dtype):
    model = dnn.NeuralNetwork(layers(), dtype=dtype, seed=0)
    written, computed = model.explain(8).split("# as it is computed\n")
    assert written.startswith("# as it is written\n")
    totals = []
    for text in (written, computed):
        (line,) = (line for line in text.splitlines() if line.startswith("total "))
        totals.append([int(number.replace(",", "")) for number in line.split()[1:]])
    (_, parameters, _, multiply_adds, flops), (_, *again) = totals
    assert (parameters, multiply_adds) == (again[0], again[2])
    assert parameters == sum(x.size for x in model.parameters.values())
    assert flops == pytest.approx(again[3], rel=0.1)
    assert flops > 2 * multiply_adds
    fused = {"float32": "_chain(", "tf32": "precision=tf32"}
    if dtype != "float32" or importlib.util.find_spec("numba"):  # NumPy fuses no chains
        assert fused.get(dtype, dtype) in computed
    assert fused.get(dtype, dtype) not in written
    forward = model.explain(8, training=False)
    (line, _) = (line for line in forward.splitlines() if line.startswith("total "))
    assert int(line.split()[4].replace(",", "")) == 8 * sum(
        row.multiply_adds for row in dnn.layer_summaries(layers())
    )


def test_memory_of_a_plan_is_what_it_takes():
    x = graph.placeholder((16, 8), "float32")
    w = graph.variable(value=np.ones((8, 8), "float32"), name="w")
    outputs = [graph.sum(graph.tanh(x @ w))]
    ops = ops_for("cpu")
    fused = graph.optimise(outputs, ops=ops)
    reserved = []

    class Watched(graph.Arena):
        def reserve(self, size_bytes):
            reserved.append(size_bytes)
            super().reserve(size_bytes)

    graph.Plan(outputs, ops, {w: np.ones((8, 8), "float32")}, arena=Watched(ops))
    assert reserved == [graph.statistics(fused).arena_bytes]
    text = graph.both_forms(outputs, ops=ops)
    assert text.count("memory of a plan: ") == 2
    with pytest.raises(ConfigurationError, match="unknown pass 'fusing'"):
        graph.both_forms(outputs, ["fusing"])


def test_the_names_of_the_papers():
    assert dnn.MemoryManager(3, kind="MANAGED").kind.value == "managed"
    assert dnn.Tensor((2, 2), kind="HOST").memory.kind.value == "host"
    x = graph.placeholder((3,), "float64")
    two = graph.variable((), "float64", "two", value=2.0)
    value = {x: np.array([1.0, 2.0, 3.0])}
    assert graph.scalar_product(2.0, x).eval(value).tolist() == [2, 4, 6]
    assert graph.grad(graph.sum(graph.scalar_product(two, x)), two).eval(value) == 6
    assert graph.mean_squared_error(x, [1.0, 0.0, 0.0]).eval(value) == pytest.approx(13 / 3)
    with pytest.raises(dnn.ShapeError, match="is no scalar: see dot"):
        graph.scalar_product(x, x)
    narrow = graph.rbf(x, two)
    np.testing.assert_allclose(narrow.eval(value), np.exp(-4 * value[x] ** 2))
    layers = [dnn.Input(1), dnn.RadialBasis(3.0), dnn.Output(1)]
    model = dnn.NeuralNetwork(layers, "huber", dnn.Adam(0.1), seed=0)
    points = np.linspace(-2, 2, 50)[:, None]
    model.fit(points, np.exp(-(points**2)), epochs=60, batch_size=10)
    assert abs(model.parameters["radial_basis_1.epsilon"].item()) == pytest.approx(1, abs=0.1)
    with pytest.raises(ConfigurationError, match="RadialBasis: epsilon must be above 0"):
        dnn.RadialBasis(0.0)
