"""Time stamps that are kept, and interpolation between them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diel.coupling.stamps import (
    LARGEST_DEGREE,
    Stamps,
    as_degree,
    as_time,
    is_later,
    lagrange_weights,
)
from diel.errors import BoundaryError

degrees = st.integers(0, LARGEST_DEGREE)
gaps = st.lists(st.floats(0.1, 3.0), min_size=2, max_size=12)


def stamps_of(times: Any, value: Any) -> Stamps:
    stamps = Stamps("fluid.0 rank 0")
    for time in times:
        assert stamps.takes(float(time), 0)
        stamps.add(float(time), np.array([value(time)]))
    return stamps


@given(gaps, st.integers(1, LARGEST_DEGREE), st.floats(0, 1), st.data())
def test_polynomials_up_to_the_degree_are_exact(
    lengths: list[float], degree: int, where: float, data: st.DataObject
) -> None:
    times = np.cumsum(lengths)
    degree = min(degree, len(times) - 1)
    factors = data.draw(st.lists(st.floats(-3, 3), min_size=degree + 1, max_size=degree + 1))
    polynomial = np.polynomial.Polynomial(factors, domain=[times[0], times[-1]])
    stamps = stamps_of(times, polynomial)
    time = float(times[0] + where * (times[-1] - times[0]))
    # The conditioning is that of the nearest stamps: at most these gaps, at most this degree.
    found = stamps.at(time, degree)[0]
    assert found == pytest.approx(polynomial(time), rel=1e-6, abs=1e-6)
    weights = lagrange_weights([float(one) for one in times[: degree + 1]], time)
    assert sum(weights) == pytest.approx(1, rel=0, abs=1e-12 * max(1, *map(abs, weights)))


@pytest.mark.parametrize("degree", range(LARGEST_DEGREE + 1))
@pytest.mark.parametrize("known", ["all", "one"])
def test_the_error_is_of_the_order_of_the_degree_and_one(degree: int, known: str) -> None:
    """Measured with steps of two lengths; `one`: the last stamp is the first after the time."""
    errors = []
    for count in (20, 40):
        times = np.linspace(0, 2, count + 1)
        worst = 0.0
        for index in range(degree, count):
            stamps = stamps_of(times if known == "all" else times[: index + 2], np.sin)
            for part in (0.1, 0.5, 0.8):
                time = times[index] + part * (times[1] - times[0])
                worst = max(worst, abs(float(stamps.at(time, degree)[0]) - math.sin(time)))
        errors.append(worst)
    assert math.log2(errors[0] / errors[1]) == pytest.approx(degree + 1, abs=0.2)


@given(gaps, degrees)
def test_at_a_stamp_the_values_are_those_of_the_stamp(lengths: list[float], degree: int) -> None:
    times = np.cumsum(lengths)
    stamps = stamps_of(times, np.exp)
    for time, values in zip(times, stamps.values, strict=True):
        assert stamps.at(float(time), degree) is values
    last = stamps.values[-1]
    assert stamps.at(float(times[-1]) + 1, degree) is last, "it is held"


@given(gaps, st.floats(0, 1))
def test_degree_0_is_the_last_stamp_before(lengths: list[float], where: float) -> None:
    times = [float(time) for time in np.cumsum(lengths)]
    stamps = stamps_of(times, lambda time: time)
    time = times[0] + where * (times[-1] - times[0])
    expected = max(stamp for stamp in times if not is_later(stamp, time))
    assert stamps.at(time, 0) == [expected]


@pytest.mark.parametrize(
    ("degree", "used"), [(1, [4, 5]), (2, [4, 5, 6]), (3, [3, 4, 5, 6]), (4, [3, 4, 5, 6, 7])]
)
def test_the_nearest_stamps_are_used(degree: int, used: list[int]) -> None:
    weights = [
        stamps_of(range(10), lambda t, i=i: float(t == i)).at(4.4, degree) for i in range(10)
    ]
    assert np.flatnonzero(np.concatenate(weights)).tolist() == used


@pytest.mark.parametrize("degree", [0, 1, 3])
def test_several_times_between_two_stamps(degree: int) -> None:
    stamps = stamps_of(range(6), lambda t: 2.0 * t)
    for time in (4.25, 4.5, 4.75):
        assert stamps.at(time, degree) == [2.0 * (time if degree else 4)]
        stamps.forget_before(time, degree)


@given(gaps, degrees, st.data())
def test_what_is_dropped_is_not_needed_later(
    lengths: list[float], degree: int, data: st.DataObject
) -> None:
    """Values at later times are to the bit those of stamps that are all kept."""
    times = [float(time) for time in np.cumsum(lengths)]
    everything, some = (Stamps("fluid.0 rank 0") for _ in range(2))
    wanted = sorted(data.draw(st.lists(st.floats(times[0], times[-1]), min_size=1, max_size=9)))
    coming = iter(times)
    for time in wanted:
        while not everything.reaches(time):
            stamp = next(coming)
            for stamps in (everything, some):
                stamps.add(stamp, np.array([math.sin(stamp)]))
        assert some.at(time, degree) == everything.at(time, degree)
        some.forget_before(time, degree)
        assert len(some.times) <= max(degree, 1) + 1
    assert len(some.free) + len(some.values) == len(everything.values)


def test_times_before_all_that_is_kept_are_refused() -> None:
    stamps = stamps_of([0.5, 1.0, 1.5, 2.0], np.sin)
    with pytest.raises(BoundaryError, match=r"time 0.2 of fluid.0 rank 0 is before 0.5, the first"):
        stamps.at(0.2, 1)
    stamps.forget_before(1.75, 1)
    assert stamps.times == [1.5, 2.0]
    with pytest.raises(BoundaryError, match=r"before 1.5, the earliest .* keep_from=1.0"):
        stamps.at(1.0, 1)
    stamps.check_kept(1.5 * (1 - 1e-15))


@given(gaps, st.floats(0, 1))
def test_after_a_rewind_stamps_of_the_repetition_replace_the_others(
    lengths: list[float], where: float
) -> None:
    times = [float(time) for time in np.cumsum(lengths)]
    stamps = stamps_of(times, np.sin)
    back = times[0] + where * (times[-1] - times[0])
    stamps.rewind(back)
    assert stamps.times == [time for time in times if not is_later(time, back)]
    assert not stamps.takes(times[-1] + 1, 0), "it is left over from before"
    assert stamps.takes(back + 0.01, 1)
    with pytest.raises(BoundaryError, match="all ranks that repeat steps call rewind"):
        stamps.takes(back + 0.01, 2)


def test_times_that_do_not_grow_are_refused() -> None:
    stamps = stamps_of([1.0], np.sin)
    for time in (0.5, 1.0, 1.0 + 1e-14):
        with pytest.raises(BoundaryError, match=r"has pushed time .* after 1.0: times grow"):
            stamps.takes(time, 0)


def test_times_that_differ_by_rounding_are_the_same() -> None:
    """Sums of 0.1, and multiples of it: no later stamp is waited for, nothing is extrapolated."""
    total = 0.0
    for number in range(1, 10_001):
        total += 0.1
        assert not is_later(total, 0.1 * number)
        assert not is_later(0.1 * number, total)
    stamps = stamps_of([total - 0.1, total], np.sin)
    assert stamps.reaches(0.1 * 10_000)
    assert stamps.at(1000.0, 1)[0] == pytest.approx(math.sin(1000.0), abs=1e-9)
    assert stamps.at(1000.0, 0)[0] == pytest.approx(math.sin(1000.0), abs=1e-9)
    assert all(is_later(b, a) for a, b in pairwise([-1.0, -1e-9, 0.0, 1e-300, 1e-9, 1.0]))


@pytest.mark.parametrize("value", ["1", b"1", None, math.nan, math.inf, [1.0], 1j])
def test_what_is_no_time(value: Any) -> None:
    with pytest.raises(BoundaryError, match="a time is a finite number"):
        as_time(value)


def test_degrees_and_items() -> None:
    assert as_time(np.float32(0.5)) == 0.5
    for value in (-1, LARGEST_DEGREE + 1, True, 1.0, "1"):
        with pytest.raises(BoundaryError, match="the degree is a whole number from 0 to 5"):
            as_degree(value, np.dtype("f8"))
    with pytest.raises(BoundaryError, match="dtype int64 cannot be interpolated"):
        as_degree(1, np.dtype("i8"))
    assert as_degree(0, np.dtype("i8")) == 0
    for kind in ("f2", "f4", "c8"):
        stamps = Stamps("fluid.0 rank 0")
        for time in (0.0, 1.0):
            stamps.add(time, np.full(2, time, kind))
        assert stamps.at(0.25, as_degree(1, np.dtype(kind))).dtype == kind
        assert stamps.at(0.25, 1).tolist() == [0.25, 0.25]
