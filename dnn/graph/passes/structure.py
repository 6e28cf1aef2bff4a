"""What to compute at all, and whether memory is used again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from dnn.graph.gradients import topological_order
from dnn.graph.node import Node
from dnn.graph.passes.graph import Graph
from dnn.graph.passes.registry import register_pass

__all__ = ["buffer_reuse", "dead_code", "products_last"]


@register_pass("dead_code")
def dead_code(graph: Graph) -> Graph:
    """Leave out what no output needs."""
    needed = set(topological_order(graph.outputs))
    return replace(graph, order=tuple(node for node in graph.order if node in needed))


@register_pass("buffer_reuse")
def buffer_reuse(graph: Graph) -> Graph:
    """Give memory whose last reader has run to another node."""
    return replace(graph, reuses_buffers=True)


@register_pass("products_last")
def products_last(graph: Graph) -> Graph:
    """Compute a product that nobody reads on, a weight's gradient, after those of the same inputs.

    Then the weight has been read for the last time when its gradient arises, and a step of
    gradient descent may put the one straight into the other.
    """
    readers = graph.readers()
    wanted = Counter(graph.outputs)
    products = [node for node in graph.order if node.kind in ("matmul", "product_chain")]
    last = {x: node for node in products for x in node.inputs[:2]}
    waiting: dict[Node, list[Node]] = {}
    for node in graph.order:
        if node.kind == "matmul" and readers[node] == wanted[node]:
            after = max((last[x] for x in node.inputs), key=graph.order.index)
            if after is not node and readers[after] != wanted[after]:
                waiting.setdefault(after, []).append(node)
    moved = {node for nodes in waiting.values() for node in nodes}
    order: list[Node] = []
    for node in graph.order:
        if node not in moved:
            order += [node, *waiting.get(node, ())]
    return replace(graph, order=tuple(order))
