"""Recomputation: a training step computes cheap results again instead of keeping them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dnn.graph.node import Node
from dnn.graph.operations.elementwise import is_elementwise
from dnn.graph.passes.graph import Graph, register_pass, rewrite, with_inputs

__all__ = ["recomputation"]

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
