"""Several clients at the same time, each in a thread of its own."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from unit.tuples.driving import PATIENCE_S

from diel import ANY
from diel.errors import TupleTimeout
from diel.tuples.client import TupleClient
from diel.tuples.transport import LocalTransport


def test_a_taker_that_waits_gets_what_another_thread_puts(
    transport: LocalTransport, threads: ThreadPoolExecutor
) -> None:
    taker = TupleClient(transport.another_client())
    waiting = threads.submit(taker.tget, ("answer", ANY), timeout=PATIENCE_S)
    time.sleep(0.05)
    assert not waiting.done()
    TupleClient(transport).tput(("answer", 1), 42)
    assert waiting.result(PATIENCE_S) == 42


def test_readers_that_wait_all_get_the_tuple(
    transport: LocalTransport, threads: ThreadPoolExecutor
) -> None:
    readers = [TupleClient(transport.another_client()) for _ in range(3)]
    waiting = [threads.submit(reader.tread, "a", timeout=PATIENCE_S) for reader in readers]
    time.sleep(0.05)
    writer = TupleClient(transport)
    writer.tput("a", "for all")
    assert [one.result(PATIENCE_S) for one in waiting] == ["for all"] * 3
    assert writer.tget("a", timeout=0) == "for all"


def test_takers_share_the_tuples_without_loss_or_repetition(
    transport: LocalTransport, threads: ThreadPoolExecutor
) -> None:
    takers, writers, each = 3, 2, 60

    def take(tuples: TupleClient) -> list[tuple[int, int]]:
        found = []
        while (value := tuples.tget("work", timeout=PATIENCE_S)) is not None:
            found.append(value)
        return found

    def put(writer: int, tuples: TupleClient) -> None:
        for number in range(each):
            tuples.tput("work", (writer, number))

    clients = [TupleClient(transport.another_client()) for _ in range(takers + writers)]
    taking = [threads.submit(take, tuples) for tuples in clients[writers:]]
    for one in [threads.submit(put, writer, clients[writer]) for writer in range(writers)]:
        one.result(PATIENCE_S)
    for _ in range(takers):
        TupleClient(transport).tput("work", None)
    found = [one.result(PATIENCE_S) for one in taking]
    everything = [(writer, number) for writer in range(writers) for number in range(each)]
    assert sorted(value for values in found for value in values) == everything
    for values in found:  # of one writer, each taker saw rising numbers
        for writer in range(writers):
            numbers = [number for who, number in values if who == writer]
            assert numbers == sorted(numbers)


def test_one_waiter_times_out_while_another_goes_on(
    transport: LocalTransport, threads: ThreadPoolExecutor
) -> None:
    patient = threads.submit(TupleClient(transport.another_client()).tget, "a", timeout=PATIENCE_S)
    hasty = threads.submit(TupleClient(transport.another_client()).tget, "a", timeout=0.1)
    with pytest.raises(TupleTimeout):
        hasty.result(PATIENCE_S)
    TupleClient(transport).tput("a", 1)
    assert patient.result(PATIENCE_S) == 1
