"""Memory layout of a plan: the offset of each node's result in the arena.

It is decided before any array exists: the result is offsets, and `Plan` makes the arrays. Three
rules save memory, and so keep more of it in the cache:

- a view takes no memory of its own;
- a result takes the memory of an input that no node reads afterwards, where the operation allows
  it: product, bias and activation of a layer end up in one buffer;
- memory whose last reader has run goes to the next node that fits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from dnn.backend import ALIGNMENT_BYTES, Ops
from dnn.errors import ConfigurationError
from dnn.graph.node import PLACEHOLDER, Node, topological_order

__all__ = ["Layout", "assignments_last", "lay_out"]


@dataclass
class Layout:
    """Where results and workspaces of nodes stand in the arena.

    Attributes
    ----------
    order : list of Node
        In the order of computation.
    offsets : dict of Node to int, bytes
        For each node with memory in the arena, shared or its own.
    workspaces : dict of Node to list of int, bytes
    views : set of Node
        Nodes that are views of their input 0.
    size_bytes : int
        Of the whole arena.
    """

    order: list[Node]
    offsets: dict[Node, int] = field(default_factory=dict)
    workspaces: dict[Node, list[int]] = field(default_factory=dict)
    views: set[Node] = field(default_factory=set)
    size_bytes: int = 0


def lay_out(
    outputs: Sequence[Node],
    external: Collection[Node],
    order: Sequence[Node] | None = None,
    reuse: bool = True,
    strided: Collection[Node] = (),
    ops: Ops | None = None,
) -> Layout:
    """Return where the result of each node stands in the arena.

    Parameters
    ----------
    outputs : sequence of Node
        They, and placeholders, keep their memory to the end.
    external : collection of Node
        Nodes whose array is given: parameters, and gradients that go to a buffer of their own.
    order : sequence of Node, optional
        The nodes to compute, inputs before consumers; those that `outputs` need if left out.
    reuse : bool
        Whether memory whose last reader has run goes to another node. Without it, every node
        that is no view keeps its value until the next replay.
    strided : collection of Node
        Nodes of `external` whose elements lie apart along the first axis, as a parameter of K
        models does in a buffer with a row for each.
    ops : Ops, optional
        Its workspaces are laid out; NumPy's if left out.
    """
    ops = ops or Ops()
    layout = Layout(assignments_last(topological_order(outputs) if order is None else order))
    layout.views = _views(layout.order, external, strided)
    last_reader = _last_readers(layout, outputs if reuse else layout.order)
    space = _Space()
    owner: dict[int, Node] = {}  # offset -> the node whose value stands there now

    # Placeholders come first, for they are filled before the first step, whenever they are read.
    for node in layout.order:
        if node.kind == PLACEHOLDER and node not in external:
            layout.offsets[node] = space.take(node_bytes(node))
    for step, node in enumerate(layout.order):
        if node.operation is not None and node not in layout.views:
            if node not in external:
                offset = _overwritable(node, step, layout, last_reader)
                if offset is None:
                    offset = space.take(node_bytes(node))
                layout.offsets[node] = offset
                owner[offset] = node
            sizes = [
                _bytes(math.prod(shape) * dtype.itemsize)
                for shape, dtype in node.operation.workspace(node, ops)
            ]
            offsets = [space.take(size) for size in sizes]
            layout.workspaces[node] = offsets
            for offset, size in zip(offsets, sizes, strict=True):
                space.give_back(offset, size)
        for offset, holder in list(owner.items()):
            if last_reader[holder] <= step:
                space.give_back(offset, node_bytes(holder))
                del owner[offset]
    layout.size_bytes = space.size_bytes
    return layout


def assignments_last(order: Sequence[Node]) -> list[Node]:
    """Return the order with assignments to variables behind all nodes that may read them."""
    late = [node for node in order if node.operation is not None and node.operation.assigns]
    if not late:
        return list(order)
    moved = set(late)
    for node in order:
        for x in node.inputs:
            if x in moved:
                raise ConfigurationError(f"{node!r} reads {x!r}: read what is assigned instead")
    return [*(node for node in order if node not in moved), *late]


def node_bytes(node: Node) -> int:
    """Return the size of a node in the arena, in bytes, a multiple of the alignment."""
    return _bytes(node.size * node.dtype.itemsize)


def _bytes(size: int) -> int:
    return max(1, -(-size // ALIGNMENT_BYTES)) * ALIGNMENT_BYTES


def _views(
    order: Sequence[Node], external: Collection[Node], strided: Collection[Node]
) -> set[Node]:
    """Return the nodes that can be views.

    A view of a transpose or a slice has to be a transpose or a slice too, or add or remove axes of
    length 1. A view of an array whose rows lie apart may change the shape of the rows. A transpose
    or a slice is no view where an operation wants it to be contiguous.
    """
    contiguous = {
        node.inputs[i]
        for node in order
        if node.operation is not None
        for i in node.operation.contiguous
        if i < len(node.inputs)
    }
    views: set[Node] = set()
    scattered: set[Node] = set()
    apart = set(strided)
    for node in order:
        if node.operation is None or not node.operation.view or node in external:
            continue
        base = node.inputs[0]
        if node.operation.view_of_any or (base in scattered and _only_units_change(base, node)):
            if node in contiguous:
                continue
            views.add(node)
            scattered.add(node)
        elif base in apart:
            if node.shape[:1] == base.shape[:1]:
                views.add(node)
                apart.add(node)
        elif base not in scattered:
            views.add(node)
    return views


def _only_units_change(base: Node, node: Node) -> bool:
    """Say whether only axes of length 1 come or go, so that it is a view of any array."""
    return [n for n in base.shape if n != 1] == [n for n in node.shape if n != 1]


def _last_readers(layout: Layout, outputs: Sequence[Node]) -> dict[Node, float]:
    """Return for each node the last step that reads its memory, directly or through views."""
    last: dict[Node, float] = {node: step for step, node in enumerate(layout.order)}
    for step, node in enumerate(layout.order):
        for x in node.inputs:
            last[x] = max(last[x], step)
    for node in outputs:
        last[node] = math.inf
    for node in reversed(layout.order):
        if node in layout.views:
            base = node.inputs[0]
            last[base] = max(last[base], last[node])
    return last


def _overwritable(
    node: Node, step: int, layout: Layout, last_reader: dict[Node, float]
) -> int | None:
    """Return the offset of an input whose memory the result may take, or None."""
    assert node.operation is not None
    for index, x in enumerate(node.inputs):
        if (
            index in node.operation.overwrites
            and not any(_base(other, layout) is x for other in node.inputs if other is not x)
            and x.operation is not None
            and x in layout.offsets
            and last_reader[x] == step
            and (x.shape, x.dtype) == (node.shape, node.dtype)
        ):
            return layout.offsets[x]
    return None


def _base(node: Node, layout: Layout) -> Node:
    """Return the node in whose memory a view stands; `node` itself if it is no view."""
    while node in layout.views:
        node = node.inputs[0]
    return node


class _Space:
    """Allocator of offsets in the arena: first fit in a list of gaps, else at the end."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._gaps: list[tuple[int, int]] = []  # (offset, size), sorted, never adjacent

    def take(self, size: int) -> int:
        for i, (offset, gap) in enumerate(self._gaps):
            if gap >= size:
                self._gaps[i : i + 1] = [(offset + size, gap - size)] if gap > size else []
                return offset
        if self._gaps and sum(self._gaps[-1]) == self.size_bytes:
            offset, _ = self._gaps.pop()
        else:
            offset = self.size_bytes
        self.size_bytes = offset + size
        return offset

    def give_back(self, offset: int, size: int) -> None:
        merged: list[tuple[int, int]] = []
        for gap in sorted([*self._gaps, (offset, size)]):
            if merged and sum(merged[-1]) == gap[0]:
                merged[-1] = (merged[-1][0], merged[-1][1] + gap[1])
            else:
                merged.append(gap)
        self._gaps = merged
