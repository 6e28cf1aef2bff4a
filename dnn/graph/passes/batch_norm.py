"""Sums of batch normalisation over images, joined for devices that have a call for them.

What the layer and its gradient wrote as sums, means and quotients becomes nodes with a row for each
number of a channel: one with statistics, also running ones, and one with sums of the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dnn.backend import Ops
from dnn.backend.formula import Formula
from dnn.backend.normalisation import GRADIENT_ROWS, STATISTICS, BatchNormSums
from dnn.graph.node import CONSTANT, Node, Shape
from dnn.graph.operation import Arrays, Operation, Step, apply, reshaped
from dnn.graph.operations.elementwise import Elementwise
from dnn.graph.passes.graph import Graph, register_pass, rewrite
from dnn.graph.passes.simplification import dead_code

__all__ = ["batch_norm_sums"]

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))

READERS = 3
"""How often the backward pass of one normalisation reads the gradient of its result."""


class BatchNormSumsOperation(Operation):
    """Sums of a batch normalisation, which the attribute ``problem`` describes."""

    def __init__(self, name: str, images: int) -> None:
        self.name = name  # type: ignore[misc]
        self.contiguous = tuple(range(images))  # type: ignore[misc]

    def workspace(self, node: Node, ops: Ops) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        """Return the workspace of the routine."""
        size = ops.batch_norm(node.attributes["problem"]).workspace_bytes
        return [((size,), np.dtype(np.uint8))] if size else []

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        """Return the calls of the routine."""
        space = arrays.workspace[0] if arrays.workspace else None
        return ops.batch_norm(node.attributes["problem"]).steps(arrays.inputs, arrays.out, space)


class InputGradient(Elementwise):
    """``(dy - mean_dy - (x - mean) slope) factor``, with the rows of ``"gradient"``."""

    formula = Formula(
        "batch_norm_input_gradient",
        "dy x mean factor mean_dy slope",
        "(dy - mean_dy - (x - mean) * slope) * factor",
    )
    kinds = "f"


class _Found(NamedTuple):
    """The nodes of a batch normalisation, as the layer wrote them."""

    x: Node
    mean: Node
    variance: Node
    inverse: Node
    scale: Node
    epsilon: float


class _Running(NamedTuple):
    """The nodes of the next running statistics, and their variables."""

    next_mean: Node
    next_variance: Node
    mean: Node
    variance: Node
    momentum: float


class _Gradient(NamedTuple):
    """The nodes of the gradient of a batch normalisation."""

    dy: Node
    dshift: Node
    dscale: Node


@register_pass("batch_norm_sums")
def batch_norm_sums(graph: Graph) -> Graph:
    """Join the sums of a batch normalisation, where the device has a call for them."""
    if "batch_norm_sums" not in graph.ops.passes:
        return graph
    found = {each.mean: each for node in graph.order if (each := _normalisation(node)) is not None}
    if not found:
        return graph
    running = _running(graph, found)
    gradients = _gradients(graph, found)
    readers = graph.readers()
    now: dict[Node, Node] = {}
    statistics: dict[Node, Node] = {}  # mean -> node with a row for each number
    sums: dict[Node, Node] = {}
    rows: dict[Node, tuple[Node, str]] = {}  # node -> mean of its normalisation, name of its row
    for mean, each in found.items():
        rows |= {mean: (mean, "mean"), each.variance: (mean, "variance")}
        rows[each.inverse] = mean, "inverse"
        if mean in running:
            rows[running[mean].next_mean] = mean, "next_mean"
            rows[running[mean].next_variance] = mean, "next_variance"
    for node, (mean, of) in gradients.items():
        rows[node] = mean, "factor"
        rows.setdefault(of.dshift, (mean, "dshift"))
        rows[of.dscale] = mean, "dscale"

    def statistics_of(mean: Node) -> Node:
        if mean not in statistics:
            each, of_run = found[mean], running.get(mean)
            inputs = [now[each.x]]
            problem = _problem("statistics", each)._replace(epsilon=each.epsilon)
            if of_run is not None:
                inputs += [of_run.mean, of_run.variance]
                problem = problem._replace(has_further=True, momentum=of_run.momentum)
            count = len(STATISTICS) if of_run is not None else len(STATISTICS) - 2
            statistics[mean] = _node("batch_statistics", problem, count, mean, inputs)
        return statistics[mean]

    def sums_of(mean: Node, dy: Node) -> Node:
        if mean not in sums:
            each, given = found[mean], [now[dy]]
            problem = _problem("gradient", each)
            if readers[dy] == READERS and _is_masked(now[dy]):
                given = list(now[dy].inputs[:2])
                problem = problem._replace(has_further=True)
            given += [now[x] for x in (each.x, mean, each.inverse, each.scale)]
            sums[mean] = _node("batch_norm_sums", problem, len(GRADIENT_ROWS), mean, given)
        return sums[mean]

    dy_of = {mean: of.dy for mean, of in gradients.values()}

    def rule(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        now.update(zip(node.inputs, inputs, strict=True))
        if node not in rows:
            return None
        mean, name = rows[node]
        if name in STATISTICS:
            return reshaped(_row(statistics_of(mean), STATISTICS.index(name)), node.shape)
        every = sums_of(mean, dy_of[mean])
        if name in ("dshift", "dscale"):
            return _row(every, GRADIENT_ROWS.index(name))
        factor, mean_dy, slope = (
            _row(every, GRADIENT_ROWS.index(each)) for each in ("factor", "mean_dy", "slope")
        )
        operands = (inputs[0], inputs[1], inputs[2], factor, mean_dy, slope)
        operation = InputGradient()
        return Node(
            operation.name, node.shape, node.dtype, operands, {}, node.name, operation=operation
        )

    return dead_code(rewrite(graph, rule))


def _node(
    kind: str, problem: BatchNormSums, count: int, mean: Node, inputs: Sequence[Node]
) -> Node:
    operation = BatchNormSumsOperation(kind, problem.images)
    shape = (count, *mean.shape)
    return Node(kind, shape, mean.dtype, inputs, {"problem": problem}, operation=operation)


def _row(rows: Node, index: int) -> Node:
    part = apply("slice", rows, index=((index, index + 1, 1),))
    return reshaped(part, rows.shape[1:])


def _problem(kind: str, each: _Found) -> BatchNormSums:
    channels, models = each.x.shape[-1], each.mean.size // each.x.shape[-1]
    rows = each.x.size // models // channels
    return BatchNormSums(kind, each.x.dtype.str[1:], models, rows, channels, False)


def _is_masked(node: Node) -> bool:
    """Say whether a node is a gradient behind a relu: ``where_greater(dy, y, 0)`` of one shape."""
    if node.kind != "where_greater" or any(x.shape != node.shape for x in node.inputs[:2]):
        return False
    return _constant(node.inputs[2]) == 0.0


def _constant(node: Node) -> float | None:
    """Return the number of a constant with one element, else None."""
    if node.kind != CONSTANT or node.size != 1:
        return None
    return float(node.attributes["value"].item())


def _scaled(node: Node) -> tuple[Node, float] | None:
    """Return x and the number of ``x * number``, else None."""
    if node.kind != "multiply":
        return None
    x, by = node.inputs
    number = _constant(by)
    return None if number is None or x.shape != node.shape else (x, number)


def _summed(node: Node) -> Node | None:
    """Return x where a node is ``sum_to(x)``, else None."""
    return node.inputs[0] if node.kind == "sum_to" else None


def _averaged(node: Node) -> Node | None:
    """Return the sum of which a node is the mean over all images, else None."""
    scaled = _scaled(node)
    if scaled is None or (x := _summed(scaled[0])) is None:
        return None
    return scaled[0] if _is_near(scaled[1], node.size / x.size) else None


def _is_near(number: float, wanted: float) -> bool:
    """Say whether a constant is a number, rounded to float32."""
    return math.isclose(number, wanted, rel_tol=1e-6)


def _normalisation(node: Node) -> _Found | None:
    """Return the normalisation whose values a node has: of images with channels last, else None."""
    if node.kind != "batch_norm" or node.dtype not in FLOATS:
        return None
    x, mean, inverse, scale, _ = node.inputs
    models = x.shape[:-4]
    if len(models) > 1 or mean.shape != (*models, 1, 1, 1, x.shape[-1]) or not x.size:
        return None
    if scale.shape != mean.shape or inverse.kind != "divide":
        return None
    sums, (numerator, root) = _averaged(mean), inverse.inputs
    if sums is None or sums.inputs[0] is not x or _constant(numerator) != 1.0:
        return None
    if root.kind != "sqrt" or root.inputs[0].kind != "add":
        return None
    variance, added = root.inputs[0].inputs
    epsilon, sums = _constant(added), _averaged(variance)
    if epsilon is None or sums is None or sums.inputs[0].kind != "square":
        return None
    (centred,) = sums.inputs[0].inputs
    if centred.kind != "subtract" or centred.inputs != (x, mean):
        return None
    return _Found(x, mean, variance, inverse, scale, epsilon)


def _origin(node: Node) -> Node:
    while node.kind == "reshape":
        (node,) = node.inputs
    return node


def _running(graph: Graph, found: dict[Node, _Found]) -> dict[Node, _Running]:
    """Return by mean the running statistics, where those of mean and variance are assigned."""
    variances = {each.variance: each for each in found.values()}
    of_mean: dict[Node, tuple[Node, Node, float]] = {}
    for node in graph.order:
        if node.kind == "assign" and (average := _average(node, variances)) is not None:
            of_mean[average[0]] = node.inputs[1], node.inputs[0], average[1]
    running = {}
    for mean, each in found.items():
        if mean not in of_mean or each.variance not in of_mean:
            continue
        next_mean, mean_state, momentum = of_mean[mean]
        next_variance, variance_state, same = of_mean[each.variance]
        if momentum == same:
            states = mean_state, variance_state
            running[mean] = _Running(next_mean, next_variance, *states, momentum)
    return running


def _average(node: Node, variances: dict[Node, _Found]) -> tuple[Node, float] | None:
    """Return what enters an assigned ``state * momentum + of_batch * (1 - momentum)``, else None.

    A variance enters times ``rows / (rows - 1)``.
    """
    state, value = node.inputs
    if value.kind != "add":
        return None
    kept, entering = map(_scaled, value.inputs)
    if kept is None or entering is None or kept[0] is not state:
        return None
    if not _is_near(entering[1], 1.0 - kept[1]):
        return None
    of_batch = _origin(entering[0])
    unbiased = _scaled(of_batch)
    if unbiased is not None and unbiased[0] in variances:
        of_batch, factor = unbiased
        rows = _problem("statistics", variances[of_batch]).rows
        return (of_batch, kept[1]) if _is_near(factor * (rows - 1), rows) else None
    return None if of_batch in variances else (of_batch, kept[1])


def _gradients(graph: Graph, found: dict[Node, _Found]) -> dict[Node, tuple[Node, _Gradient]]:
    """Return the gradients of normalisations by node of the gradient of x, with their means.

    Of a normalisation that has several gradients, only the first one is returned.
    """
    gradients: dict[Node, tuple[Node, _Gradient]] = {}
    done: set[Node] = set()
    for node in graph.order:
        if node.kind != "batch_norm_gradient" or node.inputs[2] not in found.keys() - done:
            continue
        dy, x, mean, inverse, factor, mean_dy, mean_dyu = node.inputs
        each = found[mean]
        dshift, dscale = _averaged(mean_dy), _averaged(mean_dyu)
        if x is not each.x or inverse is not each.inverse or dshift is None or dscale is None:
            continue
        products = dscale.inputs[0]
        if dshift.inputs[0] is not dy or products.kind != "multiply":
            continue
        standard = products.inputs[1]
        is_whole = products.inputs[0] is dy and standard.kind == "standardise"
        is_whole = is_whole and standard.inputs == (x, mean, inverse)
        if is_whole and factor.kind == "multiply" and factor.inputs == (inverse, each.scale):
            gradients[node] = mean, _Gradient(dy, dshift, dscale)
            done.add(mean)
    return gradients
