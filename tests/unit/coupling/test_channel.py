"""Messages between ranks that meet in one thread."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.coupling.meeting import Meeting, pair, peers

from diel import processes
from diel.comm.tags import DIRECT_PAYLOADS
from diel.coupling import messages
from diel.coupling.address import Address
from diel.coupling.channel import Channel
from diel.coupling.messages import INLINE_BYTES, REQUEST, Head
from diel.errors import (
    AddressError,
    CouplingError,
    CouplingTimeout,
    PayloadError,
    RunStopped,
    TagError,
    TooFarAhead,
)

LARGE = np.arange(10_000.0)

VALUES = [
    None,
    7,
    -0.5,
    2**80,
    "text",
    {"a": [1, 2]},
    b"",
    b"x" * INLINE_BYTES,
    b"x" * (INLINE_BYTES + 1),
    bytearray(b"mutable"),
    "y" * 100_000,
]
ARRAYS = [
    LARGE,
    LARGE.reshape(100, 100).T,
    LARGE[::3],
    np.empty((0, 3), "f4"),
    np.array(3.5),
    np.array(["2026-01-01"], "M8[D]"),
    np.zeros(3, [("x", "f8"), ("y", "i4")]),
    np.ones((2, 3, 4), "c16"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
def test_values_arrive_as_they_were_sent(value: Any) -> None:
    _, a, b = pair()
    a.send(value, "b")
    received = b.recv("a")
    assert received == value
    assert type(received) is (bytes if isinstance(value, bytearray) else type(value))


@pytest.mark.parametrize("value", ARRAYS, ids=lambda value: f"{value.dtype}{value.shape}")
@pytest.mark.parametrize("copy", [True, False])
def test_arrays_arrive_as_they_were_sent(value: np.ndarray, copy: bool) -> None:
    _, a, b = pair()
    a.send(value, "b", copy=copy)
    received = b.recv("a")
    assert received.dtype == value.dtype
    np.testing.assert_array_equal(received, value)
    received[...] = 0  # is writable
    a.send(value, "b")
    out = np.empty(value.shape, value.dtype)
    assert b.recv(out=out) is out
    np.testing.assert_array_equal(out, value)


class Kilometres(np.ndarray):
    unit = "none"


@pytest.mark.parametrize("size", [2, 10_000])
@pytest.mark.parametrize("copy", [True, False])
def test_a_subclass_of_array_arrives_whole(size: int, copy: bool) -> None:
    _, a, b = pair()
    value = np.arange(size).view(Kilometres)
    value.unit = "km"
    a.send(value, "b", copy=copy)
    received = b.recv("a")
    assert (type(received), received.unit) == (Kilometres, "km")
    np.testing.assert_array_equal(received, value)
    a.send(value, "b")
    with pytest.raises(PayloadError, match="a pickled Python object, and out= is an array"):
        b.recv(out=np.zeros(size, value.dtype))


class Unreadable:
    """Can be pickled, and not be rebuilt."""

    def __init__(self, size: int) -> None:
        self.content = b"x" * size

    def __setstate__(self, state: object) -> None:
        raise LookupError("no such unit")


@pytest.mark.parametrize("size", [4, 10_000])
def test_a_message_that_cannot_be_rebuilt_names_its_sender(size: int) -> None:
    _, a, b = pair()
    a.send(Unreadable(size), "b", tag="t")
    a.send("next", "b", tag="t")
    with pytest.raises(PayloadError) as caught:
        b.recv("a", tag="t")
    assert str(caught.value) == (
        f"a message from {a.address} (tag 't'): the value, a {__name__}.Unreadable, cannot be "
        "rebuilt on this rank: LookupError: no such unit; it is dropped"
    )
    assert b.recv("a", tag="t", timeout=0) == "next"
    a.close()


@pytest.mark.parametrize("size", [4, 10_000])
def test_what_was_sent_may_be_changed_at_once(size: int) -> None:
    _, a, b = pair()
    array, data = np.ones(size), bytearray(b"x" * size)
    a.send(array, "b")
    a.send(data, "b")
    array[:], data[:] = 0, b"y" * size
    assert (b.recv() == 1).all()
    assert b.recv() == b"x" * size


def test_without_a_copy_an_array_is_read_when_it_is_received() -> None:
    _, a, b = pair()
    array = np.ones(10_000)
    sending = a.send(array, "b", copy=False)
    assert not sending.done
    array[:] = 2
    assert (b.recv() == 2).all()
    assert sending.done
    sending.wait()
    assert a.send(np.ones(3), "b", copy=False).done  # it was in the head


def test_a_sending_can_be_waited_for() -> None:
    _, a, b = pair()
    sending = a.send(LARGE, "b")
    with pytest.raises(CouplingTimeout, match=r"receipt\(by b.0 rank 0\): .* within 0.02 s"):
        sending.wait(timeout=0.02)
    thread = threading.Thread(target=b.recv)
    thread.start()
    sending.wait(timeout=30)
    thread.join()
    assert sending.done


@pytest.mark.parametrize("value", [1, LARGE, np.empty(0)], ids=["small", "large", "empty"])
def test_a_move_returns_when_it_has_been_received(value: Any) -> None:
    _, a, b = pair()
    with pytest.raises(CouplingTimeout):
        a.move(value, "b", timeout=0.02)
    np.testing.assert_array_equal(b.recv(), value)
    thread = threading.Thread(target=lambda: a.move(value, "b"))
    thread.start()
    np.testing.assert_array_equal(b.recv("a", timeout=30), value)
    thread.join(30)
    assert not thread.is_alive()


def test_nobody_moves_to_itself_but_may_send() -> None:
    _, a, _ = pair()
    with pytest.raises(AddressError, match="to itself"):
        a.move(1, "a")
    a.send(LARGE, "a")
    np.testing.assert_array_equal(a.recv("a"), LARGE)


def test_messages_keep_their_order_for_each_sender_and_tag() -> None:
    meeting = Meeting(peers(a=(2, 2), b=(1, 1)))
    receiver = meeting[Address("b")]
    for step in range(3):
        for copy in range(2):
            for rank in range(2):
                sender = meeting[Address("a", copy, rank)]
                sender.send((copy, rank, step), "b", tag=("step", step % 2))
                sender.send(np.full(1000, step), "b")
    # Of one sender and one tag, whatever came before.
    assert receiver.recv(("a", 1, 1), tag=("step", 1)) == (1, 1, 1)
    assert receiver.recv(("a", 1), tag=("step", 0)) == (1, 0, 0)
    assert [receiver.recv(("a", 0, 1))[0] for _ in range(3)] == [0, 1, 2]
    # Of anybody, in the order in which they came.
    source, value = receiver.recv(tag=("step", 0), with_source=True)
    assert (source, value) == (Address("a", 0, 0), (0, 0, 0))
    assert receiver.recv(Address("a", 0, 1), tag=("step", 0)) == (0, 1, 0)
    with pytest.raises(CouplingTimeout):
        receiver.recv(tag="step", timeout=0)


def test_a_wrong_out_refuses_the_message_and_keeps_it() -> None:
    _, a, b = pair()
    a.send(LARGE, "b", tag="t")
    a.send({"no": "array"}, "b")
    for out in (np.empty(9_999), np.empty(10_000, "f4"), np.empty((100, 100))):
        with pytest.raises(
            PayloadError,
            match=r"recv\(from a.0 rank 0, tag='t'\): the message is an"
            r" array of dtype float64 and shape \(10000,\).*has not been received",
        ):
            b.recv("a", tag="t", out=out)
    for odd in ([0.0], LARGE[::2], np.empty(3, object)):
        with pytest.raises(PayloadError, match="out= takes"):
            b.recv("a", tag="t", out=odd)
    with pytest.raises(PayloadError, match="a pickled Python object"):
        b.recv(out=np.empty(3))
    np.testing.assert_array_equal(b.recv("a", tag="t"), LARGE)
    assert b.recv() == {"no": "array"}


def test_what_cannot_be_sent_is_refused() -> None:
    _, a, b = pair()
    with pytest.raises(PayloadError, match="cannot travel"):
        a.send(lambda: 0, "b")
    with pytest.raises(TagError):
        a.send(1, "b", tag="")
    with pytest.raises(TagError):
        b.recv(tag=1.5)  # type: ignore[arg-type]
    assert not a.was_used


def test_addresses() -> None:
    people = peers(fluid=(2, 3), solid=(1, 1))
    for to in ("fluid", ("fluid",), ("fluid", 0), ("fluid", 0, 0), Address("fluid")):
        assert people.resolve(to) == Address("fluid", 0, 0)
    assert people.resolve(("fluid", np.int64(1), 2)) == Address("fluid", 1, 2)
    assert str(Address("fluid", 1, 2)) == "fluid.1 rank 2"
    there = r'in group "g", which has fluid \(2 copies of 3 ranks\), solid \(1 copy of 1 rank\)'
    for to, words in [
        ("liquid", there),
        ("flud", 'did you mean "fluid"'),
        (("fluid", 2), "no copy 2 of fluid: it has 2 copies"),
        (("fluid", -1), "no copy -1"),
        (("fluid", 1, 3), "no rank 3 of fluid.1: it has 3 ranks"),
        (("fluid", 1.0), "is no address"),
        (("fluid", 0, 0, 0), "is no address"),
        (3, "is no address"),
        ((), "is no address"),
    ]:
        with pytest.raises(AddressError, match=words):
            people.resolve(to)  # type: ignore[arg-type]


def test_what_was_left_over_never_reaches_a_later_copy() -> None:
    meeting, a, b = pair()
    a.send("small", "b", tag="t")
    a.send(LARGE, "b", tag="t")
    a.abandon()
    b.abandon()
    assert meeting.warnings == [
        "b.0: 2 messages from a.0 rank 0 to rank 0 (tag 't') were never received"
    ]
    a.send("late", "b", tag="t")  # as if it had been on its way
    meeting.open(peers(3, a=(1, 1), b=(1, 1)))
    with pytest.raises(CouplingTimeout):
        b.recv("a", tag="t", timeout=0.02)
    a.send("new", "b", tag="t")
    assert b.recv("a", tag="t") == "new"
    b.close()
    assert len(meeting.warnings) == 2
    assert "a message from a.0 rank 0 to rank 0 (tag 't') was never" in meeting.warnings[1]
    assert not meeting.exchange.offers


def test_a_message_for_a_copy_that_is_about_to_start_is_kept() -> None:
    meeting, a, b = pair()
    b.close()
    later = peers(3, a=(1, 1), b=(1, 1))
    a.close()
    a.open(Address("a"), later)
    a.send(LARGE, "b")
    b.poll()
    b.open(Address("b"), later)
    np.testing.assert_array_equal(b.recv("a"), LARGE)
    assert meeting.warnings == []


def test_the_end_of_a_copy_waits_until_its_messages_have_left() -> None:
    meeting, a, b = pair()
    a.send(LARGE, "b")
    thread = threading.Thread(target=a.close)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    operation, subject, _ = a.waiting_for or ("", None, 0.0)
    assert f"{operation}({subject!r})" == "receipt(by b.0 rank 0)"
    b.close()  # drops it, and says so
    thread.join(30)
    assert not thread.is_alive()
    assert meeting.warnings == [
        "b.0: a message from a.0 rank 0 to rank 0 (no tag) was never received"
    ]


def test_a_stop_ends_a_wait() -> None:
    meeting, a, _ = pair()

    def stop() -> None:
        raise RunStopped("the run is stopping")

    a._safe_point = stop
    with pytest.raises(RunStopped):
        a.recv("b")
    assert a.waiting_for is None
    a.send(LARGE, "b")
    with pytest.raises(RunStopped):
        a.close()
    assert meeting.warnings == []


def test_the_counts_tell_a_deadlock_from_delay() -> None:
    _, a, b = pair()
    seen: list[Any] = []

    def look() -> None:
        counts = b.counts()
        seen.append((counts.waits_for, counts.arrived, b.waiting_for))
        if len(seen) == 1:
            a.send(1, "b", tag="another")
        elif counts.arrived:
            raise RunStopped("seen")

    b._safe_point = look
    with pytest.raises(RunStopped, match="seen"):
        b.recv("a", timeout=60)
    assert seen[0][:2] == ("message", 0)
    assert seen[-1][:2] == ("message", 1)
    # What has come meanwhile makes it another wait, to whoever was told of the first one.
    assert seen[0][2] is not seen[-1][2]
    assert a.counts().sent == {(2, 1): 1}
    a.send(LARGE, "b")
    assert (a.counts().delivered, b.counts().received) == ({(2, 1): 0}, {})
    b.recv("a")
    assert (a.counts().delivered, b.counts().received) == ({(2, 1): 1}, {(1, 0): 1})
    assert b.counts().waits_for == ""


def test_tickets_are_used_again() -> None:
    _, a, b = pair()
    a._outbox._next_ticket = DIRECT_PAYLOADS - 2
    for step in range(5):
        a.send(np.full(1000, step), "b")
    assert len(a._outbox._tickets) == 5
    assert [b.recv()[0] for _ in range(5)] == [0, 1, 2, 3, 4]
    for _ in range(10):
        a.poll()
    assert not a._outbox._tickets


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(REQUEST, DIRECT_PAYLOADS - 1),
    st.binary(max_size=40),
    st.binary(max_size=40),
    st.binary(max_size=40),
    st.integers(0, 2**64 - 1),
)
def test_heads_are_read_as_they_were_written(
    to: int, of: int, ticket: int, key: bytes, meta: bytes, inline: bytes, number: int
) -> None:
    head = Head(to, of, len(inline), ticket, 1, key, meta, inline, number)
    assert Head.unpack(head.pack()) == head
    assert head.has_payload == (ticket >= 0)


@given(
    st.lists(st.tuples(st.sampled_from("pq"), st.sampled_from([1, 5000])), max_size=12), st.data()
)
def test_any_order_of_receiving_gets_each_tag_in_order(
    sent: list[tuple[str, int]], data: st.DataObject
) -> None:
    _, a, b = pair()
    for number, (tag, size) in enumerate(sent):
        a.send(np.full(size, number, "i8"), "b", tag=tag)
    left = {tag: [n for n, (t, _) in enumerate(sent) if t == tag] for tag in "pq"}
    while any(left.values()):
        tag = data.draw(st.sampled_from([tag for tag in "pq" if left[tag]]))
        assert b.recv("a", tag=tag)[0] == left[tag].pop(0)


# -- senders that are ahead of their receivers -----------------------------------------------------


def received(sender: Channel, receiver: Channel, **how: Any) -> Any:
    """Receive a value while its sender goes on."""
    for _ in range(10):
        sender.poll()
        try:
            return receiver.recv(timeout=0, **how)
        except CouplingTimeout:
            continue
    return None


def test_mpi_is_given_a_few_payloads_of_a_late_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "PAYLOADS_UNDER_WAY", 3)
    _, a, b = pair()
    tests = 0
    offer = a._port.offer

    def counted(*what: Any) -> Any:
        transfer = offer(*what)

        def test() -> bool:
            nonlocal tests
            tests += 1
            return transfer()

        return test

    monkeypatch.setattr(a._port, "offer", counted)
    sendings = [a.send(np.full(1000, number), "b") for number in range(50)]
    small = np.zeros(1)
    a.send(small, "b")
    small[:] = 1  # it may be changed at once, though it comes after the others
    a.send(LARGE, "b", tag="last")
    assert len(a._outbox._offered) == 3
    assert tests < 3 * len(sendings)
    assert not sendings[-1].done
    assert len(received(a, b, tag="last")) == len(LARGE)  # though it is behind all others
    assert [received(a, b)[0] for _ in range(50)] == list(range(50))
    assert received(a, b)[0] == 0
    assert all(sending.done for sending in sendings)
    a.poll()
    assert (a._outbox.held_bytes, a._outbox.is_holding_any) == (0, False)


@pytest.mark.parametrize("size", [1, 1000])
def test_the_oldest_messages_that_nobody_asked_for_are_dropped(size: int) -> None:
    meeting, a, b = pair()
    for number in range(10):
        sending = a.send(np.full(size, number), "b", ahead=3, policy="drop oldest")
    assert a._outbox.held_bytes == 3 * 8 * size
    assert received(a, b)[0] == 7
    for number in range(10, 12):
        a.send(np.full(size, number), "b", ahead=3, policy="drop oldest")
    assert received(a, b)[0] == 9
    assert sending.done
    with pytest.raises(CouplingTimeout):
        b.recv(tag="other", timeout=0)
    thread = threading.Thread(target=a.close)  # the last messages are for whoever comes late
    thread.start()
    assert [b.recv(timeout=10)[0] for _ in range(2)] == [10, 11]
    b.close()
    thread.join()
    assert meeting.warnings == []


def test_a_receiver_that_waits_gets_the_next_message() -> None:
    _, a, b = pair()
    a.send("first", "b", ahead=1, policy="drop oldest")
    assert received(a, b) == "first"
    assert received(a, b) is None
    a.send("second", "b", ahead=1, policy="drop oldest")
    assert received(a, b) == "second"


def test_receivers_that_end_without_it_hold_up_nobody() -> None:
    meeting, a, b = pair()
    for number in range(3):
        a.send(number, "b", ahead=2, policy="drop oldest")
    with pytest.raises(CouplingTimeout):  # has asked by now
        b.recv(timeout=0)
    b.close()
    thread = threading.Thread(target=a.close)
    thread.start()
    while thread.is_alive():
        b.poll()
    b.poll()
    assert meeting.warnings == [
        "b.0: 2 messages from a.0 rank 0 to rank 0 (no tag) were never received"
    ]


@pytest.mark.parametrize("value", [1, LARGE], ids=["small", "large"])
def test_a_sender_waits_or_fails_where_it_is_told_to(value: Any) -> None:
    _, a, b = pair()
    for _ in range(2):
        a.send(value, "b", ahead=2)
    a.send(value, "b", tag="other", ahead=1)  # each tag by itself
    with pytest.raises(CouplingTimeout, match=r"receipt\(by b.0 rank 0 of no tag, ahead = 2\)"):
        a.send(value, "b", ahead=2, timeout=0.01)
    with pytest.raises(TooFarAhead, match=r"b.0 rank 0 has not received 2 earlier messages"):
        a.send(value, "b", ahead=2, policy="error")
    seen = []

    def look() -> None:
        seen.append(a.counts())
        b.recv()

    a._safe_point = look
    a.send(value, "b", ahead=2)
    assert (seen[0].waits_for, seen[0].receivers) == ("receipt", ((2, 1),))
    b.recv()
    a.send(value, "b", ahead=2, policy="error")


def test_bounds_are_numbers_and_policies_are_known() -> None:
    _, a, _ = pair()
    for ahead in (0, -1, True, 1.5, "2"):
        with pytest.raises(CouplingError, match="at least 1"):
            a.send(1, "b", ahead=ahead)  # type: ignore[arg-type]
    with pytest.raises(CouplingError, match='use "wait", "drop oldest", "error"'):
        a.send(1, "b", ahead=1, policy="drop")  # type: ignore[arg-type]


def test_a_tenth_of_the_memory_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "memory_bytes", lambda: 200_000)
    meeting, a, b = pair()
    a.send(np.zeros(2500), "b")
    assert meeting.warnings == []
    for _ in range(3):
        a.send(np.zeros(2500), "b")
    (warning,) = meeting.warnings
    assert warning.startswith("a.0: rank 0 has sent 39.1 KiB that is yet to be received by b.0 ")
    assert "ahead = N" in warning
    for _ in range(4):
        b.recv()


@given(
    st.integers(1, 4),
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.sampled_from("pq"), st.sampled_from([1, 5000])),
            st.tuples(st.just("drop"), st.sampled_from("pq"), st.sampled_from([1, 5000])),
            st.tuples(st.just("recv"), st.sampled_from("pq"), st.just(0)),
        ),
        max_size=25,
    ),
)
def test_only_what_may_be_dropped_is_and_the_order_stays(
    ahead: int, steps: list[tuple[str, str, int]]
) -> None:
    most, messages.PAYLOADS_UNDER_WAY = messages.PAYLOADS_UNDER_WAY, 2
    try:
        _, a, b = pair()
        must: dict[str, list[int]] = {"p": [], "q": []}
        got: dict[str, list[int]] = {"p": [], "q": []}
        latest = {"p": -1, "q": -1}
        for number, (what, tag, size) in enumerate(steps):
            if what == "recv":
                value = received(a, b, tag=tag)
                assert (value is None) == (latest[tag] in (-1, *got[tag][-1:]))
                if value is not None:
                    got[tag].append(value[0])
                continue
            latest[tag] = number
            if what == "send":
                must[tag].append(number)
                a.send(np.full(size, number), "b", tag=tag)
            else:
                a.send(np.full(size, number), "b", tag=tag, ahead=ahead, policy="drop oldest")
        for tag in "pq":
            while (value := received(a, b, tag=tag)) is not None:
                got[tag].append(value[0])
            assert got[tag] == sorted(set(got[tag]))
            assert set(must[tag]) <= set(got[tag])
            assert latest[tag] in (-1, *got[tag])
        assert a._outbox.held_bytes == 0 or not a.poll()
    finally:
        messages.PAYLOADS_UNDER_WAY = most
