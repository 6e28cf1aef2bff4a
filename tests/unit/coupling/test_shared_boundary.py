"""Shared boundaries between ranks that meet in one thread."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import fake_cupy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.coupling.meeting import Meeting, peers

from diel.coupling import messages
from diel.coupling.address import Address
from diel.coupling.boundary import SharedBoundary, pieces
from diel.errors import BoundaryError, CouplingTimeout, TooFarAhead
from diel.workflow.boundary import Boundary

LARGE = 4000  # float64: more than a head holds


def declare(owners: list[Any], readers: list[Any], shape: tuple[int, ...], **more: Any) -> Boundary:
    said = {"name": "wall", "shape": shape, "owners": owners, "readers": readers}
    return Boundary.model_validate(said | more)


def boundaries(meeting: Meeting, declared: Boundary) -> dict[Address, SharedBoundary]:
    people = [address for _, _, address in meeting.peers.addresses()]
    found = {}
    for address in people:
        try:
            found[address] = SharedBoundary(declared, meeting[address])
        except BoundaryError:
            continue
    return found


def one_way(length: int) -> tuple[Meeting, SharedBoundary, SharedBoundary]:
    meeting = Meeting(peers(fluid=(1, 1), solid=(1, 1)))
    declared = declare([{"module": "fluid"}], [{"module": "solid"}], (length,))
    found = boundaries(meeting, declared)
    return meeting, found[Address("fluid")], found[Address("solid")]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Meeting, Boundary]:
    """Draw modules of several copies and ranks, and who owns and reads what."""
    sizes = {name: draw(st.tuples(st.integers(1, 3), st.integers(1, 3))) for name in ("a", "b")}
    # Some of them too large for a head.
    shape = draw(st.tuples(st.integers(1, 12), st.sampled_from([1, 2, 5, 800])))
    axis = draw(st.integers(0, 1))
    cut = draw(st.integers(0, shape[0]))
    owners = []
    for name, (start, stop) in (("a", (0, cut)), ("b", (cut, shape[0]))):
        if start < stop:
            section = [[start, stop], [0, shape[1]]]
            owners.append({"module": name, "split": axis, "section": section})
    readers = []
    for name in draw(st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=3)):
        part: dict[str, Any] = {"module": name}
        if draw(st.booleans()):
            part["split"] = draw(st.integers(0, 1))
        if draw(st.booleans()):
            starts = [draw(st.integers(0, length - 1)) for length in shape]
            part["section"] = [
                [start, draw(st.integers(start + 1, length))]
                for start, length in zip(starts, shape, strict=True)
            ]
        if draw(st.booleans()):
            part["copy"] = draw(st.integers(0, sizes[name][0] - 1))
        if "split" not in part and draw(st.booleans()):
            part["rank"] = draw(st.integers(0, sizes[name][1] - 1))
        readers.append(part)
    return Meeting(peers(**sizes)), declare(owners, readers, shape, dtype="int32")


def place(wall: SharedBoundary, view: np.ndarray[Any, Any]) -> tuple[slice, slice]:
    """Return where a view lies in the array, by the address of its first item."""
    first, start = (one.__array_interface__["data"][0] for one in (view, wall.array))
    i, j = divmod((first - start) // wall.array.itemsize, wall.array.shape[1])
    return slice(i, i + view.shape[0]), slice(j, j + view.shape[1])


@given(worlds(), st.lists(st.sampled_from(["push", "lane"]), min_size=1, max_size=3))
def test_everybody_reads_what_others_own_and_nothing_else(
    world: tuple[Meeting, Boundary], manner: list[str]
) -> None:
    meeting, declared = world
    found = boundaries(meeting, declared)
    for step, how in enumerate(manner, start=1):
        truth = 1000 * step + np.arange(np.prod(declared.shape), dtype="i4")
        truth = truth.reshape(declared.shape)
        for wall in found.values():
            assert wall.array.shape == declared.shape
            for view in wall.owned:
                view[...] = truth[place(wall, view)]
            if how == "push" and wall.owned:
                wall.push()
            elif wall.owned:  # what an exchange does first
                for one in wall._outgoing:
                    if one.lane is None:
                        wall._push_copy(one)
                    else:
                        one.lane.send()
        for wall in found.values():
            if wall.read:
                wall.pull(timeout=60)
            for view in wall.read:
                np.testing.assert_array_equal(view, truth[place(wall, view)])
    for channel in meeting.channels.values():
        channel.abandon()
    assert meeting.warnings == []
    assert not meeting.exchange.offers


@given(worlds())
def test_only_what_somebody_reads_travels_and_straight_to_them(
    world: tuple[Meeting, Boundary],
) -> None:
    meeting, declared = world
    everything = pieces(declared, meeting.peers)
    assert len({(one.owner, one.reader, one.key) for one in everything}) == len(everything)
    for one in everything:
        assert one.owner != one.reader
        assert one.owner.module in {part.module for part in declared.owners}
        assert one.reader.module in {part.module for part in declared.readers}
        for (start, stop), length in zip(one.box, declared.shape, strict=True):
            assert 0 <= start < stop <= length


@pytest.mark.parametrize("length", [3, LARGE])
def test_each_pull_gets_the_next_push(length: int) -> None:
    _, fluid, solid = one_way(length)
    for step in range(4):
        fluid.owned[0][:] = step
        sending = fluid.push()
        fluid.array[:] = -1  # it was copied
    for step in range(4):
        solid.pull()
        assert (solid.array == step).all()
    assert sending.done
    with pytest.raises(CouplingTimeout, match=r'pull\(boundary "wall" from fluid.0 rank 0\)'):
        solid.pull(timeout=0.02)
    assert (solid.array == 3).all()
    fluid.array[:] = 9
    fluid.push()
    solid.pull()  # nothing was lost by the timeout
    assert (solid.array == 9).all()


def test_buffers_are_used_again() -> None:
    _, fluid, solid = one_way(LARGE)
    for _ in range(10):
        fluid.push()
        solid.pull()
    assert len(fluid._outgoing[0].packed) == 1
    buffer = fluid._outgoing[0].packed[0][0]
    fluid.push()
    assert fluid._outgoing[0].packed[0][0] is buffer
    fluid.push()
    assert len(fluid._outgoing[0].packed) == 2


@pytest.mark.parametrize("shape", [(2, LARGE), (LARGE, 2), (2, 3)])
def test_an_exchange_in_threads(shape: tuple[int, int]) -> None:
    """Sections that are contiguous memory, those that are not, and small ones."""
    meeting = Meeting(peers(a=(1, 1), b=(1, 1)))
    axis = int(shape[0] == LARGE)
    halves = []
    for index in range(2):
        section = [[0, shape[0]], [0, shape[1]]]
        section[axis] = [index, index + 1]
        halves.append(section)
    a, b = ({"module": name, "section": half} for name, half in zip("ab", halves, strict=True))
    c, d = ({"module": name, "section": half} for name, half in zip("ba", halves, strict=True))
    found = boundaries(meeting, declare([a, b], [c, d], shape))
    errors: list[BaseException] = []

    def work(address: Address, sign: int) -> None:
        wall = found[address]
        try:
            for step in range(50):
                wall.owned[0][...] = sign * step
                wall.exchange(timeout=60)
                assert (wall.read[0] == -sign * step).all()
            meeting[address].close()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, args=(Address("a"), 1))
    thread.start()
    work(Address("b"), -1)
    thread.join(60)
    assert errors == []
    assert not meeting.exchange.offers


def test_an_exchange_that_nobody_joins_can_be_joined_later() -> None:
    _, fluid, solid = one_way(LARGE)
    fluid.array[:] = 5
    with pytest.raises(CouplingTimeout, match=r"receipt\(by solid.0 rank 0\)"):
        fluid.exchange(timeout=0.02)
    with pytest.raises(CouplingTimeout):  # it does not send the same memory twice
        fluid.exchange(timeout=0.02)
    solid.pull(timeout=60)
    assert (solid.array == 5).all()


def test_who_has_no_part_is_told_so() -> None:
    meeting = Meeting(peers(fluid=(1, 2), solid=(1, 1), other=(1, 1)))
    declared = declare([{"module": "fluid", "rank": 0}], [{"module": "solid"}], (4,))
    with pytest.raises(BoundaryError, match=r'other.0 rank 0 has no part in boundary "wall"'):
        SharedBoundary(declared, meeting[Address("other")])
    with pytest.raises(BoundaryError, match=r"fluid.0 rank 1 has no part"):
        SharedBoundary(declared, meeting[Address("fluid", 0, 1)])
    owner = SharedBoundary(declared, meeting[Address("fluid")])
    with pytest.raises(BoundaryError, match=r"fluid.0 rank 0 reads nothing"):
        owner.pull()
    with pytest.raises(BoundaryError, match=r"solid.0 rank 0 owns nothing"):
        SharedBoundary(declared, meeting[Address("solid")]).push()
    alone = Meeting(peers(fluid=(1, 1)))
    with pytest.raises(BoundaryError, match='shared with solid, and group "g" has fluid only'):
        SharedBoundary(declared, alone[Address("fluid")])


# -- arrays on a GPU, which is the stand-in's ------------------------------------------------------


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    cupyx: Any = SimpleNamespace(empty_pinned=fake_cupy.empty_pinned)
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    monkeypatch.setitem(sys.modules, "cupyx", cupyx)
    return fake_cupy


@pytest.mark.parametrize("length", [3, LARGE])
def test_sections_come_from_a_gpu_and_go_to_one(cupy: Any, length: int) -> None:
    meeting, fluid, solid = one_way(length)
    source = cupy.asarray(np.arange(float(length)))
    out = cupy.asarray(np.zeros(length))
    fluid.push(source)
    source.fill(-1)
    solid.pull(timeout=5, out=[out])
    np.testing.assert_array_equal(out.get(), np.arange(float(length)))
    np.testing.assert_array_equal(solid.array, fluid.array)
    ways = [
        (span.what, span.about, span.size_bytes)
        for channel in meeting.channels.values()
        for span in channel.meter.take_spans()
        if " the GPU" in span.what
    ]
    assert ways == [
        ("from the GPU, through pinned memory", "wall", 8 * length),
        ("to the GPU, through pinned memory", "wall", 8 * length),
    ]


def test_an_exchange_of_arrays_of_gpus(cupy: Any) -> None:
    meeting = Meeting(peers(fluid=(1, 1), solid=(1, 1)))
    owners = [
        {"module": "fluid", "section": [[0, LARGE]]},
        {"module": "solid", "section": [[LARGE, LARGE + 2]]},
    ]
    readers = [
        {"module": "solid", "section": [[0, LARGE]]},
        {"module": "fluid", "section": [[LARGE, LARGE + 2]]},
    ]
    found = boundaries(meeting, declare(owners, readers, (LARGE + 2,)))
    fluid, solid = found[Address("fluid")], found[Address("solid")]
    to_fluid, to_solid = cupy.asarray(np.zeros(2)), np.zeros(LARGE)

    def run_fluid() -> None:
        for step in range(2):
            value = cupy.asarray(np.full(LARGE, 1.0 + step))
            fluid.exchange(5, values=[value], out=[to_fluid])

    thread = threading.Thread(target=run_fluid)
    thread.start()
    for step in range(2):
        solid.exchange(5, values=[np.full(2, 10.0 + step)], out=[to_solid])
        assert (to_solid == 1.0 + step).all()
    thread.join(10)
    assert to_fluid.get().tolist() == [11.0, 11.0]


def test_arrays_that_do_not_fit_leave_all_as_it_was(cupy: Any) -> None:
    _, fluid, solid = one_way(3)
    with pytest.raises(BoundaryError, match=r"a value of dtype float32 and shape .3,. for a sec"):
        fluid.push(cupy.asarray(np.ones(3, "f4")))
    masked = np.ma.array(np.zeros(3), mask=[0, 1, 0])
    with pytest.raises(BoundaryError, match="not what else a MaskedArray has"):
        fluid.push(masked)
    with pytest.raises(BoundaryError, match="a value is an array, not a list"):
        fluid.push([1.0, 2.0, 3.0])
    with pytest.raises(BoundaryError, match="this rank has 1 such sections, and 2 arrays"):
        fluid.push(np.ones(3), np.ones(3))
    assert not fluid.array.any()
    fluid.push(np.ones(3))
    for out in (np.ones(4), cupy.asarray(np.ones(6))[::2]):
        with pytest.raises(BoundaryError, match="out"):
            solid.pull(timeout=5, out=[out])
    with pytest.raises(BoundaryError, match="has 0 such sections, and 1 arrays"):
        solid.exchange(5, values=[np.ones(3)])
    solid.pull(timeout=60)
    assert solid.array.tolist() == [1, 1, 1]


# -- owners that are ahead of their readers --------------------------------------------------------


def pulled(owners: list[SharedBoundary], reader: SharedBoundary) -> list[float] | None:
    """Pull while the owners go on; return the first item of each section, None if none came."""
    for _ in range(10):
        for owner in owners:
            owner._channel.poll()
        try:
            reader.pull(timeout=0)
        except CouplingTimeout:
            continue
        return [float(section.flat[0]) for section in reader.read]
    return None


def bounded(length: int, **more: Any) -> tuple[Meeting, dict[Address, SharedBoundary]]:
    """Return a boundary of which two owners each have half, and two readers all."""
    meeting = Meeting(peers(fluid=(1, 2), solid=(2, 1)))
    owners = [{"module": "fluid", "split": 0}]
    halves = [[0, length // 2]], [[length // 2, length]]
    readers = [{"module": "solid", "section": half} for half in halves]
    return meeting, boundaries(meeting, declare(owners, readers, (length,), **more))


def push(owner: SharedBoundary, number: float) -> None:
    owner.owned[0][...] = number
    owner.push()


@pytest.mark.parametrize("length", [2, 2 * LARGE])
def test_readers_at_different_speeds_get_whole_pushes_in_order(length: int) -> None:
    _, found = bounded(length, ahead=2, policy="drop oldest")
    first, second = owners = [found[Address("fluid", 0, rank)] for rank in (0, 1)]
    fast, slow = (found[Address("solid", copy)] for copy in (0, 1))
    assert fast.step == -1
    for number in range(3):
        push(first, number)
        push(second, number)
        assert pulled(owners, fast) == [number, number]
        assert fast.step == number
    for number in range(3, 8):
        push(first, number)
    push(second, 3)
    # `first` has pushes 6 and 7, `second` 2 and 3: no push is whole until `second` is at 6.
    assert pulled(owners, slow) is None
    for number in range(4, 9):
        push(second, number)
    assert pulled(owners, slow) == [6, 6]
    assert slow.step == 6
    assert pulled(owners, fast) == [7, 7]
    assert (fast.step, slow.step) == (7, 6)


@pytest.mark.parametrize("length", [2, 2 * LARGE])
def test_an_owner_waits_for_its_slowest_reader_or_fails(length: int) -> None:
    _, found = bounded(length, ahead=2)
    owner = found[Address("fluid")]
    other = found[Address("fluid", 0, 1)]
    fast, slow = (found[Address("solid", copy)] for copy in (0, 1))
    for number in range(2):
        push(owner, number)
        push(other, number)
        assert pulled([owner, other], fast) == [number, number]
    with pytest.raises(CouplingTimeout, match=r"by solid.1 rank 0 of boundary \"wall\", ahead = 2"):
        owner.push(np.full(length // 2, 9.0), timeout=0.01)
    assert owner.owned[0][0] == 1, "what was not pushed is not written either"
    assert pulled([owner, other], slow) == [0, 0]
    push(owner, 2)
    assert slow.step == 0

    _, found = bounded(length, ahead=1, policy="error")
    push(found[Address("fluid")], 0)
    with pytest.raises(TooFarAhead, match=r'boundary "wall".*ahead = 1'):
        push(found[Address("fluid")], 1)


def test_an_exchange_comes_after_earlier_pushes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "PAYLOADS_UNDER_WAY", 1)
    _, fluid, solid = one_way(LARGE)
    for number in range(3):
        push(fluid, number)
    fluid.owned[0][...] = 3
    fluid.exchange(timeout=0)  # does not wait: its section is copied behind the others
    fluid.owned[0][...] = 4
    assert [pulled([fluid], solid) for _ in range(4)] == [[0.0], [1.0], [2.0], [3.0]]


def test_buffers_of_a_late_reader_are_freed() -> None:
    _, fluid, solid = one_way(LARGE)
    for number in range(20):
        push(fluid, number)
    assert [pulled([fluid], solid) for _ in range(20)] == [[float(number)] for number in range(20)]
    push(fluid, 20)
    assert len(fluid._outgoing[0].packed) == 1
