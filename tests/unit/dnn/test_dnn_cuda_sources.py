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
    # `device` is set in `__init__`; what else is done to images and sequences is made of others,
    # or is done on the host.
    wanted = {name for name, _ in inspect.getmembers(Ops) if not name.startswith("_")}
    missing = {name for name in wanted if getattr(CudaOps, name) is getattr(Ops, name)}
    recurrences = {"recurrence", "recurrence_gradient", "weights_and_bias"}
    assert missing == {"chain_sum", "device", "take_images", *recurrences}, sorted(missing)


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


def test_the_stand_in_has_nothing_that_cupy_lacks() -> None:
    """What the tests of a GPU's code lean on must be there on a GPU."""
    cupy = pytest.importorskip("cupy", reason="cupy (the extra nvrtc) is not installed")
    import fake_cupy

    ours = {"Blas", "Pointer", "install", "empty_pinned"}
    pairs = [(fake_cupy.ndarray, cupy.ndarray), (fake_cupy.Stream, cupy.cuda.Stream)]
    pairs += [(fake_cupy.Device, cupy.cuda.Device), (fake_cupy.Graph, cupy.cuda.Graph)]
    pairs += [(fake_cupy.cuda, cupy.cuda), (fake_cupy.cuda.runtime, cupy.cuda.runtime)]
    pairs += [(fake_cupy.RawModule, cupy.RawModule)]
    pairs += [(fake_cupy.Event, cupy.cuda.Event), (fake_cupy.MemoryPool, cupy.cuda.MemoryPool)]
    pairs += [(fake_cupy.linalg, cupy.linalg), (fake_cupy.fft, cupy.fft)]
    bookkeeping = {"captured", "codes", "compiled", "fails", "launched", "launches", "now", "put"}
    bookkeeping |= {"alive", "begun", "done", "finish", "log", "place", "stream"}
    bookkeeping |= {"capacity", "give_back", "held", "limit", "take", "used"}
    missing = []
    for mine, theirs in pairs:
        names = {name for name in vars(mine) if not name.startswith("_")} - bookkeeping
        missing += [f"{theirs}.{name}" for name in names if not hasattr(theirs, name)]
    for name, value in vars(fake_cupy).items():
        made_here = getattr(value, "__module__", None) == "fake_cupy"
        functions = made_here and not name.startswith("_") and name not in ours
        places = (cupy, cupy.cuda, cupy.cuda.runtime, cupy.cuda.memory)
        if functions and not any(hasattr(place, name) for place in places):
            missing.append(f"cupy.{name}")
    assert missing == []
    import cupyx

    assert callable(cupyx.empty_pinned)
