"""Softmax and cross entropy, written as formulas, in the stable form."""

from __future__ import annotations

from dnn.graph.node import Node
from dnn.graph.passes.graph import Graph, rewrite
from dnn.graph.passes.registry import register_pass

__all__ = ["softmax_cross_entropy"]


@register_pass("softmax_cross_entropy")
def softmax_cross_entropy(graph: Graph) -> Graph:
    """Take the logarithm of a softmax, and its gradient, without the softmax.

    A probability that underflows to 0 has the logarithm -inf, and a gradient of 0 / 0; that of
    `log_softmax` is finite. So a cross entropy that was written as a formula, ``-sum(target *
    log(softmax(x)))``, becomes as stable as the operation of that name. It rounds differently,
    and so runs when asked for.
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
