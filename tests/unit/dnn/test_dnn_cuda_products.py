"""Matrix products on a GPU: what cuBLAS is asked for, and what comes of it; see `fake_cublas`."""

from __future__ import annotations

import ctypes
import gc
import math

import cuda_emulator
import fake_cublas
import fake_cupy
import numpy as np
import pytest
from fake_cublas import narrowed, tf32, widened
from numpy.lib.stride_tricks import as_strided

from dnn.backend.cuda.cublas import (
    BIAS_BATCH_STRIDE,
    BIAS_POINTER,
    EPILOGUE,
    LEAST_ALIGNMENT,
    MOST_WORKSPACE_BYTES,
    TRANSPOSE_A,
    CublasLt,
    load_library,
)
from dnn.backend.cuda.ops import CudaOps
from dnn.backend.cuda.products import product_of
from dnn.backend.device import Device
from dnn.errors import DeviceError, DtypeError, ShapeError

if cuda_emulator.COMPILER is None:
    pytest.skip("there is no C++ compiler to run CUDA kernels with", allow_module_level=True)

CODES = {"float16": "f2", "bfloat16": "u2", "tf32": "f4", "float32": "f4"}
TYPES = {"f2": 2, "u2": 14, "f4": 0}


@pytest.fixture(scope="module")
def ops() -> CudaOps:
    return CudaOps(Device("cuda"), fake_cupy, fake_cupy.Blas())


def normal(*shape, seed=0):
    return np.random.default_rng((seed, len(shape))).normal(size=shape).astype("f4")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((1, 4), (4, 1)),
        ((3, 1), (1, 5)),
        ((6, 3, 4), (6, 4, 5)),
        ((6, 3, 4), (4, 5)),
        ((3, 4), (6, 4, 5)),
        ((2, 6, 3, 4), (6, 4, 5)),
        ((2, 1, 3, 4), (1, 6, 4, 5)),
        ((3, 0), (0, 5)),
        ((0, 4), (4, 5)),
    ],
)
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
def test_gemm(ops, a, b, transposed):
    x, y = normal(*a), normal(*b, seed=1)
    expected = np.matmul(x, y)
    out = fake_cupy.empty(expected.shape, "float32")
    left = ops.asarray(np.ascontiguousarray(x.swapaxes(-1, -2))).swapaxes(-1, -2)
    right = ops.asarray(np.ascontiguousarray(y.swapaxes(-1, -2))).swapaxes(-1, -2)
    ops.gemm(
        left if "a" in transposed else ops.asarray(x),
        right if "b" in transposed else ops.asarray(y),
        out,
    )
    np.testing.assert_allclose(ops.to_host(out), expected, rtol=1e-5, atol=1e-6)


def test_gemm_into_and_from_parts_of_larger_arrays(ops):
    x, y = normal(3, 8), normal(9, 7, seed=1)
    out = fake_cupy.empty((3, 10), "float32")
    ops.gemm(ops.asarray(x)[:, 2:6], ops.asarray(y)[1:5, :5], out[:, 4:9])
    np.testing.assert_allclose(ops.to_host(out)[:, 4:9], x[:, 2:6] @ y[1:5, :5], rtol=1e-5)
    with pytest.raises(ShapeError, match=r"\(3, 4\) with strides \(8, 2\) cannot be read"):
        product_of(x[:, ::2], y[:4, :5], np.empty((3, 5), "f4"))
    with pytest.raises(ShapeError, match="result"):
        product_of(x[:, :4], y[:4, :5], np.empty((5, 3), "f4").T)


# -- by precision ---------------------------------------------------------------------------------


def operands(precision, *shapes):
    """Return arrays whose products float32 sums exactly: BLAS adds in an order of its own.

    They are eighths once they are rounded to a narrower type, and a little larger before.
    """
    more = 0 if precision == "float32" else 1e-5
    drawn = (normal(*shape, seed=seed) for seed, shape in enumerate(shapes))
    return [(np.round(x * 8) / 8 * (1 + more)).astype("f4") for x in drawn]


def multiplied(ops, precision, a, b, bias=None, relu=False, out_code=None):
    """Return what a product gives, in float32, and what the libraries were asked for."""
    code = CODES[precision]
    given = [None if x is None else ops.asarray(narrowed(x, code)) for x in (a, b, bias)]
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = fake_cupy.empty((*shape, a.shape[-2], b.shape[-1]), out_code or code)
    before = len(fake_cublas.Library.multiplications)
    for function, arguments in ops.product(*given[:2], out, precision, given[2], relu):
        function(*arguments)
    return widened(ops.to_host(out)), fake_cublas.Library.multiplications[before:]


def expected(precision, a, b, bias=None, relu=False, out_code=None):
    code = CODES[precision]
    a, b, *rest = (widened(narrowed(x, code)) for x in (a, b, bias) if x is not None)
    if precision == "tf32":
        a, b = tf32(a), tf32(b)
    sums = a @ b
    for each in rest:
        sums = sums + each
    return widened(narrowed(np.maximum(sums, 0) if relu else sums, out_code or code))


@pytest.mark.parametrize("precision", CODES)
@pytest.mark.parametrize("models", [(), (3,)])
def test_products_take_operands_of_their_type(ops, precision, models):
    a, b = operands(precision, (*models, 6, 9), (*models, 9, 8))
    found, (asked,) = multiplied(ops, precision, a, b)
    kind = TYPES[CODES[precision]]
    assert asked.types == (kind, kind, kind)
    assert asked.compute == (77 if precision == "tf32" else 68)
    np.testing.assert_array_equal(found, expected(precision, a, b))


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_gradients_of_weights_are_written_in_float32(ops, precision):
    x, dy = operands(precision, (6, 9), (6, 8))
    found, (asked,) = multiplied(ops, precision, x.T, dy, out_code="f4")
    assert asked.types == (TYPES[CODES[precision]],) * 2 + (0,)
    np.testing.assert_array_equal(found, expected(precision, x.T, dy, out_code="f4"))


@pytest.mark.parametrize("precision", CODES)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("models", "bias"), [((), (8,)), ((), (1, 8)), ((3,), (8,)), ((3,), (3, 1, 8))]
)
@pytest.mark.parametrize("out_code", [None, "f4"])
def test_bias_and_relu_come_before_rounding(
    ops, monkeypatch, precision, relu, models, bias, out_code
):
    a, b = operands(precision, (*models, 6, 9), (*models, 9, 8))
    (c,) = operands(precision, bias)
    wanted = expected(precision, a, b, c, relu, out_code)
    for algorithms in (1, 0):
        monkeypatch.setattr(fake_cublas.CublasLt, "found", algorithms)
        launches = len(fake_cupy.RawModule.launches)
        found, (asked,) = multiplied(ops, precision, a, b, c, relu, out_code)
        kernels = fake_cupy.RawModule.launches[launches:]
        one_call = algorithms and (out_code is None or CODES[precision] == out_code)
        assert (asked.function, len(kernels)) == (("lt", 0) if one_call else ("gemm", 1))
        assert asked.types[:2] == (TYPES[CODES[precision]],) * 2
        assert asked.epilogue == ((6 if relu else 4) if one_call else 1)
        np.testing.assert_array_equal(found, wanted)
    assert (wanted.min() == 0) == relu


@pytest.mark.parametrize("code", ["f2", "u2", "f4", "f8"])
@pytest.mark.parametrize("leading", [(), (3,)])
def test_products_of_one_shape_become_one_call(ops, code, leading):
    wide = "f8" if code == "f8" else "f4"
    shapes = ((4, 20), (4, 18), (20, 18))
    groups = [
        [narrowed(normal(*leading, *shape, seed=i).astype(wide), code) for shape in shapes]
        for i in range(3)
    ]
    arrays = [[ops.asarray(x) for x in group[:2]] for group in groups]
    outs = [ops.asarray(np.zeros((*leading, 20, 18), wide)) for _ in groups]
    steps = [
        (ops._multiply, (a.swapaxes(-1, -2), b, out, False))
        for (a, b), out in zip(arrays, outs, strict=True)
    ]
    before = len(fake_cublas.Library.multiplications)
    ((run, _),) = ops.link(steps)
    for _ in range(3):
        run()
    asked = fake_cublas.Library.multiplications[before:]
    assert [x.batch for x in asked] == [3 * math.prod(leading)] * 2  # then the graph is launched
    for (a, b, _), out in zip(groups, outs, strict=True):
        expected = np.swapaxes(widened(a), -1, -2) @ widened(b)
        np.testing.assert_allclose(ops.to_host(out), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("code", ["f2", "u2", "f4", "f8"])
@pytest.mark.parametrize(
    ("a", "b"), [((5, 30), (30, 3)), ((3, 5, 30), (3, 30, 17)), ((40, 7), (3, 7, 9))]
)
def test_narrow_products_of_a_plan_are_kernels(ops, code, a, b):
    wide = "f8" if code == "f8" else "f4"
    x, y = (narrowed(normal(*shape, seed=i).astype(wide), code) for i, shape in enumerate((a, b)))
    expected = widened(x) @ widened(y)
    turned = ops.asarray(np.ascontiguousarray(np.swapaxes(x, -1, -2))).swapaxes(-1, -2)
    out = ops.asarray(np.zeros(expected.shape, wide))
    before = len(fake_cublas.Library.multiplications)
    ((run, _),) = ops.link([(ops._multiply, (turned, ops.asarray(y), out, False))])
    run()
    assert len(fake_cublas.Library.multiplications) == before
    np.testing.assert_allclose(ops.to_host(out), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(DtypeError, match="does not multiply"):
        ops.link(
            [
                (
                    ops._multiply,
                    (turned, ops.asarray(y), ops.asarray(np.ones(expected.shape, "i8")), False),
                )
            ]
        )


def test_products_over_nothing_are_zero(ops):
    a, b = np.empty((2, 0), "f4"), np.empty((0, 3), "f4")
    found, asked = multiplied(ops, "bfloat16", a, b)
    assert asked == []
    np.testing.assert_array_equal(found, np.zeros((2, 3)))


def test_types_that_no_gpu_multiplies(ops):
    arrays = {code: ops.asarray(np.ones((2, 2), code)) for code in ("f2", "f4", "f8", "i4")}
    for a, b, out in (("f2", "f4", "f4"), ("f4", "f4", "f2"), ("i4", "i4", "i4")):
        with pytest.raises(DtypeError, match=f"does not multiply {b} by {a} to {out}"):
            ops.gemm(arrays[a], arrays[b], arrays[out])


def test_what_cublas_cannot_count_is_refused(ops):
    """Instead of being cut to 32 bits; no element of these is there."""

    def matrix(*shape):
        strides = tuple(4 * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        return fake_cupy._wrap(as_strided(np.zeros(1, "f4"), shape, strides))

    long = 2**31
    for a, b in (
        ((long, 1), (1, 1)),
        ((1, long), (long, 1)),
        ((1, 1), (1, long)),
        ((long, 1, 1), (1, 1)),
    ):
        operands = matrix(*a), matrix(*b), matrix(*a[:-1], b[-1])
        for call in (ops.gemm, ops.lt.prepare):
            with pytest.raises(ShapeError, match="cuBLAS takes 2,147,483,647 rows, columns or mat"):
                call(*operands)


def test_elements_beyond_32_bits_are_found(ops):
    """By kernels of ours; of 2 GiB of zeros, four pages are touched."""
    far = 2**31 + 8
    x = fake_cupy._wrap(np.zeros(far + 1, "?"))
    x._host[far] = True
    ends, out = x[::far], fake_cupy.empty((2,), "?")
    ops.copy(ends, out)
    assert ops.to_host(out).tolist() == [False, True]
    ops.take_rows(x, ops.asarray(np.array([far, 0])), out)
    assert ops.to_host(out).tolist() == [True, False]
    x._host[far] = False
    ops.copy(ops.asarray(np.array([True, True])), ends)
    assert x._host[[0, 1, far - 1, far]].tolist() == [True, False, False, True]


def test_conversions_round_to_the_nearest(ops):
    x = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, -1.003, 3e38, np.inf, np.nan, 0, -0.0, 1e-41], "f4")
    for code in ("f2", "u2"):
        narrow, wide = fake_cupy.empty(x.shape, code), fake_cupy.empty(x.shape, "f4")
        for function, arguments in (
            *ops.convert(ops.asarray(x), narrow),
            *ops.convert(narrow, wide),
        ):
            function(*arguments)
        np.testing.assert_array_equal(ops.to_host(wide), widened(narrowed(x, code)))


def test_what_cublaslt_has_no_algorithm_for_is_said_once(ops, monkeypatch, caplog):
    monkeypatch.setattr(fake_cublas.CublasLt, "found", 0)
    for _ in range(2):
        multiplied(ops, "float16", normal(5, 7), normal(7, 4), normal(4))
    (record,) = caplog.records
    assert record.name == "dnn"
    assert record.message == (
        "cuBLASLt has no algorithm for (5, 7) @ (7, 4) of float16 to float16: "
        "bias and activation in a kernel of their own"
    )


def test_a_relu_needs_no_bias(ops, monkeypatch):
    a, b = normal(6, 9), normal(9, 8, seed=1)
    for algorithms in (1, 0):
        monkeypatch.setattr(fake_cublas.CublasLt, "found", algorithms)
        found, (asked,) = multiplied(ops, "bfloat16", a, b, relu=True)
        assert asked.epilogue == (2 if algorithms else 1)
        np.testing.assert_array_equal(found, expected("bfloat16", a, b, relu=True))


def test_products_of_transposed_and_partial_matrices_with_a_bias(ops):
    a, b, bias = normal(9, 6), normal(8, 9, seed=1), ops.asarray(normal(8, seed=2))
    out = fake_cupy.empty((6, 11), "f4")
    given = ops.asarray(a).transpose(1, 0), ops.asarray(b).transpose(1, 0), out[:, 2:10]
    ((function, arguments),) = ops.product(*given, "float32", bias)
    assert function == ops._run_prepared
    function(*arguments)
    found = ops.to_host(out)[:, 2:10]
    np.testing.assert_allclose(found, a.T @ b.T + ops.to_host(bias), rtol=1e-5, atol=1e-6)


def test_descriptors_are_given_back(ops):
    descriptors = ops.lt._library._described
    gc.collect()  # the stand-in's casts of pointers make circles
    before = len(descriptors)
    a, b, out, bias = (ops.asarray(normal(*shape)) for shape in ((3, 4), (4, 5), (3, 5), (5,)))
    steps = ops.product(a, b, out, "float32", bias)
    gc.collect()
    assert len(descriptors) == before + 4
    del steps
    gc.collect()
    assert len(descriptors) == before


def test_calls_that_need_no_gpu_are_what_the_library_wants():
    """The real cuBLASLt, where it is installed: wrong numbers or sizes are refused by it."""
    try:
        library = load_library("cublasLt")
    except DeviceError as error:
        pytest.skip(str(error).splitlines()[0])
    lt = CublasLt(fake_cupy, fake_cupy.Blas())  # a handle would need a GPU
    lt._library = library
    described = lt._new("MatmulDesc", 68, 0)
    for attribute, value in (
        (TRANSPOSE_A, ctypes.c_int32(1)),
        (EPILOGUE, ctypes.c_uint32(6)),
        (BIAS_POINTER, ctypes.c_void_p(4096)),
        (BIAS_BATCH_STRIDE, ctypes.c_int64(64)),
    ):
        lt._set("MatmulDesc", described, attribute, value)
    lt._layout("u2", 64, 32, 64, 2048, 8)
    preference = lt._new("MatmulPreference")
    lt._set("MatmulPreference", preference, MOST_WORKSPACE_BYTES, ctypes.c_uint64(1 << 25))
    for attribute in LEAST_ALIGNMENT:
        lt._set("MatmulPreference", preference, attribute, ctypes.c_uint32(16))
    with pytest.raises(DeviceError, match="cublasLtMatmulDescSetAttribute 7 failed"):
        lt._set("MatmulDesc", described, EPILOGUE, ctypes.c_uint8(6))


@pytest.mark.parametrize("code", ["f2", "u2"])
@pytest.mark.parametrize(
    ("shape", "axes"), [((9, 7), (0,)), ((3, 40, 5), (1,)), ((5, 3000), (0, 1)), ((4, 33), (1,))]
)
def test_sums_of_narrow_elements_are_of_float32(ops, code, shape, axes):
    x = narrowed(normal(*shape), code)
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape))
    found, wide = fake_cupy.empty(kept, "f4"), fake_cupy.empty(kept, "f4")
    for function, arguments in ops.sum_narrow(ops.asarray(x), axes, found):
        function(*arguments)
    ops.sum(ops.asarray(widened(x)), axes, wide)
    np.testing.assert_array_equal(ops.to_host(found), ops.to_host(wide))
    np.testing.assert_allclose(
        ops.to_host(found), widened(x).sum(axes, keepdims=True), rtol=1e-4, atol=1e-4
    )
