"""What to compute at all, and whether memory is used again."""

from __future__ import annotations

from dataclasses import replace

from dnn.graph.gradients import topological_order
from dnn.graph.passes.graph import Graph
from dnn.graph.passes.registry import register_pass

__all__ = ["buffer_reuse", "dead_code"]


@register_pass("dead_code")
def dead_code(graph: Graph) -> Graph:
    """Leave out what no output needs."""
    needed = set(topological_order(graph.outputs))
    return replace(graph, order=tuple(node for node in graph.order if node in needed))


@register_pass("buffer_reuse")
def buffer_reuse(graph: Graph) -> Graph:
    """Give memory whose last reader has run to another node."""
    return replace(graph, reuses_buffers=True)
