"""Nodes of a captured training step, and bytes that they move: none may grow."""

from __future__ import annotations

import functools
import importlib

import cuda_emulator
import fake_cupy
import memory_traffic
import numpy as np
import pytest
import step_counts
from step_counts import STEPS, Node

import dnn
from dnn.backend.cuda.launch import Launcher
from dnn.backend.cuda.source import for_each, function

KEPT = step_counts.kept()
WRITE = "`python tests/step_counts.py` and `python benchmarks/roofline_gpu.py` write the new ones"


needs_compiler = pytest.mark.skipif(
    cuda_emulator.COMPILER is None, reason="there is no C++ compiler to run CUDA kernels with"
)


@pytest.fixture(scope="module")
def roofline():
    return importlib.import_module("roofline_gpu")


@pytest.mark.parametrize("name", STEPS)
def test_a_step_needs_no_more_than_is_written(name):
    found, written = step_counts.count(name), KEPT[name]
    for key in ("nodes", "bytes"):
        now, before = getattr(found, key), getattr(written, key)
        assert now <= before, f"{name}: {key} of a step have grown from {before:,} to {now:,}"
    assert found == written, f"{name} needs less than before, or other products: {WRITE}"


def test_every_number_that_is_written_is_of_a_step():
    assert list(KEPT) == list(STEPS)


def test_the_nodes_of_a_step_by_hand():
    def model():
        return dnn.NeuralNetwork(
            [dnn.Input(7), dnn.FullyConnected(3)], optimizer=dnn.SGD(0.1), seed=1, device="cuda"
        )

    x, y, batch = step_counts._classified(5, 7, classes=3)
    nodes = step_counts.nodes_of_step(model, x, y, batch)
    products = [node for node in nodes if node.flops]
    # Forward: x, weights and bias are read. Backward: the gradient of the weights, x^T dy.
    forward = Node("product of f4", 4 * (5 * 7 + 7 * 3 + 3), 4 * 5 * 3, 2 * 5 * 7 * 3)
    backward = Node("product of f4", 4 * (5 * 7 + 5 * 3), 4 * 7 * 3, 2 * 5 * 7 * 3)
    assert products == [forward, backward]
    taken = {node.kind: node for node in nodes}["take_batch__f4"]
    assert taken.bytes_written == 4 * 5 * 7


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
    kernel = function("f", "float* x, float* y", body)
    assert step_counts._is_loaded(kernel.source, "x") is is_loaded


@pytest.mark.parametrize(
    "count",
    [
        step_counts.heart,
        functools.partial(step_counts.nets, "lenet5_step"),
        functools.partial(step_counts.nets, "lstm_step"),
    ],
)
def test_nodes_do_not_grow_with_the_number_of_networks(count):
    few, many = count(2), count(50)
    assert len(many) <= len(few) + 2  # a sum of more elements may take two kernels
    # A product is one call for all networks.
    products = ([node.flops for node in nodes if node.flops] for nodes in (few, many))
    for one, other in zip(*products, strict=True):
        assert one * 25 == other


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
@pytest.mark.parametrize(
    "name", ["MLP depth 4", pytest.param("MLP depth 3, relu, float16", marks=pytest.mark.thorough)]
)
def test_bytes_from_arguments_are_those_that_kernels_need(name):
    moved = memory_traffic.launches_of(STEPS[name])
    counted = [node for node in step_counts.nodes_of(name) if not node.flops]
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
