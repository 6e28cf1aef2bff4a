"""Copies to another order of axes go through tiles; what is in them is the same."""

from __future__ import annotations

import itertools

import cuda_emulator
import fake_cupy
import memory_traffic
import numpy as np
import pytest
from fake_cublas import narrowed, widened

from dnn.backend.cuda import formulas, launch
from dnn.backend.cuda.launch import Launcher
from dnn.backend.cuda.ops import CudaOps
from dnn.backend.cuda.transposition import SECTOR, TILE, tiles_of
from dnn.backend.device import Device
from dnn.backend.formula import COPY, Formula

if cuda_emulator.COMPILER is None:
    pytest.skip("there is no C++ compiler to run CUDA kernels with", allow_module_level=True)


@pytest.fixture(scope="module")
def ops() -> CudaOps:
    return CudaOps(Device("cuda"), fake_cupy, fake_cupy.Blas())


@pytest.fixture
def tiled(monkeypatch):
    """Return the names of kernels that are launched; all that can go through tiles do."""
    monkeypatch.setattr(launch, "FEWEST_FOR_LOADS", 0)
    fake_cupy.RawModule.launches.clear()
    return fake_cupy.RawModule.launches


SHAPES = [
    *((3, 2), (70, 33), (9, 300), (300, 9), (65, 64), (64, 65), (2, 5000), (200, 129)),
    *((5, 9, 40), (3, 70, 7), (2, 3, 4, 5), (2, 35, 3, 40)),
]


def assert_near(found, wanted, code):
    tolerance = {"f2": 1e-3, "u2": 1e-2}.get(code, 1e-6)
    np.testing.assert_allclose(widened(found), wanted, rtol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
def test_all_orders_of_axes_are_copied(ops, tiled, shape):
    x = np.arange(np.prod(shape), dtype="f4").reshape(shape)
    for axes in itertools.permutations(range(len(shape))):
        out = fake_cupy.empty([shape[i] for i in axes], "f4")
        seen = ops.asarray(x).transpose(axes)
        ops.copy(seen, out)
        np.testing.assert_array_equal(ops.to_host(out), x.transpose(axes))
    moved = [name for name in tiled if "by_tiles" in name]
    assert (len(moved) > 0) is (min(shape) > 1)


def test_one_copy_has_two_leading_axes(ops, tiled):
    x = np.arange(2 * 3 * 8 * 5 * 6, dtype="f4").reshape(2, 3, 8, 5, 6)
    whole = ops.asarray(x)[:, :2, :, :4, :5]  # of other strides than its lengths give
    out = fake_cupy.empty((2, 2, 4, 5, 8), "f4")
    ops.copy(whole.transpose(0, 1, 3, 4, 2), out)  # five axes: one by one
    ops.copy(whole[:, :, :, 0].transpose(0, 1, 3, 2), out[:, :, 0])
    np.testing.assert_array_equal(ops.to_host(out), x[:, :2, :, :4, :5].transpose(0, 1, 3, 4, 2))
    assert ["by_tiles" in name for name in tiled] == [False, True]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        *(("f4", "u2"), ("u2", "f4"), ("f4", "f2"), ("f2", "f4"), ("f4", "f8"), ("f8", "f4")),
        *(("f8", "f8"), ("u2", "u2"), ("f2", "f2")),
    ],
)
def test_types_are_converted_where_tiles_are_stored(ops, tiled, given, wanted):
    x = np.random.default_rng(0).normal(size=(40, 70)).astype("f4")
    there = ops.asarray(narrowed(x, given))
    out = fake_cupy.empty((70, 40), wanted.replace("u2", "uint16"))
    for function, arguments in ops.convert(there.transpose(1, 0), out):
        function(*arguments)
    assert_near(ops.to_host(out), widened(narrowed(x, given)).T, wanted)
    assert "by_tiles" in tiled[-1]


@pytest.mark.parametrize("kind", ["bool", "int64", "uint64"])
def test_other_elements_are_copied_too(ops, tiled, kind):
    x = (np.arange(40 * 70).reshape(40, 70) % 3).astype(kind)
    out = fake_cupy.empty((70, 40), kind)
    ops.copy(ops.asarray(x).transpose(1, 0), out)
    np.testing.assert_array_equal(ops.to_host(out), x.T)
    assert "by_tiles" in tiled[-1]


def test_any_function_of_one_array_and_numbers_goes_through_tiles(ops, tiled):
    x = np.random.default_rng(0).normal(size=(40, 70)).astype("f4")
    formula = Formula("shifted_and_scaled", "x a b", "a * x + b")
    out = fake_cupy.empty((70, 40), "f4")
    function, arguments = ops.elementwise(formula, (ops.asarray(x).transpose(1, 0), 2.0, 0.5), out)
    function(*arguments)
    np.testing.assert_allclose(ops.to_host(out), 2 * x.T + 0.5, rtol=1e-6)
    assert "by_tiles" in tiled[-1]


def test_copies_through_tiles_share_a_launch_with_others(ops, tiled):
    x, y = (np.random.default_rng(seed).normal(size=(90, 70)).astype("f4") for seed in (0, 1))
    given = [ops.asarray(x).transpose(1, 0), ops.asarray(y).transpose(1, 0)]
    outs = [fake_cupy.empty((70, 90), kind) for kind in ("f4", "f2")]
    total = fake_cupy.empty((1, 70), "f4")
    steps = [(ops.copy, pair) for pair in zip(given, outs, strict=True)]
    ((run, _),) = ops.link([*steps, (ops.max, (ops.asarray(x), (0,), total))])
    for _ in range(2):
        run()
    assert set(tiled) == {name for name in tiled if name.startswith("joint_")}
    assert all(name.endswith("_max_and_copy_by_tiles") for name in tiled)
    np.testing.assert_array_equal(ops.to_host(outs[0]), x.T)
    np.testing.assert_array_equal(ops.to_host(outs[1]), y.T.astype("f2"))
    np.testing.assert_array_equal(ops.to_host(total), x.max(0, keepdims=True))


@pytest.mark.parametrize("wide", [2, 8, 9, 33, 64, 65, 512, 4000])
@pytest.mark.parametrize("high", [2, 8, 9, 33, 64, 65, 512, 4000])
def test_a_tile_fits_its_memory(wide, high):
    tiles = tiles_of((high, wide), (1, high), (wide, 1))
    assert tiles is not None
    _, _, in_x, in_out, across, along, *_ = tiles.numbers
    assert (in_x, in_out) == (high, wide)
    assert along * (across | 1) <= TILE
    assert across == in_x or across % SECTOR == 0
    assert along == in_out or along % SECTOR == 0


def test_what_needs_no_tiles():
    assert tiles_of((5, 6), (6, 1), (12, 1)) is None
    assert tiles_of((5, 6), (12, 2), (6, 1)) is None
    assert tiles_of((5, 6), (0, 1), (1, 5)) == tiles_of((6, 5), (1, 0), (5, 1))
    assert tiles_of((2, 2, 2, 2, 6), (48, 24, 12, 6, 1), (1, 2, 4, 8, 16)) is None


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((64, 32, 3, 3), (0, 2, 3, 1)),  # weights with channels last
        ((8, 64, 32, 32), (0, 2, 3, 1)),  # images with channels last
        ((4, 32, 32, 3), (0, 3, 1, 2)),  # images of 3 channels with channels first
        ((512, 300), (1, 0)),
    ],
)
def test_a_copy_moves_hardly_more_than_it_has_to(tiled, shape, axes):
    with memory_traffic.running() as launches:
        x = fake_cupy.empty(shape, "f4")
        launcher = Launcher(fake_cupy)
        out = fake_cupy.empty([shape[i] for i in axes], "f4")

        launcher.elementwise(formulas.of_formula(COPY), (x.transpose(axes), out))
    (one,) = launches
    assert one.least_bytes == 2 * x.nbytes
    assert one.moved_bytes <= 1.1 * one.least_bytes
