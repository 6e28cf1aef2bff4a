"""Boxes of index ranges, checked point by point."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diel.workflow.boundary import (
    Box,
    divide,
    intersection,
    is_empty,
    outside,
    show_box,
    slices,
    whole,
)

LENGTH = 6


@st.composite
def boxes(draw: st.DrawFn, axes: int) -> Box:
    bounds = [sorted(draw(st.tuples(*[st.integers(0, LENGTH)] * 2))) for _ in range(axes)]
    return tuple((start, stop) for start, stop in bounds)


def points(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(start, stop) for start, stop in box)))


@given(st.data(), st.integers(1, 3))
def test_intersection(data: st.DataObject, axes: int) -> None:
    one, other = data.draw(boxes(axes)), data.draw(boxes(axes))
    shared = intersection(one, other)
    assert (points(shared) if shared else set()) == points(one) & points(other)
    assert shared is None or not is_empty(shared)


@given(st.data(), st.integers(1, 3))
def test_what_is_outside_of_others_is_there_once(data: st.DataObject, axes: int) -> None:
    box, others = data.draw(boxes(axes)), data.draw(st.lists(boxes(axes), max_size=4))
    left = outside(box, others)
    assert all(not is_empty(one) for one in left)
    covered = set().union(*map(points, others))
    assert sum(len(points(one)) for one in left) == len(points(box) - covered)
    assert set().union(*map(points, left)) == points(box) - covered


@given(boxes(2), st.integers(0, 1), st.integers(1, 8))
def test_parts_are_equal_and_make_up_the_whole(box: Box, axis: int, parts: int) -> None:
    shares = divide(box, axis, parts)
    assert len(shares) == parts
    lengths = [share[axis][1] - share[axis][0] for share in shares]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)
    assert sum(len(points(share)) for share in shares) == len(points(box))
    assert set().union(*map(points, shares)) == points(box)


@given(boxes(3))
def test_a_box_is_an_index(box: Box) -> None:
    array = np.zeros((LENGTH,) * 3)
    array[slices(box)] = 1
    assert array[slices(box)].shape == tuple(stop - start for start, stop in box)
    assert set(map(tuple, np.argwhere(array).tolist())) == points(box)


def test_words() -> None:
    assert whole((3, 4)) == ((0, 3), (0, 4))
    assert show_box(((0, 3), (1, 4))) == "[[0, 3], [1, 4]]"
