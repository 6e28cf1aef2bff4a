"""Parameters that exist only beside certain values of others."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from modules.space import Space, SpaceError

PAPER = {
    "optimizer": ["sgd", "adam", "rmsprop"],
    "learning_rate": {"from": 0.001, "to": 0.1, "log_steps": 3},
    "momentum": {"from": 0.0, "to": 0.9, "step": 0.3, "if": {"optimizer": ["sgd", "rmsprop"]}},
    "nesterov": {
        "choices": [False, True],
        "if": {"optimizer": "sgd", "momentum": {"at_least": 0.5}},
    },
    "beta_2": {"choices": [0.9, 0.99, 0.999], "if": {"optimizer": "adam"}},
    "epochs": 20,
}


def test_a_conditional_space_counts_what_is_there() -> None:
    space = Space.parse(PAPER)
    # Of sgd 4 momenta, two of which have a choice of nesterov; of adam 3 betas; of rmsprop 4.
    assert space.size == 3 * ((2 + 2 * 2) + 3 + 4)
    points = [space.point(index) for index in range(space.size)]
    assert points[0] == {"optimizer": "sgd", "learning_rate": 0.001, "momentum": 0.0, "epochs": 20}
    assert {len(point) for point in points if point["optimizer"] == "sgd"} == {4, 5}
    for point in points:
        assert ("beta_2" in point) == (point["optimizer"] == "adam")
        assert ("momentum" in point) == (point["optimizer"] != "adam")
        assert ("nesterov" in point) == (point["optimizer"] == "sgd" and point["momentum"] > 0.5)
    assert len({tuple(point.items()) for point in points}) == space.size


def walked(table: dict[str, Any], names: list[str], point: dict[str, Any]) -> Iterator[Any]:
    """Every point of a space, found by trying everything."""
    if not names:
        yield dict(point)
        return
    name, *rest = names
    entry = table[name]
    asked = entry.get("if", {}) if isinstance(entry, dict) else {}
    if all(holds(what, point.get(other, "absent")) for other, what in asked.items()):
        values = entry["choices"] if isinstance(entry, dict) else entry
        for value in values:
            yield from walked(table, rest, {**point, name: value})
    else:
        yield from walked(table, rest, point)


def holds(what: Any, value: Any) -> bool:
    if value == "absent":
        return False
    if isinstance(what, dict):
        return bool(what.get("at_least", -99) <= value <= what.get("at_most", 99))
    return value in (what if isinstance(what, list) else [what])


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    """Up to six parameters of up to four values, each asking about some before it."""
    table: dict[str, Any] = {}
    for name in "abcdef"[: draw(st.integers(1, 6))]:
        values = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True))
        asked = (
            draw(st.lists(st.sampled_from(list(table)), max_size=2, unique=True)) if table else []
        )
        wanted: dict[str, Any] = {}
        for other in asked:
            known = table[other]["choices"]
            some = st.lists(st.sampled_from(known), min_size=1, unique=True)
            bound = st.dictionaries(
                st.sampled_from(["at_least", "at_most"]), st.integers(-1, 7), min_size=1
            )
            wanted[other] = draw(some | st.sampled_from(known) | bound)
        table[name] = {"choices": values, **({"if": wanted} if wanted else {})}
    return table


@given(tables(), st.randoms(use_true_random=False))
def test_every_point_is_decoded_once_and_in_order(table: dict[str, Any], shuffle: Any) -> None:
    expected = list(walked(table, list(table), {}))
    never = set(table) - {name for point in expected for name in point}
    if never:
        with pytest.raises(SpaceError, match="never hold together") as caught:
            Space.parse(table)
        assert caught.value.parameter in never
        return
    space = Space.parse(table)
    assert space.size == len(expected)
    # As they stand, parents are before their children: the order is that of counting.
    assert [space.point(index) for index in range(space.size)] == expected
    # In whatever order the file has them, the points are the same.
    names = list(table)
    shuffle.shuffle(names)
    other = Space.parse({name: table[name] for name in names})
    points = [other.point(index) for index in range(other.size)]
    assert all(list(point) == [name for name in names if name in point] for point in points)
    key = lambda point: sorted(point.items())  # noqa: E731
    assert sorted(points, key=key) == sorted(expected, key=key)


@given(tables(), st.integers(0, 2**32))
def test_samples_are_points(table: dict[str, Any], seed: int) -> None:
    from random import Random

    try:
        space = Space.parse(table)
    except SpaceError:
        assume(False)
    points = [space.point(index) for index in range(space.size)]
    generator = Random(seed)
    for _ in range(10):
        sample = space.sample(lambda name: generator.random())
        assert sample in points
        space.check(sample)


def test_conditions_on_a_huge_range_cost_nothing() -> None:
    space = Space.parse(
        {
            "width": {"from": 1, "to": 10**9, "step": 1},
            "wide": {"choices": ["a", "b"], "if": {"width": {"at_least": 10**8 + 1}}},
            "odd": {"choices": [1, 2, 3], "if": {"width": [7, 9, 10**9]}},
            "falling": {"from": 10**9, "to": 0, "step": -2},
            "late": {"choices": [0, 1], "if": {"falling": {"at_most": 10}}},
        }
    )
    wide, narrow = 10**9 - 10**8, 10**8
    tail = (5 * 10**8 + 1) + 6
    assert space.size == (narrow - 2 + 2 * 3 + 2 * (wide - 1) + 2 * 3) * tail
    last = space.point(space.size - 1)
    assert last == {"width": 10**9, "wide": "b", "odd": 3, "falling": 0, "late": 1}
    assert space.point(0) == {"width": 1, "falling": 10**9}


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (0.3, 1),
        ([0.3, 0.6, 0.7], 3),
        ({"at_most": 0.3}, 4),
        ({"at_least": 0.3}, 7),
        ({"at_least": 0.3, "at_most": 0.3}, 1),
        ({"at_most": 0.35}, 4),
    ],
)
@pytest.mark.parametrize("falling", [False, True])
def test_a_condition_means_the_value_that_rounding_made_of_it(
    wanted: Any, count: int, falling: bool
) -> None:
    """3 * 0.1 is not 0.3."""
    ends = (
        {"from": 0.9, "to": 0.0, "step": -0.1} if falling else {"from": 0, "to": 0.9, "step": 0.1}
    )
    space = Space.parse({"a": ends, "b": {"choices": [1, 2], "if": {"a": wanted}}})
    assert space.size == 10 + count
    drawn = [space.sample(lambda name, at=at: (at + 0.5) / 100) for at in range(100)]
    assert len({str(point["a"]) for point in drawn if "b" in point}) == count


def test_a_chain_of_a_thousand_parameters_needs_no_stack() -> None:
    table: dict[str, Any] = {"p0": [0, 1]}
    for number in range(1, 1000):
        table[f"p{number}"] = {"choices": [0, 1], "if": {f"p{number - 1}": 1}}
    space = Space.parse(table)
    assert space.size == 1001
    assert len(space.point(1000)) == 1000
    # It travels to trainers, too.
    assert pickle.loads(pickle.dumps(space)).point(500) == space.point(500)
    assert copy.deepcopy(space).size == 1001


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            {"b": {"value": 1, "if": {"optimiser": "x"}}, "optimizer": ["x"]},
            "did you mean 'optimizer'",
        ),
        (
            {"a": ["adam"], "b": {"value": 1, "if": {"a": "adm"}}},
            "never 'adm' (did you mean 'adam'?)",
        ),
        ({"a": [1], "b": {"value": 1, "if": {"a": 2}}}, "b: if: a is never 2"),
        ({"a": [1], "b": {"value": 1, "if": {"a": True}}}, "a is never True"),
        ({"a": [1], "b": {"value": 1, "if": {"a": []}}}, "never holds"),
        ({"a": {"from": 0, "to": 4, "step": 2}, "b": {"value": 1, "if": {"a": 3}}}, "a is never 3"),
        ({"a": {"from": 0.0, "to": 1.0}, "b": {"value": 1, "if": {"a": 0.5}}}, "at_least"),
        ({"a": ["x"], "b": {"value": 1, "if": {"a": {"at_least": 1}}}}, "need numbers"),
        (
            {"a": [1], "b": {"value": 1, "if": {"a": {"least": 1}}}},
            "a: unknown condition least; write",
        ),
        (
            {
                "a": {"from": 0.0, "to": 1.0},
                "b": {"value": 1, "if": {"a": {"at_least": 0, "c": 1}}},
            },
            "a: unknown condition c; write a value, a list of values, or { at_least = ...",
        ),
        ({"a": {"from": 0, "to": 4, "step": 2}, "b": {"value": 1, "if": {"a": {}}}}, "unknown"),
        ({"a": [1], "b": {"value": 1, "if": {}}}, "is no condition"),
        ({"a": [1], "b": {"value": 1, "if": "a"}}, "if = 'a' is no condition"),
        ({"a": {"value": 1, "if": {"a": 1}}}, "in a circle: a if a"),
        (
            {
                "a": {"value": 1, "if": {"c": 1}},
                "b": {"value": 1, "if": {"a": 1}},
                "c": {"value": 1, "if": {"b": 1}},
            },
            "in a circle: a if c if b if a",
        ),
        (
            {
                "a": [1, 2],
                "b": {"value": 1, "if": {"a": 1}},
                "c": {"value": 1, "if": {"a": 2, "b": 1}},
            },
            "c: if: its conditions never hold together",
        ),
        ({"a": [1], "b": {"choices": [], "if": {"a": 1}}}, "b: an empty list"),
        ({"a": [1], "b": {"choices": "xy", "if": {"a": 1}}}, "b: choices is a list"),
        ({"a": [1], "b": {"from": 0, "to": 1, "log_steps": 2, "if": {"a": 1}}}, "cannot touch 0"),
        (
            {"a": {"from": 0.0, "to": 1.0}, "b": {"value": 1, "if": {"a": {"at_least": 1.5}}}},
            "never hold",
        ),
    ],
)
def test_a_bad_condition_is_named(table: dict[str, Any], words: str) -> None:
    with pytest.raises(SpaceError) as caught:
        Space.parse(table)
    assert words in str(caught.value)


def test_tangled_conditions_are_refused_and_not_counted_for_ever() -> None:
    table: dict[str, Any] = {f"a{number}": [0, 1] for number in range(24)}
    for number in range(24):
        table[f"b{number}"] = {"value": 1, "if": {f"a{number}": 1}}
    with pytest.raises(SpaceError, match="too tangled"):
        Space.parse(table)
    # Side by side, each beside the one it asks about, they are no trouble.
    beside = {name: table[name] for number in range(24) for name in (f"a{number}", f"b{number}")}
    assert Space.parse(beside).size == 2**24
