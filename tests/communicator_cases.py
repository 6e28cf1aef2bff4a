"""What any communicator has to do, as functions of one: on threads, and under MPI."""

import weakref

import numpy as np
import pytest

from dnn.distributed.allreduce import ROUTINES
from dnn.distributed.communicator import Communicator
from dnn.distributed.shared_memory import AREA_BYTES
from dnn.errors import (
    CommunicationError,
    ConfigurationError,
    DisagreementError,
    DtypeError,
    PeerError,
    ShapeError,
)


def numbers(rank: int, size: int, dtype="f4") -> np.ndarray:
    """Return numbers of a rank whose sums over ranks depend on the order of summing."""
    generator = np.random.default_rng(rank)
    return (generator.standard_normal(size) * 10.0 ** generator.integers(-3, 4, size)).astype(dtype)


def check_sum(comm: Communicator, array: np.ndarray, inputs: list) -> None:
    """A sum is right to rounding, and all ranks have the same bits of it."""
    exact = np.sum([each.astype("f8") for each in inputs], axis=0)
    scale = np.sum([np.abs(each.astype("f8")) for each in inputs], axis=0)
    error = np.abs(array - exact)
    assert (error <= comm.size * np.finfo(array.dtype).eps * scale).all()
    assert len(set(comm.gather_values(array.tobytes().hex()))) == 1


def check_messages(comm: Communicator) -> None:
    following, preceding = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for size in (0, 1, 1000, 100_000):
        into = np.empty(size)
        # Two tags, received in the other order; and two of one tag, in their order.
        started = [
            comm.send(np.full(size, 10.0 * comm.rank + value), following, tag)
            for value, tag in ((0, 3), (1, 4), (2, 4))
        ]
        for value, tag in ((1, 4), (2, 4), (0, 3)):
            comm.receive(into, preceding, tag).wait()
            assert (into == 10 * preceding + value).all()
        for request in started:
            request.wait()
            assert request.test()
    with pytest.raises(CommunicationError, match="there is no rank"):
        comm.send(np.zeros(1), comm.size)
    with pytest.raises(ShapeError, match="not contiguous"):
        comm.receive(np.zeros((3, 3))[:, 1], 0)


def check_sums(comm: Communicator) -> None:
    for size in (0, 1, 7, 5000):
        for dtype in ("f4", "f8"):
            inputs = [numbers(rank, size, dtype) for rank in range(comm.size)]
            array = inputs[comm.rank].copy()
            comm.sum(array)
            check_sum(comm, array, inputs)
            again = inputs[comm.rank].copy()
            comm.sum(again)
            assert again.tobytes() == array.tobytes()
    counts = np.full((2, 3), comm.rank + 1)
    comm.sum(counts)
    assert (counts == comm.size * (comm.size + 1) // 2).all()
    with pytest.raises(DtypeError, match="must be numbers"):
        comm.sum(np.zeros(2, bool))
    with pytest.raises(ShapeError, match="not contiguous"):
        comm.sum(np.zeros((3, 3))[:, 1])


def check_routines(comm: Communicator) -> None:
    """Every routine there is gives the sum, the same bits on all ranks and each time."""
    comm.sum(np.zeros(1))
    names = list(comm._routines(np.dtype("f4")))
    assert set(ROUTINES) <= set(names)
    hosts = len(set(comm.nodes))
    assert ("two_level" in names) == (1 < hosts < comm.size)
    assert ("shared" in names) == (hosts < comm.size)
    for size in (1, 40, 1000):
        inputs = [numbers(rank, size) for rank in range(comm.size)]
        for name in names:
            array = inputs[comm.rank].copy()
            comm.sum(array, routine=name)
            check_sum(comm, array, inputs)
            again = inputs[comm.rank].copy()
            comm.start_sum(again, routine=name).wait()
            assert again.tobytes() == array.tobytes()
    with pytest.raises(ConfigurationError, match="did you mean 'ring'"):
        comm.sum(np.zeros(1), routine="rings")


def check_shared_memory(comm: Communicator) -> None:
    """Arrays in shared memory are summed there; larger ones than an area in several pieces."""
    memory = comm.shared_memory(500_000).view("f8")
    assert not memory.any()
    for times in range(40):  # more than there are records
        memory[100:200] = comm.rank + times
        comm.sum(memory[100:200])
        assert (memory[100:200] == sum(range(comm.size)) + comm.size * times).all()
    assert not memory[:100].any()
    assert not memory[200:].any()
    # In place and by copies, several at once, each rank in its own order of waiting.
    other = np.full(AREA_BYTES // 8 + 1000, comm.rank + 1.0)
    memory[:] = comm.rank
    requests = [comm.start_sum(memory[:1000]), comm.start_sum(other, routine=ours(comm))]
    requests.append(comm.start_sum(memory[1000:]))
    for request in requests[:: 1 if comm.rank % 2 else -1]:
        request.wait()
    assert (memory == sum(range(comm.size))).all()
    assert (other == sum(range(comm.size + 1))).all()
    # A rank may ask for less; and what nobody looks into any more is given back.
    gone = weakref.ref(memory.base)
    del memory, requests, request
    less = comm.shared_memory(4000 if comm.rank else 8000)
    assert less.nbytes == (4000 if comm.rank else 8000)
    less[:16].view("f8")[:] = 1
    comm.sum(less[:16].view("f8"))
    assert (less[:16].view("f8") == comm.size).all()
    assert gone() is None


def ours(comm: Communicator) -> str:
    """Return the routine through memory of a host, where there is one."""
    return "shared" if "shared" in comm._routines(np.dtype("f4")) else "ring"


def check_narrow_sums(comm: Communicator) -> None:
    """Elements are rounded where they are sent, added as float32, and rounded once more."""
    for wire, precision in (("float16", 2.0**-11), ("bfloat16", 2.0**-8)):
        inputs = [np.linspace(-1, 1, 100, dtype="f4") * (rank + 1) / 3 for rank in range(comm.size)]
        array = inputs[comm.rank].copy()
        comm.sum(array, wire=wire)
        exact = np.sum(inputs, axis=0, dtype="f8")
        scale = np.sum(np.abs(inputs), axis=0, dtype="f8")
        assert (np.abs(array - exact) <= 2.1 * precision * scale + 1e-7).all()
        assert comm.size == 1 or (array != inputs[0] * (comm.size * (comm.size + 1) // 2)).any()
        assert len(set(comm.gather_values(array.tobytes().hex()))) == 1
    with pytest.raises(DtypeError, match="in place of float32, not of float64"):
        comm.sum(np.zeros(3), wire="float16")
    with pytest.raises(ConfigurationError, match="on the wire 'float61'; did you mean 'float1"):
        comm.sum(np.zeros(3, "f4"), wire="float61")


def check_choices(comm: Communicator) -> None:
    """What rank 0 has decided on is taken by all, and can be looked at."""
    comm.sum(np.zeros(100))
    comm.sum(np.zeros(100_000))
    small, large = (comm.choices.names.get(size) for size in (1024, 1 << 20))
    assert comm.size == 1 or (small, large) == ("doubling", ours(comm))


def check_disagreement(comm: Communicator) -> None:
    """Ranks of a host that sum different arrays are told which rank it is."""
    size = 20_000 + 1000 * (comm.rank == 1)
    with pytest.raises(DisagreementError, match=r"rank 1 sums 84,000 bytes of float32") as caught:
        comm.sum(np.zeros(size, "f4"), routine="shared")
    assert caught.value.rank == 1
    assert comm._sums == []


def check_sums_under_way(comm: Communicator) -> None:
    """Several sums are under way at once, and each rank waits for them in another order."""
    arrays = [np.full(100 * (index + 1), 2.0**index * (comm.rank + 1)) for index in range(5)]
    requests = [comm.start_sum(array) for array in arrays]
    turn = comm.rank % len(requests)
    for request in requests[turn:] + requests[:turn]:
        request.wait()
    total = comm.size * (comm.size + 1) // 2
    assert all((array == 2**index * total).all() for index, array in enumerate(arrays))


def check_small_things(comm: Communicator) -> None:
    assert comm.gather_values({"rank": comm.rank, "name": "ä" * comm.rank}) == [
        {"rank": rank, "name": "ä" * rank} for rank in range(comm.size)
    ]
    for root in range(comm.size):
        array = np.full((3, 5), float(comm.rank))
        comm.broadcast(array, root)
        assert (array == root).all()
    assert len(comm.nodes) == comm.size


def check_split(comm: Communicator) -> None:
    color = comm.rank % 2
    half = comm.split(color)
    members = list(range(color, comm.size, 2))
    assert (half.rank, half.size) == (members.index(comm.rank), len(members))
    assert half.gather_values(comm.rank) == members
    array = np.full(10, float(comm.rank))
    both = np.full(10, 1.0)
    started = comm.start_sum(both)  # on another communicator at the same time
    half.sum(array)
    started.wait()
    assert (array == sum(members)).all()
    assert (both == comm.size).all()
    memory = weakref.ref(half._host_memory) if half._host_memory is not None else None
    half.close()
    assert memory is None or memory() is None


def check_failure(comm: Communicator) -> None:
    """The last rank fails, and all others hear of it, in a wait of a communicator split off."""
    part = comm.split(0)
    last = comm.size - 1
    if comm.rank == last:
        for rank in range(last):  # until they all wait
            comm.receive(np.zeros(1), rank, 7).wait()
        part.report_failure(ValueError("no such thing"))
        check_nothing_more(comm, CommunicationError, "ValueError: no such thing; this communicator")
        return
    waiting = comm.receive(np.zeros(1), last, 6)
    in_part = part.receive(np.zeros(1), last, 5)
    comm.send(np.zeros(1), last, 7)
    with pytest.raises(PeerError, match=f"^rank {last}: ValueError: no such thing$") as e:
        in_part.wait()
    comm.report_failure(e.value)  # which changes nothing
    check_nothing_more(comm, PeerError, rf"^rank {last}: ValueError: no such thing; this c")
    with pytest.raises(PeerError, match=r"has failed; make another"):
        waiting.test()


def check_nothing_more(comm: Communicator, error: type, match: str) -> None:
    """Whatever is begun after a failure raises at once."""
    start = [lambda: comm.send(np.zeros(1), 0), lambda: comm.receive(np.zeros(1), 0)]
    start += [lambda: comm.sum(np.zeros(1)), lambda: comm.gather_values(1)]
    start += [lambda: comm.sum(np.zeros(5000), routine="shared"), lambda: comm.split(0)]
    for each in start:
        with pytest.raises(error, match=match):
            each()


def check_mistakes(comm: Communicator) -> None:
    """A message of another size is an error of the receiver; waits that last too long end."""
    if comm.rank == 1:
        comm.send(np.zeros(2), 0, 7).wait()
        comm.send(np.zeros(2), 0, 7).wait()
    if comm.rank == 0:
        for size in (1, 3):
            with pytest.raises(CommunicationError, match="rank 1 "):
                comm.receive(np.zeros(size), 1, 7).wait()
    comm.timeout_s = 0.05
    what = r"rank \d of \d has waited 0.05 s for 8 bytes from rank 0 \(tag 9\)"
    with pytest.raises(CommunicationError, match=what):
        comm.receive(np.zeros(1), 0, 9).wait()
    with pytest.raises(CommunicationError, match="has failed; make another"):
        comm.receive(np.zeros(1), 0, 9)


CASES = [
    check_messages,
    check_sums,
    check_routines,
    check_shared_memory,
    check_narrow_sums,
    check_choices,
    check_sums_under_way,
    check_small_things,
    check_split,
    check_mistakes,
    check_failure,  # the last one: what a communicator is good for ends with it
]
