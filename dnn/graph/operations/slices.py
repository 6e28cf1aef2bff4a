"""Parts of arrays: slices, rows, and putting parts together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.backend import Array, Ops
from dnn.errors import DtypeError, ShapeError
from dnn.graph.node import Node, Shape, constant
from dnn.graph.operation import (
    Arrays,
    Operation,
    Step,
    apply,
    describe,
    register,
    reshaped,
    stack_all,
)

__all__ = ["concat", "part", "stack", "take_rows"]

Index = tuple[tuple[int, int | None, int], ...]
"""Start, stop and step along each of the first axes; stop None: past the beginning."""


def _slices(index: Index) -> tuple[slice, ...]:
    return tuple(slice(start, stop, step) for start, stop, step in index)


def _whole(length: int) -> tuple[int, int | None, int]:
    return 0, length, 1


@register
class Slice(Operation):
    """``y = x[start:stop:step, ...]``, ``dx`` is 0 elsewhere."""

    name = "slice"
    view = True
    view_of_any = True

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        (x,) = inputs
        index: Index = attributes["index"]
        lengths = [
            len(range(*s.indices(length)))
            for s, length in zip(_slices(index), x.shape, strict=False)
        ]
        return (*lengths, *x.shape[len(index) :]), x.dtype

    def as_view(self, node: Node, array: Array) -> Array:
        view: Array = array[_slices(node.attributes["index"])]
        return view

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(ops.copy, (self.as_view(node, arrays.inputs[0]), arrays.out))]

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        return apply("slice", inputs[0], index=(_whole(models), *node.attributes["index"]))

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        shape = node.inputs[0].shape
        return (apply("unslice", dy, index=node.attributes["index"], shape=shape),)


@register
class Unslice(Operation):
    """The transpose of `slice`: zeros, except for a slice that is `x`."""

    name = "unslice"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        return attributes["shape"], inputs[0].dtype

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        part = arrays.out[_slices(node.attributes["index"])]
        return [(ops.fill, (0.0, arrays.out)), (ops.copy, (arrays.inputs[0], part))]

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        index = (_whole(models), *node.attributes["index"])
        return apply("unslice", inputs[0], index=index, shape=(models, *node.shape))

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (apply("slice", dy, index=node.attributes["index"]),)


@register
class Concat(Operation):
    """Arrays one behind the other along an axis; the gradient is cut up again."""

    name = "concat"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        axis: int = attributes["axis"]
        first = inputs[0]
        for x in inputs:
            if x.dtype != first.dtype:
                given = f"{describe(first)} of {first.dtype} and {describe(x)} of {x.dtype}"
                raise DtypeError(f"concat: {given} have different types of elements")
            if _without(x.shape, axis) != _without(first.shape, axis) or axis >= x.ndim:
                message = f"{describe(first)} and {describe(x)} do not fit along axis {axis}"
                raise ShapeError("concat", message, first.shape, x.shape)
        total = sum(x.shape[axis] for x in inputs)
        return (*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        axis = node.attributes["axis"]
        return [
            (ops.copy, (x, arrays.out[_slices(index)]))
            for x, index in zip(arrays.inputs, _parts(node, axis), strict=True)
        ]

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        axis = node.attributes["axis"] + 1
        return apply("concat", *stack_all(inputs, stacked, models), axis=axis)

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        parts = _parts(node, node.attributes["axis"])
        return [apply("slice", dy, index=index) for index in parts]


@register
class TakeRows(Operation):
    """``y[i] = x[rows[i]]``; ``dx`` is the sum of what its copies got."""

    name = "take_rows"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        x, rows = inputs
        if rows.dtype != np.intp:
            raise DtypeError(f"take_rows: rows must be {np.dtype(np.intp)}, not {rows.dtype}")
        if x.ndim < 1:
            raise ShapeError("take_rows", f"{describe(x)} has no rows", x.shape)
        return (*rows.shape, *x.shape[1:]), x.dtype

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(ops.take_rows, (*arrays.inputs, arrays.out))]

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        x, rows = inputs
        if stacked[0]:  # the rows of all models, one model behind the other
            x, rows = _flat_rows(x, stack_all([rows], stacked[1:], models)[0])
        return apply("take_rows", x, rows)

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        x, rows = node.inputs
        return apply("add_rows", dy, rows, count=x.shape[0]), None


@register
class AddRows(Operation):
    """The transpose of `take_rows`: zeros, to which ``y[rows[i]] += x[i]``."""

    name = "add_rows"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        x, rows = inputs
        return (attributes["count"], *x.shape[rows.ndim :]), x.dtype

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(ops.add_rows, (*arrays.inputs, arrays.out))]

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        x, rows = stack_all(inputs, stacked, models)
        count = node.attributes["count"]
        offsets = np.arange(models).reshape(models, *(1,) * (rows.ndim - 1)) * count
        y = apply("add_rows", x, rows + offsets, count=models * count)
        return reshaped(y, (models, *node.shape))

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return apply("take_rows", dy, node.inputs[1]), None


def _flat_rows(x: Node, rows: Node) -> tuple[Node, Node]:
    """Turn rows of x[k] into rows of x with its first two axes made one."""
    models, count = x.shape[:2]
    offsets = np.arange(models).reshape(models, *(1,) * (rows.ndim - 1)) * count
    return reshaped(x, (models * count, *x.shape[2:])), rows + constant(offsets, np.intp)


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])


def _parts(node: Node, axis: int) -> list[Index]:
    """Return the slice of a concatenation that each of its inputs takes."""
    parts: list[Index] = []
    start = 0
    for x in node.inputs:
        stop = start + x.shape[axis]
        parts.append((*(_whole(n) for n in node.shape[:axis]), (start, stop, 1)))
        start = stop
    return parts


def part(x: Node, key: Any) -> Node:
    """Return ``x[key]`` of integers, slices, None and ``...``.

    Parameters
    ----------
    x : Node
    key : int, slice, None, Ellipsis, or a tuple of them

    Returns
    -------
    Node

    Raises
    ------
    ShapeError
        If there are more than `x` has axes, or an integer is out of range.
    """
    keys = list(key) if isinstance(key, tuple) else [key]
    if any(k is not None and k is not ... and not _is_index(k) for k in keys):
        raise ShapeError("slice", f"{describe(x)} takes integers and slices, not {key!r}", x.shape)
    named = sum(k is not None and k is not ... for k in keys)
    if named > x.ndim or keys.count(...) > 1:
        raise ShapeError("slice", f"{describe(x)} has fewer axes than {key!r}", x.shape)
    if ... in keys:
        at = keys.index(...)
        keys[at : at + 1] = [slice(None)] * (x.ndim - named)
    index: list[tuple[int, int | None, int]] = []
    shape: list[int] = []
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        length = x.shape[len(index)]
        if isinstance(k, slice):
            start, stop, step = k.indices(length)
            index.append((start, None if stop < 0 else stop, step))
            shape.append(len(range(start, stop, step)))
        elif -length <= k < length:
            index.append((int(k) % length, int(k) % length + 1, 1))
        else:
            raise ShapeError("slice", f"{describe(x)} has no element {k}", x.shape)
    rest = x.shape[len(index) :]
    whole = all(one == _whole(length) for one, length in zip(index, x.shape, strict=False))
    y = x if whole else apply("slice", x, index=tuple(index))
    return reshaped(y, (*shape, *rest))


def _is_index(key: object) -> bool:
    return isinstance(key, slice | int | np.integer) and not isinstance(key, bool)


def concat(nodes: Sequence[Node], axis: int = 0) -> Node:
    """Return arrays one behind the other along an axis.

    Parameters
    ----------
    nodes : sequence of Node, at least one
        Of one type, their shapes equal but for that axis.
    axis : int

    Returns
    -------
    Node

    Raises
    ------
    ShapeError
        If the shapes do not fit, or there is no such axis.
    """
    if not nodes:
        raise ShapeError("concat", "there is nothing to put together")
    if not -nodes[0].ndim <= axis < nodes[0].ndim:
        raise ShapeError("concat", f"{describe(nodes[0])} has no axis {axis}", nodes[0].shape)
    return apply("concat", *nodes, axis=axis % nodes[0].ndim)


def stack(nodes: Sequence[Node], axis: int = 0) -> Node:
    """Return arrays of one shape along a new axis; parameters as in `concat`."""
    if nodes and not -nodes[0].ndim - 1 <= axis <= nodes[0].ndim:
        raise ShapeError("stack", f"{describe(nodes[0])} has no place {axis}", nodes[0].shape)
    at = axis % (nodes[0].ndim + 1) if nodes else 0
    return concat([reshaped(x, (*x.shape[:at], 1, *x.shape[at:])) for x in nodes], at)


def take_rows(x: Node, rows: Node) -> Node:
    """Return rows of `x`: ``y[i] = x[rows[i]]``.

    Parameters
    ----------
    x : Node, shape (n, ...)
    rows : Node of intp
        In ``0 .. n - 1``; whoever feeds them checks that.

    Returns
    -------
    Node, shape (*rows.shape, ...)
    """
    return apply("take_rows", x, rows)
