from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from modules.space import Dimension, Space, SpaceError, parse_dimension
from modules.trial import trial_seed


def values(value: Any) -> list[Any]:
    """Return the values of one parameter."""
    space = Space.parse({"a": value})
    return [space.point(index)["a"] for index in range(space.size)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([0.01, 0.1], [0.01, 0.1]),
        (["relu", "tanh"], ["relu", "tanh"]),
        ([[32], [64, 32]], [[32], [64, 32]]),
        (20, [20]),
        ("relu", ["relu"]),
        ({"from": 16, "to": 64, "step": 16}, [16, 32, 48, 64]),
        ({"from": 16, "to": 63, "step": 16}, [16, 32, 48]),
        ({"from": 3, "to": 1, "step": -1}, [3, 2, 1]),
        ({"from": 5, "to": 5, "step": 1}, [5]),
        ({"from": 0.5, "to": 1.5, "step": 0.5}, [0.5, 1.0, 1.5]),
        ({"from": 1e-5, "to": 1e-1, "log_steps": 5}, [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]),
        ({"from": 1, "to": 0.01, "log_steps": 3}, [1.0, 0.1, 0.01]),
        ({"from": 16, "to": 256, "log_steps": 5}, [16, 32, 64, 128, 256]),
        ({"from": 0.3, "to": 0.3, "log_steps": 1}, [0.3]),
        ({"from": 1, "to": 4}, [1, 2, 3, 4]),
        ({"from": 4, "to": 1}, [4, 3, 2, 1]),
        ({"from": 0.5, "to": 0.5}, [0.5]),
        ({"choices": [0.01, 0.1]}, [0.01, 0.1]),
        ({"choices": [0, False, 1, True]}, [0, False, 1, True]),
        ({"value": [32, 32]}, [[32, 32]]),
    ],
)
def test_the_values_of_a_parameter(value: Any, expected: list[Any]) -> None:
    found = values(value)
    assert found == expected
    assert list(map(type, found)) == list(map(type, expected))


@given(
    st.integers(-50, 50) | st.floats(-50, 50),
    st.integers(1, 9) | st.floats(0.01, 9),
    st.integers(1, 300),
    st.booleans(),
)
def test_a_range_has_every_step_and_its_end(
    start: float, step: float, count: int, falling: bool
) -> None:
    step = -step if falling else step
    found = values({"from": start, "to": start + (count - 1) * step, "step": step})
    assert found == [start + index * step for index in range(count)]


@given(
    st.floats(1e-12, 1e12, allow_subnormal=False),
    st.floats(1e-12, 1e12, allow_subnormal=False),
    st.integers(2, 50),
)
def test_log_steps_end_exactly_and_have_equal_ratios(start: float, stop: float, count: int) -> None:
    assume(abs(math.log(stop / start)) > 1e-6)
    found = values({"from": start, "to": stop, "log_steps": count})
    assert (len(found), found[0], found[-1]) == (count, start, stop)
    ratio = (stop / start) ** (1 / (count - 1))
    for one, following in pairwise(found):
        assert following / one == pytest.approx(ratio, rel=1e-9)


TABLES = st.dictionaries(
    st.sampled_from("abcd"),
    st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True)
    | st.integers(0, 9)
    | st.builds(lambda n: {"from": 0, "to": n, "step": 1}, st.integers(0, 4)),
    min_size=1,
)


@given(TABLES)
def test_every_point_comes_once_the_last_parameter_fastest(table: dict[str, Any]) -> None:
    space = Space.parse(table)
    points = [space.point(index) for index in range(space.size)]
    assert all(list(point) == list(table) for point in points)
    places = [
        tuple(values(table[name]).index(value) for name, value in point.items()) for point in points
    ]
    sizes = [len(values(one)) for one in table.values()]
    assert space.size == math.prod(sizes)
    assert len(set(places)) == space.size
    assert places == sorted(places)


@pytest.mark.parametrize("index", [-1, 6, 100])
def test_points_beyond_the_grid_are_not_there(index: int) -> None:
    with pytest.raises(IndexError, match=rf"point {index} of a grid of 6"):
        Space.parse({"a": [1, 2], "b": [1, 2, 3]}).point(index)


def test_a_huge_grid_is_never_stored() -> None:
    table = {name: {"from": 0, "to": 10**9, "step": 1} for name in "abc"}
    space = Space.parse(table)
    assert space.size == (10**9 + 1) ** 3
    assert space.point(space.size - 1) == dict.fromkeys("abc", 10**9)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "an empty list, so the grid has no points"),
        ({}, "is no range"),
        ({"from": 1}, "{ from } is no range; write a list"),
        ({"from": 1, "until": 2}, "is no range"),
        ({"from": 1, "to": 2, "step": 1, "log_steps": 2}, "is no range"),
        ({"start": 1, "to": 2, "step": 1}, "is no range"),
        ({"from": 1, "to": 2, "step": 0}, "a step of 0 never arrives at 2"),
        ({"from": 1, "to": 2, "step": -1}, "no values, so the grid has no points"),
        ({"from": 2, "to": 1, "step": 0.5}, "no values, so the grid has no points"),
        ({"from": "1", "to": 2, "step": 1}, "from, to and step are numbers"),
        ({"from": True, "to": 2, "step": 1}, "from, to and step are numbers"),
        ({"from": 0, "to": math.inf, "step": 1}, "from, to and step are numbers"),
        ({"from": math.nan, "to": 1, "step": 1}, "from, to and step are numbers"),
        ({"from": 0, "to": 10**400, "step": 1}, "from, to and step are numbers"),
        ({"from": 0, "to": 1, "step": 1e-320}, "too many values"),
        ({"from": 0, "to": 1e20, "step": 1}, "too many values"),
        ({"from": 0, "to": 1, "log_steps": 3}, "a logarithmic range from 0 to 1 cannot touch 0"),
        ({"from": 1, "to": -1, "log_steps": 3}, "cannot touch 0"),
        ({"from": "a", "to": 1, "log_steps": 3}, "from and to are numbers"),
        ({"from": 1, "to": 3, "log_steps": 4}, "not so many integers"),
        ([1, math.nan], "nan is a value that equals nothing"),
        ([1, 2, 1], "1 stands there twice"),
        ([1, 2, 1.0], "1.0 stands there twice"),
        ([[1], [1]], "[1] stands there twice"),
        ({"choices": []}, "an empty list"),
        ({"choices": 3}, "choices is a list"),
        ({"value": 3, "step": 1}, "is no range"),
        ({"from": 1e16, "to": 1e16 + 64, "step": 0.5}, "too small beside"),
        ({"from": 0.3, "to": 0.3, "log_steps": 2}, "too close together"),
        ({"from": 1.0, "to": 1.0 + 1e-12, "log_steps": 50}, "too close together"),
        ({"from": 1, "to": 10**12, "log_steps": 10**9}, "log_steps = 1000000000: at most"),
        ({"from": 0.0, "to": 1.0, "scale": "log"}, "cannot touch 0"),
        ({"from": -1, "to": 1, "scale": "log"}, "cannot touch 0"),
        ({"from": 0.1, "to": 1.0, "scale": "logarithmic"}, "got 'logarithmic'"),
        ({"from": 0.1, "to": "1"}, "from and to are numbers"),
        ({"from": 0, "to": 10**20}, "too many values"),
        ({"from": 1, "to": 2, "log_steps": 0}, "log_steps is the number of values"),
        ({"from": 1, "to": 2, "log_steps": 2.0}, "got 2.0"),
        ({"from": 1, "to": 2, "log_steps": True}, "got True"),
        ({"from": 1, "to": 2, "log_steps": 1}, "log_steps = 1 cannot reach from 1 to 2"),
    ],
)
def test_a_malformed_parameter_is_named(value: Any, words: str) -> None:
    with pytest.raises(SpaceError) as caught:
        Space.parse({"fine": 1, "rate": value})
    assert str(caught.value).startswith("rate: ")
    assert words in str(caught.value)


# -- shares of the way through, which strategies draw --------------------------------------------

DIMENSIONS = [
    [0.01, 0.1],
    ["relu", "tanh", "sigmoid"],
    [[32], [64, 32]],
    20,
    {"from": 16, "to": 64, "step": 16},
    {"from": 3, "to": 1, "step": -1},
    {"from": 0.1, "to": 0.9, "step": 0.1},
    {"from": 1e-5, "to": 1e-1, "log_steps": 5},
    {"from": 1, "to": 0.01, "log_steps": 30},
    {"from": 3, "to": 1000, "log_steps": 20},
    {"from": 0.25, "to": 0.5},
    {"from": 5.0, "to": -5.0},
    {"from": 1e-5, "to": 1e-1, "scale": "log"},
    {"from": 1e3, "to": 1e-3, "scale": "log"},
    {"from": 1, "to": 10**6, "scale": "log"},
    {"from": 700, "to": 3, "scale": "log"},
]


@pytest.mark.parametrize("entry", DIMENSIONS, ids=str)
@given(st.floats(0, 1, exclude_max=True))
def test_a_value_lies_at_its_share(entry: Any, share: float) -> None:
    dimension, _ = parse_dimension(entry)
    value = dimension.at(share)
    again = dimension.at(min(max(dimension.share(value), 0.0), 1 - 2**-53))
    assert again == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value)
    Space.parse({"a": entry}).check({"a": value})


@pytest.mark.parametrize("entry", DIMENSIONS, ids=str)
def test_every_value_comes_as_often_as_it_should(entry: Any) -> None:
    dimension: Dimension
    dimension, _ = parse_dimension(entry)
    found = [dimension.at((place + 0.5) / 4000) for place in range(4000)]
    if isinstance(entry, dict) and "scale" in entry:
        # Each ratio alike: half of them lie below the geometric mean, rounding apart.
        middle = math.sqrt(entry["from"] * entry["to"])
        assert 0.45 < sum(value < middle for value in found) / 4000 < 0.55
    elif isinstance(entry, dict) and set(entry) == {"from", "to"}:
        assert sum(found) / 4000 == pytest.approx((entry["from"] + entry["to"]) / 2, abs=0.01)
    else:
        values = list(dimension.examples())
        counts = [found.count(value) for value in values]
        assert sum(counts) == 4000
        assert max(counts) - min(counts) <= 1
    assert {type(value) for value in found} == {type(value) for value in dimension.examples()}


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ([1, 2], 3),
        ([1, 2], True),
        (["a"], "b"),
        ({"from": 0, "to": 10, "step": 2}, 3),
        ({"from": 0, "to": 10, "step": 2}, 12),
        ({"from": 0, "to": 10, "step": 2}, "2"),
        ({"from": 0.01, "to": 1.0, "log_steps": 3}, 0.2),
        ({"from": 0.01, "to": 1.0, "log_steps": 3}, -1),
        ({"from": 1, "to": 100, "log_steps": 3}, 11),
        ({"from": 0.0, "to": 1.0}, 1.5),
        ({"from": 1, "to": 100, "scale": "log"}, 2.5),
        ({"from": 1, "to": 100, "scale": "log"}, 101),
    ],
)
def test_a_value_that_is_none_of_them_is_refused(entry: Any, value: Any) -> None:
    with pytest.raises(SpaceError, match=r"^a: "):
        Space.parse({"a": entry}).check({"a": value})


def test_a_point_has_the_parameters_of_its_space() -> None:
    space = Space.parse({"a": [1, 2], "b": {"value": 3, "if": {"a": 2}}})
    space.check({"a": 1})
    space.check({"a": 2, "b": 3})
    for wrong, words in [({"a": 2}, "b: is missing"), ({"a": 1, "b": 3}, "b: should not be there")]:
        with pytest.raises(SpaceError, match=words):
            space.check(wrong)
    with pytest.raises(SpaceError, match="c: is no parameter"):
        space.check({"a": 1, "c": 0})


def test_a_grid_cannot_go_through_every_number_between_two() -> None:
    space = Space.parse({"a": 1, "rate": {"from": 0.1, "to": 0.2}})
    assert space.endless
    for call in (lambda: space.size, lambda: space.point(0)):
        with pytest.raises(SpaceError, match=r"rate: every number between two, .* add step"):
            call()


def test_an_empty_space_is_refused() -> None:
    with pytest.raises(SpaceError, match="the grid is empty"):
        Space.parse({})


def test_the_seed_of_a_trial_never_changes() -> None:
    # Stored results would mean something else if these numbers moved.
    assert [trial_seed(0, index) for index in range(3)] == [2467523943, 3621678275, 2086539716]
    assert trial_seed(1, 0) == 2957405061


def test_seeds_differ_and_fill_their_range() -> None:
    seeds = [trial_seed(sweep, index) for sweep in range(20) for index in range(200)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert min(seeds) < 2**32 / 100
    assert max(seeds) > 2**32 * 0.99
