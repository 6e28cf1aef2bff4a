"""Parts of arrays: slices and rows by index, their gradients, one-hot rows, and concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.arrays import dtype_of
from dnn.backend import Array, Ops
from dnn.errors import ConfigurationError, DtypeError, ShapeError
from dnn.graph.arguments import axis_of, check_same_type, describe
from dnn.graph.node import Node, Shape, called_by_nodes, constant, nodes_of
from dnn.graph.operation import Arrays, Operation, Step, apply, register, reshaped, stack_all

__all__ = ["concat", "one_hot", "stack", "take_rows"]

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
            check_same_type(self.name, (first, x))
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


@called_by_nodes
def part(x: Node, key: Any) -> Node:
    """Return ``x[key]`` of integers, slices, None and ``...``, a view of `x` where that can be.

    Raises `ShapeError` if there are more keys than axes of `x`, an integer is out of range, the
    step of a slice is 0, or a key is of another kind.
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
            cut = _along(x, k, length)
            index.append(cut)
            shape.append(len(range(*slice(*cut).indices(length))))
        elif -length <= k < length:
            index.append((int(k) % length, int(k) % length + 1, 1))
        else:
            raise ShapeError("slice", f"{describe(x)} has no element {k}", x.shape)
    rest = x.shape[len(index) :]
    whole = all(cut == _whole(length) for cut, length in zip(index, x.shape, strict=False))
    y = x if whole else apply("slice", x, index=tuple(index))
    return reshaped(y, (*shape, *rest))


def _along(x: Node, key: slice, length: int) -> tuple[int, int | None, int]:
    """Return start, stop and step of a slice along an axis."""
    try:
        start, stop, step = key.indices(length)
    except (TypeError, ValueError) as error:  # its numbers are no integers, or its step is 0
        raise ShapeError("slice", f"{describe(x)} takes no {key!r}: {error}", x.shape) from None
    if not range(start, stop, step):  # a start of -1, before the beginning, is not the last element
        return 0, 0, 1
    return start, None if stop < 0 else stop, step


def _is_index(key: object) -> bool:
    return isinstance(key, slice | int | np.integer) and not isinstance(key, bool)


def concat(nodes: Sequence[Node], axis: int = 0) -> Node:
    """Return arrays one behind the other along an axis.

    Parameters
    ----------
    nodes : sequence of Node, at least one
        Of one type, their shapes equal but for that axis.
    axis : int
        Negative from the end.

    Returns
    -------
    Node, as long along the axis as all of them together

    Raises
    ------
    ShapeError
        If the shapes do not fit, there is no such axis, or there are no nodes.
    DtypeError
        If their types differ.
    """
    nodes = nodes_of("concat", nodes)
    if not nodes:
        raise ShapeError("concat", "there is nothing to put together")
    return apply("concat", *nodes, axis=axis_of("concat", nodes[0], axis))


def stack(nodes: Sequence[Node], axis: int = 0) -> Node:
    """Return arrays of one shape side by side along a new axis.

    Parameters
    ----------
    nodes : sequence of Node, at least one
        Of one shape and one type.
    axis : int
        Index of the new axis in the result, negative from the end.

    Returns
    -------
    Node, with one axis more, as long as there are nodes

    Raises
    ------
    ShapeError
        If the shapes differ, there is no such place for an axis, or there are no nodes.
    DtypeError
        If their types differ.
    """
    nodes = nodes_of("stack", nodes)
    if not nodes:
        raise ShapeError("stack", "there is nothing to put together")
    first = nodes[0]
    at = axis_of("stack", first, axis, new=True)
    for x in nodes:
        if x.shape != first.shape:
            message = f"{describe(first)} and {describe(x)} differ in shape"
            raise ShapeError("stack", message, first.shape, x.shape)
    return concat([reshaped(x, (*x.shape[:at], 1, *x.shape[at:])) for x in nodes], at)


@register
class TakeRows(Operation):
    """``y[i] = x[rows[i]]``; ``dx`` sums the gradients of all copies of a row."""

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


@register
class OneHot(Operation):
    """Labels (n,) of integers to rows (n, classes) of the identity matrix; no gradient."""

    name = "one_hot"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        (labels,) = inputs
        if labels.dtype != np.intp:
            raise DtypeError(f"one_hot: labels must be {np.dtype(np.intp)}, not {labels.dtype}")
        return (*labels.shape, attributes["classes"]), np.dtype(attributes["dtype"])

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        identity = ops.asarray(np.eye(node.shape[-1], dtype=node.dtype))
        return [(ops.take_rows, (identity, arrays.inputs[0], arrays.out))]

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        return apply(self.name, *inputs, **node.attributes)

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None,)


def take_rows(x: Node, rows: Node) -> Node:
    """Return rows of `x`: ``y[i] = x[rows[i]]``.

    Parameters
    ----------
    x : Node, shape (n, ...)
    rows : Node of intp
        In ``0 .. n - 1``; the caller that feeds them checks that.

    Returns
    -------
    Node, shape (*rows.shape, ...), of the type of `x`
        A row that is taken several times gets the sum of their gradients.

    Raises
    ------
    ShapeError
        If `x` has no axis.
    DtypeError
        If `rows` are not of intp.
    """
    return apply("take_rows", x, rows)


def one_hot(labels: Node, classes: int, dtype: npt.DTypeLike = np.float32) -> Node:
    """Return rows of the identity matrix, one for each label.

    Parameters
    ----------
    labels : Node of intp
        In ``0 .. classes - 1``; the caller that feeds them checks that.
    classes : int, at least 1
    dtype : type of elements of the result

    Returns
    -------
    Node of `dtype`, shape (*labels.shape, classes)
        It has no gradient.

    Raises
    ------
    ConfigurationError
        If `classes` is no integer, or less than 1.
    DtypeError
        If `labels` are not of intp, or there is no such `dtype`.
    """
    if not isinstance(classes, int | np.integer) or classes < 1:
        message = f"classes must be an integer of at least 1, not {classes!r}"
        raise ConfigurationError(f"one_hot: {message}")
    return apply("one_hot", labels, classes=int(classes), dtype=dtype_of("one_hot", dtype))
