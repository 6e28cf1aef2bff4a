"""Clients and a tuple server over MPI: the server on rank 0, a client on every other rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest

from diel.errors import PayloadError, RunStopped, TupleTimeout
from diel.tuples.client import TupleClient
from diel.tuples.server import TupleServer
from diel.tuples.tags import ANY
from diel.tuples.transport import MpiTransport

pytestmark = pytest.mark.mpi(min_size=2)

_DONE = "the test is over"


@contextlib.contextmanager
def tuple_space(parent) -> Iterator[TupleClient | None]:
    """Give clients a TupleClient; rank 0 gets None after it has served them all."""
    if parent.rank == 0:
        server = TupleServer(parent.comm)
        done = parent.comm.irecv(source=1, tag=99)
        server.serve(should_leave=lambda: done.test()[0])
        yield None
        return
    yield TupleClient(MpiTransport(parent.comm, 0, lambda: None))
    clients = parent.create_communicator(range(1, parent.size), serial=500)
    clients.Barrier()
    clients.Free()
    if parent.rank == 1:
        parent.comm.send(_DONE, dest=0, tag=99)


def test_values_of_all_kinds_and_sizes_come_back_as_they_were(parent):
    values = [
        None,
        {"learning_rate": 0.1, "hidden": [64, 32]},
        b"",
        bytes(3_000_000),
        np.arange(12.0).reshape(3, 4),
        np.zeros(0, np.int8),
        np.asfortranarray(np.arange(200_000).reshape(400, 500)),
        np.array([("a", 1)], dtype=[("name", "U8"), ("count", "i4")]),
        np.float32(1.5),
    ]
    with tuple_space(parent) as tuples:
        if tuples is None:
            return
        for index, value in enumerate(values):
            tuples.tput((parent.rank, index), value)
        for index, value in enumerate(values):
            found = tuples.tget((parent.rank, index), timeout=30)
            assert type(found) is type(value)
            np.testing.assert_array_equal(found, value)


def test_an_array_may_be_changed_as_soon_as_it_is_put(parent):
    with tuple_space(parent) as tuples:
        if tuples is None:
            return
        for size in (10, 1000, 100_000, 2_000_000):
            array = np.full(size, 7.0)
            tuples.tput((parent.rank, "array"), array)
            array[:] = -1
            assert np.all(tuples.tget((parent.rank, "array"), timeout=30) == 7.0)


def test_first_in_first_out_for_one_client_and_tag_whatever_the_size(parent):
    sizes = [10, 500_000, 20, 100_000, 5, 3000, 2500, 30]
    with tuple_space(parent) as tuples:
        if tuples is None:
            return
        for number, size in enumerate(sizes):
            tuples.tput(("queue", parent.rank), np.full(size, number))
        found = [tuples.tget(("queue", parent.rank), timeout=30) for _ in sizes]
        assert [(int(array[0]), len(array)) for array in found] == list(enumerate(sizes))


def test_out_receives_and_a_misfit_leaves_the_tuple_there(parent):
    with tuple_space(parent) as tuples:
        if tuples is None:
            return
        field = np.arange(50_000.0)
        tuples.tput((parent.rank, "field"), field)
        with pytest.raises(PayloadError, match="left there"):
            tuples.tget((parent.rank, "field"), out=np.empty(3), timeout=30)
        out = np.empty_like(field)
        assert tuples.tget((parent.rank, "field"), out=out, timeout=30) is out
        np.testing.assert_array_equal(out, field)


def test_a_timeout_is_honoured_and_the_client_stays_usable(parent):
    with tuple_space(parent) as tuples:
        if tuples is None:
            return
        with pytest.raises(TupleTimeout, match="nothing matched"):
            tuples.tget(("nobody puts this", parent.rank), timeout=0.2)
        with pytest.raises(TupleTimeout):
            tuples.tread(("nobody puts this", ANY), timeout=0)
        tuples.tput(("mine", parent.rank), 1)
        assert tuples.tget(("mine", parent.rank), timeout=30) == 1


def test_a_wait_that_was_cut_short_does_not_disturb_the_next_one(parent):
    if parent.rank == 0:
        with tuple_space(parent):
            return

    def stop() -> None:
        raise RunStopped("stop")

    with tuple_space(parent) as tuples:
        transport = MpiTransport(parent.comm, 0, stop)
        impatient = TupleClient(transport)
        with pytest.raises(RunStopped):
            impatient.tget(("late", parent.rank))
        tuples.tput(("late", parent.rank), "for the first")
        transport._safe_point = lambda: None
        tuples.tput(("next", parent.rank), "for the second")
        assert impatient.tget(("next", parent.rank), timeout=30) == "for the second"


@pytest.mark.mpi(min_size=4)
def test_takers_share_and_readers_all_see(parent):
    rounds = 200
    with tuple_space(parent) as tuples:
        if tuples is None:
            return
        if parent.rank == 1:
            for number in range(2 * rounds):
                tuples.tput(("job", number), number)
            taken = sorted(tuples.tget("taken", timeout=30) + tuples.tget("taken", timeout=30))
            assert taken == list(range(2 * rounds))
            tuples.tput("end", np.ones(30_000))
            tuples.tget("seen", timeout=30)
            tuples.tget("seen", timeout=30)
            assert tuples.tget("end", timeout=30).sum() == 30_000
        else:
            mine = [tuples.tget(("job", ANY), timeout=30) for _ in range(rounds)]
            assert mine == sorted(mine)  # first in, first out, for each taker
            tuples.tput("taken", mine)
            assert tuples.tread("end", timeout=30).sum() == 30_000
            tuples.tput("seen", None)
