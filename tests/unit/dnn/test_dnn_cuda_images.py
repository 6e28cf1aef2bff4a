"""Pooling, recurrence and convolution by a GPU's kernels, run on the CPU; see `cuda_emulator`."""

from __future__ import annotations

from itertools import product

import cuda_emulator
import device_checks
import fake_cupy
import numpy as np
import pytest
from image_problems import ORACLE, convolution_of
from operation_cases import last_cells, run_cells

from dnn import graph
from dnn.backend import routines
from dnn.backend.cuda import direct_convolution, im2col
from dnn.backend.cuda.ops import CudaOps
from dnn.backend.cuda.pooling import KINDS
from dnn.backend.device import Device
from dnn.graph.operation import with_models

if cuda_emulator.COMPILER is None:
    pytest.skip("there is no C++ compiler to run CUDA kernels with", allow_module_level=True)


@pytest.fixture(scope="module")
def ops() -> CudaOps:
    return CudaOps(Device("cuda"), fake_cupy, fake_cupy.Blas())


@pytest.mark.parametrize(("kind", "layout"), list(product(KINDS, ["CHWN", "NHWC", "NCHW"])))
def test_pooling_has_the_bits_of_numpy(ops, kind, layout):
    device_checks.check_pooling(ops, kind, layout, 5)


@pytest.mark.parametrize("expression", [run_cells, last_cells])
def test_recurrent_cells_of_one_network_and_of_three(ops, expression):
    generator = np.random.default_rng(1)
    shapes = [(3, 2, 4), (12, 4), (12, 3), (12,), (12,), (2, 3), (2, 3)]
    nodes = [graph.placeholder(shape) for shape in shapes]
    y = expression(*nodes)
    wanted = [y, *graph.gradients(graph.sum(y * y), nodes)]
    each = [[generator.normal(size=shape).astype("f4") for shape in shapes] for _ in range(3)]
    alone = []
    for values in each:
        feeds = dict(zip(nodes, values, strict=True))
        alone.append(graph.evaluate(wanted, feeds, ops))
        for mine, oracle in zip(alone[-1], graph.evaluate(wanted, feeds, ORACLE), strict=True):
            np.testing.assert_allclose(mine, oracle, rtol=1e-5, atol=1e-6)
    now = with_models(wanted, 3, set(nodes))
    feeds = {now[node]: np.stack(x) for node, x in zip(nodes, zip(*each, strict=True), strict=True)}
    together = graph.evaluate([now[y] for y in wanted], feeds, ops)
    for mine, parts in zip(together, zip(*alone, strict=True), strict=True):
        np.testing.assert_allclose(mine, np.stack(parts), rtol=1e-5, atol=1e-6)


def test_a_time_step_is_a_product_and_a_kernel_for_any_number_of_networks(ops):
    x, w, v = graph.placeholder((6, 2, 3)), graph.placeholder((12, 3)), graph.placeholder((12, 3))
    y = graph.recurrent(x, w, v, cell="lstm").last
    wanted = with_models([y, *graph.gradients(graph.sum(y), [v])], 4, {w, v})
    fake_cupy.RawModule.launches.clear()
    graph.evaluate(
        list(wanted.values()),
        {x: np.ones(x.shape, "f4")}
        | {wanted[node]: np.ones((4, *node.shape), "f4") for node in (w, v)},
        ops,
    )
    kinds = [name.partition("_")[0] for name in fake_cupy.RawModule.launches]
    assert kinds.count("update") == 2 * 6


SEEDS = range(30)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_routine_convolves_as_numpy_does(ops, seed, monkeypatch):
    """Random shapes, of one network or three; in one turn or in several, in parts or not."""
    if seed % 2:
        monkeypatch.setattr(im2col, "COLUMNS_BYTES", 4000)
        monkeypatch.setattr(direct_convolution, "FEWEST_PIXELS", 20)
    device_checks.check_convolution(ops, seed)


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("bias", "relu"), list(product([False, True], repeat=2)))
def test_what_is_added_to_a_convolution_is_a_part_of_it(ops, dtype, bias, relu):
    device_checks.check_convolution(ops, 1, kind="forward", dtype=dtype, bias=bias, relu=relu)


def test_routines_are_measured_once_and_apart_from_the_cpus(ops, monkeypatch, tmp_path):
    monkeypatch.delenv("DNN_ROUTINES")
    monkeypatch.setenv("DNN_KERNEL_CACHE", str(tmp_path))
    monkeypatch.setattr(routines, "MEASURED_FROM", 0)
    monkeypatch.setattr(routines, "MEASURED_S", 0.0)
    monkeypatch.setattr(routines, "ROUNDS", 0)  # none is timed once more for being close
    linked, ready = [], ops.ready
    monkeypatch.setattr(ops, "ready", lambda calls: linked.append(calls) or ready(calls))
    chosen = {}
    for kind in ("forward", "data", "weights"):
        problem = convolution_of(3, kind=kind, layout="NHWC", images=1, size=(6, 6))
        chosen[problem] = ops.convolution(problem).name
        records = {record["convolution"]: record for record in ops.choices.records()}
        record = records[f"cuda-{routines.convolution_key(problem)}"]
        assert record["routine"] == chosen[problem] in record["ms"]
        assert set(record["ms"]) == {"im2col", "tiles", "direct"}
        assert "stand-in GPU" in record["machine"]
    assert len(linked) == 9
    for ((replay, _),) in linked:
        assert replay.__self__.how == "one CUDA graph"
    monkeypatch.setattr(routines, "measure_convolution", None)
    assert {problem: ops.convolution(problem).name for problem in chosen} == chosen
