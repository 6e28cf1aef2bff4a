"""MagmaDNN's rows and defects that are a matter of the graph, each with a test of its name.

::

    compute graph                        test_compute_graph, test_compute_graph_optimisation
    mixed precision                      test_mixed_precision_products_take_half_operands, and
                                         test_mixed_precision_products_on_a_gpu_take_half_operands
    operations                           test_operations
    reductions                           test_reductions, test_reductions_on_a_gpu_are_chosen

    a bias per sample                    test_defect_a_bias_per_sample_instead_of_per_unit
    gradients of several consumers       test_defect_gradients_of_a_node_with_several_consumers
    a fast sigmoid's derivative          test_defect_a_fast_sigmoid_with_the_logistic_derivative
"""

import cuda_emulator
import fake_cublas
import fake_cupy
import numpy as np
import pytest

import dnn
from dnn import graph
from dnn.backend import Ops
from dnn.backend.routines import CANDIDATES, RoutineTable
from dnn.graph.operation import OPERATIONS
from dnn.graph.passes import default_passes, explain, graph_of, optimise, precision_passes
from dnn.precision import PRECISIONS

F8 = np.float64


def test_compute_graph():
    """Lazy evaluation, reverse-mode gradients, printing."""
    x, w = graph.placeholder((2, 3), F8, "x"), graph.placeholder((3, 1), F8, "w")
    y = graph.sigmoid(x @ w)
    slope = graph.grad(graph.sum(y), w)
    values = {x: np.arange(6.0).reshape(2, 3), w: np.array([[0.1], [0.2], [-0.3]])}
    expected = 1 / (1 + np.exp(-values[x] @ values[w]))
    np.testing.assert_allclose(y.eval(values), expected)
    np.testing.assert_allclose(slope.eval(values), values[x].T @ (expected * (1 - expected)))
    assert "sigmoid(" in str(graph_of([y]))


def test_compute_graph_optimisation():
    """Operation fusion, mixed precision, both together; each can be printed."""
    x, w = graph.placeholder((4, 4), name="x"), graph.placeholder((4, 4), name="w")
    y = graph.tanh(graph.exp(x @ w * 0.1) + 1.0)
    values = {x: np.eye(4) / 4, w: np.ones((4, 4))}
    expected = y.eval(values, eager=True)
    fused = (*default_passes(Ops())[:-1], "elementwise_fusion", "buffer_reuse")
    both = precision_passes(PRECISIONS["float16"], Ops())
    mixed = (*default_passes(Ops())[:-1], "mixed_precision", "buffer_reuse")
    assert len(optimise([y], fused).order) < len(graph_of([y]).order)
    for passes, tolerance in [(fused, 1e-6), (mixed, 1e-2), (both, 1e-2)]:
        (found,) = graph.evaluate([y], values, passes=passes)
        np.testing.assert_allclose(found, expected, rtol=tolerance)
    assert "# elementwise_fusion" in explain([y], fused)


TYPES = {"float16": (np.float16, 2), "bfloat16": (np.uint16, 14)}  # of arrays, and cuBLAS's number


def trained(dtype, device, seeds=(1,)):
    """Return networks after two epochs, and the losses of the first of them."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(48, 6)).astype("f4")
    y = (x[:, 0] * x[:, 1] > 0).astype(int)
    layers = dnn.mlp(6, [16, 8], 2, "relu")
    optimizer = dnn.SGD(0.1, momentum=0.9)
    networks = dnn.Ensemble(layers, optimizer=optimizer, seeds=seeds, dtype=dtype, device=device)
    return networks, networks.fit(x, y, epochs=2, batch_size=12)[0].loss


@pytest.mark.parametrize("dtype", TYPES)
def test_mixed_precision_products_take_half_operands(dtype):
    """No product of a step is of float32, with every other pass; K networks equal each alone."""
    kept, _ = TYPES[dtype]
    for device in ("cpu", "numpy"):
        networks, losses = trained(dtype, device)
        order = networks._network.plan("training", 12).plan.graph.order
        kinds = {node.kind for node in order}
        assert not kinds & {"matmul", "biased_product", "product_chain"}
        products = [node for node in order if node.kind == "reduced_matmul"]
        assert len(products) == 3 + 3 + 2  # forward, gradients of weights, gradients of inputs
        assert {x.dtype for node in products for x in node.inputs} == {np.dtype(kept)}
        assert [node.dtype.name for node in products].count("float32") == 1 + 3  # outputs
        assert [node.attributes["relu"] for node in products].count(True) == 2
        assert trained(dtype, device, (1, 2, 3))[1] == losses
        np.testing.assert_allclose(losses, trained("float32", device)[1], rtol=2e-2)
        assert losses != trained("float32", device)[1]


@pytest.mark.skipif(cuda_emulator.COMPILER is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("dtype", TYPES)
def test_mixed_precision_products_on_a_gpu_take_half_operands(dtype, monkeypatch):
    """On the stand-in: what cuBLAS is asked for, and a step with a scaled loss is one graph."""
    fake_cupy.install(monkeypatch)
    # All products are cuBLAS's.
    monkeypatch.setattr("dnn.backend.cuda.products.MOST_NARROW", 0)
    _, number = TYPES[dtype]
    _, wide = asked_for("float32")
    assert {asked.types for asked in wide} == {(0, 0, 0)}
    (networks, losses), products = asked_for(dtype)
    assert {asked.types[:2] for asked in products} == {(number, number)}
    assert {asked.compute for asked in products} == {68}
    of_weights = [asked for asked in products if asked.inner == 12]  # summed over the batch
    assert {asked.types[2] for asked in of_weights} == {0}
    assert {(asked.columns, asked.rows) for asked in of_weights} == {(6, 16), (16, 8), (8, 2)}
    np.testing.assert_allclose(losses, trained(dtype, "numpy")[1], rtol=1e-2)
    # Plan, scaling and update apart are there too, and nobody has run them.
    replays = networks._network.ops.replays()
    whole = [text for text in replays if text.endswith("as one CUDA graph")]
    assert len(whole) == 1
    assert all(text.endswith("before the second run") for text in {*replays} - {*whole})


def asked_for(dtype):
    before = len(fake_cublas.Library.multiplications)
    return trained(dtype, "cuda"), fake_cublas.Library.multiplications[before:]


A = np.array([[1.0, -2.0], [3.0, 0.5]])
B = np.array([[0.5, 1.0], [-1.0, 2.0]])
V = np.array([2.0, 3.0])
ROWS = {
    "variable": (lambda a, b, v: graph.variable(value=A, dtype=F8) * a, A * A),
    "scalar": (lambda a, b, v: graph.variable(value=2.0, dtype=F8) * a, 2 * A),
    "add": (lambda a, b, v: a + b, A + B),
    "sum": (lambda a, b, v: graph.sum(a, 0), A.sum(0)),
    "matmul": (lambda a, b, v: a @ b, A @ B),
    "product": (lambda a, b, v: a * b, A * B),
    "product over an axis": (lambda a, b, v: graph.prod(a, 1), A.prod(1)),
    "scalar product": (lambda a, b, v: 3.0 * a, 3 * A),
    "div": (lambda a, b, v: a / b, A / B),
    "dot": (lambda a, b, v: graph.dot(v, v), V @ V),
    "negative": (lambda a, b, v: -a, -A),
    "pow": (lambda a, b, v: a**3, A**3),
    "log": (lambda a, b, v: graph.log(a * a), np.log(A * A)),
    "reduce-sum": (lambda a, b, v: graph.sum(a), A.sum()),
    "transpose": (lambda a, b, v: a.T, A.T),
    "relu": (lambda a, b, v: graph.relu(a), np.maximum(A, 0)),
    "sigmoid": (lambda a, b, v: graph.sigmoid(a), 1 / (1 + np.exp(-A))),
    "tanh": (lambda a, b, v: graph.tanh(a), np.tanh(A)),
    "softmax": (lambda a, b, v: graph.softmax(a), np.exp(A) / np.exp(A).sum(1)[:, None]),
    "linear forward": (lambda a, b, v: graph.linear(a, b, v), A @ B + V),
    "flatten": (lambda a, b, v: graph.flatten(graph.reshape(a, (1, 2, 2))), A.reshape(1, 4)),
    "argmax": (lambda a, b, v: graph.argmax(a), A.argmax(1)),
    "concat": (lambda a, b, v: graph.concat([a, b], 1), np.concatenate([A, B], 1)),
    "tile": (lambda a, b, v: graph.tile(a, (2, 3)), np.tile(A, (2, 3))),
    "bias add": (lambda a, b, v: graph.bias_add(a, v), A + V),
    "gemm": (lambda a, b, v: graph.gemm(a, b, b, alpha=2.0, beta=0.5), 2 * A @ B + B / 2),
    "gemv": (lambda a, b, v: graph.gemv(a, v), A @ V),
    "axpy": (lambda a, b, v: graph.axpy(2.0, a, b), 2 * A + B),
    "scal": (lambda a, b, v: graph.scal(2.0, a), 2 * A),
}


@pytest.mark.parametrize("row", ROWS)
def test_operations(row):
    """Losses, dropout and batch norm are composed of these: see the tests of layers."""
    expression, expected = ROWS[row]
    a, b, v = (graph.placeholder(x.shape, F8) for x in (A, B, V))
    found = expression(a, b, v).eval({a: A, b: B, v: V})
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found.shape == expected.shape


def test_reductions():
    """The routine is chosen by size, from what was measured; whichever it is, the sum is right."""
    pytest.importorskip("numba", reason="Numba is not installed: there is no choice")
    from dnn.backend.cpu.ops import CpuOps

    measured = RoutineTable.measure(CpuOps())
    assert RoutineTable.from_json(measured.to_json()) == measured
    values = np.random.default_rng(0).normal(size=(40, 8)).astype("f4")
    x = graph.placeholder(values.shape)
    for table in [measured, *(RoutineTable({"sum": [(0, way)]}) for way in CANDIDATES["sum"])]:
        (found,) = graph.evaluate([graph.sum(x, 0)], {x: values}, CpuOps(table))
        np.testing.assert_allclose(found, values.sum(0), rtol=1e-4, atol=1e-5)


def test_reductions_on_a_gpu_are_chosen():
    """A kernel of ours, cuBLAS, or CuPy: what the table says for the size, on the stand-in."""
    from dnn.backend.cuda.ops import CudaOps
    from dnn.backend.device import Device

    if cuda_emulator.COMPILER is None:
        pytest.skip("there is no C++ compiler to run CUDA kernels with")

    def routines(choices, rows):
        """Return what sums over rows of a plan with such a table launch."""
        ops = CudaOps(
            Device("cuda"), fake_cupy, fake_cupy.Blas(), RoutineTable({"gpu_sum": choices})
        )
        values = np.random.default_rng(0).normal(size=(rows, 8)).astype("f4")
        x = graph.placeholder(values.shape)
        logs = fake_cupy.RawModule.launches, fake_cublas.Library.multiplications
        before = [len(log) for log in logs]
        fake_cupy.Stream.log.clear()
        (found,) = graph.evaluate([graph.sum(x, 0)], {x: values}, ops)
        np.testing.assert_allclose(found, values.sum(0), rtol=1e-4, atol=1e-5)
        kernels, products = (log[at:] for log, at in zip(logs, before, strict=True))
        used = {"kernel"} if any("sum" in name for name in kernels) else set()
        used |= {"gemv" for asked in products if 1 in (asked.rows, asked.columns)}
        return used | ({"library"} if "cupy.sum" in fake_cupy.Stream.log else set())

    for way in CANDIDATES["gpu_sum"]:
        assert routines([(0, way)], 40) == {way}
    by_size = [(0, "gemv"), (200, "library"), (1000, "kernel")]
    assert [routines(by_size, rows) for rows in (20, 40, 200)] == [
        {"gemv"},
        {"library"},
        {"kernel"},
    ]

    now = [0.0]
    costs = {"kernel": (3.0, 1.0), "gemv": (1.0, 9.0), "library": (2.0, 2.0)}

    class Timed(Ops):
        def candidates(self):
            for at, size in enumerate((256, 65536)):
                yield "gpu_sum", size, {name: spend(cost[at]) for name, cost in costs.items()}

    def spend(seconds):
        def call():
            now[0] += seconds

        return call

    table = RoutineTable.measure(Timed(), clock=lambda: now[0])
    assert table.choices == {"gpu_sum": [(0, "gemv"), (65536, "kernel")]}


def test_defect_a_bias_per_sample_instead_of_per_unit():
    x, w, b = (
        graph.placeholder((5, 3), F8),
        graph.placeholder((3, 2), F8),
        graph.placeholder((2,), F8),
    )
    y = graph.linear(x, w, b)
    slope = graph.grad(graph.sum(y), b)
    assert slope.shape == (2,)
    with pytest.raises(ValueError, match="bias_add"):
        graph.linear(x, w, graph.placeholder((5,), F8))


@pytest.mark.parametrize("consumers", [1, 2, 3, 4])
def test_defect_gradients_of_a_node_with_several_consumers(consumers):
    """With three consumers a node got no gradient, and with two the second overwrote the first."""
    x = graph.placeholder((3,), F8)
    shared = graph.square(x)
    readers = [shared * 2.0, graph.exp(shared), graph.tanh(shared), -shared][:consumers]
    loss = sum((graph.sum(y) for y in readers[1:]), graph.sum(readers[0]))
    values = np.array([0.1, -0.2, 0.3])
    s = values**2
    each = [2 + 0 * s, np.exp(s), 1 - np.tanh(s) ** 2, -1 + 0 * s][:consumers]
    for eager in (False, True):
        found = graph.grad(loss, x).eval({x: values}, eager=eager)
        np.testing.assert_allclose(found, 2 * values * sum(each), rtol=1e-12)


def test_defect_a_fast_sigmoid_with_the_logistic_derivative():
    """Value and derivative belong together: by central differences, for every activation."""
    values = np.linspace(-3.1, 2.9, 13)
    for name in ("sigmoid", "tanh", "relu"):
        x = graph.placeholder(values.shape, F8)
        y = getattr(graph, name)(x)
        sides = [y.eval({x: values + sign * 1e-6}) for sign in (1, -1)]
        slope = graph.grad(graph.sum(y), x).eval({x: values})
        np.testing.assert_allclose(slope, (sides[0] - sides[1]) / 2e-6, rtol=1e-7, atol=1e-9)
        assert name in OPERATIONS
