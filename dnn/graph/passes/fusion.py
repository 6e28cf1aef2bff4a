"""Fusing elementwise operations with each other and with the product that they read.

Values between fused operations are never written to memory. The operations `Fused` and
`ProductChain` stand for several: they are made after gradients have been written, so they have
none, and they are not in `OPERATIONS`, since each such node has an operation of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dnn.backend import Chain, Ops, empty
from dnn.backend.formula import COPY
from dnn.graph.node import Node, Shape
from dnn.graph.operation import Arrays, Operation, Step
from dnn.graph.operations.elementwise import Elementwise, formula_of
from dnn.graph.passes.graph import Graph, register_pass, rewrite
from dnn.graph.passes.simplification import dead_code

__all__ = [
    "chain_sums",
    "elementwise_fusion",
    "matmul_bias_activation",
    "products_last",
    "products_together",
]

CALLED_FOR_EACH_ELEMENT = {"log1p", "**"}
"""Functions without a vectorised routine."""

# Limits of a fused kernel: with more arrays the checks for overlaps cost more than fusing saves.
MOST_INPUTS = 8
MOST_MEMBERS = 32

PRODUCTS = ("matmul", "reduced_matmul")
SMALL_PRODUCT = 1 << 27
"""Most multiplications of a product whose operands are kept until others can be computed, too."""


class Fused(Operation):
    """A chain of elementwise operations.

    The members stand inputs before consumers, and the last one is the result; `inputs` are the
    nodes that they read from outside the chain.
    """

    name = "fused"

    def __init__(self, members: Sequence[Node], inputs: Sequence[Node]) -> None:
        self.members = tuple(members)
        places = {node: i for i, node in enumerate([*inputs, *members])}
        self.places = [tuple(places[x] for x in node.inputs) for node in members]
        self.chain: Chain = tuple(
            (formula_of(node), *operands)
            for node, operands in zip(members, self.places, strict=True)
        )
        # Element i of the result needs only element i of an input of the same shape.
        self.overwrites = tuple(range(len(inputs)))  # type: ignore[misc]

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        """Return shape and type of the last member."""
        return self.members[-1].shape, self.members[-1].dtype

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        """Return one step for the whole chain, or else the steps of its members."""
        whole = ops.chain(self.chain, arrays.inputs, arrays.out)
        return self._one_by_one(ops, arrays) if whole is None else whole

    def _one_by_one(self, ops: Ops, arrays: Arrays) -> list[Step]:
        values = list(arrays.inputs)
        steps: list[Step] = []
        for member, places in zip(self.members, self.places, strict=True):
            assert member.operation is not None
            last = member is self.members[-1]
            out = arrays.out if last else empty(ops, member.shape, member.dtype)
            workspace = [empty(ops, *wanted) for wanted in member.operation.workspace(member, ops)]
            bound = Arrays([values[place] for place in places], out, workspace)
            steps += member.operation.forward(ops, member, bound)
            values.append(out)
        return steps


def fused(members: Sequence[Node], inputs: Sequence[Node], now: Sequence[Node]) -> Node:
    """Return a node that computes all `members`, with `now` in place of `inputs`."""
    operation = Fused(members, inputs)
    shape, dtype = operation.infer(*now)
    attributes = {"chain": operation.chain}
    return Node("fused", shape, dtype, now, attributes, members[-1].name, operation)


class ProductChain(Operation):
    """``y = f(a @ b, ...)``: the product is written to the result, `f` works on it in place.

    `chain` is the elementwise node that reads the product, once.
    """

    name = "product_chain"

    def __init__(self, product: Node, chain: Node) -> None:
        self.product = product
        self.chain = chain

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        """Return shape and type of the last operation."""
        return self.chain.shape, self.chain.dtype

    def multiply_adds(self, node: Node) -> int:
        """Return those of the product."""
        assert self.product.operation is not None
        return self.product.operation.multiply_adds(self.product)

    def workspace(self, node: Node, ops: Ops) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        """Return the workspace of the chain."""
        assert self.chain.operation is not None
        return self.chain.operation.workspace(self.chain, ops)

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        """Return the steps of the product and then those of the chain."""
        assert self.product.operation is not None
        assert self.chain.operation is not None
        a, b, *operands = arrays.inputs
        rest = iter(operands)
        given = [arrays.out if x is self.product else next(rest) for x in self.chain.inputs]
        first = Arrays((a, b), arrays.out, ())
        second = Arrays(given, arrays.out, arrays.workspace)
        return [
            *self.product.operation.forward(ops, self.product, first),
            *self.chain.operation.forward(ops, self.chain, second),
        ]


def product_chain(product: Node, chain: Node) -> Node:
    """Return a node for both: its inputs are the product's, then other inputs of the chain."""
    operands = [x for x in chain.inputs if x is not product]
    attributes = chain.attributes or {"chain": ((formula_of(chain), *range(len(chain.inputs))),)}
    return Node(
        "product_chain",
        chain.shape,
        chain.dtype,
        (*product.inputs, *operands),
        attributes,
        chain.name,
        ProductChain(product, chain),
    )


@register_pass("elementwise_fusion")
def elementwise_fusion(graph: Graph) -> Graph:
    """Join elementwise operations into one where no other node reads the results between."""
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
    """Return the groups of nodes to fuse: for the last node of each group all of its nodes.

    Nodes are visited from consumers to inputs. A node joins the group that all its readers are in,
    so no path leads out of a group and back into it.
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
    """Return the nodes that members of a group read from outside it, each once."""
    inside = set(members)
    return list(dict.fromkeys(x for node in members for x in node.inputs if x not in inside))


class ChainSum(Operation):
    """The sum of a chain of elementwise operations, whose values no other node reads.

    `chain` is the node of the chain, None where an image is summed as it stands.
    """

    name = "chain_sum"

    def __init__(self, chain: Node | None, total: Node) -> None:
        self.chain = chain
        self.total = total

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        """Return one step for chain and sum, or else the steps of the chain and of the sum."""
        (x,) = self.total.inputs
        kept = (1,) * (x.ndim - node.ndim) + node.shape
        axes = tuple(i for i in range(x.ndim) if kept[i] != x.shape[i])
        out = arrays.out.reshape(kept)
        whole = ops.chain_sum(node.attributes["chain"], arrays.inputs, axes, out)
        if whole is not None:
            return whole
        if self.chain is None:
            return [(ops.sum, (arrays.inputs[0], axes, out))]
        assert self.chain.operation is not None
        values = empty(ops, x.shape, x.dtype)
        wanted = self.chain.operation.workspace(self.chain, ops)
        space = [empty(ops, *each) for each in wanted]
        steps = self.chain.operation.forward(ops, self.chain, Arrays(arrays.inputs, values, space))
        return [*steps, (ops.sum, (values, axes, out))]


IMAGE_AXES = 4
"""Only sums over arrays of at least so many axes are joined; others keep every last bit."""


@register_pass("chain_sums")
def chain_sums(graph: Graph) -> Graph:
    """Sum over images the results of elementwise operations, without writing them to memory."""
    readers = graph.readers()

    def join(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if node.kind != "sum_to" or inputs[0].ndim < IMAGE_AXES or inputs[0].dtype != node.dtype:
            return None
        (x,) = inputs
        is_chain = x.kind == "fused" or _is_fusible(x)
        if node.dtype.kind != "f" or node.operation is None:
            return None
        alone = is_chain and readers[node.inputs[0]] == 1
        alone = alone and any(each.shape == x.shape for each in x.inputs)
        operands = x.inputs if alone else (x,)
        chain: Chain = ((COPY, 0),)
        if alone:
            chain = x.attributes.get("chain") or ((formula_of(x), *range(len(x.inputs))),)
        return Node(
            "chain_sum",
            node.shape,
            node.dtype,
            operands,
            {"chain": chain},
            node.name,
            ChainSum(x if alone else None, node),
        )

    return dead_code(rewrite(graph, join))


@register_pass("matmul_bias_activation")
def matmul_bias_activation(graph: Graph) -> Graph:
    """Join a matrix product with the elementwise operations that alone read it.

    They work in place on the result of the product, right after it. Without `elementwise_fusion`
    before this pass only the first of them is joined.
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


@register_pass("products_last")
def products_last(graph: Graph) -> Graph:
    """Compute a product that is only an output, a weight's gradient, after others of its inputs.

    Then the weight has been read for the last time before its gradient is computed, and a training
    step may update it right after the product, while the gradient is in the cache.
    """
    readers = graph.readers()
    wanted = Counter(graph.outputs)
    products = [node for node in graph.order if node.kind in ("matmul", "product_chain")]
    last = {x: node for node in products for x in node.inputs[:2]}
    waiting: dict[Node, list[Node]] = {}
    for node in graph.order:
        if node.kind == "matmul" and readers[node] == wanted[node]:
            after = max((last[x] for x in node.inputs), key=graph.order.index)
            if after is not node and readers[after] != wanted[after]:
                waiting.setdefault(after, []).append(node)
    moved = {node for nodes in waiting.values() for node in nodes}
    order: list[Node] = []
    for node in graph.order:
        if node not in moved:
            order += [node, *waiting.get(node, ())]
    return replace(graph, order=tuple(order))


@register_pass("products_together")
def products_together(graph: Graph) -> Graph:
    """Compute products of one shape that are only outputs, gradients of weights, after each other.

    Then their operands are kept until all of them can be computed, which some devices do at once.
    """
    readers = graph.readers()
    wanted = Counter(graph.outputs)
    alike: dict[Any, list[Node]] = {}
    for node in graph.order:
        if node.kind not in PRODUCTS or readers[node] != wanted[node]:
            continue
        if node.size * node.inputs[0].shape[-1] <= SMALL_PRODUCT:
            operands = tuple((x.shape, x.dtype) for x in node.inputs)
            alike.setdefault((node.kind, node.dtype, operands), []).append(node)
    last = {nodes[-1]: nodes for nodes in alike.values()}
    moved = {node for nodes in alike.values() for node in nodes}
    order: list[Node] = []
    for node in graph.order:
        order += last.get(node, () if node in moved else (node,))
    return replace(graph, order=tuple(order))
