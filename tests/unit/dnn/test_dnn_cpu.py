"""Compiled loops against the oracle in NumPy: values, NaN and infinity, order, memory."""

import device_checks
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operation_cases import FORMULAS, compute, formula_step

from dnn import graph
from dnn.backend import Ops
from dnn.graph import Plan, evaluate
from dnn.graph.layout import lay_out

pytest.importorskip("numba", reason="Numba is not installed: there are no compiled loops")

from dnn.backend.cpu.chains import chain_record
from dnn.backend.cpu.kernels import SPLIT_ELEMENTS
from dnn.backend.cpu.ops import CpuOps
from dnn.backend.cpu.program import Native, Program

TYPES = ["f4", "f8"]
ONE_TYPE = {name: formula for name, formula in FORMULAS.items() if formula.has_one_type}
EXACT = {"add", "subtract", "multiply", "divide", "negative", "square", "sqrt", "abs", "sign"}
EXACT |= {"relu", "positive", "maximum", "minimum", "cast", "clip", "where_greater", "where_equal"}


@pytest.fixture
def ops():
    return CpuOps()


def special(dtype):
    info = np.finfo(dtype)
    values = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, info.tiny, info.max, info.tiny / 8]
    return np.array([*values, 3.5, -88.5, 1e-3, 700.0], dtype)


def ulps(found, exact):
    """Distance in units of the last place, where both are finite."""
    rounded = exact.astype(found.dtype)
    finite = np.isfinite(rounded) & np.isfinite(found)
    np.testing.assert_array_equal(found[~finite], rounded[~finite])
    return np.abs(found[finite] - exact[finite]) / np.spacing(np.abs(rounded[finite]))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ["exp", "expm1", "tanh", "log", "sigmoid"])
def test_own_functions_are_off_by_few_units_of_the_last_place(ops, name, dtype):
    far = 110 if dtype == "f4" else 800
    small = np.logspace(-44, 0, 1001)
    ranges = [np.linspace(-far, far, 40001), np.linspace(-1, 1, 20001), small, -small]
    x = np.concatenate(ranges).astype(dtype)
    if name == "log":
        x = np.abs(x[x != 0])
    out = np.empty_like(x)
    compute(ops, name, x, out)
    wide = x.astype(np.longdouble)
    with np.errstate(over="ignore", under="ignore"):
        exact = 1 / (1 + np.exp(-wide)) if name == "sigmoid" else getattr(np, name)(wide)
        assert ulps(out, exact).max() < (6 if (name, dtype) == ("tanh", "f4") else 3)
    if name == "tanh":
        assert np.abs(out).max() == 1


def test_the_relative_error_of_tanh_is_what_its_docstring_says(ops):
    ends = np.array([4, 8.7], "f4").view(np.int32)  # where it is largest
    x = np.arange(*ends, dtype=np.int32).view("f4")
    out = np.empty_like(x)
    compute(ops, "tanh", x, out)
    exact = np.tanh(x.astype("f8"))
    assert 3.2e-7 < np.abs(out / exact - 1).max() < 3.23e-7


@pytest.mark.parametrize("classes", [2, 3, 10, 40])
def test_the_logarithm_of_a_probability_near_one_is_exact(ops, classes):
    generator = np.random.default_rng(classes)
    x = np.zeros((500, classes), np.float32)
    x[np.arange(500), generator.integers(classes, size=500)] = generator.uniform(5, 40, 500)
    column, exponentials, out = np.empty((500, 1), "f4"), np.empty_like(x), np.empty_like(x)
    ops.log_softmax(x, column, exponentials, out)
    exact = x.max(axis=1) + np.log1p((classes - 1) * np.exp(-x.max(axis=1).astype(float)))
    likely = -np.log1p((classes - 1) * np.exp(-x.max(axis=1).astype(float)))
    np.testing.assert_allclose(out.max(axis=1), likely, rtol=1e-5)
    np.testing.assert_allclose(out.min(axis=1), -exact, rtol=1e-6)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(3, 5, 7), (16, 16, 16), (32, 4, 9), (1, 96, 96), (40, 97, 95)])
def test_a_product_by_a_transposed_matrix_is_that_by_its_copy(ops, shape, dtype):
    rows, columns, inner = shape
    generator = np.random.default_rng(1)
    a = generator.normal(size=(3, rows, inner)).astype(dtype)
    stored = generator.normal(size=(3, columns + 2, inner + 3)).astype(dtype)[:, 1:-1, 2:-1]
    out, copied = np.empty((2, 3, rows, columns), dtype)
    ops.gemm(a, stored.swapaxes(1, 2), out)
    ops.gemm(a, stored.swapaxes(1, 2).copy(), copied)
    np.testing.assert_allclose(out, copied, rtol=1e-5, atol=1e-5)
    assert ops.gemm.record(a, stored.swapaxes(1, 2), out) is not None


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", sorted(ONE_TYPE))
def test_nan_and_infinity_are_what_numpy_makes_of_them(ops, name, dtype):
    x, operands = special(dtype), len(ONE_TYPE[name].names)
    if operands < 5:
        inputs = [part.ravel() for part in np.meshgrid(*[x] * operands)]
    else:  # some of all that may stand together
        inputs = list(np.random.default_rng(0).choice(x, (operands, 40_000)))
    if name == "clip":  # limits that are numbers, one of them above the other one or below it
        inputs[1:] = [np.nan_to_num(limit, nan=2.0) for limit in inputs[1:]]
    found, wanted = np.empty_like(inputs[0]), np.empty_like(inputs[0])
    kernel, arguments = formula_step(ops, name, inputs, found)
    assert isinstance(kernel, Native)
    assert kernel.record(*arguments) is not None
    with np.errstate(all="ignore"):
        kernel(*arguments)
        compute(Ops(), name, *inputs, wanted)
    if name in EXACT:
        np.testing.assert_array_equal(found, wanted)
    else:
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", TYPES)
def test_comparisons_and_choices_are_those_of_numpy(ops, dtype):
    x = special(dtype)
    a, b = np.repeat(x, x.size), np.tile(x, x.size)
    conditions = []
    for name in ("greater", "greater_equal", "equal"):
        found, wanted = np.empty(a.size, bool), np.empty(a.size, bool)
        kernel, arguments = formula_step(ops, name, (a, b), found)
        assert kernel.record(*arguments) is not None
        kernel(*arguments)
        compute(Ops(), name, a, b, wanted)
        np.testing.assert_array_equal(found, wanted)
        conditions.append(wanted)
    for condition in (*conditions, conditions[0][:1]):
        found, wanted = b.copy(), np.empty_like(b)  # it may write over what it reads
        kernel, arguments = formula_step(ops, "where", (condition, a, found), found)
        assert kernel.record(*arguments) is not None
        kernel(*arguments)
        compute(Ops(), "where", condition, a, b, wanted)
        np.testing.assert_array_equal(found, wanted)
        ops.copy(conditions[0], found)
        np.testing.assert_array_equal(found, conditions[0].astype(dtype))
    other = np.empty_like(x, {"f4": "f8", "f8": "f4"}[dtype])
    with np.errstate(over="ignore"):
        ops.copy(x, other)
        np.testing.assert_array_equal(other, x.astype(other.dtype))


def test_numbers_are_cast_to_bool_by_numpy(ops):
    found = np.empty(3, bool)
    assert ops.copy.record(np.ones(3, "f4"), found) is None


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("models", [None, 1, 3])
def test_clipping_is_numpys_to_rounding(dtype, models):
    from dnn.optimizers.optimizer import clip_steps

    generator = np.random.default_rng(1)
    leading = () if models is None else (models,)
    gradients = generator.normal(size=(*leading, 40000)).astype(dtype)
    gradients[..., 7] = np.nan if models == 3 else 5
    limits = {
        "clip_value": np.full(() if models is None else (models, 1), 1.5, dtype),
        "clip_norm": np.full(() if models is None else (models, 1), 20.0, dtype),
    }
    for names in (["clip_value"], ["clip_norm"], ["clip_value", "clip_norm"]):
        results = []
        for ops in (Ops(), CpuOps()):
            clipped = gradients.copy()
            steps = clip_steps(ops, clipped, {name: limits[name] for name in names})
            linked = ops.link(steps)
            for function, arguments in linked:
                function(*arguments)
            results.append(clipped)
        assert len(linked) == 1
        np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-7)


def test_a_value_does_not_depend_on_its_place(ops):
    for length in (1, 7, 8, 33, 100):
        out = np.empty(length, "f4")
        for name in ("exp", "tanh", "sigmoid", "log"):
            compute(ops, name, np.full(length, 0.7, "f4"), out)
            assert len(set(out.tolist())) == 1


UNARY = ["negative", "square", "tanh", "sigmoid", "relu", "abs"]
BINARY = ["add", "subtract", "multiply", "maximum"]


@given(data=st.data())
@settings(max_examples=8, deadline=None, derandomize=True)
def test_drawn_chains_fused_are_the_same_to_rounding(data):
    shapes = [(4, 3, 5), (3, 5), (5,), (4, 1, 1), ()]
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    drawn = data.draw(st.lists(st.sampled_from(shapes), min_size=1, max_size=3))
    nodes = [graph.placeholder(shape) for shape in [shapes[0], *drawn]]
    feeds = {node: generator.normal(size=node.shape) for node in nodes}
    for _ in range(data.draw(st.integers(2, 6))):
        name = data.draw(st.sampled_from(UNARY + BINARY))
        operands = [data.draw(st.sampled_from(nodes)) for _ in range(1 + (name in BINARY))]
        nodes.append(graph.operation.apply(name, *operands))
    y = nodes[-1] + nodes[0]
    (wanted,) = evaluate([y], feeds, Ops())
    (found,) = evaluate([y], feeds, CpuOps())
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def test_a_chain_is_one_node_and_may_overwrite_its_input():
    x, b = graph.placeholder((20, 30)), graph.placeholder((30,))
    y = graph.sigmoid(graph.square(x) + b) * 2.0
    plan = Plan([y], CpuOps())
    assert [node.kind for node in plan.graph.order if node.operation] == ["fused"]
    plan[x][...], plan[b][...] = 0.5, 0.75
    plan.run()
    np.testing.assert_allclose(plan[y], 2 / (1 + np.exp(-1.0)), rtol=1e-6)


@pytest.mark.parametrize("name", device_checks.EDGES)
def test_kinks_and_extremes(ops, name):
    device_checks.check_edges(ops, name)


@pytest.mark.parametrize(
    "view", [lambda e: e[::-1], graph.transpose], ids=["reversed", "transpose"]
)
def test_an_input_that_is_read_through_a_view_too_is_not_overwritten(view):
    x = graph.placeholder((40, 40))
    values = np.random.default_rng(3).normal(size=(40, 40)).astype("f4")
    e = x * 3.0
    y = e + view(e)
    layout = lay_out([y], external=[])
    assert layout.offsets[y] != layout.offsets[e]
    for passes in ([], ["buffer_reuse"], None):
        (found,) = evaluate([y], {x: values}, CpuOps(), passes)
        expected = values * np.float32(3)
        other = expected[::-1] if layout.order[-2].kind == "slice" else expected.T
        np.testing.assert_array_equal(found, expected + other)


def test_what_others_read_is_not_fused_away():
    x = graph.placeholder((6,))
    inner = graph.tanh(x)
    plan = Plan([graph.square(inner) + 1.0, inner], CpuOps())
    (chain,) = (node for node in plan.graph.order if node.kind == "fused")
    assert "tanh" not in {
        formula.name for formula, *_ in chain.attributes["chain"]
    }  # computed once
    plan[x][...] = 0.25
    plan.run()
    np.testing.assert_allclose(plan[inner], np.tanh(0.25), rtol=1e-6)


def test_arrays_that_a_kernel_does_not_take_are_numpys(ops):
    strided = np.arange(24, dtype="f4").reshape(4, 6)[:, ::2]
    out = np.empty((4, 3), "f4")
    kernel, arguments = formula_step(ops, "exp", [strided], out)
    assert kernel.record(*arguments) is None
    kernel(*arguments)
    np.testing.assert_array_equal(out, np.exp(strided))
    assert chain_record(((FORMULAS["add"], 0, 0),), [np.zeros(3, "f2")], np.zeros(3, "f2")) is None


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(7, 5, 3), (4, 64), (130,), (3, 2100)])
def test_sums(ops, shape, dtype):
    x = np.random.default_rng(1).normal(size=shape).astype(dtype)
    for axes in [(0,), (len(shape) - 1,), tuple(range(len(shape))), (0, len(shape) - 1)]:
        axes = tuple(dict.fromkeys(axes))
        kept = tuple(1 if i in axes else n for i, n in enumerate(shape))
        out = np.empty(kept, dtype)
        ops.sum(x, axes, out)
        exact = x.astype("f8").sum(axis=axes, keepdims=True)
        np.testing.assert_allclose(out, exact, atol=(1e-4 if dtype == "f4" else 1e-12))


@pytest.mark.parametrize("dtype", TYPES)
def test_classification(ops, dtype):
    generator = np.random.default_rng(2)
    x = (20 * generator.normal(size=(2, 9, 4))).astype(dtype)
    target = np.eye(4, dtype=dtype)[generator.integers(0, 4, (2, 9))]
    column, space = np.empty((2, 9, 1), dtype), np.empty_like(x)
    results = []
    for functions in (ops, Ops()):
        y, loss = np.empty_like(x), np.empty(2, dtype)
        functions.log_softmax(x, column, space, y)
        functions.mean_cross_entropy(y, target, np.empty(y.shape, bool), space, loss)
        results.append((y, loss))
    for found, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("flip", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("sizes", [(5, 7, 3), (1, 4, 6), (6, 4, 1), (8, 1, 8)])
def test_products_of_transposes_and_of_several_models(ops, sizes, flip):
    m, k, n = sizes
    generator = np.random.default_rng(3)
    for leading in [(), (4,)]:
        a = generator.normal(size=(*leading, *((k, m) if flip[0] else (m, k)))).astype("f4")
        b = generator.normal(size=(*leading, *((n, k) if flip[1] else (k, n)))).astype("f4")
        a = a.swapaxes(-1, -2) if flip[0] else a
        b = b.swapaxes(-1, -2) if flip[1] else b
        out = np.empty((*leading, m, n), "f4")
        ops.gemm(a, b, out)
        np.testing.assert_allclose(out, a @ b, rtol=1e-5, atol=1e-5)


def test_products_of_what_blas_cannot_walk_through_are_numpys(ops):
    generator = np.random.default_rng(5)
    a, b = (generator.normal(size=(6, 6)).astype("f4") for _ in range(2))
    out = np.empty((6, 6), "f4")
    for x in (
        a[::-1],
        a[:, ::-1],
        np.broadcast_to(a[:1], (6, 6)),
        np.broadcast_to(a[:, :1], (6, 6)),
    ):
        for left, right in ((x, b), (b, x)):
            assert ops.gemm.record(left, right, out) is None
            ops.gemm(left, right, out)
            np.testing.assert_allclose(out, left @ right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", [(), (3,)])
@pytest.mark.parametrize("size", [1, 4, 10, 4097])
def test_noise_is_that_of_the_oracle_bit_for_bit(ops, seed, size):
    from dnn.backend import philox

    seeds = np.full(seed, 2**40 + 17, np.uint64) + np.arange(max(1, *seed, 1), dtype=np.uint64)[
        : seed[0] if seed else 1
    ].reshape(seed)
    step = np.array(2**33 + 5, np.uint64)
    spaces = [np.empty(*wanted) for wanted in philox.workspaces(seed, size)]
    found, wanted = np.empty((*seed, size), "f4"), np.empty((*seed, size), "f4")
    assert ops.uniform_noise.record(seeds, step, 3, *spaces, found) is not None
    ops.uniform_noise(seeds, step, 3, *spaces, found)
    Ops.uniform_noise(seeds, step, 3, *spaces, wanted)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(7, 9), (100, 5, 4), (3, 17, 6), (2, 70, 300)])
def test_a_transposing_copy_is_compiled(ops, dtype, shape):
    x = np.random.default_rng(0).normal(size=(*shape[:-1], shape[-1] + 3)).astype(dtype)
    whole, part = x, x[..., : shape[-1]]
    for turned in (whole.swapaxes(-1, -2), part.swapaxes(-1, -2), np.moveaxis(whole, 0, -1)):
        out = np.full(turned.shape, np.nan, dtype)
        assert ops.copy.record(turned, out) is not None
        ops.copy(turned, out)
        np.testing.assert_array_equal(out, turned)
        parts = ops.copy.parts((turned, out), 2)
        assert len(parts) == (2 if turned.size >= SPLIT_ELEMENTS else 0)
        if parts:
            out.fill(np.nan)
            Program(parts, turned).run()
            np.testing.assert_array_equal(out, turned)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_element_is_set_in_parts_too(ops, dtype):
    whole = np.empty((3, SPLIT_ELEMENTS), dtype)
    for out in (whole[0, :5], whole[1:], whole[:, ::2], whole):
        whole[...] = 7
        ops.fill(2.0, out)
        assert (out == 2).all()
        assert np.count_nonzero(whole != 7) == out.size
    parts = ops.fill.parts((np.nan, whole), 2)
    assert len(parts) == 2
    Program(parts, whole).run()
    assert np.isnan(whole).all()
