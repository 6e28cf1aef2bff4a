"""Classes with fields that never change."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from diel.frozen import Frozen


class Place(Frozen):
    row: int
    column: int = 0


class Named(Place):
    name: str
    about: Mapping[str, int] = {}


class Other(Frozen):
    row: int
    column: int = 0


@pytest.mark.parametrize(
    "made", [Named(1, 2, "a"), Named(1, column=2, name="a"), Named(name="a", row=1, column=2)]
)
def test_fields_are_given_by_place_and_by_name(made: Named) -> None:
    assert (made.row, made.column, made.name, made.about) == (1, 2, "a", {})
    assert repr(made) == "Named(row=1, column=2, name='a', about={})"
    assert made == Named(1, 2, "a")
    assert hash(Place(1)) == hash(Place(1, 0))


@pytest.mark.parametrize(
    ("positional", "named"),
    [((), {}), ((), {"column": 1}), ((1, 2, 3), {}), ((1,), {"row": 1}), ((1,), {"rows": 1})],
)
def test_missing_unknown_and_repeated_fields_are_refused(
    positional: tuple[Any, ...], named: dict[str, Any]
) -> None:
    with pytest.raises(TypeError, match="Place has row, column; got"):
        Place(*positional, **named)


def test_a_field_cannot_be_assigned_but_replaced() -> None:
    place = Place(1)
    with pytest.raises(AttributeError, match="'row': a Place never changes"):
        place.row = 2  # type: ignore[misc]
    assert place.replace(column=5) == Place(1, 5)
    with pytest.raises(TypeError, match="Place has"):
        place.replace(columns=5)


def test_only_the_same_class_is_equal() -> None:
    assert Place(1) != Other(1)  # type: ignore[comparison-overlap]
    assert Place(1) != Place(2)
    assert pickle.loads(pickle.dumps(Named(1, 2, "a"))) == Named(1, 2, "a")
