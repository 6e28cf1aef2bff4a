"""Sections of an array: boxes of index ranges, and what of them overlaps or is left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Box: TypeAlias = "tuple[tuple[int, int], ...]"
"""For each axis where it starts, and where it stops: the first index that is not in it."""


def whole(shape: Sequence[int]) -> Box:
    """Return the box that is all of an array."""
    return tuple((0, length) for length in shape)


def shape_of(box: Box) -> tuple[int, ...]:
    """Return the shape of a section."""
    return tuple(stop - start for start, stop in box)


def slices(box: Box) -> tuple[slice, ...]:
    """Return a section as an index: ``array[slices(box)]``."""
    return tuple(slice(start, stop) for start, stop in box)


def is_empty(box: Box) -> bool:
    """Whether there is nothing in it."""
    return any(start >= stop for start, stop in box)


def intersection(box: Box, other: Box) -> Box | None:
    """Return what two boxes share, None if that is nothing."""
    shared = tuple(
        (max(start, other_start), min(stop, other_stop))
        for (start, stop), (other_start, other_stop) in zip(box, other, strict=True)
    )
    return None if is_empty(shared) else shared


def divide(box: Box, axis: int, parts: int) -> list[Box]:
    """Cut a box along an axis into parts of equal length; the first ones get what remains."""
    start, stop = box[axis]
    each, remainder = divmod(stop - start, parts)
    boxes = []
    for index in range(parts):
        end = start + each + (index < remainder)
        boxes.append((*box[:axis], (start, end), *box[axis + 1 :]))
        start = end
    return boxes


def outside(box: Box, others: Iterable[Box]) -> list[Box]:
    """Return what of a box is in none of the others, as boxes that do not overlap."""
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
        # In the axes before this one the pieces are as narrow as what is shared.
        for cut in ((start, shared_start), (shared_stop, stop)):
            if cut[0] < cut[1]:
                pieces.append((*shared[:axis], cut, *box[axis + 1 :]))
    return pieces


def show_box(box: Box) -> str:
    """Write a section as a workflow file does."""
    return f"[{', '.join(f'[{start}, {stop}]' for start, stop in box)}]"
