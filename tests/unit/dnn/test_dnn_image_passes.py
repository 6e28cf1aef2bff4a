"""Passes over networks of images: the layout, relu and batch norm within a convolution."""

import tracemalloc

import numpy as np
import pytest

import dnn
from dnn import graph, nets
from dnn.backend import Ops, ops_for
from dnn.graph.operation import with_models
from dnn.graph.passes import optimise

F8 = np.float64


class Prefers(Ops):
    """NumPy's functions, with a layout that is asked for."""

    def __init__(self, layout):
        super().__init__()
        self.layout = layout

    def image_layout(self, problems):
        return self.layout


def branches(x, w, v, scale):
    """All that the pass knows: a shortcut, pooling, channels' means, numbers for each channel."""
    y = graph.relu(graph.conv2d(x, w, padding=1))
    beside = graph.normalise(graph.conv2d(y, v, stride=2), (0, 2, 3), 1e-3).values
    y = graph.max_pool2d(y, 3, stride=2, padding=1) * scale + beside
    y = graph.average_pool2d(y, 2) + graph.mean(y, (2, 3), keepdims=True)
    y = graph.concat([y, y * 2.0], 1)[:, 1:7:2]
    y = graph.conv2d(y, v[:1, :3])
    return graph.reshape(y, (y.shape[0], -1)) * 0.5


def values_and_gradients(models=None, dtype=F8):
    """Return nodes, what is wanted of them, and values to feed."""
    generator = np.random.default_rng(0)
    shapes = [(3, 2, 8, 6), (4, 2, 3, 3), (4, 4, 1, 1), (4, 1, 1)]
    nodes = [graph.placeholder(shape, dtype) for shape in shapes]
    y = branches(*nodes)
    wanted = [y, *graph.gradients(graph.sum(y * y * y), nodes)]
    if models is None:
        return wanted, {node: generator.normal(size=node.shape) for node in nodes}
    now = with_models(wanted, models, nodes[1:])
    leaves = [now.get(node, node) for node in nodes]
    return [now[node] for node in wanted], {
        node: generator.normal(size=node.shape) for node in leaves
    }


@pytest.mark.parametrize("layout", ["NHWC", "CHWN"])
@pytest.mark.parametrize("models", [None, 3])
def test_a_layout_changes_no_value(layout, models):
    wanted, feeds = values_and_gradients(models)
    expected = graph.evaluate(wanted, feeds, passes=())
    for found, value in zip(graph.evaluate(wanted, feeds, Prefers(layout)), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-9, atol=1e-12)
    known = optimise(wanted, None, Prefers(layout)).order
    problems = [node.attributes["problem"] for node in known if "problem" in node.attributes]
    assert {problem.layout for problem in problems} == {layout}


@pytest.mark.parametrize("models", [None, 3])
def test_compiled_kernels_in_the_layout_that_they_choose(models):
    expected = graph.evaluate(*values_and_gradients(models), passes=())
    for found, value in zip(
        graph.evaluate(*values_and_gradients(models, np.float32), ops_for("cpu")),
        expected,
        strict=True,
    ):
        np.testing.assert_allclose(found, value, atol=1e-5 * abs(value).max())


@pytest.mark.parametrize("layout", ["NHWC", "CHWN"])
def test_what_its_caller_wrote_in_another_order_stays_in_it(layout):
    generator = np.random.default_rng(0)
    x, w = (graph.placeholder(shape, F8) for shape in ((4, 4, 4, 4), (4, 4, 1, 1)))
    plain, other = graph.conv2d(x, w), graph.conv2d(x, w, layout=layout)
    y = graph.relu(plain + other) + graph.max_pool2d(other, 3, stride=1, padding=1, layout=layout)
    wanted = [y, *graph.gradients(graph.sum(y * y), [x, w])]
    feeds = {node: generator.normal(size=node.shape) for node in (x, w)}
    expected = graph.evaluate(wanted, feeds, passes=())
    for ops in (Prefers("NHWC"), Prefers("CHWN")):
        for found, value in zip(graph.evaluate(wanted, feeds, ops), expected, strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-9, atol=1e-12)
    known = optimise([plain, other], None, Prefers("NHWC")).order
    problems = [node.attributes["problem"] for node in known if "problem" in node.attributes]
    assert sorted(problem.layout for problem in problems) == sorted(["NHWC", layout])


@pytest.mark.parametrize("layout", ["NHWC", "CHWN"])
@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        # The input, unless it has one channel; then a map of more than one element, which is
        # flattened: there, and back. A map of one element moves in CHWN alone.
        (nets.lenet5, {"NHWC": 2, "CHWN": 3}),
        (nets.vgg16, {"NHWC": 1, "CHWN": 3}),
        (nets.resnet18, {"NHWC": 1, "CHWN": 3}),
    ],
    ids=["lenet5", "vgg16", "resnet18"],
)
def test_no_transposes_stand_between_layers_that_agree(layers, expected, layout):
    network = dnn.NeuralNetwork(layers(), seed=0, device="cpu")._network
    order = training_graph(network, Prefers(layout)).order
    problems = [node.attributes["problem"] for node in order if "problem" in node.attributes]
    assert {problem.layout for problem in problems} == {layout}
    moved = [node for node in order if node.kind == "transpose" and node.ndim == 4]
    assert len(moved) == expected[layout], moved


def training_graph(network, ops):
    """Return the graph of a training step, after the passes that pay with `ops`."""
    x = graph.placeholder((2, *network.input_shape), network.dtype, "x")
    for layer in network.layers:
        layer.begin(network._noise)
    outputs = network.outputs(x)
    loss = network.loss.value(outputs, network.loss.target(outputs))
    wanted = [loss, *graph.gradients(loss, network._variables)]
    wanted += [node for layer in network.layers for node in layer.assignments]
    return optimise(wanted, None, ops)


def test_a_relu_alone_behind_a_convolution_is_part_of_it():
    x = graph.placeholder((2, 3, 5, 5), F8)
    w, b = graph.placeholder((4, 3, 3, 3), F8), graph.placeholder((4,), F8)
    y = graph.conv2d(x, w, b)
    generator = np.random.default_rng(0)
    feeds = {node: generator.normal(size=node.shape) for node in (x, w, b)}
    (found,) = optimise([graph.relu(y)]).outputs
    assert found.kind == "conv2d"
    assert found.attributes["problem"].relu
    for wanted in ([graph.relu(y)], [graph.relu(y), y]):  # of the latter both are needed
        got = graph.evaluate(wanted, feeds)
        for a, b_ in zip(got, graph.evaluate(wanted, feeds, passes=()), strict=True):
            np.testing.assert_array_equal(a, b_)
    assert optimise([graph.relu(y), y]).outputs[0].kind == "relu"


@pytest.mark.parametrize("bias", [False, True])
def test_batch_norm_is_folded_into_the_convolution_for_predictions(bias):
    layers = [
        *(dnn.Input(3, 8, 8), dnn.Conv2D(8, 3, padding="same", bias=bias), dnn.BatchNorm()),
        *(dnn.Activation("relu"), dnn.Conv2D(4, 1), dnn.GlobalAvgPool2D()),
    ]
    generator = np.random.default_rng(0)
    x = generator.normal(size=(16, 3, 8, 8))
    model = dnn.NeuralNetwork(layers, "mean_squared_error", dnn.SGD(0.05), seed=0, dtype="float64")
    model.fit(x, generator.normal(size=(16, 4)), epochs=3, batch_size=8)
    expected = model.predict(x)
    batch = model._network.plan("evaluation", 16)
    order = batch.plan.graph.order
    first = next(node for node in order if node.kind == "conv2d")
    assert first.attributes["problem"].bias
    assert first.attributes["problem"].relu
    shapes = [node.shape for node in order if node.kind in ("multiply", "add", "fused")]
    assert all(np.prod(shape) < 16 * 8 * 8 for shape in shapes), shapes  # nothing on images
    y = graph.placeholder(x.shape, F8)
    for layer in model._network.layers:
        layer.begin(None)
    values = {**model.parameters, **model._network.states}
    outputs = model._network.outputs(y)
    feeds = {y: x}
    for node in graph.graph_of([outputs]).order:
        if node.kind == "variable":
            feeds[node] = values[node.name]
    (plain,) = graph.evaluate([outputs], feeds, passes=())
    np.testing.assert_allclose(expected, plain, rtol=1e-10, atol=1e-12)


def test_in_training_batch_norm_stays():
    model = dnn.NeuralNetwork(
        [
            *(dnn.Input(1, 6, 6), dnn.Conv2D(4, 3, bias=False), dnn.BatchNorm()),
            *(dnn.Flatten(), dnn.FullyConnected(2)),
        ],
        seed=0,
    )
    order = model._network.plan("training", 4).plan.graph.order
    (forward,) = (node for node in order if node.kind == "conv2d")
    assert not forward.attributes["problem"].bias


def test_k_networks_predict_with_folded_weights_as_each_alone():
    def layers():
        return [
            *(dnn.Input(2, 6, 6), dnn.Conv2D(4, 3, bias=False), dnn.BatchNorm()),
            *(dnn.Activation("relu"), dnn.Flatten(), dnn.FullyConnected(3)),
        ]

    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(32, 2, 6, 6)).astype("f4"), np.arange(32) % 3
    together = dnn.Ensemble(layers(), optimizer=dnn.SGD(0.1), seeds=[1, 2])
    together.fit(x, y, epochs=1, batch_size=16)
    found = together.predict_proba(x)
    for k, seed in enumerate((1, 2)):
        alone = dnn.NeuralNetwork(layers(), optimizer=dnn.SGD(0.1), seed=seed)
        alone.fit(x, y, epochs=1, batch_size=16)
        np.testing.assert_array_equal(found[k], alone.predict_proba(x))


SUMS = {
    "NHWC": ((4, 9, 8, 40), (0, 1, 2), (40,)),
    "CHWN": ((6, 9, 8, 70), (1, 2, 3), (6, 1, 1, 1)),
    "K NHWC": ((3, 4, 9, 8, 33), (1, 2, 3), (3, 1, 1, 1, 33)),
    "K CHWN": ((3, 6, 5, 4, 50), (2, 3, 4), (3, 6, 1, 1, 1)),
    "NCHW": ((4, 6, 9, 8), (0, 2, 3), (6, 1, 1)),
    "means": ((4, 9, 8, 40), (1, 2), (4, 1, 1, 40)),
}


@pytest.mark.parametrize("case", SUMS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("large", [1, 3])
def test_what_is_summed_over_images_is_not_written(case, dtype, large):
    shape, axes, small = SUMS[case]
    shape = tuple(n * large if i in axes else n for i, n in enumerate(shape))
    generator = np.random.default_rng(0)
    x, mean = (graph.placeholder(each, dtype) for each in (shape, small))
    totals = [graph.sum(graph.square(x - mean), axes), graph.sum(x, axes, keepdims=True)]
    feeds = {node: generator.normal(size=node.shape) for node in (x, mean)}
    ops = ops_for("cpu")
    kinds = [node.kind for node in optimise(totals, None, ops).order]
    assert kinds.count("chain_sum") == (2 if "chain_sums" in ops.passes else 0)
    expected = [
        np.square(feeds[x] - feeds[mean]).sum(axes),
        feeds[x].sum(axes, keepdims=True),
    ]
    found = graph.evaluate(totals, feeds, ops)
    for total, value in zip(found, expected, strict=True):
        tolerance = 1e-12 if dtype == "f8" else 2e-5
        np.testing.assert_allclose(total, value, rtol=tolerance, atol=tolerance * 100)


def test_a_sum_does_not_depend_on_how_many_threads_there_are():
    pytest.importorskip("numba", reason="Numba, which compiles sums, is not installed")
    from dnn.backend.cpu.chains import chain_sum
    from dnn.backend.formula import COPY

    x = np.random.default_rng(0).normal(size=(8, 32, 32, 96)).astype("f4")
    for axes, small in (((0, 1, 2), (1, 1, 1, 96)), ((1, 2, 3), (8, 1, 1, 1))):
        whole = np.empty(small, "f4")
        kernel = chain_sum(((COPY, 0),), x.shape, axes)
        kernel(x, whole)
        for parts in (2, 3):
            cut = np.empty(small, "f4")
            pieces = kernel._split((x, cut), parts)
            assert len(pieces) == parts
            for piece in pieces:
                kernel(*piece)
            np.testing.assert_array_equal(cut, whole)


@pytest.mark.parametrize("models", [None, 2])
@pytest.mark.parametrize("stride", [2, 1])
def test_relu_chooses_among_windows(models, stride):
    x, w = graph.placeholder((3, 2, 7, 6), F8), graph.placeholder((4, 2, 3, 3), F8)
    y = graph.relu(graph.conv2d(x, w))
    y = graph.max_pool2d(y, 2, stride=stride)
    wanted = [y, *graph.gradients(graph.sum(y * y), [w])]
    leaves = [x, w]
    if models:
        now = with_models(wanted, models, [w])
        wanted, leaves = [now[node] for node in wanted], [x, now[w]]
    generator = np.random.default_rng(1)
    feeds = {node: generator.integers(-3, 4, node.shape).astype(F8) for node in leaves}
    expected = graph.evaluate(wanted, feeds, passes=())
    for found, value in zip(graph.evaluate(wanted, feeds), expected, strict=True):
        np.testing.assert_array_equal(found, value)
    order = optimise(wanted).order
    assert [node.kind for node in order].count("max_pool2d") == 1
    (chosen,) = (node for node in order if node.kind == "where_greater")
    assert chosen.size == y.size * (models or 1)


def residual_net():
    return [
        *(dnn.Input(3, 16, 16), dnn.Conv2D(8, 3, padding=1, bias=False), dnn.BatchNorm()),
        dnn.Activation("relu"),
        *nets.basic_block(8, 8),
        *nets.basic_block(8, 16, 2),
        *(dnn.GlobalAvgPool2D(), dnn.FullyConnected(3)),
    ]


# With NumPy alone the columns of a convolution take most of the memory.
@pytest.mark.parametrize(("device", "share"), [("cpu", 0.85), ("numpy", 0.95)])
def test_recomputation_takes_less_memory_and_gives_the_same_bits(device, share, monkeypatch):
    if device == "cpu":
        pytest.importorskip("numba", reason="Numba is not installed: there are no compiled loops")
    else:
        monkeypatch.setattr("dnn.model.ops_for", lambda name, routines: Ops())
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(64, 3, 16, 16)).astype("f4"), np.arange(64) % 3
    models = []
    for recompute in (False, True):
        model = dnn.NeuralNetwork(
            residual_net(), optimizer=dnn.SGD(0.1), seed=0, recompute=recompute
        )
        model.fit(x, y, batch_size=32)
        models.append(model)
    kept, less = (model._network.plan("training", 32).plan for model in models)
    assert less.size_bytes < share * kept.size_bytes
    assert f"at most {less.size_bytes:,} bytes at once" in str(less)
    for name, value in models[0].parameters.items():
        np.testing.assert_array_equal(models[1].parameters[name], value)


def test_a_step_takes_no_more_memory_than_its_plan_says():
    model = dnn.NeuralNetwork(residual_net(), optimizer=dnn.SGD(0.1), seed=0)
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(64, 3, 16, 16)).astype("f4"), np.arange(64) % 3
    model.fit(x, y, batch_size=32)
    plan = model._network.plan("training", 32).plan
    tracemalloc.start()
    try:
        plan.run()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        plan.run()
        assert tracemalloc.get_traced_memory()[1] - before < 100_000
    finally:
        tracemalloc.stop()
    assert plan.size_bytes > 32 * 8 * 16 * 16 * 4
