"""Passes that simplify a graph: constants, duplicates, unused nodes, and reuse of memory."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from dnn.graph.eager import compute
from dnn.graph.gradients import topological_order
from dnn.graph.node import CONSTANT, Node, constant
from dnn.graph.passes.graph import Graph, register_pass, rewrite, with_inputs

__all__ = [
    "buffer_reuse",
    "common_subexpressions",
    "constant_folding",
    "dead_code",
    "softmax_cross_entropy",
]

# A constant result that is larger than its inputs together is kept only up to this many elements:
# reading a larger one takes longer than writing it again.
LARGEST_EXPANSION = 4096


@register_pass("constant_folding")
def constant_folding(graph: Graph) -> Graph:
    """Compute nodes that depend on constants alone, and leave out ``x * 1`` and ``x / 1``."""

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


@register_pass("common_subexpressions")
def common_subexpressions(graph: Graph) -> Graph:
    """Compute nodes of the same operation, inputs and attributes once."""
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


@register_pass("dead_code")
def dead_code(graph: Graph) -> Graph:
    """Leave out what no output needs."""
    needed = set(topological_order(graph.outputs))
    return replace(graph, order=tuple(node for node in graph.order if node in needed))


@register_pass("buffer_reuse")
def buffer_reuse(graph: Graph) -> Graph:
    """Let another node take memory whose last reader has run."""
    return replace(graph, reuses_buffers=True)


@register_pass("softmax_cross_entropy")
def softmax_cross_entropy(graph: Graph) -> Graph:
    """Take the logarithm of a softmax, and its gradient, without the softmax.

    A probability that underflows to 0 has the logarithm -inf, and a gradient of 0 / 0; that of
    `log_softmax` is finite. So a cross entropy that was written as a formula, ``-sum(target *
    log(softmax(x)))``, becomes as stable as the operation of that name. It rounds differently,
    and so is not among the default passes.
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
