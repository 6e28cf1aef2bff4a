"""How long a training step should take at least on an H100, from what is counted without a GPU.

A step is a chain of nodes: kernels, and products of cuBLAS. Each takes as long as the largest of
three times: its multiplications at the speed of the units that do them, its bytes at the speed of
memory, and the launch of a node of a CUDA graph. `tests/step_counts.py` counts all three on the
stand-in for CuPy.

    benchmarks/roofline_gpu.py     # writes the table of docs/gpu.md; needs no GPU

Speeds are those that NVIDIA publishes for the SXM5 card, of dense matrices; an assumption is only
what a launch takes. What stays in the level-2 cache, of 50 MB, comes faster than from memory.

References
----------
.. [1] NVIDIA H100 Tensor Core GPU, data sheet, 2023: 1,979 and 989 TFLOP/s of 16 bits and TF32 with
   sparsity, of which dense matrices get half; 67 TFLOP/s of float32; 3.35 TB/s.
.. [2] S. Williams, A. Waterman, D. Patterson, Roofline: an insightful visual performance model,
   Communications of the ACM, 2009.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import conv_nets

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "gpu.md"
BEGIN, END = "<!-- roofline: python benchmarks/roofline_gpu.py -->\n", "<!-- end -->\n"

FLOPS_PER_S = {"f4": 67e12, "tf32": 494.7e12, "f2": 989.4e12, "u2": 989.4e12}
"""Of products, by the types of their matrices."""

BYTES_PER_S = 3.35e12
LAUNCHES_S = (1e-6, 2e-6)
"""What a node of a CUDA graph takes however little it does: assumed, from and to."""


@dataclass(frozen=True)
class Step:
    """What a step needs.

    Attributes
    ----------
    nodes : sequence of step_counts.Node
    flops : int
        Of the network's products, as its layers have them.
    types : str
        A key of `FLOPS_PER_S`.
    """

    nodes: Sequence[Any]
    flops: int
    types: str


@dataclass(frozen=True)
class Bound:
    """Seconds of a step, and which of "flops", "bytes" and "nodes" takes the most of them."""

    seconds: float
    by: str


def bound(step: Step, launch_s: float) -> Bound:
    """Return the time of a step whose nodes run one after the other.

    What kernels multiply other than narrow products, and on tensor cores, is not counted by node,
    and is one node more.
    """
    spent = dict.fromkeys(("flops", "bytes", "nodes"), 0.0)
    for node in step.nodes:
        times = {
            "flops": node.flops / FLOPS_PER_S[node.types],
            "bytes": (node.bytes_read + node.bytes_written) / BYTES_PER_S,
            "nodes": launch_s,
        }
        longest = max(times, key=times.__getitem__)
        spent[longest] += times[longest]
    in_kernels = step.flops - sum(node.flops for node in step.nodes)
    spent["flops"] += max(0, in_kernels) / FLOPS_PER_S[step.types]
    return Bound(sum(spent.values()), max(spent, key=spent.__getitem__))


def step_flops(multiplications: Sequence[int], batch: int) -> int:
    """Return the flops of a step from the multiplications of each layer, for one sample.

    Forward, for the gradients of weights and for those of inputs, which the first layer lacks.
    """
    return 2 * batch * (3 * sum(multiplications) - multiplications[0])


def dense(widths: Sequence[int]) -> list[int]:
    """Return the multiplications of dense layers between so many units."""
    return [inputs * units for inputs, units in itertools.pairwise(widths)]


def multiplications(net: conv_nets.Net) -> list[int]:
    """Return the multiplications of each layer of a network, for one sample."""
    uses = conv_nets.uses_of(net)
    return [math.prod(shape) * times for kind, shape, times in uses if kind == "weight"]


def steps() -> dict[str, Step]:
    """Return the steps of the table."""
    from step_counts import nodes_of

    def step(name: str, flops: int, types: str = "f4") -> Step:
        return Step(nodes_of(name), flops, types)

    def of_images(name: str, key: str) -> dict[str, Step]:
        net = conv_nets.NETS[key]
        flops = step_flops(multiplications(net), net.batch)
        narrow = f"{name}, bfloat16"
        return {name: step(name, flops), narrow: step(narrow, flops, "u2")}

    lstm = conv_nets.NETS["lstm_step"]
    times, features = lstm.shape
    units = 128
    # The products with inputs, which are the first layer, and with states, of which the first is 0.
    recurrent = times * 4 * units * features, (times - 1) * 4 * units * units, units * 10
    heart = [13, *[16] * 5, 2]
    return {
        **{
            f"MLP depth {depth}": step(
                f"MLP depth {depth}", step_flops(dense([784, *[528] * depth, 10]), 100)
            )
            for depth in (1, 2, 3, 4)
        },
        **of_images("LeNet-5", "lenet5_step"),
        **of_images("VGG-16", "vgg16_cifar_step"),
        **of_images("ResNet-18", "resnet18_cifar_step"),
        "LSTM of 28 steps": step("LSTM of 28 steps", step_flops(recurrent, lstm.batch)),
        "1,000 heart networks": step("1,000 heart networks", 1000 * step_flops(dense(heart), 32)),
    }


MEASURED_US: Final = {
    "MLP depth 1": "48",
    "MLP depth 2": "77",
    "MLP depth 3": "99",
    "MLP depth 4": "123",
    "LeNet-5": "289",
    "VGG-16": "3,390 and 4,660",
    "ResNet-18": "5,470 and 8,230",
    "LSTM of 28 steps": "416",
    "1,000 heart networks": "300",
}
"""Of a step on an H200, as its share of a whole `fit`; two numbers are of two machines."""


def table() -> str:
    """Return the table of steps, as Markdown."""
    heads = "step | GFLOP | MB | nodes | flops, us | bytes, us | nodes, us | at least, us"
    lines = [
        f"| {heads} | most of it | measured, us |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|---|",
    ]
    for name, step in steps().items():
        size = sum(node.bytes_read + node.bytes_written for node in step.nodes)
        low, high = (bound(step, launch_s) for launch_s in LAUNCHES_S)
        few, many = (len(step.nodes) * launch_s * 1e6 for launch_s in LAUNCHES_S)
        cells = (
            *(name, f"{step.flops / 1e9:,.2f}", f"{size / 1e6:,.0f}", f"{len(step.nodes)}"),
            f"{step.flops / FLOPS_PER_S[step.types] * 1e6:,.0f}",
            f"{size / BYTES_PER_S * 1e6:,.0f}",
            f"{few:,.0f} to {many:,.0f}",
            f"{low.seconds * 1e6:,.0f} to {high.seconds * 1e6:,.0f}",
            low.by if low.by == high.by else f"{low.by} to {high.by}",
            MEASURED_US.get(name, ""),
        )
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def with_table(page: str, begin: str, table: str) -> str:
    """Return a page with a table in place of what is between two comments."""
    before, found, after = page.partition(begin)
    if not found or END not in after:
        raise SystemExit(f"{PAGE} needs the lines {begin!r} and {END!r}")
    return f"{before}{begin}\n{table}\n{END}{after.partition(END)[2]}"


def main() -> None:
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    page = with_table(PAGE.read_text(encoding="utf-8"), BEGIN, table())
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
