"""Sums over the rows of a square matrix by each routine against its size, on CPU and GPU.

The figure of MagmaDNN's papers: which routine is the fastest changes with the size, so that it is
measured and kept. On a CPU these are a compiled loop, NumPy's reduction and a product with a row of
ones; on a GPU a kernel of ours, cuBLAS with a vector of ones, and CuPy's reduction. Many sums are
put into the queue and waited for together, as in a training step.

Each row compares a routine with the one that is taken where nothing was measured. With ``--json``
the figure is written beside it, as SVG; without a GPU, or without Numba, the other device is
measured alone.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import harness
import numpy as np

OPERATION = {"cpu": "sum", "cuda": "gpu_sum"}
SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
TINY = (8, 16)
BLOCK_S = 0.02

Times = dict[tuple[str, str], dict[int, list[float]]]
"""Microseconds of a sum, by device and routine, and by rows of the matrix."""


def measure(
    device: str, sizes: tuple[int, ...], blocks: int, times: Times
) -> Iterator[harness.Result]:
    """Compare each routine with the one that is taken without a table; routines take turns."""
    from dnn import RoutineTable, ops_for
    from dnn.backend.routines import CANDIDATES

    operation = OPERATION[device]
    default, *others = CANDIDATES[operation]
    for n in sizes:
        values = np.random.default_rng(n).random((n, n), np.float32)
        repeated = {}
        for routine in CANDIDATES[operation]:
            ops = ops_for(device, RoutineTable({operation: [(0, routine)]}))
            x, out = (ops.asarray(array) for array in (values, np.empty((1, n), np.float32)))
            calls = ops.link([(ops.sum, (x, (0,), out))])

            def repeat(count: int, ops=ops, calls=calls, out=out) -> float:  # type: ignore[no-untyped-def]
                started_s = time.perf_counter()
                for _ in range(count):
                    for function, arguments in calls:
                        function(*arguments)
                ops.to_host(out)  # waits for all of them
                return time.perf_counter() - started_s

            repeat(3)  # compiles, captures
            np.testing.assert_allclose(ops.to_host(out)[0], values.sum(0), rtol=1e-4)
            repeated[routine] = repeat, max(1, round(BLOCK_S / repeat(10) * 10))
        for _ in range(blocks):
            for routine, (repeat, count) in repeated.items():
                each_us = repeat(count) / count * 1e6
                of_routine = times.setdefault((device, routine), {})
                of_routine.setdefault(n, []).append(each_us)
        for routine in others:
            name, peer = f"sum_{device}_{n}x{n}_{routine}", times[device, default][n]
            yield harness.compare(name, times[device, routine][n], peer, default, "us")


# -- the figure -----------------------------------------------------------------------------------

WIDTH, HEIGHT, MARGIN = 640, 420, 60
COLOURS = ("#1f5fa8", "#c2571a", "#3a7d44", "#8a3d8f", "#a02c2c", "#4d4d4d")


def figure(curves: Mapping[str, Mapping[int, float]]) -> str:
    """Return curves of microseconds against rows of a matrix as SVG, both axes logarithmic."""
    sizes = sorted({n for curve in curves.values() for n in curve})
    values = [value for curve in curves.values() for value in curve.values()]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    first, last = math.log2(sizes[0]), max(math.log2(sizes[-1]), math.log2(sizes[0]) + 1)

    def place(n: float, value: float) -> tuple[float, float]:
        right = (math.log2(n) - first) / (last - first)
        up = (math.log10(value) - low) / (high - low)
        x, y = MARGIN + right * (WIDTH - 2 * MARGIN), HEIGHT - MARGIN - up * (HEIGHT - 2 * MARGIN)
        return round(x, 1), round(y, 1)

    def text(x: float, y: float, words: str, anchor: str = "middle", fill: str = "black") -> str:
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{fill}">{words}</text>'

    lines = []
    for power in range(low, high + 1):
        x, y = place(sizes[0], 10**power)
        lines.append(f'<path d="M{x} {y}H{WIDTH - MARGIN}" stroke="#ddd"/>')
        lines.append(text(x - 6, y + 4, f"{10.0**power:g}", "end"))
    for n in sizes:
        x, y = place(n, 10**low)
        lines += [f'<path d="M{x} {y}v4" stroke="black"/>', text(x, y + 18, str(n))]
    for at, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[at % len(COLOURS)]
        points = " ".join("{},{}".format(*place(n, curve[n])) for n in sorted(curve))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        lines.append(text(MARGIN + 10, MARGIN + 16 * at, name, "start", colour))
    lines.append(text(WIDTH / 2, HEIGHT - 18, "rows and columns of the matrix"))
    lines.append(text(MARGIN, MARGIN - 30, "microseconds for a sum over rows", "start"))
    style = 'font-family="sans-serif" font-size="12"'
    size = f'width="{WIDTH}" height="{HEIGHT}"'
    body = "\n".join(lines)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{body}\n</svg>\n'


def main() -> None:
    options = harness.gpu_parser(__doc__).parse_args()
    sys.path.insert(0, str(harness.REPOSITORY))
    from dnn.backend import has_numba
    from dnn.backend.device import cuda_problem

    sizes = TINY if options.tiny else SIZES[::2] if options.quick else SIZES
    without = {"cuda": cuda_problem(), "cpu": None if has_numba() else "Numba is not installed"}
    times: Times = {}
    rows: list[Iterator[harness.Result]] = []
    for device, problem in without.items():
        if problem:
            print(f"reductions: not measured on {device}: {problem}", file=sys.stderr)
        else:
            blocks = 3 if options.quick or options.tiny else 7
            rows.append(measure(device, sizes, blocks, times))
    if not rows:
        sys.exit("reductions: nothing to measure")
    about = {} if without["cuda"] else harness.gpu()
    harness.report(itertools.chain(*rows), options.json, **about)
    if options.json:
        curves = {
            f"{routine} on {device}": {n: float(np.median(us)) for n, us in by_size.items()}
            for (device, routine), by_size in times.items()
        }
        Path(options.json).with_suffix(".svg").write_text(figure(curves), encoding="utf-8")


if __name__ == "__main__":
    main()
