"""Batch normalisation on a GPU: sums by one kernel, and nodes of the graph."""

from __future__ import annotations

import cuda_emulator
import fake_cupy
import numpy as np
import pytest

import dnn
from dnn import graph
from dnn.backend.cuda import batch_norm
from dnn.backend.cuda.ops import CudaOps
from dnn.backend.device import Device
from dnn.backend.normalisation import GRADIENT_ROWS, STATISTICS, BatchNormSums
from dnn.backend.ops import Ops
from dnn.backend.rounding import narrow, widen
from dnn.graph.passes import optimise

if cuda_emulator.COMPILER is None:
    pytest.skip("there is no C++ compiler to run CUDA kernels with", allow_module_level=True)

EPSILON, MOMENTUM = 1e-3, 0.8


@pytest.fixture(scope="module")
def ops() -> CudaOps:
    return CudaOps(Device("cuda"), fake_cupy, fake_cupy.Blas())


def sums_of(ops, kind, inputs, rows, further, models=1):
    """Run the kernel twice, for its counters have to be ready again; return its rows."""
    *_, row_count, channels = inputs[0].shape
    dtype = "f8" if inputs[-1].dtype == np.float64 else "f4"
    problem = BatchNormSums(
        kind, dtype, models, row_count, channels, further, epsilon=EPSILON, momentum=MOMENTUM
    )
    routine = ops.batch_norm(problem)
    given = [ops.asarray(x) for x in inputs]
    out = ops.asarray(np.full((rows, models, channels), np.nan, dtype))
    for _ in range(2):
        for function, arguments in routine.steps(given, out, ops.memory(routine.workspace_bytes)):
            function(*arguments)
    return ops.to_host(out)


def in_code(x, code):
    """Return an array in a type of elements, and the values that it has there."""
    if code != "u2":
        narrowed = x.astype(code)
        return narrowed, narrowed.astype("f8")
    bits, back = np.empty(x.shape, "u2"), np.empty(x.shape, "f4")
    narrow(x.astype("f4"), bits)
    widen(bits, back)
    return bits, back.astype("f8")


@pytest.fixture(params=["few parts", "many parts", "many parts, numbers of 64 bits"])
def parts(request, monkeypatch):
    if request.param.endswith("bits"):
        monkeypatch.setattr("dnn.backend.cuda.launch.MOST_SHORT", 0)
    if request.param.startswith("many"):
        monkeypatch.setattr(batch_norm, "FEWEST_ROWS", 3)
        monkeypatch.setattr(batch_norm, "MOST_ROWS", 7)


@pytest.mark.parametrize("code", ["f4", "f8", "f2", "u2"])
@pytest.mark.parametrize(("models", "rows", "channels"), [(1, 130, 5), (3, 66, 40), (1, 1, 2)])
def test_statistics_are_those_of_numpy(ops, parts, code, models, rows, channels):
    generator = np.random.default_rng(rows)
    x, values = in_code(20 + generator.normal(size=(models, rows, channels)), code)
    dtype = "f8" if code == "f8" else "f4"
    buffer = generator.random((models, 2 * channels + 3)).astype(dtype)
    states = buffer[:, :channels], buffer[:, channels : 2 * channels]
    found = sums_of(ops, "statistics", [x, *states], len(STATISTICS), True, models)
    mean, variance = values.mean(1), values.var(1)
    unbiased = variance * rows / max(1, rows - 1)
    wanted = [
        *(mean, variance, 1 / np.sqrt(variance + EPSILON)),
        MOMENTUM * states[0] + (1 - MOMENTUM) * mean,
        MOMENTUM * states[1] + (1 - MOMENTUM) * unbiased,
    ]
    near = {"rtol": 1e-12} if code == "f8" else {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(found, wanted, **near)
    alone = sums_of(ops, "statistics", [x], 3, False, models) if code != "u2" else found[:3]
    np.testing.assert_array_equal(alone, found[:3])


@pytest.mark.parametrize("code", ["f4", "f8", "f2", "u2"])
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize(("models", "rows", "channels"), [(1, 130, 5), (3, 66, 40)])
def test_sums_of_the_gradient_are_those_of_numpy(
    ops, parts, code, is_masked, models, rows, channels
):
    generator = np.random.default_rng(rows)
    images = [in_code(generator.normal(size=(models, rows, channels)), code) for _ in range(3)]
    (dy, of_y), (y, values_y), (x, values) = images
    if is_masked:
        of_y = np.where(values_y > 0, of_y, 0)
    dtype = "f8" if code == "f8" else "f4"
    mean, inverse, scale = generator.random((3, models, channels)).astype(dtype)
    given = [dy, *([y] if is_masked else []), x, mean, inverse, scale]
    found = sums_of(ops, "gradient", given, len(GRADIENT_ROWS), is_masked, models)
    u = (values - mean[:, None]) * inverse[:, None]
    dshift, dscale = of_y.sum(1), (of_y * u).sum(1)
    wanted = [dshift, dscale, dshift / rows, inverse * dscale / rows, inverse * scale]
    near = {"rtol": 1e-11} if code == "f8" else {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(found, wanted, **near)


def test_networks_together_have_the_bits_of_each_alone(ops, parts):
    x = np.random.default_rng(0).normal(size=(3, 100, 6)).astype("f4")
    together = sums_of(ops, "statistics", [x], 3, False, 3)
    for k in range(3):
        alone = sums_of(ops, "statistics", [x[k : k + 1]], 3, False)
        np.testing.assert_array_equal(together[:, k : k + 1], alone)


def test_two_gradients_of_a_normalisation_are_those_of_numpy(ops):
    x = graph.placeholder((4, 2, 6, 6))
    scale, shift, w = (graph.placeholder(shape) for shape in ((3,), (3,), (3, 2, 3, 3)))
    y = graph.conv2d(x, w)
    z = graph.operations.normalisation.batch_norm(y, scale, shift, 1, 1e-3).values
    wanted = [
        *graph.gradients(graph.sum(graph.square(z)), [scale, shift, w]),
        *graph.gradients(graph.sum(graph.sigmoid(z)), [scale, shift, w]),
    ]
    generator = np.random.default_rng(4)
    feeds = {node: generator.normal(size=node.shape).astype("f4") for node in (x, scale, shift, w)}
    found = graph.evaluate(wanted, feeds, ops)
    for mine, oracle in zip(found, graph.evaluate(wanted, feeds, Ops()), strict=True):
        np.testing.assert_allclose(mine, oracle, rtol=1e-4, atol=1e-4)


def trained_nodes(device_ops, change=lambda y: y):
    """Return the graph of a convolution with batch norm and relu, its update and its gradients."""
    x, w = graph.placeholder((4, 2, 6, 6)), graph.variable((3, 2, 3, 3), name="w")
    layer = dnn.BatchNorm()
    layer.training = True
    layer.build((3, 4, 4))
    y = graph.relu(change(layer.forward(graph.conv2d(x, w))))
    nodes = [w, *(each.node for each in layer.parameters)]
    outputs = [*graph.gradients(graph.sum(y * y), nodes), *layer.assignments]
    return optimise(outputs, ops=device_ops)


def kinds_of(found):
    return [node.kind for node in found.order]


def test_a_normalisation_is_two_nodes_of_sums_on_a_gpu(ops):
    kinds = kinds_of(trained_nodes(ops))
    assert kinds.count("batch_statistics") == kinds.count("batch_norm_sums") == 1
    assert "sum_to" not in kinds
    assert not {"batch_statistics", "batch_norm_sums"} & {*kinds_of(trained_nodes(Ops()))}


def test_a_relu_is_part_of_the_sums_if_nothing_else_reads_its_gradient(ops):
    def problem(found):
        (node,) = (node for node in found.order if node.kind == "batch_norm_sums")
        return node.attributes["problem"]

    assert problem(trained_nodes(ops)).has_further
    assert not problem(trained_nodes(ops, lambda y: y * 2.0)).has_further


def test_other_running_statistics_are_left_to_their_own_nodes(ops, monkeypatch):
    def doubled(self, state, of_batch):
        flat = graph.operations.reshape(of_batch, state.shape)
        self.assign(state, state * self.momentum + flat * 2.0)

    monkeypatch.setattr(dnn.BatchNorm, "_update", doubled)
    found = trained_nodes(ops)
    (node,) = (node for node in found.order if node.kind == "batch_statistics")
    assert not node.attributes["problem"].has_further
    assert len(node.inputs) == 1
