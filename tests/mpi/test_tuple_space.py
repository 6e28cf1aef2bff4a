"""Clients and tuple servers over MPI: servers on the first ranks, a client on every other one."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest

from diel.comm.waiting import wait_for
from diel.errors import PayloadError, RunStopped, TupleSpaceFull, TupleTimeout
from diel.tuples import protocol
from diel.tuples.client import TupleClient
from diel.tuples.mpi_transport import MpiTransport
from diel.tuples.server import TupleServer
from diel.tuples.store import TupleStore
from diel.tuples.tags import ANY

pytestmark = pytest.mark.mpi(min_size=2)


class OnDevice:
    """As an array on a GPU; the memory is the host's, so that any MPI takes its address."""

    def __init__(self, host):
        self.there = host

    @property
    def __cuda_array_interface__(self):
        about = self.there.__array_interface__
        return dict(about, version=3, strides=about["strides"])

    def copy(self):
        return OnDevice(self.there.copy())

    def get(self):
        assert self.there.nbytes <= protocol.INLINE_BYTES, "a large array is not staged"
        return self.there.copy()

    def set(self, host):
        self.there[...] = host


_DONE = "the test is over"
_PATIENCE_S = 30


@contextlib.contextmanager
def tuple_space(
    parent,
    *,
    servers: int = 1,
    capacity_bytes: int = 2**30,
    refuse: bool = False,
    blocks: int | None = None,
) -> Iterator[TupleClient | None]:
    """Give clients a TupleClient; servers get None after they have served them all.

    Each server has used so many `blocks` for large payloads, if that is given.
    """
    clients = range(servers, parent.size)
    if parent.rank < servers:
        server = TupleServer(parent.comm, TupleStore(capacity_bytes, refuse))
        done = parent.comm.irecv(source=clients[0], tag=99)
        server.serve(should_leave=lambda: done.test()[0])
        yield None
        if blocks is not None:
            assert len(server._pool) == blocks
        assert server.store.tuples_held == 0
        assert server.store.memory.held_bytes == 0
        return
    transport = MpiTransport(parent.comm, range(servers), lambda: None)
    yield TupleClient(transport)
    meeting = parent.create_communicator(clients, serial=500)
    meeting.Barrier()
    meeting.Free()
    transport.close()
    if parent.rank == clients[0]:
        for server in range(servers):
            parent.comm.send(_DONE, dest=server, tag=99)


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
            found = tuples.tget((parent.rank, index), timeout=_PATIENCE_S)
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
            assert np.all(tuples.tget((parent.rank, "array"), timeout=_PATIENCE_S) == 7.0)


def test_a_server_uses_one_block_for_large_tuples_that_come_and_go(parent):
    with tuple_space(parent, blocks=1) as tuples:
        if tuples is None or parent.rank > 1:
            return
        out = np.zeros(2**20, np.uint8)
        for number in range(20):
            tuples.tput("field", np.full(2**20, number, np.uint8))
            tuples.tget("field", timeout=_PATIENCE_S, out=out)
            assert (out == number).all()


def test_first_in_first_out_for_one_client_and_tag_whatever_the_size(parent):
    sizes = [10, 500_000, 20, 100_000, 5, 3000, 2500, 30]
    with tuple_space(parent) as tuples:
        if tuples is None:
            return
        for number, size in enumerate(sizes):
            tuples.tput(("queue", parent.rank), np.full(size, number))
        found = [tuples.tget(("queue", parent.rank), timeout=_PATIENCE_S) for _ in sizes]
        assert [(int(array[0]), len(array)) for array in found] == list(enumerate(sizes))


def test_out_receives_and_a_misfit_leaves_the_tuple_there(parent):
    with tuple_space(parent) as tuples:
        if tuples is None:
            return
        field = np.arange(50_000.0)
        tuples.tput((parent.rank, "field"), field)
        with pytest.raises(PayloadError, match="left there"):
            tuples.tget((parent.rank, "field"), out=np.empty(3), timeout=_PATIENCE_S)
        out = np.empty_like(field)
        assert tuples.tget((parent.rank, "field"), out=out, timeout=_PATIENCE_S) is out
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
        assert tuples.tget(("mine", parent.rank), timeout=_PATIENCE_S) == 1


def test_a_wait_that_something_else_ends_leaves_the_client_usable(parent):
    with tuple_space(parent) as tuples:
        if tuples is None:
            return
        asked = itertools.count(1)

        def interrupt():
            return next(asked) == 3

        with pytest.raises(TupleTimeout, match="interrupted"):
            tuples.tget_unless(("never", parent.rank), interrupt)
        assert next(asked) == 4
        tuples.tput(("now", parent.rank), 1)
        assert tuples.tget_unless(("now", parent.rank), lambda: False) == 1


def test_a_wait_that_was_cut_short_does_not_disturb_the_next_one(parent):
    stopping = False

    def safe_point() -> None:
        if stopping:
            raise RunStopped("stop")

    with tuple_space(parent) as tuples:
        if tuples is None:
            return
        tuples._requests.transport._safe_point = safe_point
        stopping = True
        with pytest.raises(RunStopped):
            tuples.tget(("late", parent.rank))
        stopping = False
        tuples.tput(("late", parent.rank), "for the first")
        tuples.tput(("next", parent.rank), "for the second")
        assert tuples.tget(("next", parent.rank), timeout=_PATIENCE_S) == "for the second"


@pytest.mark.parametrize("chunk_bytes", [1000, 65536, 10**6])
def test_payloads_in_several_chunks_come_whole(parent, monkeypatch, chunk_bytes):
    monkeypatch.setattr(protocol, "CHUNK_BYTES", chunk_bytes)
    sizes = [16_385, 65_536, 131_072, 300_001]
    with tuple_space(parent) as tuples:
        if tuples is None:
            return
        payloads = [np.random.default_rng(size).bytes(size) for size in sizes]
        for size, payload in zip(sizes, payloads, strict=True):
            tuples.tput((parent.rank, size), payload)
            tuples.tput((parent.rank, "array"), np.frombuffer(payload, np.uint8))
        assert len(tuples.collect((parent.rank, "array"), limit=2)) == 2
        for size, payload in zip(sizes, payloads, strict=True):
            assert tuples.tread((parent.rank, size), timeout=_PATIENCE_S) == payload
            assert tuples.tget((parent.rank, size), timeout=_PATIENCE_S) == payload
        for payload in payloads[2:]:
            out = np.empty(len(payload), np.uint8)
            tuples.tget((parent.rank, "array"), out=out, timeout=_PATIENCE_S)
            assert out.tobytes() == payload


def test_all_operations_cross_the_wire(parent):
    with tuple_space(parent) as tuples:
        if tuples is None:
            return
        me = parent.rank
        assert tuples.put_if_absent((me, "one"), 1)
        assert not tuples.put_if_absent((me, "one"), np.zeros(100_000))
        assert tuples.increment((me, "one"), 2) == 3
        assert tuples.increment((me, "one"), 0.5) == 3.5
        assert tuples.update((me, "one"), lambda value: np.full(50_000, value)).sum() == 175_000
        with pytest.raises(PayloadError, match="not a number"):
            tuples.increment((me, "one"))
        with pytest.raises(ZeroDivisionError), tuples.claim((me, ANY)) as claim:
            claim.value[0] / 0 if tuples.count((me, ANY)) else 1 / 0
        with tuples.claim((me, ANY), lease=_PATIENCE_S) as claim:
            assert claim.value.sum() == 175_000
            claim.renew(_PATIENCE_S)
        with tuples.subscribe((me, ANY)) as news:
            for number in range(3):
                tuples.tput((me, number), np.full(number * 20_000, number))
            assert [news.next(_PATIENCE_S)[0] for _ in range(3)] == [(me, n) for n in range(3)]
            with pytest.raises(TupleTimeout):
                news.next(timeout=0.05)
        assert tuples.count((me, ANY)) == 3
        assert [len(value) for _, value in tuples.collect((me, ANY))] == [0, 20_000, 40_000]
        tuples.tput((me, "last"), 1, wait=True)
        assert tuples.tget_nowait((me, "last")) == 1


@pytest.mark.mpi(min_size=4)
def test_increments_of_all_ranks_are_counted(parent):
    with tuple_space(parent) as tuples:
        if tuples is None:
            return
        mine = [tuples.increment("n") for _ in range(300)]
        assert mine == sorted(set(mine))
        tuples.tput("done", mine[-1])
        if parent.rank == 1:
            ends = [tuples.tget("done", timeout=_PATIENCE_S) for _ in range(parent.size - 1)]
            assert max(ends) == tuples.tget("n") == 300 * (parent.size - 1)


def test_a_putter_waits_for_room_until_somebody_takes(parent):
    with tuple_space(parent, capacity_bytes=2**20) as tuples:
        if tuples is None:
            return
        first = parent.rank == 1
        if first and parent.size == 2:
            for _ in range(2):
                tuples.tput("field", bytes(500_000))
            with pytest.raises(TupleTimeout):
                tuples.tput("field", bytes(500_000), timeout=0.1)
            assert [len(value) for _, value in tuples.collect("field")] == [500_000] * 2
        elif first:
            for number in range(20):
                tuples.tput("field", np.full(50_000, number))
        elif parent.rank == 2:
            time.sleep(0.2)
            for number in range(20):
                assert tuples.tget("field", timeout=_PATIENCE_S)[0] == number


def test_a_full_server_refuses_and_lives_on(parent):
    with tuple_space(parent, capacity_bytes=2**20, refuse=True) as tuples:
        if tuples is None or parent.rank > 1:
            return
        tuples.tput("field", bytes(900_000))
        for size in (200_000, 2**21):
            with pytest.raises(TupleSpaceFull):
                tuples.tput("field", bytes(size))
        assert len(tuples.tget("field", timeout=_PATIENCE_S)) == 900_000
        tuples.tput("field", bytes(900_000))
        tuples.tget("field", timeout=_PATIENCE_S)


@pytest.mark.mpi(min_size=4)
def test_a_wildcard_in_the_first_field_finds_tuples_on_three_servers(parent):
    with tuple_space(parent, servers=3) as tuples:
        if tuples is None:
            return
        for number in range(30):
            tuples.tput((number, "x"), np.full(number * 1000, number))
        found = sorted(
            tuples.tget((ANY, "x"), timeout=_PATIENCE_S, with_tag=True)[0] for _ in range(15)
        )
        found += [tag for tag, _ in tuples.collect((ANY, ANY))]
        assert sorted(found) == [(number, "x") for number in range(30)]
        with pytest.raises(TupleTimeout):
            tuples.tget((ANY, ANY), timeout=0.2)
        assert tuples.count((ANY, ANY)) == 0


@pytest.mark.mpi(min_size=4)
def test_takers_of_anything_share_what_two_servers_have(parent):
    rounds = 100
    with tuple_space(parent, servers=2) as tuples:
        if tuples is None:
            return
        me, other = parent.rank, 5 - parent.rank
        for number in range(rounds):
            tuples.tput(("job", me, number), number)
            tuples.tput((number, "job", me), number)
        found = [
            tuples.tget((ANY, ANY, ANY), timeout=_PATIENCE_S, with_tag=True)
            for _ in range(2 * rounds)
        ]
        tuples.tput(("found", other), found)
        everything = found + tuples.tget(("found", me), timeout=_PATIENCE_S)
        assert len({tag for tag, _ in everything}) == len(everything) == 4 * rounds


@pytest.mark.mpi(min_size=4)
def test_takers_share_and_readers_all_see(parent):
    rounds = 200
    with tuple_space(parent) as tuples:
        if tuples is None:
            return
        if parent.rank == 1:
            for number in range(2 * rounds):
                tuples.tput(("job", number), number)
            taken = sorted(
                tuples.tget("taken", timeout=_PATIENCE_S)
                + tuples.tget("taken", timeout=_PATIENCE_S)
            )
            assert taken == list(range(2 * rounds))
            tuples.tput("end", np.ones(30_000))
            tuples.tget("seen", timeout=_PATIENCE_S)
            tuples.tget("seen", timeout=_PATIENCE_S)
            assert tuples.tget("end", timeout=_PATIENCE_S).sum() == 30_000
        else:
            mine = [tuples.tget(("job", ANY), timeout=_PATIENCE_S) for _ in range(rounds)]
            assert mine == sorted(mine)  # first in, first out, for each taker
            tuples.tput("taken", mine)
            assert tuples.tread("end", timeout=_PATIENCE_S).sum() == 30_000
            tuples.tput("seen", None)


def test_a_watch_tells_without_waiting(parent):
    with tuple_space(parent) as tuples:
        if tuples is None:
            return
        for size in (1, 300_000):
            with tuples.watch((parent.rank, ANY)) as watch, tuples.watch("never") as never:
                assert not watch.has_matched()
                tuples.tput((parent.rank, "a"), np.full(size, 3.0))
                assert wait_for(lambda watch=watch: watch.has_matched() or None, _PATIENCE_S)
                # What the space answers meanwhile finds its way.
                assert tuples.tget((parent.rank, "a"), timeout=_PATIENCE_S).sum() == 3 * size
                assert not never.has_matched()


@pytest.mark.parametrize("servers", [1, 2])
def test_arrays_on_a_gpu_go_to_and_from_there(parent, servers, monkeypatch):
    """Where MPI takes their addresses; a tuple server has them on the host."""
    if parent.size <= servers:
        pytest.skip("one rank is to be a client")
    monkeypatch.setenv("DIEL_GPU_AWARE_MPI", "1")
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    host, mpi = "through ordinary memory", "GPU-aware MPI"
    large, small = np.arange(100_000.0).reshape(200, 500), np.arange(5.0)
    # Too large for a message as a whole, and not in two pieces.
    halves = np.arange(3 * protocol.INLINE_BYTES // 2, dtype="u1")
    with tuple_space(parent, servers=servers) as tuples:
        if tuples is None:
            return
        me, meter = parent.rank, tuples._requests.transport.meter
        for field, ways, ways_in_pieces in (
            (large, (mpi, mpi), (mpi, mpi)),
            (small, (host, host), (host, host)),
            (halves, (mpi, mpi), (mpi, mpi if servers == 1 else host)),
        ):
            for put, expected in ((tuples.tput, ways), (tuples.dist_tput, ways_in_pieces)):
                meter.take_spans()
                source, out = OnDevice(field + me), OnDevice(np.zeros_like(field))
                put(("field", me), source)
                source.there[...] = 0
                assert tuples.tread(("field", me), out=out) is out
                np.testing.assert_array_equal(out.there, field + me)
                np.testing.assert_array_equal(tuples.tget(("field", me)), field + me)
                found = [span.what for span in meter.take_spans() if "the GPU" in span.what]
                assert found == [
                    f"{x} the GPU, {y}" for x, y in zip(("from", "to"), expected, strict=True)
                ]
        tuples.tput(("columns", me), OnDevice(large[:, ::2]))
        out = OnDevice(np.zeros((200, 250)))
        tuples.tget(("columns", me), out=out)
        np.testing.assert_array_equal(out.there, large[:, ::2])
