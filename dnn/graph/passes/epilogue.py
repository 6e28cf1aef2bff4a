"""Matrix product, bias and activation as one."""

from __future__ import annotations

from dnn.graph.node import Node
from dnn.graph.passes.fusion import is_fusible
from dnn.graph.passes.graph import Graph, rewrite
from dnn.graph.passes.registry import register_pass
from dnn.graph.passes.structure import dead_code
from dnn.graph.product_chain import product_chain

__all__ = ["matmul_bias_activation"]


@register_pass("matmul_bias_activation")
def matmul_bias_activation(graph: Graph) -> Graph:
    """Join a matrix product with the elementwise operations that alone read it.

    They work in place on what the product has written, right behind it. It takes
    `elementwise_fusion` before it to join more than the first of them.
    """
    readers = graph.readers()

    def join(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        operation = node.operation
        if operation is None or not (node.kind == "fused" or is_fusible(node)):
            return None
        for place, (was, x) in enumerate(zip(node.inputs, inputs, strict=True)):
            fits = x.kind == "matmul" and x.shape == node.shape and x.dtype == node.dtype
            if fits and readers[was] == 1 and place in operation.overwrites:
                chain = Node(
                    node.kind, node.shape, node.dtype, inputs, node.attributes, node.name, operation
                )
                return product_chain(x, chain)
        return None

    return dead_code(rewrite(graph, join))
