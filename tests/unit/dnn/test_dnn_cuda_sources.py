"""Every CUDA kernel compiles for an H200, without a GPU; every function of `Ops` has one."""

from __future__ import annotations

import inspect
import os
import sysconfig

import numpy as np
import pytest
from cuda_catalogue import all_kernels
from operation_cases import FORMULAS

from dnn.backend.cuda import formulas
from dnn.backend.cuda.launch import broadcast_strides, collapse
from dnn.backend.cuda.ops import CudaOps
from dnn.backend.cuda.source import HEADERS, code_of
from dnn.backend.ops import Ops


def test_every_function_of_the_oracle_has_one_on_the_gpu() -> None:
    # `device` is set in `__init__`; the others are made of functions, or are done on the host.
    wanted = {name for name, _ in inspect.getmembers(Ops) if not name.startswith("_")}
    missing = {name for name in wanted if getattr(CudaOps, name) is getattr(Ops, name)}
    wanted = {"chain_sum", "device", "take_images", "weights_and_bias"}
    assert missing == wanted, sorted(missing)


def test_kernels_are_named_uniquely() -> None:
    names = [kernel.name for kernel in all_kernels()]
    assert len(names) > 200
    assert len(set(names)) == len(names)


@pytest.mark.thorough
@pytest.mark.parametrize("narrow", [False, True])
def test_every_kernel_compiles_for_sm_90(narrow: bool) -> None:
    cupy = pytest.importorskip("cupy", reason="cupy (the extra nvrtc) is not installed")
    nvrtc = cupy.cuda.nvrtc
    kernels = [kernel for kernel in all_kernels() if (kernel.program != kernel.source) == narrow]
    headers = "".join(f"#include <{file}>\n" for file in HEADERS.values() if narrow)
    source = headers + "\n".join(kernel.source for kernel in kernels)
    try:
        program = nvrtc.createProgram(source, "kernels.cu", [], [])
    except Exception as error:  # the library is loaded by the first call
        pytest.skip(f"NVRTC cannot be loaded: {error}")
    include = os.path.join(sysconfig.get_path("purelib"), "nvidia", "cu13", "include")
    if narrow and not os.path.exists(os.path.join(include, "cuda_fp16.h")):
        pytest.skip("the CUDA headers (the extra nvrtc) are not installed")
    options = ["--gpu-architecture=sm_90", "--std=c++17", "--Ofast-compile=max", f"-I{include}"]
    try:
        nvrtc.compileProgram(program, options)
    except Exception:
        pytest.fail(nvrtc.getProgramLog(program)[:4000])
    binary = nvrtc.getCUBIN(program)
    for kernel in kernels:
        assert kernel.name.encode() in binary


def test_a_chain_is_written_as_one_body() -> None:
    multiply, tanh, add = (FORMULAS[name] for name in ("multiply", "tanh", "add"))
    spec = formulas.chain(((multiply, 0, 1), (tanh, 2), (add, 3, 0)), 2)
    assert spec.parameters == ("x0", "x1", "out")
    assert spec.body.splitlines() == [
        "const A t0 = x0 * x1;",
        "const A t1 = tanh(t0);",
        "const A t2 = t1 + x0;",
        "out = t2;",
    ]
    other = formulas.chain(((multiply, 0, 1), (tanh, 2), (add, 3, 1)), 2)
    assert other.name != spec.name


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((4, 5), [(5, 1), (5, 1)], ((20,), [(1,), (1,)])),
        ((4, 5), [(5, 1), (0, 0)], ((20,), [(1,), (0,)])),
        ((4, 5), [(5, 1), (0, 1)], ((4, 5), [(5, 1), (0, 1)])),
        ((4, 5), [(5, 1), (1, 4)], ((4, 5), [(5, 1), (1, 4)])),
        ((4, 1, 5), [(5, 5, 1), (5, 9, 1)], ((20,), [(1,), (1,)])),
        ((2, 3, 4), [(12, 4, 1), (0, 4, 1)], ((2, 12), [(12, 1), (0, 1)])),
        ((), [(), ()], ((1,), [(0,), (0,)])),
        ((1, 1), [(1, 1)], ((1,), [(0,)])),
    ],
)
def test_axes_are_merged_where_all_operands_allow_it(shape, strides, expected) -> None:
    assert collapse(shape, strides) == expected


def test_broadcasting_is_a_stride_of_zero() -> None:
    assert broadcast_strides((3, 1), (1, 1), (2, 3, 4)) == (0, 1, 0)
    with pytest.raises(ValueError, match="does not broadcast"):
        broadcast_strides((3,), (1,), (4,))


def test_types_that_kernels_do_not_know() -> None:
    assert code_of(np.float32) == "f4"
    with pytest.raises(TypeError, match="complex64"):
        code_of(np.complex64)
