"""The table of operations, layers, optimizers, memory and tensors, on a GPU.

The same checks run on a stand-in for CuPy in `tests/unit/dnn`; here nothing stands in.
"""

from __future__ import annotations

import itertools

import device_checks
import image_problems
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operation_cases import CASES, drawn

import dnn
from dnn import graph
from dnn.backend import Convolution, empty, philox
from dnn.backend.convolution import LAYOUTS
from dnn.backend.cuda.launch import resident_blocks
from dnn.backend.cuda.pooling import KINDS, pooling_kernel
from dnn.backend.cuda.source import THREADS
from dnn.backend.ops import Ops
from dnn.backend.rounding import BFLOAT16, HALF
from dnn.graph.plan import Plan
from dnn.losses import LOSSES


@pytest.mark.parametrize("case", CASES)
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_every_operation_and_its_gradient(ops, case, data):
    expression, values, _, generator = data.draw(drawn(case))
    device_checks.check_operation(ops, expression, values, generator)


@pytest.mark.parametrize("name", [x for x in device_checks.EDGES if x != device_checks.SUBNORMAL])
def test_kinks_and_extremes(ops, name):
    # CuPy compiles kernels that take numbers of float32 below the least normal one for 0.
    device_checks.check_edges(ops, name, atol=float(np.finfo(np.float32).tiny))


@pytest.mark.parametrize("optimizer", device_checks.OPTIMIZERS, ids=repr)
def test_training(ops, optimizer):
    device_checks.check_training("cuda", optimizer)


def test_training_twice_gives_the_same_bits(ops):
    losses = [device_checks.trained("cuda", dnn.Adam(0.01))[1].loss for _ in range(2)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", device_checks.NETS)
def test_images_and_sequences(ops, name):
    device_checks.check_images_and_sequences("cuda", name)


@pytest.mark.parametrize("seed", range(0, 200, 10))
def test_each_routine_convolves_as_numpy_does(ops, seed):
    for each in range(seed, seed + 10):
        device_checks.check_convolution(ops, each)


@pytest.mark.parametrize("seed", range(0, 300, 10))
def test_each_routine_convolves_what_is_rounded_as_numpy_does(ops, seed):
    for each in range(seed, seed + 10):
        device_checks.check_reduced_convolution(ops, each)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_pooling_has_the_bits_of_numpy(ops, kind, layout):
    device_checks.check_pooling(ops, kind, layout, 70)


@pytest.mark.parametrize("kept", [HALF, BFLOAT16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_pooling_of_narrow_images_is_rounded_once(ops, kind, layout, kept):
    device_checks.check_narrow_pooling(ops, kind, layout, kept)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_large_copies_to_another_order_of_axes(ops, dtype):
    for shape in ((64, 32, 3, 3), (3, 100, 7, 90), (2, 300, 400), (300, 5, 70)):
        x = (np.arange(np.prod(shape)) % 2011).reshape(shape).astype(dtype)
        for axes in itertools.permutations(range(len(shape))):
            out = empty(ops, tuple(shape[i] for i in axes), dtype)
            ops.copy(ops.asarray(x).transpose(axes), out)
            np.testing.assert_array_equal(ops.to_host(out), x.transpose(axes))


def test_a_processor_has_some_blocks_of_a_kernel(ops):
    for kind in KINDS:
        codes = ("f4",) * (2 + (kind in ("max_gradient", "max_taken")))
        index = ops.launcher.index
        blocks = resident_blocks(ops.cupy, index, pooling_kernel(kind, codes))
        assert 1 <= blocks <= 2048 // THREADS


def test_a_large_convolution_by_each_routine_and_as_a_graph(ops, monkeypatch, tmp_path):
    monkeypatch.delenv("DNN_ROUTINES", raising=False)
    monkeypatch.setenv("DNN_KERNEL_CACHE", str(tmp_path))
    same = ((1, 1), (1, 1))
    for kind in ("forward", "data", "weights"):
        problem = Convolution(
            *(kind, "NHWC", "f4", None, (False, False), 16, 64, (32, 32), 64),
            *((3, 3), (1, 1), (1, 1), same, 1),
        )
        chosen = ops.convolution(problem)
        (record,) = (x for x in ops.choices.records() if f"-{kind}-" in x["convolution"])
        assert record["routine"] == chosen.name
        inputs = image_problems.convolution_inputs(problem, 1)
        expected = image_problems.exact(problem, inputs)
        for routine in ops.convolutions(problem):
            found = image_problems.run(ops, routine, problem, inputs)
            largest = np.abs(expected).max()
            np.testing.assert_allclose(found, expected, atol=2e-5 * largest, err_msg=routine.name)
    assert not [text for text in ops.replays() if "launches" in text and "second run" not in text]


@pytest.mark.parametrize("precision", ["tf32", "float16", "bfloat16"])
def test_a_large_convolution_of_less_precision_by_each_routine(ops, precision):
    same = ((1, 1), (1, 1))
    for kind in ("forward", "data", "weights"):
        problem = Convolution(
            *(kind, "NHWC", "f4", None, (False, False), 16, 64, (32, 32), 64),
            *((3, 3), (1, 1), (1, 1), same, 1),
            precision=precision,
        )
        device_checks.check_reduced_convolution(ops, 1, problem=problem)


def test_several_models_in_one_plan(ops):
    device_checks.check_several_models(ops)


def test_options_of_training(ops):
    device_checks.check_options("cuda")


@pytest.mark.parametrize("name", LOSSES)
def test_losses(ops, name):
    device_checks.check_loss("cuda", name)


def test_precisions(ops):
    device_checks.check_precisions("cuda")


def test_a_step_that_is_left_out_changes_no_running_statistics(ops):
    device_checks.check_statistics_of_skipped_steps("cuda")


def test_the_first_node_that_is_not_finite_is_named(ops):
    device_checks.check_not_finite("cuda")


def test_a_graph_is_minimised(ops):
    device_checks.check_minimize("cuda", ops)


def test_ensembles(ops):
    x, y = device_checks.data()
    losses = []
    for device in ("cuda", "numpy"):
        layers = dnn.mlp(6, [5], 3, "tanh")
        optimizer = dnn.SGD([0.1, 0.2])
        ensemble = dnn.Ensemble(layers, optimizer=optimizer, seeds=[1, 2], device=device)
        losses.append([one.loss for one in ensemble.fit(x, y, epochs=2, batch_size=16)])
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_memory(ops):
    device_checks.check_memory("cuda")


def test_tensors(ops):
    import cupy

    device_checks.check_tensors("cuda", cupy)
    device_checks.check_arithmetic("cuda")
    device_checks.check_linear_algebra("cuda")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_noise_is_the_oracles_bit_for_bit(ops, dtype):
    seed, step = np.array([1, 2**63], np.uint64), np.array(7, np.uint64)
    out = np.empty((2, 100_003), dtype)
    spaces = [np.empty(s, t) for s, t in philox.workspaces(seed.shape, out.shape[1])]
    Ops().uniform_noise(seed, step, 9, *spaces, out)
    mine = ops.asarray(np.empty_like(out))
    ops.uniform_noise(ops.asarray(seed), ops.asarray(step), 9, None, None, mine)
    np.testing.assert_array_equal(ops.to_host(mine), out)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_large_products(ops, dtype):
    generator = np.random.default_rng(0)
    a, b = (generator.normal(size=shape).astype(dtype) for shape in ((100, 784), (784, 528)))
    out = ops.asarray(np.empty((100, 528), dtype))
    ops.gemm(ops.asarray(a), ops.asarray(b), out)
    expected = a.astype("f8") @ b.astype("f8")
    scale = np.sqrt(784) * {"float16": 1e-2, "float32": 1e-5, "float64": 1e-14}[dtype]
    np.testing.assert_allclose(ops.to_host(out), expected, atol=scale)


def test_a_plan_with_products_is_one_cuda_graph(ops):
    x, w = graph.placeholder((64, 32), np.float32), graph.placeholder((32, 8), np.float32)
    y = graph.tanh(x @ w)
    plan = Plan([y], ops)
    generator = np.random.default_rng(0)
    for _ in range(4):
        values = [generator.normal(size=node.shape).astype("f4") for node in (x, w)]
        for node, value in zip((x, w), values, strict=True):
            ops.load(value, plan[node])
        plan.run()
        found = ops.to_host(plan[y])
        np.testing.assert_allclose(found, np.tanh(values[0] @ values[1]), rtol=1e-4, atol=1e-5)
    ((replay, _),) = plan._calls
    assert replay.__self__.how == "one CUDA graph"


def test_torch_shares_memory_of_the_gpu(ops):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU")
    theirs = torch.arange(6, dtype=torch.float32, device="cuda").reshape(2, 3)
    ours = dnn.Tensor.from_dlpack(theirs)
    theirs[0, 0] = 9
    torch.cuda.synchronize()
    assert ours[0, 0] == 9
    back = torch.from_dlpack(ours)
    assert back.device.type == "cuda"
    assert back.tolist() == ours.numpy().tolist()
