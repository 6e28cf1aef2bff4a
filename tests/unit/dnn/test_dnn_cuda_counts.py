"""Nodes of a captured training step, and bytes that they move: none may grow."""

from __future__ import annotations

import functools

import cuda_emulator
import fake_cupy
import memory_traffic
import numpy as np
import pytest
import step_counts
from step_counts import STEPS, Node

import dnn
from dnn.backend.cuda.launch import Launcher
from dnn.backend.cuda.products import narrow_product
from dnn.backend.cuda.reductions import REDUCTIONS, reduce
from dnn.backend.cuda.source import for_each, function

KEPT = step_counts.kept()
WRITE = "`python tests/step_counts.py` and `python benchmarks/roofline_gpu.py` write the new ones"


needs_compiler = pytest.mark.skipif(
    cuda_emulator.COMPILER is None, reason="there is no C++ compiler to run CUDA kernels with"
)


@pytest.fixture(scope="module")
def roofline():
    return step_counts.benchmark("roofline_gpu")


@pytest.mark.parametrize("name", STEPS)
def test_a_step_needs_no_more_than_is_written(name):
    found, written = step_counts.count(name), KEPT[name]
    for key in ("nodes", "bytes"):
        now, before = getattr(found, key), getattr(written, key)
        assert now <= before, f"{name}: {key} of a step have grown from {before:,} to {now:,}"
    assert found == written, f"{name} needs less than before, or other products: {WRITE}"


@pytest.mark.parametrize("name", [name for name in STEPS if name.endswith(", bfloat16")])
def test_narrow_operands_cost_few_nodes(name):
    wide = KEPT.get(name.removesuffix(", bfloat16")) or KEPT[name.replace("bfloat16", "float32")]
    assert KEPT[name].nodes <= 1.1 * wide.nodes


def test_every_number_that_is_written_is_of_a_step():
    assert list(KEPT) == list(STEPS)


def test_the_nodes_of_a_step_by_hand():
    def model():
        return dnn.NeuralNetwork(
            [dnn.Input(70), dnn.FullyConnected(30)], optimizer=dnn.SGD(0.1), seed=1, device="cuda"
        )

    x, y, batch = step_counts._classified(50, 70, classes=30)
    taken, *others = step_counts.nodes_of_step(model, x, y, batch)
    # Rows, their classes of 8 bytes, those as 0 and 1, and the product of two numbers.
    written = 4 * 50 * 70 + 8 * 50 + 4 * 50 * 30 + 4
    assert taken == Node("joint_multiply_and_take_batch_and_take_rows", written + 4, written)
    # Forward: x, weights and bias are read. Backward: the gradient of the weights, x^T dy.
    flops = 2 * 50 * 70 * 30
    forward = Node("product of f4", 4 * (50 * 70 + 70 * 30 + 30), 4 * 50 * 30, flops)
    backward = Node("product of f4", 4 * (50 * 70 + 50 * 30), 4 * 70 * 30, flops)
    assert [node for node in others if node.flops] == [forward, backward]


def test_a_narrow_product_is_a_kernel_with_flops():
    with step_counts.counting() as nodes:
        launcher = Launcher(fake_cupy)
        a, b, out = (fake_cupy.empty(shape, "f4") for shape in ((6, 5, 7), (7, 3), (6, 5, 3)))
        narrow_product(launcher, a, b, out)
    written = 4 * 6 * 5 * 3
    kind = "narrow_product__f4_f4_f4"
    assert nodes == [Node(kind, 4 * (6 * 5 * 7 + 7 * 3), written, 2 * 6 * 5 * 7 * 3)]
    assert not nodes[0].is_call


def test_kernels_that_share_a_launch_count_the_memory_that_they_share_once():
    first = function("first", "const float* x, float* y", "y[0] = x[0];")
    second = function("second", "const float* x, const float* y, float* z", "z[0] += x[0] + y[0];")
    with step_counts.counting() as nodes:
        launcher = Launcher(fake_cupy)
        x, y, z = (fake_cupy.empty(n, "f4") for n in (100, 10, 1))
        launcher.begin_recording()
        launcher.launch(first, 1, [x, y])
        launcher.launch(second, 1, [x, y, z])
        for call in launcher.end_recording():
            call.run()
    assert nodes == [Node("joint_first_and_second", 4 * (100 + 10 + 1), 4 * (10 + 1))]


@pytest.mark.parametrize(
    ("body", "is_loaded"),
    [
        ("x[i] = 0;", False),
        ("x[i + y[2]] = y[1];", False),
        ("x[i] += 1;", True),
        ("y[0] = x[i] == 0;", True),
        ("x[i] = x[i] + 1;", True),
    ],
)
def test_what_a_kernel_changes_counts_twice(body, is_loaded):
    assert step_counts._is_loaded(body, "x") is is_loaded


@pytest.mark.parametrize(
    ("count", "networks"),
    [
        (step_counts.heart, 50),
        (functools.partial(step_counts.nets, "lenet5_step"), 200),
        (functools.partial(step_counts.nets, "lstm_step"), 200),
    ],
)
def test_nodes_do_not_grow_with_the_number_of_networks(count, networks):
    # Of fewer networks some kernels are so small that they share a launch.
    few, many = count(networks), count(2 * networks)
    assert len(many) == len(few)
    # A product is one call for all networks.
    calls = ([node.flops for node in nodes if node.is_call] for nodes in (few, many))
    for one, other in zip(*calls, strict=True):
        assert 2 * one == other


def test_the_time_of_a_step_is_that_of_its_nodes_by_their_longest_part(roofline):
    nodes = [
        Node("product of f4", 0, 0, int(67e12)),  # 1 s of flops
        Node("copy", int(3.35e12), int(3.35e12)),  # 2 s of bytes
        Node("nothing", 4, 4),
    ]
    step = roofline.Step(nodes, int(67e12), "f4")
    assert roofline.bound(step, 0.5) == roofline.Bound(3.5, "bytes")
    assert roofline.bound(step, 4.0) == roofline.Bound(12.0, "nodes")
    # Flops that no product has are those of a kernel.
    step = roofline.Step(nodes, 5 * int(67e12), "f4")
    assert roofline.bound(step, 0.5) == roofline.Bound(7.5, "flops")


def test_products_have_the_flops_of_their_layers(roofline):
    for name, step in roofline.steps().items():
        if name.startswith(("MLP", "1,000")):  # in others a kernel may multiply, too
            assert sum(node.flops for node in step.nodes) == step.flops


def test_the_table_of_the_page_is_what_the_counts_give(roofline):
    page = roofline.PAGE.read_text(encoding="utf-8")
    assert roofline.with_table(page, roofline.BEGIN, roofline.table()) == page, WRITE


@needs_compiler
@pytest.mark.parametrize(
    ("body", "moved", "least"),
    [
        # 300 numbers of 4 bytes are 38 sectors, and no two of the two blocks share one.
        ("out[i] = x[i];", 2 * 38 * 32, 2 * 300 * 4),
        ("out[i] = x[0];", 2 * 32 + 38 * 32, 4 + 300 * 4),  # each block loads it
        ("out[i] = x[i * 8];", 300 * 32 + 38 * 32, 2 * 300 * 4),
        ("out[i] += x[i];", 3 * 38 * 32, 3 * 300 * 4),
        ("reinterpret_cast<F4*>(out)[0] = reinterpret_cast<const F4*>(x)[1];", 4 * 32, 2 * 16),
    ],
)
def test_what_a_kernel_moves_by_hand(body, moved, least):
    kernel = function(
        "moves",
        "const float* x, float* out, const long long n",
        f"struct alignas(16) F4 {{ float a, b, c, d; }};\n    {for_each(body)}",
    )
    with memory_traffic.running() as launches:
        x, out = fake_cupy.empty(2400, "f4"), fake_cupy.empty(300, "f4")
        Launcher(fake_cupy).for_each(kernel, 300, [x, out, np.int64(300)])
    assert launches == [memory_traffic.Traffic("moves", moved, least)]


@needs_compiler
@pytest.mark.parametrize("channels", [1, 2, 3, 6, 8])
def test_a_sum_of_few_columns_reads_each_of_them_once(channels):
    with memory_traffic.running() as launches:
        x, out = fake_cupy.empty((40000, channels), "f4"), fake_cupy.empty((1, channels), "f4")
        reduce(Launcher(fake_cupy), REDUCTIONS["sum"], [x], (0,), out)
    assert sum(one.moved_bytes for one in launches) <= 1.7 * x.nbytes


@needs_compiler
@pytest.mark.parametrize(
    "name", ["MLP depth 4", pytest.param("MLP depth 3, relu, float16", marks=pytest.mark.thorough)]
)
def test_bytes_from_arguments_are_those_that_kernels_need(name):
    moved = memory_traffic.launches_of(STEPS[name])
    counted = [node for node in step_counts.nodes_of(name) if not node.is_call]
    assert [one.kind for one in moved] == [node.kind for node in counted]
    needed = sum(one.least_bytes for one in moved)
    total = sum(node.bytes_read + node.bytes_written for node in counted)
    assert total == pytest.approx(needed, rel=0.02)


@needs_compiler
@pytest.mark.slow
@pytest.mark.thorough
def test_the_table_of_kernels_is_what_they_move(roofline):
    page = roofline.PAGE.read_text(encoding="utf-8")
    assert roofline.with_table(page, memory_traffic.BEGIN, memory_traffic.table()) == page, (
        "`python tests/memory_traffic.py` writes it"
    )
