"""Mixed precision: float16 in memory, float32 in arithmetic."""

from __future__ import annotations

import numpy as np

from dnn.graph.node import CONSTANT, Node
from dnn.graph.operations.comparisons import cast
from dnn.graph.passes.graph import Graph, register_pass, rewrite, with_inputs

__all__ = ["mixed_precision"]

# Sums of exponentials and their logarithms need the range of float32 [1]_.
KEPT = frozenset({"log_softmax", "softmax_cross_entropy"})

HALF, SINGLE = np.dtype(np.float16), np.dtype(np.float32)


@register_pass("mixed_precision")
def mixed_precision(graph: Graph) -> Graph:
    """Keep matrices of float32 in float16 and compute in float32.

    Each value is rounded once, where it is written, and brought back to float32 just for the
    operation that reads it. What is small or delicate stays in float32: scalars, vectors such as
    biases, statistics (with an axis of length 1), and softmax. Gradients of matrices come out
    rounded too; a loss has to be scaled so that they do not vanish, see
    `dnn.training.loss_scaling`.

    References
    ----------
    .. [1] Micikevicius et al., Mixed precision training, 2018, sections 3.1 and 3.3.
    """
    stored: dict[Node, Node] = {}  # a value brought back to float32 -> where it is kept

    def halve(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        operation = node.operation
        half = [stored.get(x) for x in inputs]
        if operation is not None and operation.view and half[0] is not None:
            kept = Node(
                node.kind, node.shape, HALF, (half[0],), node.attributes, node.name, operation
            )
        else:
            # Each reader brings it back by itself, so that float32 lives no longer than needed.
            inputs = tuple(
                x if kept_x is None else cast(kept_x, SINGLE)
                for x, kept_x in zip(inputs, half, strict=True)
            )
            new = node if inputs == node.inputs else with_inputs(node, inputs)
            if not _is_halved(node):
                return new
            kept = cast(new, HALF)
        back = cast(kept, SINGLE)
        stored[back] = kept
        return back

    return rewrite(graph, halve)


def _is_halved(node: Node) -> bool:
    return (
        node.dtype == SINGLE
        and node.ndim >= 2
        and 1 not in node.shape
        and node.kind not in KEPT
        and node.kind != CONSTANT
        and (node.operation is None or node.operation.pure)
    )
