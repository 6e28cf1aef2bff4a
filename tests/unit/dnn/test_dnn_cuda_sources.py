"""How CUDA sources are written; every function of `Ops` has one."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from operation_cases import FORMULAS

from dnn.backend.cuda import formulas
from dnn.backend.cuda.launch import broadcast_strides, collapse
from dnn.backend.cuda.ops import CudaOps
from dnn.backend.cuda.source import code_of
from dnn.backend.ops import Ops


def test_every_function_of_the_oracle_has_one_on_the_gpu() -> None:
    # `device` is set in `__init__`; the others are made of functions, or are done on the host.
    wanted = {name for name, _ in inspect.getmembers(Ops) if not name.startswith("_")}
    missing = {name for name in wanted if getattr(CudaOps, name) is getattr(Ops, name)}
    wanted = {"chain_sum", "device", "take_images", "weights_and_bias"}
    assert missing == wanted, sorted(missing)


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
