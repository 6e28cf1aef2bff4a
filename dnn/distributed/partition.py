"""Cuts of layers into stages of nearly equal cost, which is measured; even slices of units."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from dnn.backend import Array
from dnn.errors import ConfigurationError
from dnn.graph.gradients import gradients
from dnn.graph.node import Node, placeholder, variable
from dnn.graph.plan import Plan
from dnn.layers.layer import NoiseSource
from dnn.training.network import Network

__all__ = ["even_bounds", "measured_costs", "stage_bounds"]


def stage_bounds(
    costs: Sequence[float], stages: int, crossing: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Cut a chain into stages so that the most expensive one costs as little as possible.

    Parameters
    ----------
    costs : sequence of float, not negative
        Cost of each part of the chain; a part is not cut.
    stages : int, at least 1
    crossing : sequence of int, optional
        How many numbers each part passes to the next. Of equally good cuts, those are taken where
        stages exchange least, and of these the earliest.

    Returns
    -------
    tuple of stages + 1 int
        Stage s has parts ``bounds[s] .. bounds[s + 1] - 1``, at least one part.

    Raises
    ------
    ConfigurationError
        If there are more stages than parts.
    """
    parts = len(costs)
    if not 1 <= stages <= parts:
        message = f"{stages} stages need as many layers at least, and there are {parts}"
        raise ConfigurationError(f"pipeline: {message}")
    sent = [0] * parts if crossing is None else list(crossing)
    before = [0.0, *accumulate(costs)]
    # best[end]: largest cost of a stage, numbers exchanged, and cuts, of the parts before `end`.
    best: dict[int, tuple[float, int, tuple[int, ...]]] = {0: (0.0, 0, (0,))}
    for stage in range(stages):
        further = {}
        for end in range(stage + 1, parts - (stages - stage - 1) + 1):
            further[end] = min(
                (
                    max(largest, before[end] - before[start]),
                    exchanged + (sent[start - 1] if start else 0),
                    (*cuts, end),
                )
                for start, (largest, exchanged, cuts) in best.items()
                if start < end
            )
        best = further
    return best[parts][2]


def even_bounds(units: int, slices: int) -> tuple[int, ...]:
    """Cut units into slices whose lengths differ by one at most, longer slices first.

    Slice i has units ``bounds[i] .. bounds[i + 1] - 1``; none if there are fewer than slices.
    """
    size, longer = divmod(units, slices)
    return tuple(i * size + min(i, longer) for i in range(slices + 1))


ROWS = 32
"""Samples of the batch with which a layer is timed."""
REPETITIONS = 3


def measured_costs(network: Network) -> list[float]:
    """Return the seconds of each layer, forward and backward, of 32 samples: the least of three.

    Layers are built; nothing of the network is changed.
    """
    shapes = [network.input_shape, *(row.shape for row in network.summaries)]
    costs = []
    with np.errstate(all="ignore"):
        for i in range(len(network.layers)):
            plan = _plan_of(network, i, shapes[i], i == 0)
            plan.run()  # compiles
            times = []
            for _ in range(REPETITIONS):
                began = time.perf_counter()
                plan.run()
                network.ops.to_host(plan[plan.graph.outputs[0]])  # waits for a GPU
                times.append(time.perf_counter() - began)
            costs.append(min(times))
    return costs


def _plan_of(network: Network, i: int, shape: Sequence[int], is_first: bool) -> Plan:
    """Return a plan of one layer: outputs and gradients, from samples and output gradient."""
    ops, layer = network.ops, network.layers[i]
    noise = NoiseSource(
        variable((), np.uint64, "noise.seed"), variable((), np.uint64, "noise.step")
    )
    whole = layer.integers or (i == 1 and network.layers[0].integers)
    x = placeholder((ROWS, *shape), network.input_dtype if whole else network.dtype, "x")
    layer.begin(noise)
    y = layer.forward(x)
    dy = placeholder(y.shape, y.dtype, "dy")
    sought = [each.node for each in layer.parameters]
    if not (is_first or whole):
        sought.append(x)
    found = gradients(y, sought, dy) if sought and y.dtype.kind == "f" else []
    arrays: dict[Node, Array] = {
        each.node: ops.asarray(np.full(each.node.shape, 0.01, each.node.dtype))
        for each in (*layer.parameters, *layer.states)
    }
    arrays |= {node: ops.asarray(np.zeros((), np.uint64)) for node in noise}
    outputs = [y, x, dy, *found]
    plan = Plan(outputs, ops, arrays, passes=network.passes)
    for edge, value in ((x, 0 if whole else 0.5), (dy, 0.5)):
        ops.fill(value, plan[edge])
    return plan
