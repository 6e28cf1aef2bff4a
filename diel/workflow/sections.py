"""Sections of an array as boxes of index ranges: intersect, divide and subtract them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Box: TypeAlias = "tuple[tuple[int, int], ...]"
"""For each axis (start, stop): the first index in the box, and the first index behind it."""


def whole(shape: Sequence[int]) -> Box:
    """Return the box that covers a whole array of this shape."""
    return tuple((0, length) for length in shape)


def shape_of(box: Box) -> tuple[int, ...]:
    """Return the shape of a box."""
    return tuple(stop - start for start, stop in box)


def slices(box: Box) -> tuple[slice, ...]:
    """Return the index of a box in its array: ``array[slices(box)]``."""
    return tuple(slice(start, stop) for start, stop in box)


def is_empty(box: Box) -> bool:
    """Whether a box has no items."""
    return any(start >= stop for start, stop in box)


def intersection(box: Box, other: Box) -> Box | None:
    """Return the box that two boxes share, None if they do not overlap."""
    shared = tuple(
        (max(start, other_start), min(stop, other_stop))
        for (start, stop), (other_start, other_stop) in zip(box, other, strict=True)
    )
    return None if is_empty(shared) else shared


def divide(box: Box, axis: int, parts: int) -> list[Box]:
    """Cut a box along an axis into parts of equal length; the first parts share the remainder."""
    start, stop = box[axis]
    each, remainder = divmod(stop - start, parts)
    boxes = []
    for index in range(parts):
        end = start + each + (index < remainder)
        boxes.append((*box[:axis], (start, end), *box[axis + 1 :]))
        start = end
    return boxes


def outside(box: Box, others: Iterable[Box]) -> list[Box]:
    """Return the part of a box that no other box covers, as boxes that do not overlap."""
    left = [] if is_empty(box) else [box]
    for other in others:
        left = [piece for part in left for piece in _without(part, other)]
    return left


def _without(box: Box, other: Box) -> list[Box]:
    shared = intersection(box, other)
    if shared is None:
        return [box]
    pieces = []
    for axis, ((start, stop), (shared_start, shared_stop)) in enumerate(
        zip(box, shared, strict=True)
    ):
        # Along the axes before this one a piece has only the shared range, so none overlap.
        for cut in ((start, shared_start), (shared_stop, stop)):
            if cut[0] < cut[1]:
                pieces.append((*shared[:axis], cut, *box[axis + 1 :]))
    return pieces


def show_box(box: Box) -> str:
    """Return a box as a workflow file writes it: ``[[0, 64], [0, 1]]``."""
    return f"[{', '.join(f'[{start}, {stop}]' for start, stop in box)}]"
