"""The GPU's functions for every type of elements that they take, against NumPy in float64."""

from __future__ import annotations

import itertools

import cuda_emulator
import fake_cupy
import numpy as np
import pytest
from fake_cublas import narrowed, widened
from operation_cases import FORMULAS, compute

from dnn.backend.cuda.ops import CudaOps
from dnn.backend.device import Device
from dnn.backend.formula import Formula, UpdateFormula
from dnn.backend.ops import Ops

if cuda_emulator.COMPILER is None:
    pytest.skip("there is no C++ compiler to run CUDA kernels with", allow_module_level=True)

ORACLE = Ops()
TOLERANCE = {"float16": 1e-3, "float32": 1e-5, "float64": 1e-12}
TYPES = list(TOLERANCE)


@pytest.fixture(scope="module")
def ops() -> CudaOps:
    return CudaOps(Device("cuda"), fake_cupy, fake_cupy.Blas())


def numbers(*shape, dtype="float64", seed=0):
    """Return numbers from 0.1 to 2: every function has a value there."""
    return np.random.default_rng(seed).uniform(0.1, 2, shape).astype(dtype)


def transposed(ops, x):
    """Return the array on the GPU, in memory with its axes in the reverse order."""
    axes = tuple(reversed(range(x.ndim)))
    return ops.asarray(np.ascontiguousarray(x.transpose(axes))).transpose(*axes)


def assert_near(found, wanted, dtype):
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def expected(name, operands, dtype):
    """Return what NumPy computes in float64."""
    out = np.empty(operands[-1].shape, dtype)
    compute(ORACLE, name, *(x if x.dtype == bool else x.astype("float64") for x in operands), out)
    return out


@pytest.mark.sample(16)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", FORMULAS)
def test_formulas(ops, name, dtype):
    formula = FORMULAS[name]
    x = [numbers(3, 4, 5, dtype=dtype, seed=seed) for seed in range(len(formula.names))]
    if not (formula.is_bool or formula.has_one_type):
        x[formula.names.index("condition")] = x[0] > 1
    wanted = expected(name, x, bool if formula.is_bool else "float64")
    for place in (CudaOps.asarray, transposed):
        out = fake_cupy.empty(wanted.shape, bool if formula.is_bool else dtype)
        compute(ops, name, *(place(ops, each) for each in x), out)
        assert_near(ops.to_host(out), wanted, dtype)


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "name", ["add", "multiply", "maximum", "greater", "greater_equal", "equal"]
)
def test_a_number_in_place_of_an_array(ops, name, dtype):
    x = numbers(4, 5, dtype=dtype)
    kind = bool if FORMULAS[name].is_bool else dtype
    out = fake_cupy.empty(x.shape, kind)
    compute(ops, name, ops.asarray(x), 0.5, out)
    half = np.full_like(x, 0.5)
    assert_near(ops.to_host(out), expected(name, [x, half], kind), dtype)
    for place in (CudaOps.asarray, transposed):
        filled = place(ops, x)
        ops.fill(0.5, filled)
        np.testing.assert_array_equal(ops.to_host(filled), half)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        *itertools.permutations(TYPES, 2),
        *(("bool", "float32"), ("float32", "bool"), ("int64", "float32")),
        *((x, x) for x in ("int64", "uint64", "bool")),
    ],
)
def test_conversions(ops, given, wanted):
    x = np.round(numbers(4, 5)).astype(given)
    out = fake_cupy.empty(x.shape, wanted)
    ops.copy(ops.asarray(x), out)
    np.testing.assert_array_equal(ops.to_host(out), x.astype(wanted))


@pytest.mark.parametrize("code", ["f2", "u2"])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (3, 4, 5)])
def test_narrow_elements_are_copied_bit_by_bit(ops, shape, code):
    bits = np.arange(np.prod(shape), dtype=np.uint16).reshape(shape) + 0x7F70  # NaN among them
    x = bits.view(code)
    out = fake_cupy.empty(shape, x.dtype)
    ops.copy(transposed(ops, x), out)
    np.testing.assert_array_equal(ops.to_host(out), x)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_whole_numbers(ops, dtype):
    a, b, out = np.arange(20).astype(dtype), np.full(20, 7, dtype), fake_cupy.empty((20,), dtype)
    compute(ops, "add", ops.asarray(a), ops.asarray(b), out)
    np.testing.assert_array_equal(ops.to_host(out), a + b)


FORMS = {
    "few": ((7, 30), 1),
    "rows": ((3, 600), 1),
    "rows by several": ((2, 2100), 1),
    "columns": ((300, 40), 0),
    "few columns": ((300, 3), 0),
    "parts of rows": ((2, 2048), 1),
    "parts of rows by several": ((2, 65536), 1),
    "parts of one row": ((1, 65536), 1),
    "parts of columns": ((2048, 33), 0),
    "parts of few columns": ((4096, 6), 0),
}
"""Arrays for which a reduction has a kernel, or two, of a form of its own, with the axis."""


@pytest.fixture
def in_parts(monkeypatch):
    """Let reductions of fewer elements than usual be done in parts, of more elements each."""
    monkeypatch.setattr("dnn.backend.cuda.reductions.MANY", 2048)
    monkeypatch.setattr("dnn.backend.cuda.reductions.FEW", 33)
    monkeypatch.setattr("dnn.backend.cuda.reductions.MOST_PARTS", 64)


@pytest.mark.parametrize("code", ["f2", "u2"])
@pytest.mark.parametrize("form", FORMS)
def test_sums_of_narrow_elements_are_float32(ops, in_parts, form, code):
    shape, axis = FORMS[form]
    x = np.random.default_rng(0).integers(0, 9, shape).astype("float32")
    wanted = x.sum(axis, keepdims=True)
    out = fake_cupy.empty(wanted.shape, "float32")
    for function, arguments in ops.sum_narrow(ops.asarray(narrowed(x, code)), (axis,), out):
        function(*arguments)
    np.testing.assert_array_equal(ops.to_host(out), wanted)


@pytest.mark.sample(9)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("form", FORMS)
def test_reductions(ops, in_parts, name, form, dtype):
    shape, axis = FORMS[form]
    x = numbers(*shape, dtype=dtype)
    if name == "prod":
        x = np.where(x > 1, 1, -1).astype(dtype)
        x.flat[:3] = 0.5
    elif name == "sum" and dtype == "float16":
        x = np.round(x / 16, 3).astype(dtype)  # no sum is beyond float16
    wanted = getattr(x.astype("float64"), name)(axis, keepdims=True)
    out = fake_cupy.empty(wanted.shape, dtype)
    getattr(ops, name)(ops.asarray(x), (axis,), out)
    assert_near(ops.to_host(out), wanted, dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_products_are_summed(ops, in_parts, dtype):
    for shape, place in (
        *(((3, 50), CudaOps.asarray), ((3, 600), CudaOps.asarray), ((40, 50), transposed)),
        *(((2048,), transposed), ((2, 65536), CudaOps.asarray)),
    ):
        x = numbers(*shape, dtype=dtype) / 8
        out = fake_cupy.empty((*shape[:-1], 1), dtype)
        ops.sum_of_squares(place(ops, x), None, out)
        assert_near(ops.to_host(out), np.square(x.astype("float64")).sum(-1, keepdims=True), dtype)
    for shape in ((20, 10), (64, 32), (20, 3, 4), (64, 512)):
        x, target = numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype, seed=1)
        wanted = -(x.astype("float64") * target).sum((-2, -1)) / shape[-2]
        for place in (CudaOps.asarray, transposed):
            out = fake_cupy.empty(wanted.shape, dtype)
            ops.mean_cross_entropy(place(ops, x), place(ops, target), None, ops.asarray(x), out)
            assert_near(ops.to_host(out), wanted, dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_not_finite_is_found(ops, in_parts, dtype):
    for shape, place in (
        *(((5, 6), CudaOps.asarray), ((60, 40), transposed), ((2048,), transposed)),
        *(((3, 600), CudaOps.asarray), ((65536,), CudaOps.asarray)),
    ):
        x = numbers(*shape, dtype=dtype)
        flags = fake_cupy.empty((*shape[:-1], 1), dtype)
        for bad in (1, np.inf, np.nan):
            x.flat[3] = bad
            assert ops.all_finite(place(ops, x), None) == np.isfinite(bad)
            for function, arguments in ops.finite_flags(place(ops, x), flags):
                function(*arguments)
            wanted = np.isfinite(x).all(-1, keepdims=True)
            np.testing.assert_array_equal(ops.to_host(flags), wanted)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", [10, 70])
def test_rows_of_classes(ops, width, dtype):
    x = numbers(6, width, dtype=dtype)
    exact = x.astype("float64")
    out = fake_cupy.empty(x.shape, dtype)
    ops.log_softmax(ops.asarray(x), None, None, out)
    assert_near(ops.to_host(out), exact - np.log(np.exp(exact).sum(1, keepdims=True)), dtype)
    best, labels = exact.argmax(1), np.arange(6) % width
    found = fake_cupy.empty((6,), np.int64)
    ops.argmax(ops.asarray(x), 1, found)
    np.testing.assert_array_equal(ops.to_host(found), best)
    tallies = ops.asarray(np.zeros(width + 1, np.int64))
    guesses = ops.asarray(np.zeros(len(labels), np.int64))
    ops.tally_classes(ops.asarray(x), ops.asarray(labels), guesses, tallies)
    counts = [*np.bincount(best, minlength=width), (best == labels).sum()]
    np.testing.assert_array_equal(ops.to_host(tallies), counts)


@pytest.mark.parametrize("dtype", TYPES)
def test_losses_are_noted(ops, dtype):
    losses, position = (ops.asarray(x) for x in (np.zeros((4, 2)), np.array([10, 2, 5])))
    ops.end_batch(ops.asarray(np.array([0.5, 0.25], dtype)), losses, position)
    np.testing.assert_array_equal(ops.to_host(losses)[2], [0.5, 0.25])


@pytest.mark.parametrize("models", [(), (3,)])
def test_settings_of_optimizers_in_float64(ops, models):
    column = (*models, 1)
    given = [np.full(column, x) for x in (0.1, 0.9, 0.999, 0.01)]
    count, outs = np.full((), 4), [np.empty(column) for _ in range(6)]
    mine = [ops.asarray(x) for x in (count, *given, *outs)]
    ORACLE.adam_coefficients(count, *given, *outs)
    ops.adam_coefficients(*mine)
    for found, wanted in zip(mine[6:], outs[1:], strict=True):
        assert_near(ops.to_host(found), wanted, "float64")
    sums, limit, factor = numbers(*models, 7), np.full(column, 0.5), np.empty(column)
    mine = [ops.asarray(x) for x in (sums, limit, factor)]
    ORACLE.clip_factor(sums.copy(), limit, factor)
    ops.clip_factor(*mine)
    assert_near(ops.to_host(mine[-1]), factor, "float64")


@pytest.mark.parametrize("dtype", TYPES)
def test_constants_that_a_type_cannot_hold_are_infinite(ops, dtype):
    x = np.array([-np.inf, -1, 2, np.inf, np.nan], dtype)
    formula = Formula("large_numbers", "x", f"max(min(x, 1e999), -1e999) * 0.5 + {10**300} * 0")
    out = fake_cupy.empty(x.shape, dtype)
    function, arguments = ops.elementwise(formula, [ops.asarray(x)], out)
    function(*arguments)
    wanted = x / 2 if dtype == "float64" else np.full_like(x, np.nan)
    np.testing.assert_array_equal(ops.to_host(out), wanted)
    clipped = UpdateFormula("clipped", ("w", "g"), ("rate",), (("w", "min(w - rate * g, 1e999)"),))
    w, g, rate = (ops.asarray(np.full(3, each, dtype)) for each in (1, 2, 0.25))
    function, arguments = ops.update(clipped, [w, g], [rate], lambda types: [])
    function(*arguments)
    np.testing.assert_array_equal(ops.to_host(w), np.full(3, 0.5))


@pytest.mark.parametrize("code", ["f2", "u2"])
@pytest.mark.parametrize("wide", [0, 1, 2])
def test_chains_of_mixed_types(ops, code, wide):
    """One operand is float32: an input or the result."""

    def stored(x, at):
        if at == wide:
            return x.astype("float32")
        return narrowed(x.astype("float32"), code)

    def value(x):
        return widened(x) if x.dtype == np.uint16 else x.astype("float32")

    a, b = (stored(numbers(4, 5, seed=at), at) for at in (0, 1))
    out = ops.asarray(stored(np.zeros((4, 5)), 2))
    multiply, tanh, where = (FORMULAS[name] for name in ("multiply", "tanh", "where_greater"))
    chain = ((multiply, 0, 1), (tanh, 2), (where, 3, 0, 1), (multiply, 4, 0))
    for function, arguments in ops.rounded_chain(chain, [transposed(ops, a), ops.asarray(b)], out):
        function(*arguments)
    x, y = value(a), value(b)
    wanted = np.where(x > y, np.tanh(x * y), 0) * x
    tolerance = 1e-5 if wide == 2 else 1e-2
    np.testing.assert_allclose(value(ops.to_host(out)), wanted, rtol=tolerance, atol=tolerance)


OF_ONE_TYPE = [name for name, formula in FORMULAS.items() if formula.has_one_type]


def whole_chain():
    """Return a chain of all operations that may be in one, as members and as names.

    Each takes the result before it, and then its two inputs in turn.
    """
    chain, others = [], itertools.cycle((1, 0))
    for name in OF_ONE_TYPE:
        formula, last = FORMULAS[name], len(chain) + 1 if chain else 0
        chain.append((formula, last, *(next(others) for _ in formula.names[1:])))
    return tuple(chain)


@pytest.mark.parametrize(
    ("codes", "shape"),
    [
        *((("f4", "f4", "f4"), shape) for shape in ((20,), (4, 5))),
        *((("f2", "f2", "f2"), (20,)), (("f8", "f8", "f8"), (20,))),
        *((("f4", narrow, narrow), (4, 5)) for narrow in ("f2", "u2")),
        *(((narrow, "f4", narrow), (4, 5)) for narrow in ("f2", "u2")),
        *(((narrow, narrow, "f4"), (4, 5)) for narrow in ("f2", "u2")),
    ],
)
def test_all_operations_are_one_chain(ops, codes, shape):
    """What it gives is what its kernels give one by one in the type that arithmetic has."""
    chain = whole_chain()
    assert len(chain) > 20
    kind = "f8" if codes[0] == "f8" else "f4"
    stored = [narrowed(numbers(*shape, dtype="f4", seed=at), code) for at, code in enumerate(codes)]
    given = [transposed(ops, stored[0]), ops.asarray(stored[1])]
    out = ops.asarray(stored[2])
    for function, arguments in ops.rounded_chain(chain, given, out):
        function(*arguments)
    values = [ops.asarray(widened(x).astype(kind)) for x in stored[:2]]
    for formula, *members in chain:
        values.append(fake_cupy.empty(shape, kind))
        inputs = [values[at] for at in members]
        function, arguments = ops.elementwise(formula, inputs, values[-1])
        function(*arguments)
    wanted = narrowed(ops.to_host(values[-1]), codes[2])
    np.testing.assert_array_equal(widened(ops.to_host(out)), widened(wanted))


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_are_added_up(ops, dtype):
    x, rows = numbers(6, 5, dtype=dtype), np.array([2, 0, 2, 2, 1, 0])
    wanted = np.zeros((4, 5))
    np.add.at(wanted, rows, x.astype("float64"))
    out = fake_cupy.empty(wanted.shape, dtype)
    ops.add_rows(ops.asarray(x), ops.asarray(rows), out)
    assert_near(ops.to_host(out), wanted, dtype)
