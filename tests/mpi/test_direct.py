"""Messages and boundaries between ranks over MPI."""

from __future__ import annotations

import numpy as np
import pytest

from diel.comm.direct import MpiPort
from diel.coupling.address import Address, CopyRanks, Peers
from diel.coupling.boundary import SharedBoundary
from diel.coupling.channel import Channel
from diel.errors import CouplingTimeout, PayloadError
from diel.workflow.boundary import Boundary

pytestmark = pytest.mark.mpi

LARGE = 300_000


class People:
    """All ranks as copies of one module, in one run of a group after the other."""

    def __init__(self, parent):
        self.parent = parent
        self.warnings = []
        self.port = MpiPort(parent.comm)
        self.channel = Channel(self.port, warn=lambda *words: self.warnings.append(words))
        self.serial = 1

    def open(self):
        """Begin a run of the group; the ranks do it at different times."""
        size = self.parent.size
        copies = tuple(CopyRanks(self.serial + rank, (rank,)) for rank in range(size))
        self.serial += size
        self.channel.open(Address("m", self.parent.rank), Peers("g", {"m": copies}))
        return self.channel

    def close(self):
        self.channel.close()
        self.parent.comm.Barrier()
        self.channel.poll()
        self.port.close()


@pytest.fixture
def people(parent):
    people = People(parent)
    yield people
    people.close()


def test_everybody_sends_to_everybody(people):
    me, size = people.parent.rank, people.parent.size
    channel = people.open()
    for step in range(3):
        for other in range(size):
            channel.send({"from": me, "step": step}, ("m", other), tag=("small", step))
            array = np.full(LARGE, 100 * step + me, "f4")
            channel.send(array, ("m", other))
            array[:] = -1
    out = np.empty(LARGE, "f4")
    for other in reversed(range(size)):
        for step in range(3):
            assert channel.recv(("m", other), out=out) is out
            assert (out == 100 * step + other).all()
    for step in reversed(range(3)):
        heard = {channel.recv(tag=("small", step))["from"] for _ in range(size)}
        assert heard == set(range(size))
    channel.close()
    assert people.warnings == []


def test_large_payloads_are_received_in_any_order(people):
    me, size = people.parent.rank, people.parent.size
    channel = people.open()
    after, before = ("m", (me + 1) % size), ("m", (me - 1) % size)
    sendings = [
        channel.send(np.full(LARGE, number), after, tag=("n", number), copy=False)
        for number in range(20)
    ]
    for number in reversed(range(20)):
        assert channel.recv(before, tag=("n", number))[-1] == number
    for sending in sendings:
        sending.wait(timeout=60)
        assert sending.done


@pytest.mark.mpi(min_size=2)
def test_a_move_waits_and_an_out_that_does_not_fit_keeps_the_message(people):
    me = people.parent.rank
    channel = people.open()
    if me == 0:
        with pytest.raises(CouplingTimeout):
            channel.move(b"small", ("m", 1), timeout=0.05)
        channel.move(np.arange(LARGE), ("m", 1), tag="field", timeout=60)
    if me == 1:
        with pytest.raises(PayloadError, match="has not been received"):
            channel.recv("m", tag="field", out=np.empty(3), timeout=60)
        assert channel.recv("m", tag="field").sum() == LARGE * (LARGE - 1) // 2
        assert channel.recv("m") == b"small"


@pytest.mark.mpi(min_size=2)
def test_what_was_left_over_never_reaches_a_later_copy(people):
    me = people.parent.rank
    told = 0
    for run in range(10):
        channel = people.open()
        if me == 0:
            channel.send(("unread", run), ("m", 1), tag="t")
            if run % 2:
                channel.send(np.full(LARGE, run), ("m", 1), tag="large")
            channel.send(run, ("m", 1), tag="read")
        if me == 1:
            assert channel.recv("m", tag="read", timeout=60) == run
            told += 1 + run % 2
        channel.close()
    assert len(people.warnings) == told
    assert all("was never received" in text for _, _, text in people.warnings)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("length", [10, LARGE])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_boundary_that_everybody_owns_a_share_of(people, length, axis):
    me, size = people.parent.rank, people.parent.size
    channel = people.open()
    shape = (2 * size, length) if axis == 0 else (length, 2 * size)
    said = {"name": "wall", "shape": shape, "owners": [{"module": "m", "split": axis}]}
    declared = Boundary.model_validate(said | {"readers": [{"module": "m"}]})
    wall = SharedBoundary(declared, channel)
    numbers = np.arange(2 * size) // 2
    expected = numbers[:, None] if axis == 0 else numbers[None, :]
    for step in range(6):
        wall.owned[0][...] = 10 * step + me
        if step % 2:
            wall.push()
            wall.pull(timeout=60)
        else:
            wall.exchange(timeout=60)
        assert (wall.array == 10 * step + expected).all()
    channel.close()
    assert people.warnings == []


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("length", [10, 3000])
def test_a_boundary_whose_owners_have_steps_of_their_own(people, length):
    me, size = people.parent.rank, people.parent.size
    channel = people.open()
    said = {"name": "wall", "shape": (size, length), "owners": [{"module": "m", "split": 0}]}
    declared = Boundary.model_validate(said | {"readers": [{"module": "m"}]})
    wall = SharedBoundary(declared, channel)
    for repetition in range(2):
        for step in range(repetition, 4 * (me + 1) + 1):
            time = step / (me + 1)
            wall.push(np.full((1, length), (repetition + 1) * time), time=time)
        for time in (3.2, 0.3, 2.0, 4.0):
            wall.pull_at(time, timeout=60, degree=3, keep_from=0.0)
            others = np.delete(wall.array, me, axis=0)
            np.testing.assert_allclose(others, (repetition + 1) * time)
        if not repetition:
            wall.rewind(0.0)
    if me == 0:
        wall.pull_at(7.0, timeout=60, hold=True)
        assert (np.delete(wall.array, me, axis=0) == 8).all()
    channel.close()
    assert people.warnings == []


def test_memory_that_mpi_takes_the_address_of(people, monkeypatch):
    """As an MPI that knows GPUs does; the memory is the host's, so that any MPI can do it."""

    class OnDevice:
        def __init__(self, host):
            self.there = host
            self.__cuda_array_interface__ = dict(host.__array_interface__, version=3)

        def copy(self):
            return OnDevice(self.there.copy())

        def get(self):
            raise AssertionError("a large array is not staged")

        set = get

    people.port.gpu_aware = True
    me, size = people.parent.rank, people.parent.size
    channel = people.open()
    source = OnDevice(np.full((2, LARGE), me))
    channel.send(source, ("m", (me + 1) % size))  # the copy outlives this call
    source.there[:] = -1
    out = OnDevice(np.zeros((2, LARGE), int))
    assert channel.recv(out=out) is out
    assert (out.there == (me - 1) % size).all()


def test_payloads_of_several_pieces(people, monkeypatch):
    monkeypatch.setattr("diel.comm.direct.CHUNK_BYTES", 100_000)
    me, size = people.parent.rank, people.parent.size
    channel = people.open()
    array = np.arange(LARGE) + me
    channel.send(array, ("m", (me + 1) % size))
    assert (channel.recv() == np.arange(LARGE) + (me - 1) % size).all()
    said = {"name": "all", "shape": [size, LARGE], "owners": [{"module": "m", "split": 0}]}
    declared = Boundary.model_validate(said | {"readers": [{"module": "m"}]})
    wall = SharedBoundary(declared, channel)
    for step in range(2):
        wall.owned[0][...] = array + step
        wall.exchange(timeout=60)
        assert (wall.array - wall.array[:, :1] == np.arange(LARGE)).all()
        assert wall.array[:, 0].tolist() == [rank + step for rank in range(size)]
