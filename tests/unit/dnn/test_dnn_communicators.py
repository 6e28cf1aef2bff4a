"""Communicators of threads, and sums made of messages."""

from types import SimpleNamespace

import numpy as np
import pytest
from communicator_cases import CASES, check_disagreement

import dnn
from dnn.backend.routines import ROUTINES_VARIABLE, ConvolutionChoices
from dnn.distributed import allreduce, communicator, communicator_of, run_on_threads
from dnn.distributed.allreduce import ALLREDUCE_VARIABLE, ROUTINES, fixed_choice, size_class
from dnn.distributed.scheme import share_gradients
from dnn.distributed.threads import ThreadCommunicator
from dnn.errors import CommunicationError, ConfigurationError, DisagreementError, PeerError
from dnn.parameters import FlatBuffer, Segment

# On which host each rank is: one host, hosts of their own, and hosts with several ranks.
HOSTS = [[0], [0, 0], [0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 1, 1], [0, 1, 1, 1, 0], [0] * 7]


@pytest.mark.sample(24)
@pytest.mark.parametrize("hosts", HOSTS, ids=lambda hosts: "".join(map(str, hosts)))
@pytest.mark.parametrize("check", CASES, ids=lambda check: check.__name__)
def test_threads(check, hosts):
    if len(hosts) > 1 or check.__name__ not in ("check_failure", "check_mistakes"):
        run_on_threads(len(hosts), check, nodes=hosts, timeout_s=60)


def test_ranks_that_sum_different_arrays():
    run_on_threads(2, check_disagreement, timeout_s=60)


def test_ranks_of_another_host_hear_of_different_arrays():
    """Ranks of host 0 find out by themselves; those of host 1 would wait for the time limit."""

    def add(comm):
        size = 20_000 + 1000 * (comm.rank == 1)
        with pytest.raises(CommunicationError, match=r"rank 1 sums 84,000 bytes") as caught:
            comm.sum(np.zeros(size, "f4"), routine="shared")
        return type(caught.value)

    kinds = run_on_threads(4, add, nodes=[0, 0, 1, 1], timeout_s=60)
    assert kinds == [DisagreementError] * 2 + [PeerError] * 2


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Let routines be measured, and kept in a folder of the test's own."""
    monkeypatch.delenv(ROUTINES_VARIABLE)
    kept = ConvolutionChoices(tmp_path, is_cache=True, of="sum")
    monkeypatch.setattr(allreduce, "measured_choices", lambda: kept)
    return kept


def test_routines_are_measured_once(measured, monkeypatch):
    def sum_up(comm):
        for size in (100, 200, 1000):  # of float64: two classes of sizes
            array = np.full(size, comm.rank + 1.0)
            comm.sum(array)
            assert (array == 6).all()
        return comm.choices.names

    first, *others = run_on_threads(3, sum_up)
    assert others == [first] * 2
    assert sorted(first) == [1024, 4096, 16384]
    records = measured.records()
    assert [record["sum"] for record in records] == [
        f"sum-thread-3ranks-1hosts3-{size}bytes" for size in (1024, 16384, 4096)
    ]
    for record in records:
        assert record["routine"] == first[int(record["sum"].split("-")[-1][:-5])]
        assert min(record["ms"], key=record["ms"].get) == record["routine"]
        assert {*ROUTINES, "shared"} == set(record["ms"])
    # Now they are known, whatever is faster.
    measured.names["sum-thread-3ranks-1hosts3-1024bytes"] = "tree"
    assert run_on_threads(3, sum_up)[1][1024] == "tree"
    monkeypatch.setenv(ALLREDUCE_VARIABLE, "torus")
    assert set(run_on_threads(3, sum_up)[0].values()) == {"torus"}
    monkeypatch.setenv(ALLREDUCE_VARIABLE, "toruss")
    with pytest.raises(ConfigurationError, match="DNN_ALLREDUCE 'toruss'; did you mean 'torus'"):
        run_on_threads(3, sum_up)


def test_routines_that_some_types_do_not_have(measured, monkeypatch):
    """What was decided for one type of elements is not taken for another that lacks it."""
    every = ThreadCommunicator._routines

    def some(comm, dtype):
        offered = every(comm, dtype)
        return {name: offered[name] for name in offered if name != "tree" or dtype != "f2"}

    monkeypatch.setattr(ThreadCommunicator, "_routines", some)
    measured.names["sum-thread-2ranks-1hosts2-1024bytes"] = "tree"

    def sum_up(comm):
        arrays = [np.ones(100, dtype) for dtype in ("f4", "f2", "f4")]
        for array in arrays:
            comm.sum(array)
        return [array[0] for array in arrays]

    assert run_on_threads(2, sum_up) == [[2, 2, 2]] * 2
    keys = [record["sum"] for record in measured.records()]
    assert keys == ["sum-thread-2ranks-1hosts2-1024bytes-without_tree"]


def test_long_waits_sleep_longer(monkeypatch):
    """A millisecond at most while an answer may come soon, and five in a long wait."""
    slept, now_s = [], [0.0]

    def perf_counter():
        now_s[0] += 1e-6
        return now_s[0]

    def sleep(seconds):
        slept.append((now_s[0], seconds))
        now_s[0] += seconds

    def wait_in_vain(comm):
        if comm.rank == 0:
            with pytest.raises(CommunicationError, match=r"has waited 0\.2 s"):
                comm.receive(np.zeros(1), 1).wait()

    clock = SimpleNamespace(perf_counter=perf_counter, sleep=sleep)
    monkeypatch.setattr(communicator, "time", clock)
    run_on_threads(2, wait_in_vain, timeout_s=0.2)
    assert max(seconds for at_s, seconds in slept if at_s < 0.1) <= 1e-3
    assert slept[-1][1] == 5e-3


@pytest.mark.parametrize("named", ["", "ring"])
def test_a_routine_that_is_named_sums_what_lies_in_shared_memory_too(monkeypatch, named):
    monkeypatch.setenv(ALLREDUCE_VARIABLE, named)

    def sum_up(comm):
        array = comm.shared_memory(4 * 1000).view("f4")
        array[...] = comm.rank + 1
        comm.sum(array)
        assert (array == 3).all()
        return comm.choices.names

    names, _ = run_on_threads(2, sum_up)
    assert names == ({4096: "ring"} if named else {})


def test_the_fixed_choice():
    offered = ["doubling", "ring", "two_level", "shared"]
    assert fixed_choice(1 << 20, 4, offered) == "shared"
    assert fixed_choice(1 << 20, 4, offered[:3]) == "two_level"
    assert fixed_choice(1 << 20, 4, offered[:2]) == "ring"
    assert fixed_choice(1000, 16, offered) == "two_level"
    assert fixed_choice(1000, 4, offered) == "doubling"
    sizes = [size_class(size) for size in (0, 1024, 1025, 65536, 65537, 1 << 30)]
    assert sizes == [1024, 1024, 4096, 65536, 1 << 18, 1 << 24]


def test_who_has_failed_first_is_raised():
    def fail(comm):
        if comm.rank == 1:
            raise ZeroDivisionError("of rank 1")
        try:
            comm.sum(np.zeros(3))
        except PeerError as error:
            heard.append(error.rank)
            raise

    heard = []
    with pytest.raises(ZeroDivisionError, match="of rank 1"):
        run_on_threads(3, fail)
    assert heard == [1, 1]


def test_what_a_communicator_may_be():
    def same(comm):
        return communicator_of(comm) is comm

    assert run_on_threads(2, same) == [True, True]
    with pytest.raises(ConfigurationError, match="one of mpi4py"):
        communicator_of("COMM_WORLD")


def test_gradients_lie_in_shared_memory():
    def train(comm):
        segments = [Segment("a", (2, 3), 0), Segment("b", (5,), 16)]
        network = SimpleNamespace(gradients=FlatBuffer(segments, "f4", dnn.ops_for("cpu")))
        network.gradients["b"][:] = comm.rank
        share_gradients(comm, network)
        flat = network.gradients.flat
        assert comm._host_memory.holds(flat)
        comm.sum(flat)
        assert (network.gradients["b"] == 1).all()
        assert (network.gradients.memory.read_host() == flat).all()
        assert not network.gradients["a"].any()

    run_on_threads(2, train)
