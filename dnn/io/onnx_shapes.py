"""Operators of ONNX that change shapes, or take, move and repeat elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from dnn.backend import Array
from dnn.graph import operations as graph
from dnn.graph.node import PLACEHOLDER, Node, constant
from dnn.graph.operation import apply
from dnn.io.onnx_reductions import part_along, repeated
from dnn.io.onnx_trace import LARGEST_COMPUTED, LARGEST_KNOWN, Call, FixedBatch, operator

__all__ = ["take"]

# -- shapes ----------------------------------------------------------------------------------------


@operator("Shape")
def _shape(call: Call) -> Array:
    shape = call.shape()
    return np.array(shape[call.get("start", 0) : call.get("end", len(shape))], np.int64)


@operator("Size")
def _size(call: Call) -> Array:
    return np.array(math.prod(call.shape()), np.int64)


@operator("Reshape")
def _reshape(call: Call) -> Node:
    x = call.node()
    wanted = call.integers("shape", 1) or []
    if not call.get("allowzero", 0):
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    return graph.reshape(x, call.trace.for_batch(x, wanted))


@operator("Flatten")
def _flatten(call: Call) -> Node:
    x, axis = call.node(), int(call.get("axis", 1))
    rows = math.prod(x.shape[:axis])
    return graph.reshape(x, (rows, x.size // rows if rows else math.prod(x.shape[axis:])))


@operator("Squeeze")
def _squeeze(call: Call) -> Node:
    return graph.squeeze(call.node(), call.integers("axes", 1))


@operator("Unsqueeze")
def _unsqueeze(call: Call) -> Node:
    x, axes = call.node(), call.integers("axes", 1) or []
    ndim = x.ndim + len(axes)
    lengths = iter(x.shape)
    new = {n % ndim for n in axes}
    return graph.reshape(x, [1 if i in new else next(lengths) for i in range(ndim)])


@operator("Transpose")
def _transpose(call: Call) -> Node:
    x = call.node()
    order = call.get("perm", list(range(x.ndim))[::-1])
    return x if list(order) == list(range(x.ndim)) else graph.transpose(x, order)


@operator("Expand")
def _expand(call: Call) -> Node:
    x, wanted = call.node(), call.integers("shape", 1) or []
    stated, given = call.trace.batch or (0, 0)
    if stated != given and stated in wanted:
        if len(wanted) != x.ndim or wanted[0] != stated or x.shape[0] != given:
            raise FixedBatch
        wanted = [given, *wanted[1:]]
    return graph.broadcast_to(x, np.broadcast_shapes(x.shape, wanted))


@operator("Tile")
def _tile(call: Call) -> Node:
    x, times = call.node(), call.integers("repeats", 1) or []
    return x if set(times) == {1} else graph.tile(x, times)


@operator("DepthToSpace")
def _depth_to_space(call: Call) -> Node:
    x, n = call.node(), int(call.get("blocksize"))
    images, channels, height, width = x.shape
    kept = channels // (n * n)
    if call.get("mode", "DCR") == "DCR":
        shape, order = (images, n, n, kept, height, width), (0, 3, 4, 1, 5, 2)
    else:
        shape, order = (images, kept, n, n, height, width), (0, 1, 4, 2, 5, 3)
    apart = graph.transpose(graph.reshape(x, shape), order)
    return graph.reshape(apart, (images, kept, height * n, width * n))


@operator("SpaceToDepth")
def _space_to_depth(call: Call) -> Node:
    x, n = call.node(), int(call.get("blocksize"))
    images, channels, height, width = x.shape
    apart = graph.reshape(x, (images, channels, height // n, n, width // n, n))
    dcr = call.get("mode", "DCR") == "DCR"
    moved = graph.transpose(apart, (0, 3, 5, 1, 2, 4) if dcr else (0, 1, 3, 5, 2, 4))
    return graph.reshape(moved, (images, channels * n * n, height // n, width // n))


# -- parts -----------------------------------------------------------------------------------------


@operator("Concat")
def _concat(call: Call) -> Node:
    several = [x for x in call.nodes() if x.size] or call.nodes()[:1]
    axis = call.axis(1)
    return several[0] if len(several) == 1 else graph.concat(several, axis)


@operator("Split")
def _split(call: Call) -> list[Node]:
    x, axis = call.node(), call.axis(0)
    parts = call.integers("split", 1)
    if parts is None:
        count = int(call.get("num_outputs", len(call.results)))
        each = -(-x.shape[axis] // count)
        parts = [min(each, x.shape[axis] - i * each) for i in range(count)]
    if sum(parts) != x.shape[axis] or min(parts) < 0:
        raise ValueError(f"parts of {parts} along an axis of {x.shape[axis]}")
    ends = np.cumsum(parts).tolist()
    pairs = zip(parts, ends, strict=True)
    return [part_along(x, axis, slice(end - n, end)) for n, end in pairs]


@operator("Slice")
def _slice(call: Call) -> Node:
    x = call.node()
    starts, ends = call.integers("starts", 1) or [], call.integers("ends", 2) or []
    axes = call.integers("axes", 3) or list(range(len(starts)))
    steps = call.integers("steps", 4) or [1] * len(starts)
    keys = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        n = x.shape[axis]
        if step < 0:
            start = min(start + n if start < 0 else start, n - 1)
            end = end + n if end < 0 else min(end, n)
            keys[axis] = slice(start, end if end >= 0 else None, step)
            if start < 0:
                keys[axis] = slice(0, 0)
        else:
            keys[axis] = slice(start, end, step)
    return x[tuple(keys)]


def _from_start(indices: Node, lengths: Array | int) -> Node:
    """Return indices of which some count from the end as such that do not."""
    ends = constant(np.asarray(lengths), np.intp)
    return graph.where(graph.greater(constant(0, np.intp), indices), indices + ends, indices)


def take(x: Node, indices: Node | Array, axis: int) -> Node:
    """Return parts of `x` along an axis: a slice where the known `indices` are in sequence.

    Indices are integers of any shape, negative ones from the end; known ones are checked. Their
    axes are in the place of the axis.
    """
    n = x.shape[axis]
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    if isinstance(indices, Node):
        whole = graph.cast(indices, np.intp)
        rows = graph.clip(_from_start(whole, n), 0, max(0, n - 1))  # others would be read beyond x
    else:
        known = np.asarray(indices, np.intp)
        if known.size and not -n <= known.min() <= known.max() < n:
            raise IndexError(f"an index of {known.min()} .. {known.max()} along an axis of {n}")
        flat = np.where(known < 0, known + n, known).ravel()
        steps = set(np.diff(flat).tolist())
        if len(steps) < 2 and 0 not in steps and flat.size:
            step = steps.pop() if steps else 1
            stop = int(flat[-1]) + step
            part = slice(int(flat[0]), stop if stop >= 0 else None, step)
            return graph.reshape(part_along(x, axis, part), shape)
        rows = constant(flat.reshape(known.shape), np.intp)
    if axis == 0:
        return graph.take_rows(x, rows)
    order = [axis, *(i for i in range(x.ndim) if i != axis)]
    taken = graph.take_rows(graph.transpose(x, order), rows)
    front = list(range(rows.ndim))
    rest = list(range(rows.ndim, taken.ndim))
    return graph.transpose(taken, [*rest[:axis], *front, *rest[axis:]])


@operator("Gather")
def _gather(call: Call) -> Node:
    x, axis = call.node(0), call.axis(0)
    if call.is_known(1):
        return take(x, call.known(1), axis)
    given = indices = call.node(1)
    while given.kind == "cast":
        given = given.inputs[0]
    if given.kind == PLACEHOLDER:
        call.trace.ranges.append((given, -x.shape[axis], x.shape[axis] - 1))
    return take(x, indices, axis)


def _integers(call: Call, index: int) -> Node:
    """Return an input of integers as a node of the type of indices."""
    return graph.cast(call.node(index), np.intp)


def _flat_elements(call: Call, x: Node, axis: int) -> Node:
    """Return the place of each element of GatherElements and ScatterElements in the flat value."""
    rows = _from_start(_integers(call, 1), x.shape[axis])
    strides = [math.prod(x.shape[i + 1 :]) for i in range(x.ndim)]
    grid = np.zeros(rows.shape, np.intp)
    for i, places in enumerate(np.indices(rows.shape, np.intp, sparse=True)):
        if i != axis:
            grid = grid + places * strides[i]
    return rows * strides[axis] + constant(grid, np.intp)


@operator("GatherElements")
def _gather_elements(call: Call) -> Node:
    x = call.node(0)
    return graph.take_rows(graph.reshape(x, (-1,)), _flat_elements(call, x, call.axis(0)))


def _flat_parts(call: Call, shape: Sequence[int]) -> tuple[Node, int]:
    """Return the number of the part that each index of GatherND names, and the axes of one."""
    indices = _integers(call, 1)
    depth = indices.shape[-1]
    strides = [math.prod(shape[i + 1 : depth]) for i in range(depth)]
    rows = _from_start(indices, np.array(shape[:depth]))
    return graph.sum(rows * constant(np.array(strides), np.intp), -1), depth


@operator("GatherND")
def _gather_parts(call: Call) -> Node:
    x = call.node(0)
    batch = int(call.get("batch_dims", 0))
    rows, depth = _flat_parts(call, x.shape[batch:])
    count = math.prod(x.shape[batch : batch + depth])
    if batch:
        several = math.prod(x.shape[:batch])
        offsets = np.arange(several).reshape(*x.shape[:batch], *(1,) * (rows.ndim - batch)) * count
        rows, count = rows + constant(offsets, np.intp), several * count
    return graph.take_rows(graph.reshape(x, (count, *x.shape[batch + depth :])), rows)


def _scattered(call: Call, x: Node, rows: Node, updates: Node, parts: Node) -> Node:
    """Return `parts` of `x` with updates in place of the rows that are named."""
    how = call.get("reduction", "none")
    if how not in ("none", "add"):
        call.refuse(f"reduction = {how!r} is not supported")
    given = graph.reshape(updates, (rows.size, *parts.shape[1:]))
    flat = graph.reshape(rows, (-1,))
    added = apply("add_rows", given, flat, count=parts.shape[0])
    if how == "add":
        return graph.reshape(parts + added, x.shape)
    ones = constant(np.ones(rows.size), np.float32)
    times = apply("add_rows", ones, flat, count=parts.shape[0])
    if call.is_known(1):
        named = call.known(1).reshape(-1, call.shape(1)[-1])
        if call.kind == "ScatterND" and len(np.unique(named, axis=0)) != len(named):
            call.refuse("an element that is written twice is not supported")
    replaced = graph.greater(times, constant(0.5, np.float32))
    replaced = graph.reshape(replaced, (-1, *(1,) * (parts.ndim - 1)))
    return graph.reshape(graph.where(replaced, added, parts), x.shape)


@operator("ScatterND")
def _scatter_parts(call: Call) -> Node:
    x = call.node(0)
    rows, depth = _flat_parts(call, x.shape)
    parts = graph.reshape(x, (math.prod(x.shape[:depth]), *x.shape[depth:]))
    return _scattered(call, x, rows, call.node(2), parts)


@operator("ScatterElements", "Scatter")
def _scatter_elements(call: Call) -> Node:
    x = call.node(0)
    rows = _flat_elements(call, x, call.axis(0))
    return _scattered(call, x, rows, call.node(2), graph.reshape(x, (-1,)))


@operator("OneHot")
def _one_hot(call: Call) -> Node:
    depth, ends = int(call.known(1).item()), call.node(2)
    if depth > LARGEST_KNOWN:
        call.refuse(f"more than {LARGEST_KNOWN} classes")
    indices = _from_start(_integers(call, 0), depth)
    axis = int(call.get("axis", -1)) % (indices.ndim + 1)
    numbers = constant(np.arange(depth), np.intp)
    hot = graph.equal(graph.expand_dims(indices, -1), numbers)
    values = graph.where(hot, ends[1], ends[0])
    order = list(range(indices.ndim))
    return graph.transpose(values, [*order[:axis], indices.ndim, *order[axis:]])


@operator("Trilu")
def _triangle(call: Call) -> Node:
    x = call.node()
    k = int(call.known(1).item()) if call.has(1) else 0
    ones = np.ones(x.shape[-2:], bool)
    kept = np.triu(ones, k) if call.get("upper", 1) else np.tril(ones, k)
    return graph.where(constant(kept, bool), x, constant(0, x.dtype))


@operator("ReverseSequence")
def _reversed(call: Call) -> Node:
    x, lengths = call.node(), call.known(1)
    time, batch = int(call.get("time_axis", 0)), int(call.get("batch_axis", 1))
    steps = np.arange(x.shape[time])[:, None]
    order = np.where(steps < lengths, lengths - 1 - steps, steps)  # (steps, batch)
    shape = [1] * x.ndim
    shape[time], shape[batch] = order.shape
    grid = list(np.indices(x.shape, np.intp, sparse=True))
    grid[time] = (order if time < batch else order.T).reshape(shape)
    flat = np.ravel_multi_index(np.broadcast_arrays(*grid), x.shape)
    return graph.take_rows(graph.reshape(x, (-1,)), constant(flat, np.intp))


# -- padding and interpolation ---------------------------------------------------------------------


def padded(x: Node, pads: Sequence[tuple[int, int]], value: Any = 0) -> Node:
    """Return `x` with a value around it, `pads` before and behind along each axis."""
    for axis, (before, behind) in enumerate(pads):
        parts = [x]
        for count, at in ((before, 0), (behind, 1)):
            if count > 0:
                shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
                filled = value if isinstance(value, Node) else constant(value, x.dtype)
                parts.insert(at * len(parts), graph.broadcast_to(filled, shape))
        x = graph.concat(parts, axis) if len(parts) > 1 else x
    return x


@operator("Pad")
def _pad(call: Call) -> Node:
    x, mode = call.node(), call.get("mode", "constant")
    given = call.integers("pads", 1) or []
    axes = [n % x.ndim for n in call.integers("axes", 3) or range(x.ndim)]
    ends = {axis: (given[i], given[i + len(axes)]) for i, axis in enumerate(axes)}
    pads = [ends.get(axis, (0, 0)) for axis in range(x.ndim)]
    for axis, (before, behind) in enumerate(pads):
        if min(before, behind) < 0:
            n = x.shape[axis]
            inside = slice(max(0, -before), n - max(0, -behind))
            x = part_along(x, axis, inside)
    pads = [(max(0, before), max(0, behind)) for before, behind in pads]
    if mode == "constant":
        if call.has(2) and not call.is_known(2):
            return padded(x, pads, graph.reshape(call.node(2), ()))
        value = call.number("value", 2, 0.0)
        return padded(x, pads, value)
    modes = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}
    for axis, pad in enumerate(pads):
        if any(pad):
            places = np.pad(np.arange(x.shape[axis]), pad, modes[mode])  # type: ignore[call-overload]
            x = take(x, places, axis)
    return x


_COORDINATES: dict[str, Callable[[Array, int, int, float], Array]] = {
    "align_corners": lambda x, n, out, scale: x * (n - 1) / (scale * n - 1) if out > 1 else x * 0.0,
    "asymmetric": lambda x, n, out, scale: x / scale,
    "half_pixel": lambda x, n, out, scale: (x + 0.5) / scale - 0.5,
    "half_pixel_symmetric": lambda x, n, out, scale: (
        n / 2 * (1 - out / (scale * n)) + (x + 0.5) / scale - 0.5
    ),
    "pytorch_half_pixel": lambda x, n, out, scale: (x + 0.5) / scale - 0.5 if out > 1 else x * 0.0,
}
"""For each mode of Resize the places of elements in the input, which has `n`, from their own."""
_NEAREST: dict[str, Callable[[Array], Array]] = {
    "ceil": np.ceil,
    "floor": np.floor,
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
}


def _taps(call: Call, length: int, out: int, scale: float) -> list[tuple[Array, Array]]:
    """Return indices and weights of the elements that Resize adds up along an axis."""
    is_old = call.kind == "Upsample" or call.opset < 11
    mode = call.get("mode", "nearest")
    how = "asymmetric" if is_old else call.get("coordinate_transformation_mode", "half_pixel")
    if how not in _COORDINATES or mode not in ("nearest", "linear", "bilinear", "cubic"):
        call.refuse(f"mode {mode!r} with coordinates {how!r} is not supported")
    places = _COORDINATES[how](np.arange(out, dtype=np.float64), length, out, scale)
    if mode == "nearest":
        nearest = "floor" if is_old else call.get("nearest_mode", "round_prefer_floor")
        return [(np.clip(_NEAREST[nearest](places), 0, length - 1), np.ones(out))]
    first = np.floor(places)
    part = places - first
    if mode == "cubic":
        a = float(call.get("cubic_coeff_a", -0.75))
        near = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (part, 1 - part)]
        far = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (part + 1, 2 - part)]
        indices, weights = [first + i for i in range(-1, 3)], [far[0], *near, far[1]]
    else:
        indices, weights = [first, first + 1], [1 - part, part]
    if call.get("exclude_outside", 0):
        weights = [w * ((i >= 0) & (i < length)) for w, i in zip(weights, indices, strict=True)]
        total = sum(weights)
        weights = [w / total for w in weights]
    return [(np.clip(i, 0, length - 1), w) for i, w in zip(indices, weights, strict=True)]


def _resized_axis(call: Call, x: Node, axis: int, out: int, scale: float) -> Node:
    """Return `x` interpolated along an axis; by broadcasting where elements are only repeated."""
    n, parts = x.shape[axis], []
    times = out // n
    for indices, weights in _taps(call, n, out, scale):
        if not weights.any():
            continue
        if times > 1 and np.array_equal(indices, np.repeat(np.arange(n), times)):
            part = repeated(x, times, axis)
        else:
            part = take(x, indices.astype(np.intp), axis)
        if (weights != 1).any():
            part = part * constant(weights.reshape(-1, *(1,) * (x.ndim - 1 - axis)), x.dtype)
        parts.append(part)
    return reduce(graph.add, parts)


@operator("Resize", "Upsample")
def _resize(call: Call) -> Node:
    x = call.node()
    if call.get("antialias", 0):
        call.refuse("antialias = 1 is not supported")
    is_new = call.kind == "Resize" and call.opset >= 11
    axes = [int(n) % x.ndim for n in call.get("axes", range(x.ndim))]
    if is_new and call.has(3) and call.shape(3) != (0,):
        lengths = [int(n) for n in call.known(3)]
        scales = [out / x.shape[axis] for axis, out in zip(axes, lengths, strict=True)]
        policy = call.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            scales = [(min if policy == "not_larger" else max)(scales)] * len(axes)
            lengths = [int(x.shape[i] * s + 0.5) for i, s in zip(axes, scales, strict=True)]
    else:
        given = call.get("scales") or call.known(2 if is_new else 1).tolist()
        scales = [float(n) for n in given]
        lengths = [math.floor(x.shape[i] * s) for i, s in zip(axes, scales, strict=True)]
    if not all(map(math.isfinite, scales)) or not 0 < math.prod(lengths) <= LARGEST_COMPUTED:
        raise ValueError(f"to lengths {lengths}")
    y = x if x.dtype.kind == "f" else graph.cast(x, np.float32)
    for axis, length, scale in zip(axes, lengths, scales, strict=True):
        if length != x.shape[axis] or scale != 1:
            y = _resized_axis(call, y, axis, length, scale)
    return graph.cast(y, x.dtype)
