"""Clients of copies that failed leave nothing behind that the next copy would meet."""

from __future__ import annotations

import pytest

from diel import ANY
from diel.errors import CopyStopped
from diel.testing import TupleSpace


class EndedClient:
    """A client whose waits end at once, as those of a copy that has to leave."""

    def __init__(self, space: TupleSpace) -> None:
        self.has_to_leave = True
        self.tuples = space.client(self.safe_point)

    def safe_point(self) -> None:
        if self.has_to_leave:
            raise CopyStopped("the copy has failed")

    def start_over(self) -> None:
        self.has_to_leave = False
        self.tuples.start_over()


@pytest.mark.parametrize("servers", [1, 3])
def test_a_tuple_that_comes_after_the_wait_was_ended_is_not_lost(servers: int) -> None:
    with TupleSpace(servers=servers) as space:
        ended, other = EndedClient(space), space.client()
        for tag in ("x", ("y", ANY)):
            with pytest.raises(CopyStopped):
                ended.tuples.tget(tag)
        other.tput("x", 1)  # the server still has the requests, and answers them
        other.tput(("y", 2), 2)
        assert other.count("x") == 0
        ended.start_over()
        assert other.tget("x", timeout=30) == 1
        assert other.tget(("y", ANY), timeout=30) == 2


def test_what_was_only_read_is_not_put_again() -> None:
    with TupleSpace() as space:
        ended, other = EndedClient(space), space.client()
        with pytest.raises(CopyStopped):
            ended.tuples.tread("x")
        other.tput("x", 1)
        ended.start_over()
        assert other.count("x") == 1


def test_nothing_is_left_at_the_servers_when_a_client_starts_over() -> None:
    with TupleSpace(memory="64 KiB") as space:
        ended, other = EndedClient(space), space.client()
        other.tput("job", 1)
        ended.has_to_leave = False
        assert ended.tuples.claim("job").value == 1
        ended.tuples.subscribe("news")
        ended.has_to_leave = True
        with pytest.raises(CopyStopped):
            ended.tuples.claim("job")
        other.tput("big", bytes(40_000))
        with pytest.raises(CopyStopped):
            ended.tuples.tput("also big", bytes(40_000))  # waits for room
        ended.start_over()
        assert other.tget("job", timeout=30) == 1  # the claim was given back
        survey = other.survey(0)
        assert survey["waiting"] == []
        assert survey["claims"] == []
        assert other.tget("big", timeout=30) == bytes(40_000)
        other.tput("news", 1)
        other.tput("big", bytes(40_000))  # the credit that was asked for is nobody's
        ended.tuples.tput("small", 2)  # and the client can go on
        assert ended.tuples.tget("small", timeout=30) == 2
        assert other.survey(0)["held_bytes"] < 2**16
