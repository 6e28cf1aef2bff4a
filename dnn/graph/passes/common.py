"""Common subexpressions."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from dnn.graph.node import CONSTANT, Node
from dnn.graph.passes.graph import Graph, rewrite, with_inputs
from dnn.graph.passes.registry import register_pass

__all__ = ["common_subexpressions"]


@register_pass("common_subexpressions")
def common_subexpressions(graph: Graph) -> Graph:
    """Compute once what is written several times: same operation, inputs and attributes."""
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
