"""Constant folding."""

from __future__ import annotations

from dnn.graph.eager import compute
from dnn.graph.node import CONSTANT, Node, constant
from dnn.graph.passes.graph import Graph, rewrite
from dnn.graph.passes.registry import register_pass

__all__ = ["constant_folding"]

# A result that is larger than what it comes from is kept only up to this many elements: reading
# it takes longer than writing it again.
LARGEST_EXPANSION = 4096


@register_pass("constant_folding")
def constant_folding(graph: Graph) -> Graph:
    """Compute now what depends on constants alone, and leave out ``x * 1`` and ``x / 1``."""

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
