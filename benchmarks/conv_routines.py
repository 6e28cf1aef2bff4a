"""Single convolutions: each routine of the table, and which one it chose, against PyTorch.

The shapes are those of VGG-16 and ResNet-18 for CIFAR with 32 images, and of LeNet-5 with 100.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any, NamedTuple

import harness
import numpy as np

THREADS = 2
KINDS = ("forward", "data", "weights")
BLOCK_S = 0.06
ANEW = "anew"
"""In place of a routine: measure all, whatever the table holds, and keep nothing."""


class Shape(NamedTuple):
    """A convolution of a network."""

    images: int
    channels: int
    size: int
    filters: int
    window: int = 3
    stride: int = 1
    padding: int = 1
    layout: str = "NHWC"
    quick: bool = False
    kinds: tuple[str, ...] = KINDS
    """The gradient of the data is not needed of a first layer."""


SHAPES = {
    "conv3x3_3_32": Shape(32, 3, 32, 64, kinds=("forward", "weights")),
    "conv3x3_64_32": Shape(32, 64, 32, 64, quick=True),
    "conv3x3_64_16_128": Shape(32, 64, 16, 128),
    "conv3x3_128_16": Shape(32, 128, 16, 128),
    "conv3x3_128_8_256": Shape(32, 128, 8, 256),
    "conv3x3_256_8": Shape(32, 256, 8, 256),
    "conv3x3_256_4_512": Shape(32, 256, 4, 512),
    "conv3x3_512_4": Shape(32, 512, 4, 512),
    "conv3x3_512_2": Shape(32, 512, 2, 512),
    "conv3x3_64_32_stride2": Shape(32, 64, 32, 128, stride=2),
    "conv3x3_128_16_stride2": Shape(32, 128, 16, 256, stride=2),
    "conv3x3_256_8_stride2": Shape(32, 256, 8, 512, stride=2),
    "conv1x1_64_32_stride2": Shape(32, 64, 32, 128, 1, 2, 0),
    "conv1x1_128_16_stride2": Shape(32, 128, 16, 256, 1, 2, 0),
    "conv1x1_256_8_stride2": Shape(32, 256, 8, 512, 1, 2, 0),
    "conv5x5_1_28": Shape(100, 1, 28, 6, 5, 1, 2, "CHWN", kinds=("forward", "weights")),
    "conv5x5_6_14": Shape(100, 6, 14, 16, 5, 1, 0, "CHWN"),
}


def _median_s(call: Callable[[], object]) -> float:
    """Time calls for about `BLOCK_S`; return the median."""
    until = time.perf_counter() + BLOCK_S / 3
    while time.perf_counter() < until:
        call()
    taken: list[float] = []
    until = time.perf_counter() + BLOCK_S
    while time.perf_counter() < until or len(taken) < 3:
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return float(np.median(taken))


def problem_of(name: str, kind: str) -> Any:
    from dnn.backend.convolution import Convolution

    shape = SHAPES[name]
    return Convolution(
        kind=kind,
        layout=shape.layout,
        dtype="f4",
        models=None,
        stacked=(False, False),
        images=shape.images,
        channels=shape.channels,
        size=(shape.size, shape.size),
        filters=shape.filters,
        window=(shape.window, shape.window),
        stride=(shape.stride, shape.stride),
        dilation=(1, 1),
        padding=((shape.padding, shape.padding),) * 2,
        groups=1,
    )


def _dnn() -> Callable[..., dict[str, Any]]:
    """Return what times routines, by name, and the choice of the table."""
    from dnn.backend import empty, ops_for
    from dnn.backend.routines import measure_convolution

    ops = ops_for("cpu")

    def work(shape: str, kind: str, routine: str | None) -> dict[str, Any]:
        problem = problem_of(shape, kind)
        offered = {convolution.name: convolution for convolution in ops.convolutions(problem)}
        if routine is None:
            return {"routines": list(offered), "choice": ops.convolution(problem).name}
        if routine == ANEW:
            return measure_convolution(ops, problem)
        taken = offered[routine]
        generator = np.random.default_rng(1)
        inputs = []
        *sizes, out_size = problem.shapes
        for size in sizes:
            array = empty(ops, size, "f4")
            array[...] = generator.normal(size=size)
            inputs.append(array)
        out = empty(ops, out_size, "f4")
        scratch = ops.memory(taken.workspace_bytes)
        calls = ops.link(taken.steps(inputs, out, scratch))

        def run() -> None:
            for function, arguments in calls:
                function(*arguments)

        run()
        return {"ms": 1e3 * _median_s(run)}

    return work


def _torch() -> Callable[..., dict[str, Any]]:
    """Return what times PyTorch's convolution and its gradients, in the faster format."""
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

    def work(shape: str, kind: str) -> dict[str, Any]:
        given, generator = SHAPES[shape], torch.Generator().manual_seed(1)
        side = (given.size + 2 * given.padding - given.window) // given.stride + 1
        sizes = {
            "x": (given.images, given.channels, given.size, given.size),
            "w": (given.filters, given.channels, given.window, given.window),
            "dy": (given.images, given.filters, side, side),
        }
        times = []
        for form in (torch.channels_last, torch.contiguous_format):
            x, w, dy = (
                torch.randn(size, generator=generator).contiguous(memory_format=form)
                for size in sizes.values()
            )
            settings = ([given.stride] * 2, [given.padding] * 2, [1, 1], False, [0, 0], 1)
            mask = [kind == "data", kind == "weights", False]

            def run(x: Any = x, w: Any = w, dy: Any = dy, s: Any = settings, m: Any = mask) -> None:
                if kind == "forward":
                    torch.convolution(x, w, None, *s)
                else:
                    torch.ops.aten.convolution_backward(dy, x, w, None, *s, m)

            with torch.no_grad():
                times.append(_median_s(run))
        return {"ms": 1e3 * min(times)}

    return work


def choices(script: str, python: str) -> Iterator[str]:
    """Measure every shape anew; return the lines of the table in ``docs/convolution.md``.

    Behind a choice stands the second best routine, where that takes up to a tenth more.
    """
    yield f"{date.today()}, {harness.machine()['cpu']}, {THREADS} threads:\n"
    yield "| convolution | layout | forward | data | weights |"
    yield "|---|---|---|---|---|"
    with harness.Worker(script, "routines dnn", python, THREADS) as dnn:
        for name, shape in SHAPES.items():
            cells = dict.fromkeys(KINDS, "")
            for kind in shape.kinds:
                ms = dnn.ask(shape=name, kind=kind, routine=ANEW)["ms"]
                first, *others = sorted(ms, key=lambda routine: float(ms[routine]))
                close = [f"{ms[other] / ms[first]:.2f} `{other}`" for other in others[:1]
                         if ms[other] <= 1.1 * ms[first]]  # fmt: skip
                cells[kind] = " ".join([f"`{first}`", *(f"({text})" for text in close)])
            window = f"{shape.window} x {shape.window}"
            stride = f", stride {shape.stride}" if shape.stride > 1 else ""
            what = f"{shape.channels} to {shape.filters}, {window}, {shape.size} x {shape.size}"
            row = [f"{what}{stride}", shape.layout, *cells.values()]
            yield f"| {' | '.join(row)} |"


def worker(contender: str, setup: str) -> None:
    """Be one contender."""
    del setup
    harness.serve({"dnn": _dnn, "torch": _torch}[contender]())


def rows(
    script: str,
    pythons: dict[str, str],
    title: str,
    quick: bool,
    wanted: Callable[[str], bool],
) -> Iterator[harness.Result]:
    """Measure every shape; return the choice, each routine, and the choice against the best."""
    shapes = {
        name: shape for name, shape in SHAPES.items() if wanted(name) and (shape.quick or not quick)
    }
    if not shapes:
        return
    blocks = 2 if quick else 5
    with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(harness.Worker(script, f"routines {name}", python, THREADS))
            for name, python in pythons.items()
        }
        for name, shape in shapes.items():
            for kind in shape.kinds:
                told = workers["dnn"].ask(shape=name, kind=kind, routine=None)
                times: dict[str, list[float]] = {}
                # What is hopeless is timed once.
                for block in range(blocks):
                    best = min((min(taken) for taken in times.values()), default=0.0)
                    for routine in told["routines"]:
                        if block and min(times[routine]) > 3 * best:
                            continue
                        answer = workers["dnn"].ask(shape=name, kind=kind, routine=routine)
                        times.setdefault(routine, []).append(answer["ms"])
                    if "torch" in workers:
                        answer = workers["torch"].ask(shape=name, kind=kind)
                        times.setdefault("", []).append(answer["ms"])
                peer, choice = times.pop("", None), told["choice"]
                best = min(times, key=lambda routine: float(np.median(times[routine])))
                row = f"{name}_{kind}"
                yield harness.compare(row, times[choice], peer, f"{title}; {choice}", "ms")
                yield harness.compare(
                    f"{row}_choice", times[choice], times[best], f"the best routine, {best}", "ms"
                )
                if not quick:
                    for routine, taken in times.items():
                        yield harness.compare(f"{row}_{routine}", taken, peer, title, "ms")
