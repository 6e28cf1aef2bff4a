"""Random graphs: compiled with every choice of passes, and for K models, they equal eager mode."""

import numpy as np
import pytest
from support import case_count

from dnn import graph
from dnn.backend import Ops, ops_for
from dnn.graph.operation import with_models
from dnn.graph.passes import PASSES, default_passes, precision_passes
from dnn.graph.passes.graph import PASSES_BEFORE_DEVICE
from dnn.precision import PRECISIONS

# Passes that change numbers on purpose.
ROUNDING = {"float16", "bfloat16", "tf32", "mixed_precision"}
UNARY = [
    lambda x: graph.tanh(x),
    lambda x: graph.sigmoid(x),
    lambda x: -x,
    lambda x: graph.sqrt(graph.square(x) + 1.0),
    lambda x: graph.log1p(x * x),
    lambda x: x * 1.0,
    lambda x: x / 2.0 + 1.0,
    lambda x: graph.reshape(x, x.shape[::-1]),
    lambda x: graph.sum(x),
]
WITH_KINKS = [
    lambda x: graph.relu(x),
    lambda x: abs(x) * 0.5,
    lambda x: graph.exp(graph.minimum(x, 1.0)),
    lambda x: graph.leaky_relu(x),
    lambda x: graph.clip(x, -1.0, 1.0),
    lambda x: graph.softplus(x),
    lambda x: graph.where(x > 0.0, x, x * x),
]
WITH_AXES = [
    lambda x: graph.flatten(graph.expand_dims(x, 1)),
    lambda x: graph.sum(x, -1, keepdims=True),
    lambda x: graph.mean(x, 0, keepdims=True),
    lambda x: graph.log_softmax(x),
    lambda x: x[-1:],
    lambda x: x[..., ::2],
    lambda x: graph.concat([x, -x], -1) if x.size < 60 else x,
    lambda x: graph.tile(x, (2, *[1] * (x.ndim - 1))) if x.size < 60 else x,
]
EXTREMES = [lambda x: graph.max(x, -1, keepdims=True), lambda x: graph.min(x, 0)]
OF_MATRICES = [
    lambda x: x.T,
    lambda x: graph.normalise(x, 0, 0.1).values,
    lambda x: x @ x.T * 0.1,
]
BINARY = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b * 0.5,
    lambda a, b: a / (b * b + 1.0),
]
CHOICES = [lambda a, b: graph.maximum(a, b), lambda a, b: graph.where(a > b, a, b * 2.0)]


def random_graph(seed, dtype, smooth=False):
    """A graph of one to five inputs, some constants, and up to 30 nodes; with some gradients.

    Any node may be read any number of times, and any that fits is combined with any other.
    """
    generator = np.random.default_rng(seed)
    shapes = [(3, 4), (4,), (3, 1), (), (4, 3), (1, 4)]
    inputs = []
    for i in range(generator.integers(1, 6)):
        shape = shapes[generator.integers(len(shapes))]
        make = graph.placeholder if generator.random() < 0.5 else graph.variable
        inputs.append(make(shape, dtype, f"x{i}"))
    nodes = [*inputs, graph.constant(generator.normal(size=(3, 4)), dtype)]
    for _ in range(generator.integers(3, 30)):
        a = nodes[generator.integers(len(nodes))]
        if generator.random() < 0.55:
            fitting = UNARY + WITH_AXES * (a.ndim > 0) + OF_MATRICES * 3 * (a.ndim == 2)
            if not smooth:
                fitting = fitting + WITH_KINKS + EXTREMES * (a.ndim > 0)
            nodes.append(fitting[generator.integers(len(fitting))](a))
            continue
        fitting = [b for b in nodes if _broadcast(a, b)]
        b = fitting[generator.integers(len(fitting))]
        if a.ndim == 2 == b.ndim and a.shape[1] == b.shape[0] and generator.random() < 0.5:
            nodes.append(a @ b * 0.3)
        else:
            fitting = BINARY + CHOICES * (not smooth)
            nodes.append(fitting[generator.integers(len(fitting))](a, b))
    outputs = [nodes[-1], *(nodes[i] for i in generator.integers(len(nodes), size=2))]
    loss = sum((graph.mean(graph.tanh(y)) for y in outputs[1:]), graph.mean(graph.tanh(outputs[0])))
    outputs += [loss, *graph.gradients(loss, inputs)]
    values = {x: generator.normal(size=x.shape).astype(dtype) for x in inputs}
    return outputs, values, generator


def _broadcast(a, b):
    try:
        return np.prod(np.broadcast_shapes(a.shape, b.shape), dtype=int) <= 200
    except ValueError:
        return False


def agree(found, expected, message, tolerance):
    for got, value in zip(found, expected, strict=True):
        scale = max(1.0, float(np.abs(value).max(initial=0)))
        np.testing.assert_allclose(
            got, value, rtol=tolerance, atol=tolerance * scale, err_msg=message
        )


@pytest.mark.parametrize("block", range(6))
def test_compiled_graphs_equal_eager_ones_whatever_passes_run(block):
    for seed in range(100 * block, 100 * block + case_count(30)):
        outputs, values, generator = random_graph(seed, np.float64)
        expected = graph.run_eagerly(outputs, values)
        default = default_passes(Ops())
        alone = [name for name in PASSES if name not in ROUNDING]
        choices = [(), default, *((name,) for name in alone[seed % 3 :: 3])]
        choices.append(tuple(name for name in default if generator.random() < 0.5))
        for passes in choices:
            found = graph.evaluate(outputs, values, passes=passes)
            agree(found, expected, f"seed {seed}, passes {passes}", 1e-9)


def test_gradients_of_random_graphs_against_central_differences():
    for seed in range(3000, 3000 + case_count(60)):
        outputs, values, generator = random_graph(seed, np.float64, smooth=True)
        loss, gradients = outputs[3], outputs[4:]
        found = graph.evaluate(gradients, values)
        direction = {x: generator.normal(size=x.shape) for x in values}
        sides = [
            loss.eval({x: value + sign * 1e-6 * direction[x] for x, value in values.items()})
            for sign in (1, -1)
        ]
        along = sum(np.sum(slope * direction[x]) for x, slope in zip(values, found, strict=True))
        expected = (sides[0] - sides[1]) / 2e-6
        assert along == pytest.approx(expected, rel=1e-5, abs=1e-7), f"seed {seed}"


def test_the_default_passes_change_no_bit_of_float32():
    for seed in range(1000, 1000 + case_count(100)):
        outputs, values, _ = random_graph(seed, np.float32)
        expected = graph.run_eagerly(outputs, values)
        fused = (*PASSES_BEFORE_DEVICE, "product_bias", "elementwise_fusion", "buffer_reuse")
        for passes in [(), default_passes(Ops()), fused]:
            found = graph.evaluate(outputs, values, passes=passes)
            for got, value in zip(found, expected, strict=True):
                np.testing.assert_array_equal(got, value, f"seed {seed}, passes {passes}")


@pytest.mark.parametrize("name", ["tf32", "float16", "bfloat16"])
def test_narrow_products_are_near_the_wide_ones_and_those_of_k_models_equal_k_alone(name):
    passes = precision_passes(PRECISIONS[name], Ops())
    unit = {"tf32": 2e-3, "float16": 2e-3, "bfloat16": 2e-2}[name]
    for seed in range(6000, 6000 + case_count(40)):
        outputs, values, _ = random_graph(seed, np.float32, smooth=True)
        expected = graph.run_eagerly(outputs, values)
        if all(np.abs(value).max(initial=0) < 10 for value in expected):
            found = graph.evaluate(outputs, values, passes=passes)
            agree(found, expected, f"seed {seed}, {name}", 20 * unit)
        check_models(seed, Ops(), passes)


@pytest.mark.parametrize("block", range(3))
def test_graphs_for_k_models_equal_k_graphs_bit_for_bit(block):
    for seed in range(2000 + 100 * block, 2000 + 100 * block + case_count(40)):
        check_models(seed, Ops())


@pytest.mark.parametrize("seed", [5000, 5049, 5050, 5051])
def test_compiled_loops(seed):
    """The first two have chains that a contraction of products and sums would round otherwise."""
    pytest.importorskip("numba", reason="numba, which compiles the loops, is not installed")
    outputs, values, _ = random_graph(seed, np.float32)
    found = graph.evaluate(outputs, values, ops_for("cpu"))
    agree(found, graph.run_eagerly(outputs, values), f"seed {seed}", 1e-4)
    check_models(seed, ops_for("cpu"))


def check_models(seed, ops, passes=None):
    outputs, values, generator = random_graph(seed, np.float32)
    models = int(generator.integers(2, 5))
    inputs = list(values)
    own = {x for x in inputs if generator.random() < 0.7} or {inputs[0]}
    if passes is not None:  # what serves all models alike is no output, and is rounded
        own = {*inputs}
    stacked = {
        x: np.stack([value * (k + 1) for k in range(models)]) if x in own else value
        for x, value in values.items()
    }
    now = with_models(outputs, models, own)
    feeds = {now[x]: value for x, value in stacked.items() if x in now}
    together = graph.evaluate([now[node] for node in outputs], feeds, ops, passes)
    for k in range(models):
        of_model = {x: stacked[x][k] if x in own else stacked[x] for x in inputs}
        alone = graph.evaluate(outputs, of_model, ops, passes)
        for node, got, value in zip(outputs, together, alone, strict=True):
            # An input that all models share is no result, and has no axis of models.
            got = got if now[node] is node and node.operation is None else got[k]
            np.testing.assert_array_equal(got, value, f"seed {seed}, model {k}, {node!r}")
