"""What a rank makes of MPI's word that others have died; MPI is made up."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from diel.comm.dead_ranks import DeadRanks


class MpiError(Exception):
    def Get_error_class(self) -> str:
        return str(self)


MPI = SimpleNamespace(
    Exception=MpiError,
    Status=lambda: SimpleStatus(),
    ANY_SOURCE=-1,
    ERR_PROC_FAILED="failed",
    ERR_PROC_FAILED_PENDING="pending",
    ERR_REVOKED="revoked",
    ERR_IN_STATUS="in status",
)


class SimpleStatus:
    source = 7

    def Get_source(self) -> int:
        return self.source


class Group(list[int]):
    def Get_size(self) -> int:
        return len(self)

    def Translate_ranks(self, _: None, other: Group) -> list[int]:
        return list(self)

    def Free(self) -> None:
        pass


class Comm:
    """Knows who has died; another rank dies whenever somebody has asked, if `dies_next`."""

    def __init__(self) -> None:
        self.failed: list[int] = []
        self.acknowledged = 0
        self.dies_next: list[int] = []

    def Get_failed(self) -> Group:
        found = Group(self.failed)
        self.failed += self.dies_next
        self.dies_next = []
        return found

    def Get_group(self) -> Group:
        return Group()

    def Ack_failed(self, count: int | None = None) -> int:
        self.acknowledged = len(self.failed) if count is None else count
        return self.acknowledged

    def probe(self) -> None:
        if self.acknowledged < len(self.failed):
            raise MpiError("pending")


class OpenReceive:
    """A persistent receive as Open MPI's request of it says: open, complete, or ended."""

    def __init__(self, source: int | None) -> None:
        self.source = source  # None while it is open
        self.starts = 0

    def Get_status(self, status: SimpleStatus) -> bool:
        if self.source is not None:
            status.source = self.source
        return self.source is not None

    def Start(self) -> None:
        self.starts += 1

    def Cancel(self) -> None:
        self.calls = ["Cancel"]

    def Wait(self) -> None:
        self.calls.append("Wait")
        if self.calls.count("Wait") == 1:
            raise MpiError("pending")

    def Free(self) -> None:
        self.calls.append("Free")


@pytest.fixture
def comm(monkeypatch: pytest.MonkeyPatch) -> Comm:
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=MPI))
    return Comm()


def message_came(comm: Comm, kind: str, receive: OpenReceive) -> bool:
    made_up: Any = comm, MpiError(kind), receive, SimpleStatus()
    return DeadRanks(made_up[0]).message_came(*made_up[1:])


def test_a_rank_that_dies_while_another_is_acknowledged_is_heard_of(comm: Comm) -> None:
    dead = DeadRanks(comm)  # type: ignore[arg-type]
    comm.failed, comm.dies_next = [3], [5]
    assert dead.look() == {3}
    with pytest.raises(MpiError) as raised:
        comm.probe()
    dead.note(raised.value)  # type: ignore[arg-type]
    assert dead.ranks == {3, 5}
    comm.probe()


def test_other_errors_are_not_of_the_dead(comm: Comm) -> None:
    with pytest.raises(MpiError, match="truncated"):
        DeadRanks(comm).note(MpiError("truncated"))  # type: ignore[arg-type]


def test_of_several_requests_one_may_be_of_the_dead(comm: Comm) -> None:
    dead = DeadRanks(comm)  # type: ignore[arg-type]
    with pytest.raises(MpiError, match="in status"):
        dead.note(MpiError("in status"))  # type: ignore[arg-type]
    comm.failed = [3]
    dead.note(MpiError("in status"))  # type: ignore[arg-type]
    assert dead.ranks == {3}


def test_a_receive_that_is_open_goes_on(comm: Comm) -> None:
    receive = OpenReceive(source=None)
    assert not message_came(comm, "pending", receive)
    assert not receive.starts


def test_a_message_that_comes_as_another_rank_dies_is_not_lost(comm: Comm) -> None:
    ended = OpenReceive(source=MPI.ANY_SOURCE)
    assert message_came(comm, "pending", ended)
    assert not ended.starts  # whoever takes the message does that
    complete = OpenReceive(source=2)
    assert not message_came(comm, "pending", complete)  # the next test returns it
    assert not complete.starts


def test_a_receive_that_a_dead_sender_has_ended_is_started_again(comm: Comm) -> None:
    receive = OpenReceive(source=MPI.ANY_SOURCE)
    assert not message_came(comm, "failed", receive)
    assert receive.starts == 1


def test_a_receive_is_given_back_though_somebody_has_died(comm: Comm) -> None:
    receive: Any = OpenReceive(source=None)
    dead = DeadRanks(comm)  # type: ignore[arg-type]
    comm.failed = [3]
    dead.give_back(receive)
    assert receive.calls == ["Cancel", "Wait", "Wait", "Free"]
    assert dead.ranks == {3}
