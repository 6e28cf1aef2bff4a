"""Fusing elementwise operations with each other and with the product that they read.

What is between them is never written to memory.
"""

from __future__ import annotations

from dnn.graph.fused import fused, product_chain
from dnn.graph.node import Node
from dnn.graph.operations.elementwise import Elementwise
from dnn.graph.passes.graph import Graph, rewrite
from dnn.graph.passes.registry import register_pass
from dnn.graph.passes.structure import dead_code

__all__ = ["elementwise_fusion", "matmul_bias_activation"]

CALLED_FOR_EACH_ELEMENT = {"log1p", "**"}
"""They have no routine of vectors."""

# What a kernel may take: with more arrays the checks for overlaps outweigh what fusing saves.
MOST_INPUTS = 8
MOST_MEMBERS = 32


@register_pass("elementwise_fusion")
def elementwise_fusion(graph: Graph) -> Graph:
    """Join elementwise operations whose results nobody else reads into one."""
    groups = _groups(graph)
    now: dict[Node, Node] = {}

    def fuse(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        now.update(zip(node.inputs, inputs, strict=True))
        if node not in groups:
            return None
        # In the order of computation; the node itself comes last.
        members = groups[node]
        outside = _outside(members)
        return fused(members, outside, [now[x] for x in outside])

    return dead_code(rewrite(graph, fuse))


def _groups(graph: Graph) -> dict[Node, list[Node]]:
    """Return what to fuse: for the last node of each group all of its nodes.

    From consumers to inputs. A node joins the group that all its readers are in, so no way leads
    out of a group and back into it.
    """
    readers: dict[Node, set[Node]] = {}
    for node in graph.order:
        for x in node.inputs:
            readers.setdefault(x, set()).add(node)
    wanted = set(graph.outputs)
    group_of: dict[Node, Node] = {}
    groups: dict[Node, list[Node]] = {}
    for node in reversed(graph.order):
        if not _is_fusible(node):
            continue
        roots = {group_of.get(reader) for reader in readers.get(node, ())}
        root = next(iter(roots)) if len(roots) == 1 and node not in wanted else None
        if root is not None and root.shape == node.shape and root.dtype == node.dtype:
            members = [node, *groups[root]]
            if len(members) <= MOST_MEMBERS and len(_outside(members)) <= MOST_INPUTS:
                group_of[node] = root
                groups[root] = members
                continue
        group_of[node] = node
        groups[node] = [node]
    return {root: members for root, members in groups.items() if len(members) > 1}


def _is_fusible(node: Node) -> bool:
    """Say whether a node may be part of a chain: elementwise, of floats of one type.

    A function that is called for each element would keep the rest of a chain out of vector
    registers.
    """
    return (
        isinstance(node.operation, Elementwise)
        and not node.operation.formula.functions & CALLED_FOR_EACH_ELEMENT
        and not node.attributes
        and node.dtype.kind == "f"
        and all(x.dtype == node.dtype for x in node.inputs)
    )


def _outside(members: list[Node]) -> list[Node]:
    """Return what members need besides each other, each once."""
    inside = set(members)
    return list(dict.fromkeys(x for node in members for x in node.inputs if x not in inside))


@register_pass("matmul_bias_activation")
def matmul_bias_activation(graph: Graph) -> Graph:
    """Join a matrix product with the elementwise operations that alone read it.

    They work in place on what the product has written, right behind it. It takes
    `elementwise_fusion` before it to join more than the first of them.
    """
    readers = graph.readers()

    def join(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        operation = node.operation
        if operation is None or not (node.kind == "fused" or _is_fusible(node)):
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
