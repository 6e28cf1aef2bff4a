"""Convolutions by tensor cores, run on the CPU, whose instructions `ptx` emulates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cuda_emulator
import device_checks
import fake_cupy
import image_problems
import numpy as np
import pytest

from dnn.backend import routines
from dnn.backend.cuda import fragments, tensor_cores
from dnn.backend.cuda.ops import CAPABILITY_MAJOR, CudaOps
from dnn.backend.cuda.source import function
from dnn.backend.device import Device
from dnn.backend.rounding import narrow, round_tf32

if cuda_emulator.COMPILER is None:
    pytest.skip("there is no C++ compiler to run CUDA kernels with", allow_module_level=True)

TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ops() -> CudaOps:
    return CudaOps(Device("cuda"), fake_cupy, fake_cupy.Blas())


def launch(ops, name, parameters, body, code, *arrays):
    kernel = function(name, parameters, body, fragments.functions(code))
    given = [ops.asarray(x) for x in arrays]
    ops.launcher.launch(kernel, 1, given, joins=False)
    return [ops.to_host(x) for x in given]


# Rows and columns of the fragments of 16-bit numbers, as PTX's documentation has them: for each
# thread and each number in its registers.
LANE = np.arange(32)[:, None]
GROUP, IN_GROUP, AT = LANE // 4, LANE % 4, np.arange(8)
OF_A = GROUP + 8 * (AT // 2 % 2), 2 * IN_GROUP + AT % 2 + 8 * (AT // 4)
OF_B = 2 * IN_GROUP + AT[:4] % 2 + 8 * (AT[:4] // 2), GROUP + 0 * AT[:4]
OF_C = GROUP + 8 * (AT[:4] // 2), 2 * IN_GROUP + AT[:4] % 2
# Those of TF32.
OF_A_TF32 = GROUP + 8 * (AT[:4] % 2), IN_GROUP + 4 * (AT[:4] // 2)
OF_B_TF32 = IN_GROUP + 4 * AT[:2], GROUP + 0 * AT[:2]


@pytest.mark.parametrize("code", ["f2", "u2", "f4"])
def test_a_warp_multiplies_fragments_as_they_are_documented(ops, code):
    depth, of_a, of_b = (8, OF_A_TF32, OF_B_TF32) if code == "f4" else (16, OF_A, OF_B)
    generator = np.random.default_rng(0)
    # Small whole numbers, whose products and sums are exact.
    a, b, c = (
        generator.integers(-9, 10, shape).astype("f4")
        for shape in ((16, depth), (depth, 8), (16, 8))
    )

    def registers(x, where):
        numbers = np.ascontiguousarray(x[where])
        if code == "f4":
            return numbers.view("u4")
        kept = np.empty(numbers.shape, code)
        narrow(numbers, kept)
        return kept.view("u4")  # the first of two numbers in the lower half

    body = """if (threadIdx.x >= 32) return;
    float sums[4];
    unsigned int left[4], right[2];
    for (int i = 0; i < 4; ++i) sums[i] = c[threadIdx.x * 4 + i];
    for (int i = 0; i < 4; ++i) left[i] = a[threadIdx.x * 4 + i];
    for (int i = 0; i < 2; ++i) right[i] = b[threadIdx.x * 2 + i];
    multiply_add(sums, left, right);
    for (int i = 0; i < 4; ++i) c[threadIdx.x * 4 + i] = sums[i];"""
    parameters = "const unsigned int* a, const unsigned int* b, float* c"
    given = registers(a, of_a), registers(b, of_b), np.ascontiguousarray(c[OF_C])
    *_, found = launch(ops, f"test_multiply__{code}", parameters, body, code, *given)
    np.testing.assert_array_equal(found, (c + a @ b)[OF_C])


@pytest.mark.parametrize("transposed", [False, True])
def test_a_warp_loads_matrices_as_it_is_documented(ops, transposed):
    x = np.arange(4 * 8 * 8, dtype="u2").reshape(4, 8, 8)
    name = "load_matrices_trans" if transposed else "load_matrices"
    body = f"""alignas(16) __shared__ unsigned short tile[256];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x >= 32) return;
    unsigned int r[4];
    {name}(r, tile + threadIdx.x * 8);
    for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = r[i];"""
    out = np.zeros((32, 4), "u4")
    parameters = "const unsigned short* x, unsigned int* out"
    _, found = launch(ops, f"test_{name}", parameters, body, "u2", x, out)
    of_thread = (x.swapaxes(1, 2) if transposed else x).reshape(4, 32, 2).swapaxes(0, 1)
    np.testing.assert_array_equal(found.view("u2").reshape(32, 4, 2), of_thread)


DIVERGING = """
import ctypes
import resource
import sys
import cuda_emulator
from dnn.backend.cuda import fragments
head = 'extern "C" __global__ void some(float* x)'
body = "float c[4] = {}; unsigned int a[4] = {}, b[2] = {};"
condition = f"if (threadIdx.x < {sys.argv[1]})"
body += f"{condition} multiply_add(c, a, b); x[threadIdx.x] = c[0];"
launch = cuda_emulator.build({"some": fragments.functions("f4") + head + "{" + body + "}"})["some"]
kept = (ctypes.c_float * 64)()
x = ctypes.c_void_p(ctypes.addressof(kept))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
launch(1, 64, (ctypes.c_void_p * 1)(ctypes.addressof(x)))
print("done")
"""


@pytest.mark.parametrize(("threads", "ends"), [(64, True), (32, True), (31, False)])
def test_a_part_of_a_warp_multiplies_nothing(threads, ends):
    line = [sys.executable, "-c", DIVERGING, str(threads)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=TESTS, timeout=60)
    assert (done.stdout == "done\n", done.returncode == 0) == (ends, ends), done.stderr


def test_tf32_is_rounded_as_on_the_cpu(ops):
    bits = np.random.default_rng(0).integers(0, 1 << 32, 256, np.uint32)
    bits[:4] = 0x3F801000, 0xBF801000, 0x7F800000, 0x3F800FFF
    x = bits.view("f4")
    expected = np.empty_like(x)
    round_tf32(x, expected)
    body = "out[threadIdx.x] = rounded(x[threadIdx.x]);"
    parameters = "const float* x, unsigned int* out"
    _, found = launch(ops, "test_rounded", parameters, body, "f4", x, np.zeros(256, "u4"))
    np.testing.assert_array_equal(found.view("f4"), expected)


@pytest.mark.sample(15)
@pytest.mark.parametrize("seed", range(36))
def test_what_is_rounded_is_convolved_as_numpy_does(ops, seed, monkeypatch):
    """Random shapes, of one network or three, in parts or not."""
    if seed % 2:
        monkeypatch.setattr(tensor_cores, "FEWEST_PIXELS", 20)
    else:
        monkeypatch.setattr(tensor_cores, "WANTED_BLOCKS", 2)  # so that tiles are tall
    device_checks.check_reduced_convolution(ops, seed)


@pytest.mark.parametrize("kind", ["forward", "data", "weights"])
@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
def test_a_network_has_the_same_bits_alone_and_with_others(ops, kind, precision, monkeypatch):
    monkeypatch.setattr(tensor_cores, "FEWEST_PIXELS", 20)
    given = {"kind": kind, "layout": "NHWC", "precision": precision, "channels": 16}
    one = image_problems.convolution_of(5, groups=1, filters=24, size=(9, 8), **given)
    several = one._replace(models=3, stacked=(True, True))
    inputs, _ = image_problems.rounded_inputs(several, 0)

    def run(problem, *arrays):
        (routine,) = (x for x in ops.convolutions(problem) if x.name == "tensor_cores")
        return image_problems.run(ops, routine, problem, arrays, problem.dtypes[-1])

    together = run(several, *inputs)
    for at, found in enumerate(together):
        np.testing.assert_array_equal(found, run(one, *(x[at] for x in inputs)))


def test_which_routine_comes_first(ops, monkeypatch):
    def names(**given):
        problem = image_problems.convolution_of(0, **{"groups": 1, "layout": "NHWC"} | given)
        return [routine.name for routine in ops.convolutions(problem)]

    assert names(precision="float16") == ["tensor_cores", "im2col", "direct"]
    assert names(precision="tf32") == ["tensor_cores", "im2col"]
    alone = {"channels": 6, "filters": 6, "groups": 6}
    assert names(precision="float16", **alone) == ["direct", "tensor_cores", "im2col"]
    plain = {"window": (1, 1), "stride": (1, 1), "padding": ((0, 0), (0, 0))}
    assert names(precision="tf32", **plain) == ["im2col", "tensor_cores"]
    assert "tensor_cores" not in names()
    # Numbers of pixels beyond 32 bits.
    assert names(precision="tf32", images=1 << 30, size=(40, 40)) == ["im2col"]
    older = CudaOps(Device("cuda"), fake_cupy, fake_cupy.Blas())
    get = fake_cupy.cuda.runtime.deviceGetAttribute
    monkeypatch.setattr(
        fake_cupy.cuda.runtime,
        "deviceGetAttribute",
        lambda at, of: 7 if at == CAPABILITY_MAJOR else get(at, of),
    )
    ops = older
    assert names(precision="float16") == ["im2col", "direct"]


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "tf32"])
def test_routines_of_less_precision_are_measured(ops, precision, monkeypatch, tmp_path):
    monkeypatch.delenv("DNN_ROUTINES")
    monkeypatch.setenv("DNN_KERNEL_CACHE", str(tmp_path))
    monkeypatch.setattr(routines, "MEASURED_FROM", 0)
    monkeypatch.setattr(routines, "MEASURED_S", 0.0)
    monkeypatch.setattr(routines, "ROUNDS", 0)
    for kind in ("forward", "weights"):
        problem = image_problems.convolution_of(
            3, kind=kind, layout="NHWC", images=1, size=(6, 6), precision=precision
        )
        chosen = ops.convolution(problem).name
        records = {record["convolution"]: record for record in ops.choices.records()}
        record = records[f"cuda-{routines.convolution_key(problem)}"]
        assert record["routine"] == chosen
        assert {"im2col", "tensor_cores"} <= set(record["ms"])
