"""The GPU's functions against NumPy's, their kernels run on the CPU; see `cuda_emulator`."""

from __future__ import annotations

import cuda_emulator
import fake_cublas
import fake_cupy
import numpy as np
import pytest
from fake_cublas import narrowed, widened
from operation_cases import FORMULAS, compute

from dnn import SGD, AdaGrad, Adam, AdamW, NAdam, RMSProp
from dnn.backend.cuda import formulas, reductions
from dnn.backend.cuda.ops import CudaOps
from dnn.backend.cuda.source import LONG, SHORT, THREADS
from dnn.backend.device import Device
from dnn.backend.formula import ADD, RELU
from dnn.backend.ops import Ops
from dnn.backend.routines import CANDIDATES, RoutineTable
from dnn.errors import DeviceError, DtypeError, ShapeError
from dnn.optimizers.optimizer import clip_steps
from dnn.parameters import FlatBuffer, Segment

if cuda_emulator.COMPILER is None:
    pytest.skip("there is no C++ compiler to run CUDA kernels with", allow_module_level=True)

ORACLE = Ops()
TOLERANCE = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-13}


@pytest.fixture(scope="module")
def ops() -> CudaOps:
    return CudaOps(Device("cuda"), fake_cupy, fake_cupy.Blas())


@pytest.fixture
def at_once(monkeypatch):
    """Let threads compute several elements of small arrays, too."""
    monkeypatch.setattr("dnn.backend.cuda.launch.FEWEST_FOR_LOADS", 1)
    fake_cupy.RawModule.launches.clear()


def kernel_kinds():
    """Return the names of the kernels that were launched, from their types of elements on."""
    return [name.partition("__")[2] for name in fake_cupy.RawModule.launches]


def both(ops, name, arguments, outputs, dtype="float32"):
    """Call a function on either device and compare what it wrote into the arrays of `outputs`."""
    expected = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    given = [ops.asarray(a) if isinstance(a, np.ndarray) else a for a in arguments]
    if name in FORMULAS:
        compute(ORACLE, name, *expected)
        compute(ops, name, *given)
    else:
        getattr(ORACLE, name)(*expected)
        getattr(ops, name)(*given)
    for at, (mine, wanted) in enumerate(zip(given, expected, strict=True)):
        from_end = at - len(given)
        if isinstance(wanted, np.ndarray) and (at in outputs or from_end in outputs):
            tolerance = TOLERANCE[dtype]
            np.testing.assert_allclose(
                ops.to_host(mine), wanted, rtol=tolerance, atol=tolerance, err_msg=name
            )
        elif isinstance(wanted, np.ndarray) and (name in FORMULAS or from_end not in (-2, -3)):
            np.testing.assert_array_equal(ops.to_host(mine), wanted, err_msg=f"{name} wrote {at}")


def normal(*shape, dtype="float32", seed=0, positive=False):
    values = np.random.default_rng((seed, len(shape))).normal(size=shape)
    return np.asarray(np.abs(values) + 0.1 if positive else values, dtype)


ONE = ["negative", "exp", "expm1", "square", "tanh", "abs", "sign", "relu"]
ROOTS = ["log", "sqrt", "log1p"]
TWO = ["add", "subtract", "multiply", "divide"]


@pytest.mark.parametrize("name", [*ONE, *ROOTS])
def test_functions_of_one_operand(ops, name):
    x = normal(3, 70, positive=name in ROOTS)
    both(ops, name, [x, np.empty_like(x)], [-1])
    half = x.astype("float16")
    both(ops, name, [half, np.empty_like(half)], [-1], "float16")


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize(
    ("a", "b"), [((5, 4), (5, 4)), ((5, 4), (4,)), ((5, 1, 4), (3, 1)), ((), (2, 3)), ((2, 3), ())]
)
def test_functions_of_two_operands_broadcast(ops, name, a, b):
    out = np.empty(np.broadcast_shapes(a, b), "float32")
    both(ops, name, [normal(*a), normal(*b, positive=True), out], [-1])


def test_operands_that_are_transposed_or_cut(ops):
    x, y = normal(6, 5), normal(5, 6, seed=1)
    out = fake_cupy.empty((5, 6), "float32")
    compute(ops, "add", ops.asarray(x).swapaxes(0, 1), ops.asarray(y), out)
    np.testing.assert_array_equal(ops.to_host(out), x.T + y)
    left, right = ops.asarray(y)[:, ::2], ops.asarray(y)[:, 1::2]
    compute(ops, "multiply", left, right, out[:, 3:])
    np.testing.assert_array_equal(ops.to_host(out)[:, 3:], y[:, ::2] * y[:, 1::2])
    np.testing.assert_array_equal(ops.to_host(out)[:, :3], (x.T + y)[:, :3])


def test_in_place_and_with_a_number(ops):
    x = ops.asarray(normal(100))
    compute(ops, "multiply", x, 0.5, x)
    compute(ops, "add", x, x, x)
    np.testing.assert_allclose(ops.to_host(x), normal(100), rtol=1e-6)
    ops.fill(3.0, x)
    np.testing.assert_array_equal(ops.to_host(x), np.full(100, 3.0))


def test_the_logistic_function_keeps_small_values(ops):
    x = np.array([-104, -90, -20, -1, 0, 1, 20, 90, 104, np.inf, -np.inf, np.nan], "float32")
    half = x.astype("float16")
    both(ops, "sigmoid", [x, np.empty_like(x)], [-1])
    both(ops, "sigmoid", [half, np.empty_like(half)], [-1], "float16")
    out = fake_cupy.empty(x.shape, "float32")
    compute(ops, "sigmoid", ops.asarray(x), out)
    exact = 1 / (1 + np.exp(-x[:9].astype("float64")))
    np.testing.assert_allclose(ops.to_host(out)[:9], exact, rtol=1e-6, atol=1e-45)


def test_maximum_minimum_relu_and_comparisons_with_nan(ops):
    special = np.array([np.nan, 1, -1, np.inf, -np.inf, 0], "float32")
    a, b = (x.ravel() for x in np.meshgrid(special, special))
    for name in ("maximum", "minimum"):
        both(ops, name, [a, b, np.empty_like(a)], [-1])
    both(ops, "relu", [special, np.empty_like(special)], [-1])
    both(ops, "sign", [special, np.empty_like(special)], [-1])
    for name in ("greater", "greater_equal", "equal"):
        both(ops, name, [a, b, np.empty(a.shape, bool)], [-1])
    condition = np.arange(36) % 3 == 0
    both(ops, "where", [condition, a, b, np.empty_like(a)], [-1])
    both(ops, "positive", [special, np.empty_like(special)], [-1])
    for name in ("where_greater", "where_equal"):
        both(ops, name, [a, b, a[::-1].copy(), np.empty_like(a)], [-1])
    for low, high in ((-1, 1), (1, -1), (0, np.inf), (-np.inf, 0)):
        limits = np.array(low, "float32"), np.array(high, "float32")
        both(ops, "clip", [special, *limits, np.empty_like(special)], [-1])


def test_power(ops):
    a, b = normal(40, positive=True), normal(40, seed=1)
    both(ops, "power", [a, b, np.empty_like(a)], [-1])


def test_conversions(ops):
    x = normal(50) * 10
    for dtype in ("float16", "float64"):
        out = np.empty(50, dtype)
        both(ops, "copy", [x, out], [-1], "float16")
    both(ops, "copy", [x > 0, np.empty(50, "float32")], [-1])
    both(ops, "copy", [np.arange(3), np.empty((2, 3), "float32")], [-1])


@pytest.mark.parametrize("name", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((300, 7), (0,)), ((7, 300), (1,)), ((9, 40), (0, 1)), ((3, 4, 50), (0, 2)), ((5,), (-1,))],
)
def test_reductions(ops, name, shape, axes):
    x = 1 + normal(*shape) * (0.02 if name == "prod" else 1)
    kept = tuple(1 if i in axes or i - len(shape) in axes else n for i, n in enumerate(shape))
    out = np.empty(kept, "float32")
    both(ops, name, [x.astype("float64"), axes, out.astype("float64")], [-1], "float64")
    if shape == (300, 7):
        x[3, 2] = np.nan
        both(ops, name, [x, axes, out], [-1], "float16")


@pytest.mark.parametrize(("dtype", "across"), [("float16", 16), ("float32", 8), ("float64", 4)])
def test_columns_of_many_rows_are_shared_by_more_threads(ops, dtype, across):
    for rows, wanted in ((255, 32), (256, across), (300, across)):
        x = normal(rows, 19, dtype=dtype)
        fake_cupy.RawModule.launches.clear()
        out = ops.asarray(np.empty((1, 19), dtype))
        ops.sum(ops.asarray(x), (0,), out)
        assert [kind.partition("__")[2] for kind in kernel_kinds()] == [f"columns_{wanted}_1_1"]
        expected = x.astype("f8").sum(0, keepdims=True)
        np.testing.assert_allclose(
            ops.to_host(out), expected, atol=0.1 if dtype == "float16" else 1e-4
        )


def test_a_reduction_takes_the_same_bits_each_time_and_transposed_operands(ops):
    x = ops.asarray(normal(64, 333))
    outs = [fake_cupy.empty((64, 1), "float32") for _ in range(2)]
    for out in outs:
        ops.sum(x, (1,), out)
    np.testing.assert_array_equal(*(ops.to_host(out) for out in outs))
    across = fake_cupy.empty((1, 64), "float32")
    ops.sum(x.swapaxes(0, 1), (0,), across)
    np.testing.assert_allclose(ops.to_host(across)[0], normal(64, 333).sum(1), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("sum", (2048,)), ("sum", (2, 2070)), ("max", (2064,)), ("sum", (3, 2053))],
)
def test_few_results_of_many_elements_are_reduced_in_parts(ops, name, shape, monkeypatch):
    monkeypatch.setattr("dnn.backend.cuda.reductions.MANY", 2048)
    x = normal(*shape, dtype="float64")
    out = np.empty((*shape[:-1], 1))
    fake_cupy.RawModule.launches.clear()
    both(ops, name, [x, (-1,), out], [-1], "float64")
    in_parts = shape[-1] % 2 == 0
    assert len(fake_cupy.RawModule.launches) == (2 if in_parts else 1)
    half = x.astype("float16")
    squares = np.empty((*shape[:-1], 1), "float16")
    mine = ops.asarray(squares)
    ops.sum_of_squares(ops.asarray(half / 64), None, mine)
    expected = np.sum(np.square((half / 64).astype("f4")), -1, keepdims=True)
    np.testing.assert_allclose(ops.to_host(mine), expected, rtol=2e-3)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_argmax(ops, axis):
    x = np.round(normal(6, 40))
    x[2, 5] = np.nan
    x[:, 7] = 9
    both(ops, "argmax", [x, axis, np.empty(40 if axis == 0 else 6, np.intp)], [-1])


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (5, 10), (3, 700)])
def test_log_softmax(ops, rows, width):
    x = normal(rows, width) * 5 + 1e4
    both(ops, "log_softmax", [x, np.empty((rows, 1), "f4"), np.empty_like(x), x.copy()], [-1])
    in_place = ops.asarray(x)
    ops.log_softmax(in_place, None, None, in_place)
    np.testing.assert_allclose(np.exp(ops.to_host(in_place)).sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("leading", [(), (3,)])
def test_mean_cross_entropy(ops, leading):
    log_probabilities, target = -normal(*leading, 20, 10, positive=True), normal(*leading, 20, 10)
    log_probabilities[..., 3, 4], target[..., 3, 4] = -np.inf, 0
    mask, terms, out = np.empty(target.shape, bool), np.empty_like(target), np.empty(leading, "f4")
    both(ops, "mean_cross_entropy", [log_probabilities, target, mask, terms, out], [-1])
    assert np.isfinite(out).all()


def test_a_mean_cross_entropy_of_many_elements_is_reduced_in_parts(ops, monkeypatch):
    monkeypatch.setattr("dnn.backend.cuda.reductions.MANY", 2048)
    log_probabilities, target = -normal(256, 8, positive=True), normal(256, 8)
    fake_cupy.RawModule.launches.clear()
    mask, terms, out = np.empty(target.shape, bool), np.empty_like(target), np.empty((), "f4")
    both(ops, "mean_cross_entropy", [log_probabilities, target, mask, terms, out], [-1])
    assert len(fake_cupy.RawModule.launches) == 2


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "uint8", "bool"])
def test_rows(ops, dtype):
    x = (normal(8, 3, 2) * 9).astype(dtype)
    rows = np.array([7, 0, 0, 3, 5])
    both(ops, "take_rows", [x, rows, np.empty((5, 3, 2), dtype)], [-1])
    order, position = np.random.default_rng(0).permutation(8), np.array([2, 0, 4])
    both(ops, "take_batch", [x, order, position, np.empty((4, 3, 2), dtype)], [-1])
    orders = np.stack([order, order[::-1]])
    both(ops, "take_batch", [x, orders, position, np.empty((2, 4, 3, 2), dtype)], [-1])
    if dtype in ("float32", "float64"):
        both(ops, "add_rows", [x[:5], rows, np.empty_like(x)], [-1])
    with pytest.raises(DtypeError, match="rows must be int64"):
        ops.take_rows(ops.asarray(x), ops.asarray(rows.astype("int32")), ops.asarray(x[:5]))
    with pytest.raises(ShapeError, match="not contiguous"):
        ops.take_rows(ops.asarray(x)[:, ::2], ops.asarray(rows), ops.asarray(x[:5]))


@pytest.mark.parametrize(("shape", "across"), [((700, 10), 8), ((2, 5000, 2), 2), ((33, 40), 32)])
def test_elements_are_summed_in_order_however_many_are_loaded_at_once(ops, shape, across):
    x, along = normal(*shape), THREADS // across
    out = fake_cupy.empty((*shape[:-2], 1, shape[-1]), np.float32)
    ops.sum(ops.asarray(x), (-2,), out)
    partial = np.zeros((along, *shape[:-2], shape[-1]), np.float32)
    for row in range(shape[-2]):
        partial[row % along] += x[..., row, :]
    while len(partial) > 1:
        partial = partial[: len(partial) // 2] + partial[len(partial) // 2 :]
    np.testing.assert_array_equal(ops.to_host(out)[..., 0, :], partial[0])


@pytest.mark.parametrize("dtype", ["float16", "float64", "uint8"])
@pytest.mark.parametrize("index", [SHORT, LONG])
def test_long_rows_are_copied_by_loads_of_many_elements(ops, dtype, index, monkeypatch):
    monkeypatch.setattr("dnn.backend.cuda.batches.FEWEST_FOR_LOADS", 8)
    monkeypatch.setattr("dnn.backend.cuda.batches.index_of", lambda *_: index)
    whole = (normal(8, 48) * 9).astype(dtype)
    rows, position = np.array([7, 0, 0, 3, 5]), np.array([2, 0, 4])
    orders = np.random.default_rng(0).permuted([range(8)] * 3, axis=1)
    fake_cupy.RawModule.launches.clear()
    for width in (16, 3):  # rows of whole loads, and others
        x = whole.reshape(-1, width)
        both(ops, "take_rows", [x, rows, np.empty((5, width), dtype)], [-1])
        both(ops, "take_batch", [x, orders, position, np.empty((3, 4, width), dtype)], [-1])
    by = [f"_by_{16 // np.dtype(dtype).itemsize}" in name for name in fake_cupy.RawModule.launches]
    assert by == [True, True, False, False]
    # An array that does not begin where a load may.
    device, out = ops.asarray(whole.reshape(-1))[1:], ops.asarray(np.empty((5, 16), dtype))
    ops.take_rows(device[: 16 * 20].reshape(20, 16), ops.asarray(rows), out)
    wanted = whole.reshape(-1)[1 : 1 + 16 * 20].reshape(20, 16)[rows]
    np.testing.assert_array_equal(ops.to_host(out), wanted)


@pytest.mark.parametrize("models", [(), (3,), (300,)])
def test_the_end_of_a_batch_is_noted(ops, models):
    loss, losses = normal(*models), np.zeros((4, *models))
    position = np.array([10, 2, 5])
    both(ops, "end_batch", [loss, losses, position], [1, 2])


@pytest.mark.parametrize("models", [(), (3,)])
@pytest.mark.parametrize(
    ("rows", "width"), [(20, 1), (20, 2), (20, 5), (700, 3), (20, 300), (300, 256)]
)
def test_predictions_are_counted(ops, models, rows, width):
    outputs, classes = normal(*models, rows, width), max(2, width)
    outputs[..., 4, :] = outputs[..., 4, :1]  # the first of equal ones
    labels = np.random.default_rng(1).integers(0, classes, (*models, rows))
    tallies = np.arange(classes + 1) + np.zeros((*models, classes + 1), np.int64)
    labels[..., ::3] = outputs[..., ::3, :].argmax(-1) if width > 1 else outputs[..., ::3, 0] > 0
    both(ops, "tally_classes", [outputs, labels, np.empty_like(labels), tallies], [3])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("elements", [1, 4, 10, 4099])
def test_noise_is_the_oracles_bit_for_bit(ops, dtype, elements):
    from dnn.backend import philox

    for seed in (np.uint64(2**63 + 12345), np.arange(3, dtype=np.uint64) * np.uint64(2**40)):
        seed = np.asarray(seed, np.uint64)
        step = np.array(2**33 + 7, np.uint64)
        out = np.empty((*seed.shape, elements), dtype)
        spaces = [np.empty(s, t) for s, t in philox.workspaces(seed.shape, elements)]
        ORACLE.uniform_noise(seed, step, 99, *spaces, out)
        mine = ops.asarray(np.empty_like(out))
        ops.uniform_noise(ops.asarray(seed), ops.asarray(step), 99, None, None, mine)
        np.testing.assert_array_equal(ops.to_host(mine), out)


def test_binary_cross_entropy(ops):
    x, target = normal(40) * 30, (normal(40, seed=1) > 0).astype("f4")
    both(ops, "binary_cross_entropy", [x, target, np.empty_like(x)], [-1])


# -- optimizers -----------------------------------------------------------------------------------

OPTIMIZERS = [
    *(SGD(0.1, 0.0, x) for x in (0.0, 0.1)),
    *(SGD(0.1, 0.9, x, nesterov=y) for x in (0.0, 0.1) for y in (False, True)),
    *(AdaGrad(weight_decay=x) for x in (0.0, 0.1)),
    *(RMSProp(momentum=x, weight_decay=y) for x in (0.0, 0.9) for y in (0.0, 0.1)),
    *(Adam(weight_decay=x) for x in (0.0, 0.1)),
    AdamW(),
    NAdam(weight_decay=0.1, decoupled=True),
]


@pytest.mark.parametrize(
    ("models", "dtype"),
    [(None, "f4"), (3, "f4"), pytest.param(3, "f8", marks=pytest.mark.thorough)],
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize("fewest", [1, 1000])
def test_updates_of_optimizers(ops, optimizer, models, dtype, fewest, monkeypatch):
    monkeypatch.setattr("dnn.backend.cuda.launch.FEWEST_FOR_LOADS", fewest)
    fake_cupy.install(monkeypatch)
    results = []
    for device in (ORACLE, ops):
        segments = [Segment("weight", (5, 7), 0)]
        parameters, gradients = (FlatBuffer(segments, dtype, device, models) for _ in range(2))
        device.load(normal(*parameters.flat.shape), parameters.flat)
        update = optimizer.bind(device, parameters, gradients)
        for seed in range(3):
            device.load(normal(*gradients.flat.shape, seed=seed), gradients.flat)
            update.run()
        arrays = {"w": parameters.flat, "g": gradients.flat}
        results.append({**update.snapshot(), **{k: device.to_host(x) for k, x in arrays.items()}})
    expected, found = results
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("models", [(), (3, 1)])
def test_coefficients_of_adam(ops, models):
    rate, beta1, beta2, decay = (np.full(models, x, "f4") for x in (0.1, 0.9, 0.999, 0.01))
    outs = [np.empty(models, "f4") for _ in range(5)]
    count, power = np.array(4), np.empty(models, "f8")
    arguments = [count, rate, beta1, beta2, decay, power, *outs]
    expected = [x.copy() for x in arguments]
    given = [ops.asarray(x) for x in arguments]
    ORACLE.adam_coefficients(*expected)
    ops.adam_coefficients(*given)
    for at in (0, 6, 7, 8, 9, 10):
        np.testing.assert_allclose(ops.to_host(given[at]), expected[at], rtol=1e-6)


@pytest.mark.parametrize("models", [(), (3,)])
def test_clipping(ops, models):
    g = normal(*models, 50)
    limit = ops.asarray(np.full((*models, 1) if models else (), 0.5, "f4"))
    clipped = ops.asarray(g)
    for function, arguments in clip_steps(ops, clipped, {"clip_value": limit}):
        function(*arguments)
    np.testing.assert_array_equal(ops.to_host(clipped), np.clip(g, -0.5, 0.5))
    both(ops, "sum_of_squares", [g, np.empty_like(g), np.empty((*models, 1), "f4")], [-1])
    sums, factor = normal(*models, 7, positive=True), np.empty((*models, 1), "f4")
    for largest in (0.1, 100.0):
        limit = np.full((*models, 1) if models else (1,), largest, "f4")
        both(ops, "clip_factor", [sums, limit, factor], [-1])


@pytest.mark.parametrize("bad", [None, np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_found(ops, bad):
    x = normal(20, 30) * 1e30
    if bad is not None:
        x[7, 8] = bad
    assert ops.all_finite(ops.asarray(x), None) == (bad is None)


# -- scaled losses --------------------------------------------------------------------------------


@pytest.mark.parametrize("models", [(), (3,)])
def test_rows_that_are_not_finite_are_flagged(ops, models):
    g = normal(*models, 3000) * 1e30
    for bad in (None, np.nan, np.inf, -np.inf):
        if bad is not None:
            g[(1, 7) if models else 7] = bad
        flags = fake_cupy.empty((*models, 1) if models else (), "f4")
        run(ops.finite_flags(ops.asarray(g), flags))
        expected = np.isfinite(g).all(-1).reshape(flags.shape)
        np.testing.assert_array_equal(ops.to_host(flags), expected)


def run(steps):
    for function, arguments in steps:
        function(*arguments)


@pytest.mark.sample(5)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize("fewest", [1, 1000])
def test_updates_leave_out_rows_whose_flag_is_zero(ops, optimizer, fewest, monkeypatch):
    monkeypatch.setattr("dnn.backend.cuda.launch.FEWEST_FOR_LOADS", fewest)
    fake_cupy.RawModule.launches.clear()
    fake_cupy.install(monkeypatch)
    segments = [Segment("weight", (5, 7), 0)]

    def bound():
        parameters, gradients = (FlatBuffer(segments, "f4", ops, 3) for _ in range(2))
        ops.load(normal(*parameters.flat.shape), parameters.flat)
        ops.load(normal(*gradients.flat.shape, seed=1), gradients.flat)
        update = optimizer.bind(ops, parameters, gradients)
        buffers = [parameters, *update.state.values()]
        return update, [x.flat for x in buffers if x.segments == parameters.segments]

    plain, moved = bound()
    gated, kept = bound()
    before = [ops.to_host(x) for x in kept]
    run(plain.steps)
    flags = ops.asarray(np.array([[1], [0], [1]], "f4"))
    linked = ops.link(ops.conditional(flags, gated.steps, kept))
    assert len(linked) == 1
    run(linked)
    for found, there, was in zip(kept, moved, before, strict=True):
        # Not the same bits: which product is rounded with a sum is up to the compiler.
        np.testing.assert_allclose(ops.to_host(found)[::2], ops.to_host(there)[::2], rtol=1e-5)
        np.testing.assert_array_equal(ops.to_host(found)[1], was[1])
    assert (ops.to_host(kept[0])[1] != ops.to_host(moved[0])[1]).any()
    run(ops.conditional(flags, [(ops.load, (np.float32(9), kept[0]))], kept))
    np.testing.assert_array_equal(ops.to_host(kept[0])[::2], np.full_like(before[0][::2], 9))
    np.testing.assert_array_equal(ops.to_host(kept[0])[1], before[0][1])
    assert any("__2_by_4_" in kind for kind in kernel_kinds()) == (fewest == 1)


def test_scales_are_halved_and_doubled(ops):
    scale, counts = np.array([8.0, 1.0, 8.0, 8.0], "f4"), np.array([[4, 0], [2, 5], [1, 0], [4, 0]])
    flags = np.array([[1], [0], [1], [0]], "f4")
    mine = [ops.asarray(x) for x in (flags, scale, counts)]
    run(ops.adjust_scale(*mine, 5, 12.0))
    np.testing.assert_array_equal(ops.to_host(mine[1]), [12, 1, 8, 4])
    np.testing.assert_array_equal(ops.to_host(mine[2]), [[0, 0], [0, 6], [2, 0], [0, 1]])
    alone = [ops.asarray(np.array(x, "f4")) for x in (1, 4)], ops.asarray(np.array([0, 3]))
    run(ops.adjust_scale(*alone[0], alone[1], 1, 100.0))
    assert float(alone[0][1]) == 8
    np.testing.assert_array_equal(ops.to_host(alone[1]), [0, 3])


# -- what does not fit ----------------------------------------------------------------------------


def test_arrays_of_the_host_are_refused(ops):
    with pytest.raises(DeviceError, match="add: ndarray where an array of the GPU is needed"):
        compute(ops, "add", normal(3), ops.asarray(normal(3)), ops.asarray(normal(3)))
    with pytest.raises(ShapeError, match=r"add: \(4,\) does not broadcast to \(3,\)"):
        compute(ops, "add", *(ops.asarray(normal(n)) for n in (4, 3, 3)))


def test_whole_numbers_of_16_bits_are_no_bfloat16_by_accident(ops):
    x = ops.asarray(np.arange(3, dtype=np.uint16))
    for call in (
        lambda: compute(ops, "add", x, x, x),
        lambda: ops.copy(x, ops.asarray(normal(3))),
        lambda: ops.sum(x, (0,), x[:1]),
        lambda: ops.fill(1.0, x),
    ):
        with pytest.raises(DtypeError, match="on a GPU 16-bit whole numbers are not supported"):
            call()


# -- routines -------------------------------------------------------------------------------------


def launched(ops, function, *arguments):
    """Return what a function launches: kernels, products as (rows, columns), functions of CuPy."""
    kernels, products = fake_cupy.RawModule.launches, fake_cublas.Library.multiplications
    before = len(kernels), len(products)
    fake_cupy.Stream.log.clear()
    function(*arguments)
    fake_cupy.deviceSynchronize()
    names = {name.split("__")[0] for name in kernels[before[0] :]}
    names |= {(asked.rows, asked.columns) for asked in products[before[1] :]}
    return names | {name for name in fake_cupy.Stream.log if name.startswith("cupy")}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("models", [(), (3,)])
@pytest.mark.parametrize("axis", [-2, -1])
@pytest.mark.parametrize("routine", CANDIDATES["gpu_sum"])
def test_sums_by_every_routine(ops, monkeypatch, routine, axis, models, dtype):
    monkeypatch.setattr(ops, "routines", RoutineTable({"gpu_sum": [(0, routine)]}))
    x = normal(*models, 20, 30).astype(dtype)
    expected = x.sum(axis, keepdims=True)
    out = fake_cupy.empty(expected.shape, dtype)
    found = launched(ops, ops.sum, ops.asarray(x), (axis,), out)
    product = (30, 1) if axis == -2 else (1, 20)
    assert found == {"kernel": {"sum"}, "gemv": {product}, "library": {"cupy.sum"}}[routine]
    tolerance = TOLERANCE[dtype] * 20
    np.testing.assert_allclose(ops.to_host(out), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("code", ["f2", "u2"])
@pytest.mark.parametrize("routine", CANDIDATES["gpu_sum"])
def test_narrow_sums_by_every_routine_but_the_library(ops, monkeypatch, routine, code):
    monkeypatch.setattr(ops, "routines", RoutineTable({"gpu_sum": [(0, routine)]}))
    x = narrowed(normal(20, 30), code)
    for axis, product in ((0, (30, 1)), (1, (1, 20))):
        expected = widened(x).sum(axis, keepdims=True)
        out = fake_cupy.empty(expected.shape, "f4")
        ((function, arguments),) = ops.sum_narrow(ops.asarray(x), (axis,), out)
        found = launched(ops, function, *arguments)
        assert found == ({product} if routine == "gemv" else {"sum"})
        np.testing.assert_allclose(ops.to_host(out), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("code", ["f2", "u2", "f4", "f8"])
@pytest.mark.parametrize("leading", [(), (3,)])
def test_a_kernel_sums_the_rows_that_it_writes(ops, code, leading):
    wide = "f8" if code == "f8" else "f4"
    x, y = (narrowed(normal(*shape).astype(wide), code) for shape in ((*leading, 70, 21), (21,)))
    a, b, out = ops.asarray(x), ops.asarray(y), ops.asarray(np.zeros_like(x))
    sums = ops.asarray(np.zeros((*leading, 21), wide))
    spec = formulas.chain(((ADD, 0, 1), (RELU, 2)), 2)
    rows = len(leading)
    total = (ops._sum, (out, (rows,), sums.reshape(*leading, 1, 21), True))
    ((run, _),) = ops.link([(ops._run_narrow, (spec, a, b, out)), total])
    fake_cupy.RawModule.launches.clear()
    run()
    (launched,) = fake_cupy.RawModule.launches
    assert "_sums__" in launched
    expected = narrowed(np.maximum(widened(x) + widened(y), 0), code)
    np.testing.assert_array_equal(ops.to_host(out), expected)
    np.testing.assert_allclose(ops.to_host(sums), widened(expected).sum(-2), rtol=1e-5)


def test_a_sum_of_rows_waits_where_its_memory_is_still_read(ops):
    spec = formulas.chain(((ADD, 0, 1),), 2)
    x, out = (ops.asarray(normal(4, 5)) for _ in range(2))
    one, other = ops.asarray(normal(5)), ops.asarray(np.zeros((1, 5), "f4"))
    doubled = 2 * ops.to_host(x)
    add = (ops.run_elementwise, (spec, x, x, out))

    def launches(*steps):
        fake_cupy.RawModule.launches.clear()
        ((run, _),) = ops.link(steps)
        run()
        return len(fake_cupy.RawModule.launches)

    late = (ops.sum, (out, (0,), other))
    assert launches(add, late) == 1
    np.testing.assert_allclose(ops.to_host(other)[0], doubled.sum(0), rtol=1e-6)
    # The kernel reads that memory, or another one does in between, or changes what is summed.
    ((run, _),) = ops.link(
        [(ops.run_elementwise, (spec, x, one, out)), (ops.sum, (out, (0,), one.reshape(1, 5)))]
    )
    run()
    np.testing.assert_allclose(ops.to_host(one), ops.to_host(out).sum(0), rtol=1e-6)
    for between in ((ops.copy, (other, x[:1])), (ops.copy, (x, out)), (ops.fill, (1.0, other))):
        launches(add, between, late)
        np.testing.assert_allclose(ops.to_host(other)[0], ops.to_host(out).sum(0), rtol=1e-6)


def test_other_sums_are_a_kernel_of_ours(ops, monkeypatch):
    monkeypatch.setattr(ops, "routines", RoutineTable({"gpu_sum": [(0, "gemv")]}))
    x = ops.asarray(normal(4, 6, 8))
    half = ops.asarray(normal(6, 8).astype("f2"))
    strided = x[0][:, ::2]
    for given, axes in ((x, (0,)), (x, (1, 2)), (half, (0,)), (strided, (0,)), (x[0, 0], (0,))):
        shape = tuple(1 if i in axes else n for i, n in enumerate(given.shape))
        assert launched(ops, ops.sum, given, axes, fake_cupy.empty(shape, given.dtype)) == {"sum"}


def test_routines_are_measured_as_cuda_graphs(ops, monkeypatch):
    monkeypatch.setattr(ops, "SIZES", (4, 8))
    found = list(ops.candidates())
    assert [(name, size, list(calls)) for name, size, calls in found] == [
        ("gpu_sum", n * n, list(CANDIDATES["gpu_sum"])) for n in (4, 8)
    ]
    graphs = fake_cupy.Graph.launched
    for _, _, calls in found:
        for call in calls.values():
            call()
    assert fake_cupy.Graph.launched == graphs + 6
    monkeypatch.setattr(fake_cupy.Stream, "fails", "operation not permitted when capturing")
    assert [list(calls) for _, _, calls in ops.candidates()] == [["kernel"]] * 2
    assert RoutineTable.measure(ops).choices == {"gpu_sum": [(0, "kernel")]}


# -- several elements for each thread --------------------------------------------------------------


@pytest.mark.parametrize("index", ["short", "long"])
@pytest.mark.parametrize(
    ("dtype", "shape", "of_other", "kind"),
    [
        ("float32", (3, 41), (3, 41), "1_by_4_000"),  # with a remainder
        ("float32", (2, 1), (2, 1), "1_by_4_000"),  # which is all there is
        ("float32", (5, 8), (8,), "2_by_4_000"),
        ("float32", (5, 8), (5, 1), "2_by_4_010"),
        ("float32", (3, 5, 8), (3, 1, 8), "3_by_4_000"),
        ("float32", (5, 41), (), "1_by_4_010"),
        ("float64", (5, 3), (5, 3), "1_by_2_000"),
        ("float16", (5, 9), (5, 9), "1_by_8_000"),
        ("float32", (5, 6), (6,), "2"),  # rows are no multiple of a load
    ],
)
def test_a_thread_computes_neighbours(
    ops, at_once, monkeypatch, dtype, shape, of_other, kind, index
):
    if index == "long":
        monkeypatch.setattr("dnn.backend.cuda.launch.MOST_SHORT", 0)
        kind = kind.replace("_by", "_long_by") if "_by" in kind else f"{kind}_long"
    a, b = normal(*shape, dtype=dtype), normal(*of_other, dtype=dtype, seed=1)
    both(ops, "multiply", [a, b, np.empty(shape, dtype)], {-1}, dtype)
    (found,) = kernel_kinds()
    assert found.endswith(f"__{kind}")


def test_a_thread_computes_one_element_of_arrays_that_loads_do_not_fit(ops, at_once):
    memory = ops.asarray(normal(101))
    wanted = ops.to_host(memory) + 1
    out = ops.asarray(np.zeros(101, "f4"))
    for part in (slice(1, 100), slice(0, 100, 2), slice(None, None, -1), slice(4, 99)):
        compute(ops, "add", memory[part], 1.0, out[part])
        np.testing.assert_array_equal(ops.to_host(out[part]), wanted[part])
    square = ops.asarray(normal(8, 8, seed=2))
    compute(ops, "add", square.swapaxes(0, 1), square, out[:64].reshape(8, 8))
    wanted = ops.to_host(square).T + ops.to_host(square)
    np.testing.assert_array_equal(ops.to_host(out[:64]).reshape(8, 8), wanted)
    assert [kind.partition("__")[2] for kind in kernel_kinds()] == ["1", "1", "1", "1_by_4_00", "2"]


def test_a_thread_converts_and_compares_neighbours(ops, at_once):
    x = normal(3, 50)
    for code, many in (("f2", 4), ("f8", 2), ("b1", 4)):
        given, out = ops.asarray(x), ops.asarray(np.zeros(x.shape, code))
        ops.copy(given, out)
        np.testing.assert_array_equal(ops.to_host(out), x.astype(code))
        assert kernel_kinds()[-1] == f"f4_{code}__1_by_{many}_00"
    both(ops, "greater", [x, normal(3, 50, seed=1), np.zeros(x.shape, bool)], {-1})
    assert kernel_kinds()[-1] == "f4_f4_b1__1_by_4_000"


@pytest.mark.parametrize("index", ["short", "long"])
@pytest.mark.parametrize(("dtype", "many"), [("float32", 4), ("float64", 2), ("float16", 8)])
def test_long_rows_are_summed_by_neighbours(ops, monkeypatch, dtype, many, index):
    if index == "long":
        monkeypatch.setattr("dnn.backend.cuda.launch.MOST_SHORT", 0)
    length = 256 * many + many + 3  # a second round of one thread, and a remainder
    memory = normal(3, length, dtype=dtype)  # of which the second row is not aligned
    given = ops.asarray(memory)
    fake_cupy.RawModule.launches.clear()
    tolerance = 0.1 if dtype == "float16" else 1e-4
    found = []
    for columns in (length, length - 1):
        out = ops.asarray(np.empty((3, 1), dtype))
        ops.sum(given[:, -columns:], (1,), out)
        found.append(ops.to_host(out))
        np.testing.assert_allclose(
            found[-1], memory[:, -columns:].astype("f8").sum(-1, keepdims=True), atol=tolerance
        )
    suffix = f"{'_long' if index == 'long' else ''}_by_{many}"
    assert {kind.partition("__")[2] for kind in kernel_kinds()} == {f"rows_1_1{suffix}"}
    # The bits do not depend on where a row lies.
    for row in range(3):
        out = ops.asarray(np.empty((1, 1), dtype))
        ops.sum(ops.asarray(memory[row : row + 1].copy()), (1,), out)
        np.testing.assert_array_equal(ops.to_host(out)[0], found[0][row])


@pytest.mark.parametrize("shape", [(1200,), (3, 1200), (2, 3, 1200)])
def test_long_rows_of_two_operands(ops, shape):
    x, y = normal(*shape), np.abs(normal(*shape, seed=1))
    out = ops.asarray(np.empty((*shape[:-1], 1), "f4"))
    reduction = reductions.REDUCTIONS["mean_of_products"]
    operands = [ops.asarray(x), ops.asarray(y)]
    reductions.reduce(ops.launcher, reduction, operands, (len(shape) - 1,), out, scale=0.5)
    expected = (x.astype("f8") * y / 2).sum(-1, keepdims=True)
    np.testing.assert_allclose(ops.to_host(out), expected, atol=1e-4)
