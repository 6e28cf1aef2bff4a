"""Boundaries whose pushes have times, or are not all read: ranks that meet in one thread."""

from __future__ import annotations

import math
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.coupling.meeting import Meeting, peers
from unit.coupling.test_shared_boundary import (
    LARGE,
    boundaries,
    bounded,
    declare,
    one_way,
    pulled,
    push,
)

from diel.coupling import messages
from diel.coupling.address import Address
from diel.coupling.boundary import SharedBoundary
from diel.errors import BoundaryError, CouplingTimeout, OwnerEnded
from diel.testing import run_modules

both_lengths = pytest.mark.parametrize("length", [2, 2 * LARGE])


def push_at(owner: SharedBoundary, *times: float, factor: float = 1) -> None:
    for time in times:
        owner.owned[0][...] = factor * time
        owner.push(time=time)


def pull_all(reader: SharedBoundary) -> None:
    while True:
        reader.pull(timeout=30)


# -- every n-th, and the latest --------------------------------------------------------------------


@both_lengths
def test_every_nth_push(length: int) -> None:
    _, found = bounded(length)
    owners = [found[Address("fluid", 0, rank)] for rank in (0, 1)]
    reader, other = found[Address("solid")], found[Address("solid", 1)]
    for number in range(12):
        for owner in owners:
            push(owner, number)
    seen = []
    for every in (4, 4, 1, 3, 1):
        reader.pull(timeout=1, every=every)
        seen.append((reader.step, *reader.array[[0, -1]]))
    assert seen == [(number, number, number) for number in (0, 4, 5, 6, 7)]
    with pytest.raises(CouplingTimeout):
        reader.pull(timeout=0, every=12)
    assert reader.step == 11 == reader.array[0], "those before it are gone"
    other.pull(timeout=1)
    assert other.step == 0


@both_lengths
def test_every_nth_push_of_those_that_are_not_dropped(length: int) -> None:
    _, found = bounded(length, ahead=3, policy="drop oldest")
    owners = [found[Address("fluid", 0, rank)] for rank in (0, 1)]
    reader = found[Address("solid")]
    seen = []
    for number in range(40):
        for owner in owners:
            push(owner, number)
            owner._channel.poll()
        if number % 7 == 6:
            for _ in range(10):
                try:
                    reader.pull(timeout=0, every=5)
                except CouplingTimeout:
                    for owner in owners:
                        owner._channel.poll()
                    continue
                seen.append(reader.step)
                assert (reader.array == reader.step).all()
                break
    assert seen == sorted(set(seen))
    assert len(seen) > 2
    assert not any(step % 5 for step in seen)


@both_lengths
def test_the_latest_push_of_all_owners(length: int) -> None:
    _, found = bounded(length)
    first, second = (found[Address("fluid", 0, rank)] for rank in (0, 1))
    reader = found[Address("solid")]
    for number in range(5):
        push(first, number)
    for number in range(3):
        push(second, number)
    reader.pull(timeout=1, latest=True)
    assert reader.step == 2
    assert reader.array.tolist() == [2.0] * length
    with pytest.raises(CouplingTimeout):
        reader.pull(timeout=0, latest=True)
    push(second, 3)
    reader.pull(timeout=1, latest=True)
    assert (reader.step, reader.array[0], reader.array[-1]) == (3, 3, 3)
    for every, is_latest in ((0, False), (True, False), (1.0, False), (1.5, False), (2, True)):
        with pytest.raises(BoundaryError, match="every"):
            reader.pull(timeout=1, every=every, latest=is_latest)


def test_the_latest_of_what_may_be_dropped_does_not_wait_for_more() -> None:
    _, found = bounded(2, ahead=2, policy="drop oldest")
    owners = [found[Address("fluid", 0, rank)] for rank in (0, 1)]
    reader = found[Address("solid")]
    for number in range(5):
        for owner in owners:
            push(owner, number)
    steps = []
    for _ in range(10):
        try:
            reader.pull(timeout=0, latest=True)
        except CouplingTimeout:
            for owner in owners:
                owner._channel.poll()
            continue
        steps.append(reader.step)
    assert steps == [3, 4]


def test_owners_of_whom_one_has_more_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that wait at one owner are numbered; without `ahead` nothing is left out."""
    monkeypatch.setattr(messages, "PAYLOADS_UNDER_WAY", 1)
    _, found = bounded(2 * LARGE)
    first, second = owners = [found[Address("fluid", 0, rank)] for rank in (0, 1)]
    for number in range(5):
        push(first, number)
    monkeypatch.setattr(messages, "PAYLOADS_UNDER_WAY", 100)
    for number in range(5):
        push(second, number)
    found_values = [pulled(owners, found[Address("solid")]) for _ in range(5)]
    assert found_values == [[number, number] for number in range(5)]


# -- the end of an owner ---------------------------------------------------------------------------


@both_lengths
@pytest.mark.parametrize("more", [{}, {"ahead": 2, "policy": "drop oldest"}])
def test_an_owner_that_has_returned_is_told(length: int, more: dict[str, Any]) -> None:
    def owner(ctx: Any) -> None:
        wall = ctx.boundary("wall")
        for number in range(4):
            wall.push(np.full(length, float(number)))

    def reader(ctx: Any) -> tuple[int, str]:
        wall = ctx.boundary("wall")
        with pytest.raises(OwnerEnded) as raised:
            pull_all(wall)
        assert (wall.array == 3).all()
        return wall.step, str(raised.value)

    wall = {"name": "wall", "shape": [length], **more}
    wall |= {"owners": [{"module": "owner"}], "readers": [{"module": "reader"}]}
    runs = run_modules({"owner": owner, "reader": reader}, boundaries=[wall])
    text = 'pull(boundary "wall" from owner.0 rank 0): it has returned'
    assert runs["reader"][0].returned == (3, text)
    assert not runs["reader"][0].warnings


def test_the_latest_push_of_an_owner_that_has_returned() -> None:
    meeting, fluid, solid = one_way(2)
    for number in range(3):
        push(fluid, number)
    meeting[Address("fluid")].close()
    solid.pull(timeout=1, latest=True)
    assert solid.array.tolist() == [2, 2]
    with pytest.raises(OwnerEnded):
        solid.pull(timeout=1, latest=True)


@pytest.mark.parametrize("end", ["close", "abandon"])
def test_a_later_copy_on_the_same_rank_does_not_end_for_an_earlier_one(end: str) -> None:
    meeting, _, _ = one_way(2)
    channel = meeting[Address("fluid")]
    getattr(channel, end)()
    meeting.open(peers(first_serial=9, other=(1, 1)))
    channel.close()
    assert not channel._outbox.sent


def test_a_reader_that_is_not_there_any_more_is_not_warned_of_an_end() -> None:
    meeting, fluid, solid = one_way(2)
    fluid.push()
    solid.pull(timeout=1)
    meeting[Address("solid")].close()
    meeting[Address("fluid")].close()
    meeting[Address("solid")].poll()
    assert meeting.warnings == []


# -- times -----------------------------------------------------------------------------------------


@both_lengths
def test_pull_at_receives_until_two_pushes_enclose_the_time(length: int) -> None:
    _, fluid, solid = one_way(length)
    push_at(fluid, 0, 0.5, 1.5, 2.5)
    for time in (0, 0.2, 0.5, 1.2, 1.5):
        solid.pull_at(time, timeout=1)
        np.testing.assert_allclose(solid.array, time, rtol=1e-15)
        assert solid.time == time
    assert solid._incoming[0].stream.stamps.times == [1.5], "the rest is yet to be received"
    with pytest.raises(CouplingTimeout) as raised:
        solid.pull_at(3.25, timeout=0.01)
    text = 'pull_at(time 3.25 of fluid.0 rank 0 of boundary "wall", which has pushed until 2.5)'
    assert str(raised.value).startswith(text)
    assert (solid.array == 1.5).all(), "it is as it was"
    push_at(fluid, 3.5)
    out = np.empty(length)
    solid.pull_at(3.25, out=[out])
    assert (out == 3.25).all()


def test_no_memory_is_allocated_for_more_and_more_pushes() -> None:
    _, fluid, solid = one_way(LARGE)
    arrays = set()
    for number in range(30):
        push_at(fluid, number)
        solid.pull_at(max(0, number - 0.5), timeout=1)
        arrays |= {id(values) for values in solid._incoming[0].stream.stamps.values}
    assert len(arrays) <= 3


@given(
    st.lists(st.floats(0.05, 2), min_size=1, max_size=8),
    st.lists(st.floats(0.05, 2), min_size=1, max_size=8),
    st.lists(st.floats(0, 5), max_size=8),
)
def test_sections_of_owners_with_other_steps_are_of_one_time(
    first: list[float], second: list[float], wanted: list[float]
) -> None:
    _, found = bounded(6)
    owners = [found[Address("fluid", 0, rank)] for rank in (0, 1)]
    reader = found[Address("solid")]
    for owner, steps in zip(owners, (first, second), strict=True):
        push_at(owner, *np.cumsum([0, *steps, 5]).tolist())
    for time in sorted(wanted):
        reader.pull_at(time, timeout=0)
        np.testing.assert_allclose(reader.array, time, rtol=1e-9, atol=1e-12)


def test_a_pull_has_the_time_of_its_push() -> None:
    _, found = bounded(2)
    owners = [found[Address("fluid", 0, rank)] for rank in (0, 1)]
    reader = found[Address("solid")]
    for owner in owners:
        push_at(owner, 0.25)
        owner.push()
    reader.pull(timeout=1)
    assert reader.time == 0.25
    reader.pull(timeout=1)
    assert reader.time is None
    push_at(owners[0], 0.5)
    push_at(owners[1], 0.75)
    with pytest.raises(BoundaryError, match=r"push 2 of .* has the times 0.5, 0.75: with pull_at"):
        reader.pull(timeout=1)
    with pytest.raises(BoundaryError, match="by pull or by pull_at, and not by both"):
        reader.pull_at(0.5, timeout=1)


def test_times_that_are_refused_change_nothing() -> None:
    _, fluid, solid = one_way(2)
    push_at(fluid, 1.0)
    for time in (1.0, 0.5):
        with pytest.raises(BoundaryError, match=rf'"wall": time {time} is pushed after 1.0'):
            fluid.push(np.zeros(2), time=time)
    with pytest.raises(BoundaryError, match="a time is a finite number, not nan"):
        fluid.push(time=math.nan)
    assert (fluid.array == 1).all()
    with pytest.raises(BoundaryError, match=r"time 0.5 .* is before 1.0, the first one that was"):
        solid.pull_at(0.5, timeout=1)
    solid.pull_at(1.0, timeout=1)
    with pytest.raises(BoundaryError, match="by pull or by pull_at, and not by both"):
        solid.pull(timeout=1)
    with pytest.raises(BoundaryError, match=r"rewind to 1.5 is not back: the last push has time 1"):
        fluid.rewind(1.5)
    fluid.push()
    with pytest.raises(BoundaryError, match="has pushed without a time"):
        solid.pull_at(1.5, timeout=1)


@pytest.mark.parametrize("hold", [True, False])
def test_after_the_last_push_of_an_owner_that_has_returned(hold: bool) -> None:
    meeting, fluid, solid = one_way(2)
    push_at(fluid, 0.0, 1.0)
    meeting[Address("fluid")].close()
    solid.pull_at(1.0, timeout=1)
    if hold:
        for time in (1.5, 7.0):
            solid.pull_at(time, timeout=1, hold=True)
            assert (solid.array == 1).all()
    else:
        with pytest.raises(OwnerEnded, match=r"until 1.0\): it has returned; hold=True takes"):
            solid.pull_at(1.5, timeout=1)


def test_an_owner_that_has_returned_without_a_push() -> None:
    meeting, _, solid = one_way(2)
    meeting[Address("fluid")].close()
    with pytest.raises(OwnerEnded, match=r"which has not pushed\): it has returned$"):
        solid.pull_at(1.5, timeout=1, hold=True)


def test_pushes_with_times_wait_for_readers_that_are_behind() -> None:
    _, found = bounded(2, ahead=2)
    owner, other = (found[Address("fluid", 0, rank)] for rank in (0, 1))
    readers = [found[Address("solid", copy)] for copy in (0, 1)]
    push_at(owner, 0, 1)
    push_at(other, 0, 1)
    with pytest.raises(CouplingTimeout):
        owner.push(time=2, timeout=0.01)
    for reader in readers:
        reader.pull_at(0.5, timeout=1)
    push_at(owner, 2)  # the time that was refused room is not taken
    assert owner._pushed_time == 2


# -- steps that are repeated -----------------------------------------------------------------------


def test_a_reader_reads_again_what_it_keeps() -> None:
    _, fluid, solid = one_way(2)
    push_at(fluid, *range(8))
    for time in (2.0, 4.5, 3.25, 6.0, 2.0):
        solid.pull_at(time, timeout=1, keep_from=2)
        assert (solid.array == time).all()
    solid.pull_at(5.0)
    with pytest.raises(BoundaryError, match=r"time 3.0 .* give pull_at keep_from=3.0 before"):
        solid.pull_at(3.0)


def test_both_repeat_their_steps() -> None:
    _, fluid, solid = one_way(2)
    push_at(fluid, 0, 1, 2, 3, 4)
    solid.pull_at(3, timeout=1, keep_from=1.5)
    fluid.rewind(2)
    with pytest.raises(BoundaryError, match=r"time 2.0 is pushed after 2.0"):
        fluid.push(time=2)
    push_at(fluid, 2.5, 4.5, factor=10)
    with pytest.raises(BoundaryError, match=r"gone back in time, to push time 2.5 again, and this"):
        solid.pull_at(4.25, timeout=1)
    solid.rewind(2)
    solid.pull_at(2.25, timeout=1)
    assert solid.array.tolist() == [13.5, 13.5]  # between 2, which stays, and 25
    solid.pull_at(3.5, timeout=1)
    assert solid.array.tolist() == [35, 35]
    with pytest.raises(BoundaryError, match="before"):
        solid.rewind(1)


def test_what_is_left_of_an_earlier_repetition_is_dropped() -> None:
    _, fluid, solid = one_way(LARGE)
    arrays = set()
    for repetition in range(4):
        push_at(fluid, *range(repetition > 0, 5), factor=repetition + 1)
        solid.pull_at(1.5, timeout=1, keep_from=0)
        assert (solid.array == 1.5 * (repetition + 1)).all()
        arrays |= {id(values) for values in solid._incoming[0].stream.stamps.values}
        for rank in (fluid, solid):
            rank.rewind(0)
    assert len(arrays) <= 4, "arrays are used again"


def test_a_new_start_from_a_checkpoint() -> None:
    """The reader goes on from an owner's state before its own; later ones are refused."""
    for owners_time, readers_time in ((1.0, 1.0), (0.5, 1.0), (1.5, 1.0)):
        _, fluid, solid = one_way(2)  # nothing is left of the pushes before
        push_at(fluid, *(owners_time + 0.5 * np.arange(4)).tolist())
        if owners_time > readers_time:
            with pytest.raises(BoundaryError, match=r"time 1.0 .* is before 1.5, the first one"):
                solid.pull_at(readers_time, timeout=1)
            continue
        for time in (readers_time, readers_time + 0.75):
            solid.pull_at(time, timeout=1)
            assert (solid.array == time).all()


# -- coupled equations -----------------------------------------------------------------------------

COUPLING = np.array([[-1.0, 2.0], [-3.0, -0.5]])  # y' = COUPLING y, y(0) = START
START = np.array([1.0, 0.5])
END, WINDOWS = 2.0, 4


def exact(time: float) -> np.ndarray[Any, Any]:
    values, vectors = np.linalg.eig(COUPLING)
    return (vectors @ (np.exp(values * time) * np.linalg.solve(vectors, START))).real


def solver(me: int, steps: int, degree: int) -> Any:
    """Return a module that integrates one of the two equations with steps of its own.

    Windows are repeated until they do not change: the first module begins with the other's value
    at the start of the window, the second has the first one's values of the same repetition.
    """

    def run(ctx: Any) -> float:
        both = ctx.boundary("both")
        mine, other = both.owned[0], both.read[0]
        mine[...] = value = START[me]
        both.push(time=0.0)
        both.pull_at(0.0, timeout=30)
        dt = END / WINDOWS / steps
        for window in range(WINDOWS):
            start, stop = (END / WINDOWS * n for n in (window, window + 1))
            times = [start + dt * half / 2 for half in range(2 * steps + 1)]
            given = [float(other[0])] * len(times)
            for repetition in count():
                if me == 1:
                    given = read(both, times, stop, degree)
                reached = integrate(both, value, given, start, dt)
                if me == 0:
                    before, given = given, read(both, times, stop, degree)
                    is_done = max(abs(np.subtract(before, given))) < 1e-13
                    ctx.send(is_done, to="second")
                else:
                    is_done = ctx.recv("first", timeout=30)
                if is_done:
                    break
                assert repetition < 60
                both.rewind(start)
            value = reached
        return value

    def read(both: Any, times: list[float], stop: float, degree: int) -> list[float]:
        both.pull_at(stop, timeout=30, keep_from=times[0])  # the whole window is known then
        found = []
        for time in times:
            both.pull_at(time, degree=degree, keep_from=times[0])
            found.append(float(both.read[0][0]))
        return found

    def integrate(both: Any, y: float, given: list[float], start: float, dt: float) -> float:
        """Make the steps of a window by the classical Runge-Kutta method, and push each."""

        def slope(y: float, half: int) -> float:
            return float(COUPLING[me, me] * y + COUPLING[me, 1 - me] * given[half])

        for step in range(steps):
            k1 = slope(y, 2 * step)
            k2 = slope(y + dt / 2 * k1, 2 * step + 1)
            k3 = slope(y + dt / 2 * k2, 2 * step + 1)
            k4 = slope(y + dt * k3, 2 * step + 2)
            y += dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            both.push(np.array([y]), time=start + dt * (step + 1))
        return y

    return run


@pytest.mark.parametrize(("degree", "order"), [(1, 2), (3, 4)])
def test_two_equations_with_different_steps_converge_as_one(degree: int, order: int) -> None:
    errors = []
    both = {"name": "both", "shape": [2]}
    halves = [[0, 1]], [[1, 2]]
    names = ("first", "second")
    for part, turn in (("owners", 1), ("readers", -1)):
        parts = zip(names[::turn], halves, strict=True)
        both[part] = [{"module": name, "section": half} for name, half in parts]
    for factor in (1, 2):
        modules = {
            "first": solver(0, 4 * factor, degree),
            "second": solver(1, 6 * factor, degree),
        }
        runs = run_modules(modules, boundaries=[both])
        found = [runs[name][0].returned for name in names]
        errors.append(np.abs(found - exact(END)).max())
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.5)
    assert errors[1] < 0.02**degree


def test_whole_numbers_are_not_interpolated() -> None:
    meeting = Meeting(peers(fluid=(1, 1), solid=(1, 1)))
    declared = declare([{"module": "fluid"}], [{"module": "solid"}], (2,), dtype="int64")
    found = boundaries(meeting, declared)
    push_at(found[Address("fluid")], 0, 2)
    solid = found[Address("solid")]
    with pytest.raises(BoundaryError, match="int64 cannot be interpolated"):
        solid.pull_at(1, timeout=1)
    solid.pull_at(1, timeout=1, degree=0)
    assert solid.array.tolist() == [0, 0]
