"""Pooling, recurrence and convolution by a GPU's kernels, run on the CPU; see `cuda_emulator`."""

from __future__ import annotations

from itertools import product

import cuda_emulator
import fake_cupy
import numpy as np
import pytest
from image_problems import ORACLE, pooling_inputs, pooling_of, run
from operation_cases import last_cells, run_cells

from dnn import graph
from dnn.backend.cuda.ops import CudaOps
from dnn.backend.cuda.pooling import KINDS
from dnn.backend.device import Device
from dnn.graph.models import with_models

if cuda_emulator.COMPILER is None:
    pytest.skip("there is no C++ compiler to run CUDA kernels with", allow_module_level=True)


@pytest.fixture(scope="module")
def ops() -> CudaOps:
    fake_cupy.compile_all()
    return CudaOps(Device("cuda"), fake_cupy, fake_cupy.Blas())


@pytest.mark.parametrize(("kind", "layout"), list(product(KINDS, ["CHWN", "NHWC", "NCHW"])))
def test_pooling_has_the_bits_of_numpy(ops, kind, layout):
    generator = np.random.default_rng(7)
    for _ in range(12):
        problem = pooling_of(kind, layout, generator, 5)
        inputs = pooling_inputs(problem, generator)
        found = run(ops, ops.pooling(problem), problem, inputs)
        expected = run(ORACLE, ORACLE.pooling(problem), problem, inputs)
        np.testing.assert_array_equal(found, expected, err_msg=str(problem))
    assert ops.pooling(problem).workspace_bytes == 0


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
