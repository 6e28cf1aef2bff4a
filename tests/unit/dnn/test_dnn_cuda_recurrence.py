"""Recurrent cells by a GPU's kernels, run on the CPU; see `cuda_emulator`."""

from __future__ import annotations

import itertools

import cuda_emulator
import fake_cupy
import numpy as np
import nvrtc
import pytest
from image_problems import ORACLE
from operation_cases import last_cells, run_cells

from dnn import graph
from dnn.backend.cuda import joining, recurrence
from dnn.backend.cuda.ops import CudaOps
from dnn.backend.device import Device
from dnn.backend.recurrence import BACKWARD, CELLS
from dnn.graph.operation import with_models

if cuda_emulator.COMPILER is None:
    pytest.skip("there is no C++ compiler to run CUDA kernels with", allow_module_level=True)


@pytest.fixture(scope="module")
def ops() -> CudaOps:
    return CudaOps(Device("cuda"), fake_cupy, fake_cupy.Blas())


def feeds_of(nodes, dtype, seed):
    generator = np.random.default_rng(seed)

    def values(shape):  # sums over many units are not to grow from step to step
        return generator.normal(size=shape) * min(0.5, 1 / shape[-1] ** 0.5)

    return {node: values(node.shape).astype(dtype) for node in nodes}


# Fewer rows than a block has, and several blocks of which the last is not full; units that are no
# multiple of a load, and as many as more than one round of the threads takes.
SIZES = {"few": (2, 3), "loads": (9, 8), "rounds": (5, 68)}


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(("size", "dtype"), [*zip(SIZES, itertools.repeat("f4")), ("loads", "f8")])
@pytest.mark.parametrize("expression", [run_cells, last_cells])
def test_cells_of_one_network_and_the_same_bits_of_three(
    ops, expression, size, dtype, at_once, monkeypatch
):
    if not at_once:  # a product and a kernel for each time step, as for large networks
        monkeypatch.setattr(recurrence, "MOST_WEIGHT_BYTES", 0)
    batch, units = SIZES[size]
    wide = 4 * units
    shapes = [(3, batch, 4), (wide, 4), (wide, units), (wide,), (wide,), *[(batch, units)] * 2]
    nodes = [graph.placeholder(shape, dtype) for shape in shapes]
    y = expression(*nodes)
    wanted = [y, *graph.gradients(graph.sum(y * y), nodes)]
    each = [feeds_of(nodes, dtype, seed) for seed in range(3)]
    fake_cupy.RawModule.launches.clear()
    alone = [graph.evaluate(wanted, feeds, ops) for feeds in each]
    assert any("update" in name for name in fake_cupy.RawModule.launches) is not at_once
    tolerance = 1e-5 if dtype == "f4" else 1e-12
    for feeds, found in zip(each, alone, strict=True):
        for mine, oracle in zip(found, graph.evaluate(wanted, feeds, ORACLE), strict=True):
            np.testing.assert_allclose(mine, oracle, rtol=tolerance, atol=tolerance)
    now = with_models(wanted, 3, set(nodes))
    feeds = {now[node]: np.stack([feeds[node] for feeds in each]) for node in nodes}
    together = graph.evaluate([now[y] for y in wanted], feeds, ops)
    for mine, parts in zip(together, zip(*alone, strict=True), strict=True):
        np.testing.assert_array_equal(mine, np.stack(parts))


def launches_of_lstm(ops, steps, monkeypatch):
    """Return the kinds of kernels of a forward pass and of a gradient, of four networks."""
    monkeypatch.setattr(joining, "_joins", lambda call: False)  # each has a launch of its own
    x, w, v = (graph.placeholder(shape) for shape in ((steps, 2, 3), (12, 3), (12, 3)))
    y = graph.recurrent(x, w, v, cell="lstm").last
    wanted = with_models([y, *graph.gradients(graph.sum(y), [v])], 4, {w, v})
    fake_cupy.RawModule.launches.clear()
    feeds = {wanted[node]: np.ones((4, *node.shape), "f4") for node in (w, v)}
    graph.evaluate(list(wanted.values()), {x: np.ones(x.shape, "f4"), **feeds}, ops)
    kinds = [name.partition("__")[0] for name in fake_cupy.RawModule.launches]
    return ["update" if kind.startswith("update_") else kind for kind in kinds]


def test_all_time_steps_of_all_networks_are_one_kernel(ops, monkeypatch):
    found = launches_of_lstm(ops, 6, monkeypatch)
    assert [found.count(f"lstm_{kind}") for kind in ("forward", "gradient")] == [1, 1]
    assert launches_of_lstm(ops, 12, monkeypatch) == found


def test_a_time_step_of_large_networks_is_a_product_and_a_kernel(ops, monkeypatch):
    monkeypatch.setattr(recurrence, "MOST_WEIGHT_BYTES", 4 * 12 * 3 - 1)
    assert launches_of_lstm(ops, 6, monkeypatch).count("update") == 2 * 6


def test_a_start_that_is_left_out_is_one_of_zeros_and_others_have_gradients(ops):
    shapes = [(4, 5, 3), (16, 3), (16, 4), (16,), (16,), (5, 4), (5, 4)]
    nodes = [graph.placeholder(shape) for shape in shapes]
    feeds = feeds_of(nodes, "f4", 1)
    feeds |= {node: np.zeros(node.shape, "f4") for node in nodes[5:]}
    found = []
    for start in ({}, {"first": nodes[5], "first_cell": nodes[6]}):
        states = graph.recurrent(*nodes[:5], cell="lstm", **start).states
        wanted = [states, *graph.gradients(graph.sum(states * states), nodes[: 5 + len(start)])]
        found.append(graph.evaluate(wanted, feeds, ops))
        for mine, oracle in zip(found[-1], graph.evaluate(wanted, feeds, ORACLE), strict=True):
            np.testing.assert_allclose(mine, oracle, rtol=1e-5, atol=1e-6)
    for left_out, given in zip(*found, strict=False):
        np.testing.assert_allclose(left_out, given, rtol=1e-5, atol=1e-6)


def test_weights_that_no_load_of_16_bytes_takes_are_copied_first(ops):
    x, flat = graph.placeholder((3, 2, 4)), graph.placeholder((1 + 16 * 4,))
    weight = graph.reshape(flat[1:], (16, 4))
    states = graph.recurrent(x, weight, weight, cell="lstm").states
    wanted = [states, *graph.gradients(graph.sum(states * states), [x, flat])]
    feeds = feeds_of((x, flat), "f4", 2)
    found = graph.evaluate(wanted, feeds, ops)
    for mine, oracle in zip(found, graph.evaluate(wanted, feeds, ORACLE), strict=True):
        np.testing.assert_allclose(mine, oracle, rtol=1e-5, atol=1e-6)
    memory = fake_cupy.empty(1 + 16 * 4, np.float32)
    assert recurrence.is_aligned(memory[:64].reshape(16, 4))
    assert not recurrence.is_aligned(memory[1:].reshape(16, 4))
    assert not recurrence.is_aligned(memory[:64].reshape(16, 4).swapaxes(0, 1))
    pair = fake_cupy.empty((2, 65), np.float32)[:, :64].reshape(2, 16, 4)
    assert not recurrence.is_aligned(pair)


@pytest.mark.parametrize("cell", CELLS.values(), ids=list(CELLS))
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_largest_kernels_compile_for_sm_90(cell, dtype):
    """What a block needs of shared memory grows with the weights, and has a limit of 48 KiB."""
    size = np.dtype(dtype).itemsize
    units = int((recurrence.MOST_WEIGHT_BYTES / size / cell.products) ** 0.5)
    kernels = [recurrence.forward_kernel(cell, dtype, units)]
    for name, of_cells in BACKWARD:
        if name == cell.name:
            kernels.append(recurrence.gradient_kernel(cell, of_cells, dtype, units))
    for kernel in kernels:
        nvrtc.check(kernel.name, kernel.program)
