"""The axis of models: a graph written for one model, rewritten for K of them at once.

Every node that depends on something of which each model has its own, such as its parameters, gets
a leading axis of length K; other nodes stay as they are and serve all models. Each operation
defines how, beside its forward and its gradient (`Operation.with_models`). Layers, losses and
gradients are written without that axis, and results equal those of K single graphs bit for bit, as
long as one thread computes them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dnn.errors import ConfigurationError
from dnn.graph.gradients import topological_order
from dnn.graph.node import CONSTANT, Node
from dnn.graph.operation import stack_all

__all__ = ["with_models"]


def with_models(
    outputs: Sequence[Node], models: int, per_model: Collection[Node]
) -> dict[Node, Node]:
    """Rewrite a graph for several models at once.

    Parameters
    ----------
    outputs : sequence of Node
        As written for one model.
    models : int, at least 1
    per_model : collection of Node
        Placeholders and variables of which each model has its own.

    Returns
    -------
    dict of Node to Node
        The new node for every node that `outputs` need. Nodes of `per_model`, and all `outputs`
        that are computed, have shape (models, *shape); outputs that are the same for all models
        are repeated, but an assignment that is the same for all models is done once.
    """
    if models < 1:
        raise ConfigurationError(f"the number of models must be at least 1, not {models}")
    for node in per_model:
        if node.operation is not None:
            raise ConfigurationError(f"with_models: {node!r} is computed and cannot be per model")
    now: dict[Node, Node] = {}
    stacked: set[Node] = set()
    for node in topological_order(outputs):
        if node.operation is None:
            new = _leaf(node, models) if node in per_model else node
        elif any(x in stacked for x in node.inputs):
            inputs = [now[x] for x in node.inputs]
            new = node.operation.with_models(
                node, inputs, [x in stacked for x in node.inputs], models
            )
            new.name = new.name or node.name
            assert (new.shape, new.dtype) == ((models, *node.shape), node.dtype), (node, new)
        else:  # no input has the axis of models, so that none has changed
            new = node
        if new is not node:
            stacked.add(node)
        now[node] = new
    for node in outputs:
        is_value = node.kind == CONSTANT if node.operation is None else node.operation.pure
        if node not in stacked and is_value:
            (now[node],) = stack_all([node], [False], models)
    return now


def _leaf(node: Node, models: int) -> Node:
    return Node(node.kind, (models, *node.shape), node.dtype, name=node.name)
