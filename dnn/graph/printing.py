"""Graphs as text and as drawings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.graph.gradients import topological_order
from dnn.graph.node import CONSTANT, Node

__all__ = ["as_dot", "as_text"]


def as_text(outputs: Sequence[Node], order: Sequence[Node] | None = None) -> str:
    """Return one line a node, in the order of computation.

    Parameters
    ----------
    outputs : sequence of Node
        Marked by a star.
    order : sequence of Node, optional
        All nodes; what `outputs` need if left out.

    Returns
    -------
    str
        Lines such as ``*%4 = matmul(x, %3)    (100, 10) float32``.
    """
    order = topological_order(outputs) if order is None else order
    names = _names(order)
    wanted = set(outputs)
    lines = []
    for node in order:
        if node.kind == CONSTANT and node.size == 1:
            continue  # its value stands where it is read
        inputs = [names[x] for x in node.inputs]
        attributes = [f"{key}={_short(value)}" for key, value in node.attributes.items()]
        inside = "" if node.operation is None else f"({', '.join(inputs + attributes)})"
        star = "*" if node in wanted else " "
        text = f"{star}{names[node]} = {node.kind}{inside}"
        lines.append(f"{text:60s}  {node.shape} {node.dtype}")
    return "\n".join(lines)


def as_dot(outputs: Sequence[Node], order: Sequence[Node] | None = None) -> str:
    """Return a graph in the language of Graphviz.

    Parameters
    ----------
    outputs : sequence of Node
        They have two borders.
    order : sequence of Node, optional
        All nodes; what `outputs` need if left out.

    Returns
    -------
    str
        Operations are boxes, and what comes from outside is round.
    """
    order = topological_order(outputs) if order is None else order
    number = {node: i for i, node in enumerate(order)}
    names = _names(order)
    wanted = set(outputs)
    lines = ["digraph {", "  rankdir = TB;"]
    for node in order:
        title = node.kind if node.operation is not None else f"{names[node]}\\n{node.kind}"
        label = f"{title}\\n{node.shape} {node.dtype}".replace('"', "'")
        shape = "box" if node.operation is not None else "ellipse"
        borders = ", peripheries=2" if node in wanted else ""
        lines.append(f'  n{number[node]} [label="{label}", shape={shape}{borders}];')
        lines += [f"  n{number[x]} -> n{number[node]};" for x in node.inputs]
    return "\n".join([*lines, "}"])


def _names(order: Sequence[Node]) -> dict[Node, str]:
    """Name nodes: by their own name, a single number by its value, all others by their place."""
    names: dict[Node, str] = {}
    taken: set[str] = set()
    for i, node in enumerate(order):
        name = node.name
        if node.kind == CONSTANT and node.size == 1:
            names[node] = f"{node.attributes['value'].item():g}"
            continue
        if not name or name in taken:
            name = f"{name}%{i}"
        taken.add(name)
        names[node] = name
    return names


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"array{value.shape}"
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
