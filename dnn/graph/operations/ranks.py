"""Sums over ranks as nodes, for layers whose units are split over several ranks.

Every rank composes the same graph, so that all ranks call the sums in the same order. `Ranks` is
the part of a communicator of `dnn.distributed` that they need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from dnn.backend import Array, Ops
from dnn.graph.node import Node, Shape
from dnn.graph.operation import Arrays, Operation, Step, apply, register

__all__ = ["Ranks", "copy_to_ranks", "sum_over_ranks"]


class Ranks(Protocol):
    """Protocol of a communicator that sums arrays over its ranks."""

    def sum(self, array: Array) -> None:
        """Replace an array by its sum over all ranks, in place; all get the same bits."""


class OverRanks(Operation):
    """Base class: the result has the shape and type of `x`, for any number of models."""

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        return inputs[0].shape, inputs[0].dtype

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        return apply(self.name, *inputs, **node.attributes)


@register
class SumOverRanks(OverRanks):
    """The sum of `x` over ranks, the same on all of them.

    Where each rank goes on to compute a loss of its own, and the sum of these is differentiated,
    the gradient is summed over ranks too. Where all ranks compute the same loss (`alike`), the
    gradient is `dy` as it is.
    """

    name = "sum_over_ranks"
    overwrites = (0,)
    pure = False

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        x, out = arrays.inputs[0], arrays.out
        return [(ops.copy, (x, out)), (node.attributes["ranks"].sum, (out,))]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy if node.attributes["alike"] else apply(self.name, dy, **node.attributes),)


@register
class CopyToRanks(OverRanks):
    """`x`, which is the same on all ranks, for a different computation on each.

    The gradient is the sum of the gradients that arrive on all ranks.
    """

    name = "copy_to_ranks"
    view = True

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(ops.copy, (arrays.inputs[0], arrays.out))]

    def as_view(self, node: Node, array: Array) -> Array:
        return array

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (apply("sum_over_ranks", dy, ranks=node.attributes["ranks"], alike=True),)


def sum_over_ranks(x: Node, ranks: Ranks, *, alike: bool = False) -> Node:
    """Return the sum of `x` over ranks.

    Parameters
    ----------
    x : Node
        Of the same shape on all ranks.
    ranks : Ranks
        Such as a `Communicator`.
    alike : bool
        Whether all ranks compute the same loss from it; else each has a loss of its own, and the
        gradient is that of the sum of losses.

    Returns
    -------
    Node, of the shape and type of `x`
        The same bits on all ranks.
    """
    return apply("sum_over_ranks", x, ranks=ranks, alike=alike)


def copy_to_ranks(x: Node, ranks: Ranks) -> Node:
    """Return `x`, the same on all ranks, with a gradient that is summed over ranks.

    Parameters
    ----------
    x : Node
        The same on all ranks.
    ranks : Ranks

    Returns
    -------
    Node, of the shape and type of `x`
        Its gradient is summed over ranks.

    References
    ----------
    .. [1] Shoeybi et al., Megatron-LM: Training multi-billion parameter language models using model
       parallelism, 2019, section 3: f, and g is `sum_over_ranks`.
    """
    return apply("copy_to_ranks", x, ranks=ranks)
