"""Passes that simplify a graph, and passes that save memory: its reuse, and recomputation."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dnn.graph.node import CONSTANT, Node, constant, topological_order
from dnn.graph.operation import compute
from dnn.graph.operations.elementwise import is_elementwise
from dnn.graph.passes.graph import Graph, register_pass, rewrite, with_inputs

__all__ = [
    "buffer_reuse",
    "common_subexpressions",
    "constant_folding",
    "dead_code",
    "recomputation",
    "softmax_cross_entropy",
]

# A constant result that is larger than its inputs together is kept only up to this many elements:
# reading a larger one takes longer than writing it again.
LARGEST_EXPANSION = 4096


@register_pass("constant_folding")
def constant_folding(graph: Graph) -> Graph:
    """Compute nodes that depend on constants alone, and leave out ``x * 1`` and ``x / 1``."""

    def fold(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if node.operation is None or not node.operation.pure:
            return None
        if node.kind in ("multiply", "divide"):
            x, factor = inputs
            if _is_one(factor) and x.shape == node.shape:
                return x
            if node.kind == "multiply" and _is_one(x) and factor.shape == node.shape:
                return factor
        if inputs and all(x.kind == CONSTANT for x in inputs):
            if node.size > max(LARGEST_EXPANSION, sum(x.size for x in inputs)):
                return None
            value = compute(node, [x.attributes["value"] for x in inputs])
            return constant(value, node.dtype)
        return None

    return rewrite(graph, fold)


def _is_one(node: Node) -> bool:
    return node.kind == CONSTANT and node.size == 1 and bool((node.attributes["value"] == 1).all())


@register_pass("common_subexpressions")
def common_subexpressions(graph: Graph) -> Graph:
    """Compute nodes of the same operation, inputs and attributes once."""
    first: dict[Hashable, Node] = {}

    def merge(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if node.operation is None and node.kind != CONSTANT:
            return None
        if node.operation is not None and not node.operation.pure:
            return None
        attributes = tuple((name, _key(value)) for name, value in sorted(node.attributes.items()))
        # The shape tells apart constants whose bytes agree; 0.0 and -0.0 differ in their bytes.
        key = (node.kind, inputs, node.shape, node.dtype, attributes)
        new = node if inputs == node.inputs else with_inputs(node, inputs)
        try:
            return first.setdefault(key, new)
        except TypeError:  # an attribute that cannot be compared
            return new

    return rewrite(graph, merge)


def _key(value: Any) -> Any:
    return value.tobytes() if isinstance(value, np.ndarray) else value


@register_pass("dead_code")
def dead_code(graph: Graph) -> Graph:
    """Leave out what no output needs."""
    needed = set(topological_order(graph.outputs))
    return replace(graph, order=tuple(node for node in graph.order if node in needed))


@register_pass("buffer_reuse")
def buffer_reuse(graph: Graph) -> Graph:
    """Let another node take memory whose last reader has run."""
    return replace(graph, reuses_buffers=True)


@register_pass("softmax_cross_entropy")
def softmax_cross_entropy(graph: Graph) -> Graph:
    """Take the logarithm of a softmax, and its gradient, without the softmax.

    A probability that underflows to 0 has the logarithm -inf, and a gradient of 0 / 0; that of
    `log_softmax` is finite. So a cross entropy that was written as a formula, ``-sum(target *
    log(softmax(x)))``, becomes as stable as the operation of that name. It rounds differently,
    and so is not among the default passes.
    """

    def rule(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if node.kind == "log" and _is_softmax(inputs[0]):
            return inputs[0].inputs[0]
        if node.kind == "multiply":  # the gradient on its way back: dy / p * p
            for quotient, p in (inputs, inputs[::-1]):
                divided = quotient.kind == "divide" and quotient.inputs[1] is p
                if divided and _is_softmax(p) and quotient.inputs[0].shape == node.shape:
                    return quotient.inputs[0]
        return None

    return rewrite(graph, rule)


def _is_softmax(node: Node) -> bool:
    return node.kind == "exp" and node.inputs[0].kind == "log_softmax"


SMALL = 16
"""An input so many times smaller than a result may be kept, such as a number for each channel."""

Reads = Mapping[Node, Sequence[int]]


@register_pass("recomputation")
def recomputation(graph: Graph) -> Graph:
    """Compute elementwise results again where they are read after the point of most memory.

    That point lies between the forward and the backward half of a training step. A result that is
    read in both is computed twice, where all its inputs are kept anyway; values stay the same, to
    the last bit. It has to run after the passes that fuse.

    References
    ----------
    .. [1] Chen et al., Training deep nets with sublinear memory cost, 2016, section 3.1: dropping
       the results of low cost operations.
    """
    reads: dict[Node, list[int]] = {node: [] for node in graph.order}
    for i, node in enumerate(graph.order):
        for x in node.inputs:
            reads[x].append(i)
    for node in graph.outputs:
        reads[node].append(len(graph.order))
    peak = _peak(graph.order, reads)
    repeated: set[Node] = set()

    def is_kept(x: Node, reader: int, size: int) -> bool:
        small = x.size * SMALL <= size
        kept = x.operation is None or small or max(reads[x], default=0) >= reader
        return kept and x not in repeated

    def is_available(x: Node, reader: int, size: int) -> bool:
        if is_kept(x, reader, size):
            return True
        if x in repeated or not is_elementwise(x):
            return False
        return all(is_available(y, reader, x.size) for y in x.inputs)

    for node in graph.order[: peak + 1]:
        late = [i for i in reads[node] if i > peak]
        if not late or len(late) == len(reads[node]) or late[-1] == len(graph.order):
            continue
        if is_elementwise(node) and all(is_available(x, late[0], node.size) for x in node.inputs):
            repeated.add(node)
    now: dict[Node, Node] = {}
    copies: dict[Node, Node] = {}

    def copy(x: Node, reader: int) -> Node:
        if x not in copies:
            inputs = (now[y] if is_kept(y, reader, x.size) else copy(y, reader) for y in x.inputs)
            copies[x] = with_inputs(x, tuple(inputs))
        return copies[x]

    place = {node: i for i, node in enumerate(graph.order)}

    def rule(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if place[node] > peak:
            inputs = tuple(
                copy(x, place[node]) if x in repeated else y
                for x, y in zip(node.inputs, inputs, strict=True)
            )
        now[node] = node if inputs == node.inputs else with_inputs(node, inputs)
        return now[node]

    return rewrite(graph, rule) if repeated else graph


def _peak(order: Sequence[Node], reads: Reads) -> int:
    """Return the place in the order where values that are still to be read take most memory."""
    changes = [0] * (len(order) + 2)
    for i, node in enumerate(order):
        if node.operation is not None and not node.operation.view and reads[node]:
            size = node.size * node.dtype.itemsize
            changes[i] += size
            changes[max(reads[node]) + 1] -= size
    total = most = at = 0
    for i, change in enumerate(changes):
        total += change
        if total > most:
            most, at = total, i
    return min(at, len(order) - 1)
