"""Operations that stand for several: a chain of elementwise ones, and a product with such a chain.

They are made by passes, after gradients have been written, so they have none; and they are in no
table, since each such node has an operation of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.backend import Array, Chain, Ops
from dnn.graph.node import Node, Shape
from dnn.graph.operation import Arrays, Operation, Step
from dnn.graph.operations.elementwise import formula_of

__all__ = ["Fused", "ProductChain", "fused", "product_chain"]


class Fused(Operation):
    """A chain of elementwise operations.

    Parameters
    ----------
    members : sequence of Node
        What was fused, inputs before consumers; the last one is the result.
    inputs : sequence of Node
        What they need from outside.
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
        """Return the chain in one piece, or else the steps of its members."""
        whole = ops.chain(self.chain, arrays.inputs, arrays.out)
        return self._one_by_one(ops, arrays) if whole is None else whole

    def _one_by_one(self, ops: Ops, arrays: Arrays) -> list[Step]:
        values = list(arrays.inputs)
        steps: list[Step] = []
        for member, places in zip(self.members, self.places, strict=True):
            assert member.operation is not None
            last = member is self.members[-1]
            out = arrays.out if last else _new(ops, member.shape, member.dtype)
            workspace = [_new(ops, *wanted) for wanted in member.operation.workspace(member)]
            bound = Arrays([values[place] for place in places], out, workspace)
            steps += member.operation.forward(ops, member, bound)
            values.append(out)
        return steps


def fused(members: Sequence[Node], inputs: Sequence[Node], now: Sequence[Node]) -> Node:
    """Return a node that does what `members` do, with `now` in place of `inputs`."""
    operation = Fused(members, inputs)
    shape, dtype = operation.infer(*now)
    attributes = {"chain": operation.chain}
    return Node("fused", shape, dtype, now, attributes, members[-1].name, operation)


class ProductChain(Operation):
    """``y = f(a @ b, ...)``: the product is written to the result, `f` works on it in place.

    Parameters
    ----------
    product, chain : Node
        The product, and what is done to it: elementwise, reading it once.
    """

    name = "product_chain"

    def __init__(self, product: Node, chain: Node) -> None:
        self.product = product
        self.chain = chain

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        """Return shape and type of the last operation."""
        return self.chain.shape, self.chain.dtype

    def workspace(self, node: Node) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        """Return what the operations on the elements need."""
        assert self.chain.operation is not None
        return self.chain.operation.workspace(self.chain)

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        """Return the steps of both."""
        assert self.product.operation is not None
        assert self.chain.operation is not None
        a, b, *others = arrays.inputs
        rest = iter(others)
        given = [arrays.out if x is self.product else next(rest) for x in self.chain.inputs]
        first = Arrays((a, b), arrays.out, ())
        second = Arrays(given, arrays.out, arrays.workspace)
        return [
            *self.product.operation.forward(ops, self.product, first),
            *self.chain.operation.forward(ops, self.chain, second),
        ]


def product_chain(product: Node, chain: Node) -> Node:
    """Return a node that does what both do; its inputs are the product's, then the others."""
    others = [x for x in chain.inputs if x is not product]
    attributes = chain.attributes or {"chain": ((formula_of(chain), *range(len(chain.inputs))),)}
    return Node(
        "product_chain",
        chain.shape,
        chain.dtype,
        (*product.inputs, *others),
        attributes,
        chain.name,
        ProductChain(product, chain),
    )


def _new(ops: Ops, shape: Shape, dtype: np.dtype[Any]) -> Array:
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return ops.memory(size).view(dtype).reshape(shape)
