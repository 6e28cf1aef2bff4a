"""What a training step on a GPU launches and moves: counted on the stand-in, with no work done.

Kernels and products do nothing, so a ResNet-18 takes a fraction of a second and no compiler. Of
each node of a step (a kernel, or a call of cuBLAS) the bytes are counted that it has to read and
to write: every argument once, however often the kernel loads an element, and twice what it changes.
So it is for kernels that share a launch, which are one node.
``python tests/step_counts.py`` writes `FILE` anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import inspect
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import fake_cublas
import fake_cupy
import numpy as np
import pytest

import dnn
from dnn.backend.cuda import joining, launch
from dnn.backend.cuda.joining import Region
from dnn.backend.cuda.source import Kernel

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).parent / "fixtures" / "dnn" / "step_counts.json"


def benchmark(name: str) -> ModuleType:
    """Import a file of the benchmarks, whose folder is on the path only meanwhile.

    It has a `workflows.py`, the name of a folder of tests.
    """
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


TENSOR_CORES = "tensor_cores_"
"""How the names of kernels begin that convolve on tensor cores."""

CONVOLVED = (
    *("models", "images_", "out_height_", "out_width_", "filters_"),
    *("channels_", "rows_", "across_"),
)
"""Parameters whose product, by group, is the number of multiplications of a convolution."""

_Lanes = tuple[tuple[Kernel, ...], ...]


@dataclass(frozen=True)
class Node:
    """A kernel, or a call of cuBLAS, of a step; `flops` only of products.

    The `kind` of a call says the types of its matrices.
    """

    kind: str
    bytes_read: int
    bytes_written: int
    flops: int = 0

    @property
    def is_call(self) -> bool:
        """Whether it is a call of cuBLAS or cuBLASLt, and no kernel of our own."""
        return self.kind.startswith("product of ")

    @property
    def types(self) -> str:
        """The type in which it multiplies: that of matrices, or tf32."""
        if self.is_call:
            return self.kind.split()[-1]
        if self.kind.startswith(TENSOR_CORES):
            code = self.kind.split("__")[1].split("_")[0]
            return "tf32" if code == "f4" else code
        return "f4"


@dataclass(frozen=True)
class Counts:
    """Numbers of one step.

    Attributes
    ----------
    nodes : int
        Kernels, and calls of cuBLAS and cuBLASLt.
    products : int
        Those of `nodes` that are calls of cuBLAS and cuBLASLt.
    bytes : int
        Read and written by all nodes.
    flops : int
        Of products, also those in kernels of our own: two for a multiplication with its addition.
    """

    nodes: int
    products: int
    bytes: int
    flops: int


def _elements(array: Any) -> int:
    lengths = zip(array.shape, array.strides, strict=True)
    return math.prod(length for length, step in lengths if step)


def _is_loaded(body: str, name: str) -> bool:
    """Whether an element of a parameter is used other than as the left side of an assignment."""
    for found in re.finditer(rf"\b{name}\[", body):
        depth, at = 1, found.end()
        while depth:
            depth += {"[": 1, "]": -1}.get(body[at], 0)
            at += 1
        if not re.match(r"\s*=[^=]", body[at:]):
            return True
    return False


def _kernel_node(name: str, parts: Iterable[tuple[Kernel, Sequence[Any]]]) -> Node:
    """Return the node of a launch of one kernel or more, each with its arguments.

    What several of them read is read once, and what several of them write is written once.
    """
    read: dict[Region, int] = {}
    written: dict[Region, int] = {}
    flops = 0
    for kernel, arguments in parts:
        loads, stores = _accesses(kernel, arguments)
        read |= loads
        written |= stores
        if kernel.name.startswith("narrow_product_"):
            given = dict(zip(_names(kernel), arguments, strict=True))
            flops += 2 * int(given["n"]) * int(given["terms"])
        elif kernel.name.startswith(TENSOR_CORES):
            given = dict(zip(_names(kernel), arguments, strict=True))
            flops += 2 * math.prod(int(given[name]) for name in CONVOLVED) // int(given["groups_"])
    kind = re.sub(r"_[0-9a-f]{12}", "", name)
    return Node(kind, sum(read.values()), sum(written.values()), flops)


def _names(kernel: Kernel) -> list[str]:
    return [declared.split()[-1] for declared in kernel.parameters.split(",")]


def _accesses(
    kernel: Kernel, arguments: Sequence[Any]
) -> tuple[dict[Region, int], dict[Region, int]]:
    """Return the bytes that a kernel reads, and those that it writes, by the arrays' memory."""
    read: dict[Region, int] = {}
    written: dict[Region, int] = {}
    for declared, argument in zip(kernel.parameters.split(","), arguments, strict=True):
        kind, word = declared.rsplit(maxsplit=1)
        if "*" not in kind:
            continue
        memory, size = Region.of(argument), _elements(argument) * argument.dtype.itemsize
        is_const = "const " in kind
        if not is_const:
            written[memory] = size
        if is_const or _is_loaded(kernel.body, word):
            read[memory] = size
    if kernel.name.startswith("take_"):  # of all rows it reads those that it writes
        read = {Region.of(arguments[0]): sum(written.values())}
    return read, written


def _parts(lanes: _Lanes, arguments: Sequence[Any]) -> Iterator[tuple[Kernel, Sequence[Any]]]:
    """Return the kernels that share a launch, each with its arguments."""
    left = iter(arguments[len(lanes) :])  # after the number of blocks of each lane
    for kernel in itertools.chain.from_iterable(lanes):
        yield kernel, tuple(itertools.islice(left, len(_names(kernel))))
    assert not list(left)


def _product_node(asked: Any, matrices: Any, scalars: tuple[int, int], bias: Any) -> Node:
    def size(matrix: Any) -> int:
        number = matrix.rows * matrix.columns * np.dtype(matrix.code).itemsize
        return int(number * (asked.batch if matrix.step else 1))

    a, b, c, d = matrices
    kind = ctypes.c_double if asked.compute == 70 else ctypes.c_float
    read = size(a) + size(b) + (size(c) if kind.from_address(scalars[1]).value else 0)
    read += size(bias) if bias is not None else 0
    flops = 2 * asked.rows * asked.columns * asked.inner * asked.batch
    types = "tf32" if asked.compute == 77 else a.code
    return Node(f"product of {types}", read, size(d), flops)


@contextlib.contextmanager
def counting() -> Iterator[list[Node]]:
    """Let ``device="cuda"`` be a GPU on which nothing is computed; give the list of its nodes."""
    nodes: list[Node] = []
    joined: dict[str, _Lanes] = {}
    make_joint = joining.joint_kernel

    def joint_kernel(lanes: _Lanes) -> Kernel:
        kernel = make_joint(lanes)
        joined[kernel.name] = lanes
        return kernel

    def compiled(cupy: Any, index: int, kernel: Kernel) -> Callable[..., None]:
        def function(grid: Any, block: Any, arguments: tuple[Any, ...]) -> None:
            lanes = joined.get(kernel.name)
            parts = _parts(lanes, arguments) if lanes else [(kernel, arguments)]
            nodes.append(_kernel_node(kernel.name, parts))

        return function

    signature = inspect.signature(fake_cublas.Library._multiply)

    def multiply(*arguments: Any, **options: Any) -> int:
        given = signature.bind(*arguments, **options).arguments
        operands = (given[name] for name in ("asked", "matrices", "scalars"))
        nodes.append(_product_node(*operands, given.get("bias")))
        return 0

    with pytest.MonkeyPatch.context() as patch:
        fake_cupy.install(patch)
        patch.setattr(launch, "compiled", compiled)
        patch.setattr(launch, "resident_blocks", lambda *_: 8)
        patch.setattr(joining, "joint_kernel", joint_kernel)
        patch.setattr(fake_cublas.Library, "_multiply", multiply)
        patch.setenv("DNN_ROUTINES", "fixed")
        yield nodes


def nodes_of_step(model: Callable[[], Any], x: Any, y: Any, batch: int) -> list[Node]:
    """Return the nodes of a training step of a model that is made, in order."""
    runs: list[tuple[launch.Replay, list[Node]]] = []

    def kept(replay: launch.Replay) -> None:
        nodes.clear()
        for number, (function, arguments, *_) in enumerate(replay._calls):
            function(*arguments)
            if len(nodes) == number:  # of CuPy itself, such as a memset
                nodes.append(Node(getattr(function, "__qualname__", str(function)), 0, 0))
        runs.append((replay, list(nodes)))

    with counting() as nodes, mock.patch.object(launch.Replay, "_call_all", kept):
        made = model()
        options = {} if isinstance(made, dnn.Ensemble) else {"progress": False}
        made.fit(x, y, epochs=1, batch_size=batch, **options)
    (first, found), (captured, _) = runs
    assert first is captured
    assert first.how == "one CUDA graph"
    assert len(found) == len(first)
    return found


def _classified(batch: int, *shape: int, classes: int = 10) -> tuple[Any, Any, int]:
    """Return rows of two batches, with their classes."""
    return np.zeros((2 * batch, *shape), np.float32), np.arange(2 * batch) % classes, batch


def _mlp(depth: int, optimizer: Any, activation: str = "sigmoid", dtype: str = "float32") -> Any:
    layers = dnn.mlp(784, [528] * depth, 10, activation)
    return dnn.NeuralNetwork(layers, optimizer=optimizer, seed=1, device="cuda", dtype=dtype)


def _sgd_mlp(depth: int) -> Callable[[], list[Node]]:
    # The network of `benchmarks/mlp_gpu.py`.
    optimizer = dnn.SGD(0.05, weight_decay=0.001)
    return lambda: nodes_of_step(lambda: _mlp(depth, optimizer), *_classified(100, 784))


def _narrow_mlp(dtype: str) -> Callable[[], list[Node]]:
    # The network of `benchmarks/mixed_precision.py`.
    return lambda: nodes_of_step(
        lambda: _mlp(3, dnn.SGD(1e-3), "relu", dtype), *_classified(100, 784)
    )


def net(name: str, dtype: str = "float32", batch: int = 0) -> Callable[[], list[Node]]:
    """Return what counts a step of a network of `benchmarks/conv_nets.py`."""
    conv_nets = benchmark("conv_nets")
    of = conv_nets.NETS[name]

    def count() -> list[Node]:
        def model() -> Any:
            return conv_nets.dnn_model(of, None, name, device="cuda", dtype=dtype)

        return nodes_of_step(model, *_classified(batch or of.batch, *of.shape))

    return count


def heart(networks: int) -> list[Node]:
    """Return the nodes of a step of networks of `benchmarks/sweep_heart.py`, as one plan."""
    rates = np.linspace(0.003, 0.1, networks)
    optimizer = dnn.SGD(rates, momentum=rates * 9, weight_decay=rates / 100)
    layers = dnn.mlp(13, [16] * 5, 2, "tanh")
    return _together(layers, optimizer, networks, *_classified(32, 13, classes=2))


def nets(name: str, networks: int) -> list[Node]:
    """Return the nodes of a step of networks of `benchmarks/conv_nets.py`, as one plan."""
    conv_nets = benchmark("conv_nets")
    of = conv_nets.NETS[name]
    optimizer = dnn.SGD(0.01, momentum=0.9)
    return _together(conv_nets.dnn_layers(of), optimizer, networks, *_classified(4, *of.shape))


def _together(layers: Any, optimizer: Any, networks: int, *rows: Any) -> list[Node]:
    def model() -> Any:
        return dnn.Ensemble(layers, optimizer=optimizer, seeds=range(networks), device="cuda")

    return nodes_of_step(model, *rows)


STEPS: dict[str, Callable[[], list[Node]]] = {
    **{f"MLP depth {depth}": _sgd_mlp(depth) for depth in (1, 2, 3, 4)},
    "MLP depth 3, relu, Adam": lambda: nodes_of_step(
        lambda: _mlp(3, dnn.Adam(1e-3), "relu"), *_classified(100, 784)
    ),
    **{
        f"MLP depth 3, relu, {dtype}": _narrow_mlp(dtype)
        for dtype in ("float32", "tf32", "float16", "bfloat16")
    },
    "LeNet-5": net("lenet5_step"),
    "LeNet-5, bfloat16": net("lenet5_step", "bfloat16"),
    "VGG-16": net("vgg16_cifar_step"),
    "VGG-16, bfloat16": net("vgg16_cifar_step", "bfloat16"),
    "ResNet-18": net("resnet18_cifar_step"),
    "ResNet-18, bfloat16": net("resnet18_cifar_step", "bfloat16"),
    "LSTM of 28 steps": net("lstm_step"),
    "1,000 heart networks": lambda: heart(1000),
}
"""What counts a step, by its name in `FILE`."""


@functools.cache
def nodes_of(name: str) -> tuple[Node, ...]:
    """Return the nodes of a step of `STEPS`, in order."""
    return tuple(STEPS[name]())


def count(name: str) -> Counts:
    """Count a step of `STEPS`."""
    nodes = nodes_of(name)
    return Counts(
        nodes=len(nodes),
        products=sum(node.is_call for node in nodes),
        bytes=sum(node.bytes_read + node.bytes_written for node in nodes),
        flops=sum(node.flops for node in nodes),
    )


def kept() -> dict[str, Counts]:
    """Return the numbers in `FILE`."""
    found = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: Counts(**numbers) for name, numbers in found.items()}


def main() -> None:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    found = {name: asdict(count(name)) for name in STEPS}
    FILE.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    for name, numbers in found.items():
        print(f"{name:28s}", *(f"{key} {number:>14,}" for key, number in numbers.items()))


if __name__ == "__main__":
    main()
