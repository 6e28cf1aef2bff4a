"""Putting and getting, over the transport that stays within one process."""

from __future__ import annotations

import re
import sys
import time
from typing import Any

import numpy as np
import pytest
from unit.tuples.driving import Unreadable, held

from diel import ANY
from diel.errors import PayloadError, TagError, TupleError, TupleTimeout
from diel.tuples.client import TupleClient
from diel.tuples.protocol import Operation
from diel.tuples.store import TupleStore
from diel.tuples.transport import LocalTransport

PATIENCE_S = 30.0


@pytest.mark.parametrize(
    "value",
    [
        *(np.arange(6.0).reshape(2, 3), np.array(5), np.empty((0, 2)), np.zeros(100_000)),
        *(b"bytes", {"a": 1}, None, 7, 1.5, 2**100, True),
    ],
    ids=["array", "0-d", "empty", "large", "bytes", "dict", "None", "int", "float", "long", "bool"],
)
def test_a_value_is_read_and_taken(tuples: TupleClient, value: Any) -> None:
    tuples.tput(("a", 1), value)
    for get in (tuples.tread, tuples.tget):
        found = get(("a", 1), timeout=0)
        assert type(found) is type(value)
        np.testing.assert_array_equal(found, value)
    with pytest.raises(TupleTimeout):
        tuples.tget(("a", 1), timeout=0)


class Metres(np.ndarray):
    unit = "none"


@pytest.mark.parametrize("put", ["tput", "dist_tput"])
@pytest.mark.parametrize("length", [2, 100_000])
def test_a_subclass_of_array_is_taken_whole(tuples: TupleClient, put: str, length: int) -> None:
    value = np.arange(length).view(Metres)
    value.unit = "m"
    getattr(tuples, put)("a", value)
    getattr(tuples, put)("in a table", {"x": [value]})
    value += 1
    for found in (tuples.tget("a", timeout=0), tuples.tget("in a table", timeout=0)["x"][0]):
        assert (type(found), found.unit, found[1]) == (Metres, "m", 1)


def test_what_was_put_may_be_changed_afterwards(tuples: TupleClient) -> None:
    array = np.zeros(3)
    tuples.tput("a", array)
    array += 1
    assert tuples.tget("a").tolist() == [0.0, 0.0, 0.0]


def test_what_was_read_may_be_changed(tuples: TupleClient) -> None:
    tuples.tput("a", np.zeros(2))
    tuples.tread("a")[:] = 1
    assert tuples.tget("a").tolist() == [0.0, 0.0]


def test_a_put_that_waits_and_a_flush_return(tuples: TupleClient) -> None:
    tuples.tput("a", 1, wait=True)
    tuples.flush()
    assert tuples.tget("a") == 1


def test_the_tag_that_matched_is_told(tuples: TupleClient) -> None:
    tuples.tput(("a", 3), "x")
    tuples.tput("b", "y")
    assert tuples.tread(("a", ANY), with_tag=True) == (("a", 3), "x")
    assert tuples.tget(ANY, with_tag=True) == ("b", "y")


def test_out_receives(tuples: TupleClient) -> None:
    for shape in [(2, 3), (), (0, 4)]:
        tuples.tput("a", np.full(shape, 7.0))
        out = np.zeros(shape)
        assert tuples.tread("a", out=out) is out
        assert (out == 7.0).all()
        out[...] = 0.0
        assert tuples.tget("a", out=out) is out
        assert (out == 7.0).all()


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.zeros(3), r"array of dtype float64 and shape \(3,\)"),
        (np.zeros(2, "f4"), r"array of dtype float32 and shape \(2,\)"),
        (b"0123456789abcdef", "the tuple is bytes"),
        ([0.0, 0.0], "a pickled Python object"),
    ],
)
def test_out_that_does_not_fit_leaves_the_tuple(
    tuples: TupleClient, value: Any, found: str
) -> None:
    tuples.tput("a", value)
    out = np.ones(2)
    for get, name in ((tuples.tget, "tget"), (tuples.tread, "tread")):
        with pytest.raises(PayloadError, match=rf"{name}\('a'\): out= is .*{found}.*left there"):
            get("a", out=out, timeout=0)
    assert out.tolist() == [1.0, 1.0]
    np.testing.assert_array_equal(tuples.tget("a", timeout=0), value)


def test_an_array_that_takes_long_to_describe(tuples: TupleClient) -> None:
    """Its dtype needs more room than a message has for it."""
    dtype = np.dtype(
        [(f"a field with quite a long name, number {number}", "f8") for number in range(200)]
    )
    array = np.ones(3, dtype)
    tuples.tput("a", array)
    assert tuples.tget("a").dtype == dtype
    assert tuples.put_if_absent("a", array)
    assert (tuples.update("a", lambda value: value) == array).all()
    with pytest.raises(PayloadError, match="out="):
        tuples.tget("a", out=np.zeros(3, dtype), timeout=0)
    assert (tuples.tget("a", timeout=0) == array).all()


@pytest.mark.parametrize("timeout_s", [0, 0.15])
@pytest.mark.parametrize("tag", [("a", ANY), (ANY, 1), "a"], ids=repr)
def test_a_timeout_says_what_was_waited_for(
    tuples: TupleClient, timeout_s: float, tag: Any
) -> None:
    started_s = time.monotonic()
    words = re.escape(f"tread({tag!r}): nothing matched")
    with pytest.raises(TupleTimeout, match=words) as caught:
        tuples.tread(tag, timeout=timeout_s)
    assert time.monotonic() - started_s >= timeout_s
    assert (caught.value.operation, caught.value.timeout_s) == ("tread", timeout_s)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"timeout": -1}, ValueError),
        ({"timeout": float("nan")}, ValueError),
        ({"timeout": "1"}, TypeError),
        ({"timeout": True}, TypeError),
        ({"out": [0]}, PayloadError),
        ({"out": np.zeros((2, 2)).T}, PayloadError),
    ],
)
def test_a_bad_get_leaves_the_space_as_it_was(
    tuples: TupleClient,
    stores: list[TupleStore],
    arguments: dict[str, Any],
    error: type[Exception],
) -> None:
    tuples.tput("a", np.zeros((2, 2)))
    for get in (tuples.tget, tuples.tread):
        with pytest.raises(error):
            get("a", **arguments)
        with pytest.raises(TagError):
            get("", timeout=0)
    assert held(stores)[0] == 1
    assert tuples.tget("a", timeout=0).shape == (2, 2)


@pytest.mark.parametrize(
    ("tag", "value", "error"),
    [
        ("", 1, TagError),
        (("a", 1.5), 1, TagError),
        (ANY, 1, TagError),
        ("a", lambda: 0, PayloadError),
    ],
)
def test_a_bad_put_leaves_the_space_as_it_was(
    tuples: TupleClient, stores: list[TupleStore], tag: Any, value: Any, error: type[Exception]
) -> None:
    for put in (tuples.tput, tuples.put_if_absent):
        with pytest.raises(error):
            put(tag, value)
    assert held(stores) == (0, 0)


@pytest.mark.parametrize("tag", ["", (), ("a", 1.5), None, ["a"], {"a": 1}, b"a", ("a", ("b",))])
def test_every_operation_refuses_what_is_no_tag(
    tuples: TupleClient, stores: list[TupleStore], tag: Any
) -> None:
    for operation in (
        *(tuples.tget, tuples.tread, tuples.tget_nowait, tuples.tread_nowait, tuples.claim),
        *(tuples.count, tuples.collect, tuples.subscribe, tuples.increment),
        lambda tag: tuples.tput(tag, 1),
        lambda tag: tuples.put_if_absent(tag, 1),
        lambda tag: tuples.update(tag, lambda value: value),
    ):
        with pytest.raises(TagError):
            operation(tag)
    assert held(stores) == (0, 0)


def test_what_changes_a_tuple_takes_no_wildcard(tuples: TupleClient) -> None:
    for operation in (tuples.increment, lambda tag: tuples.update(tag, abs)):
        with pytest.raises(TagError, match="ANY"):
            operation(("a", ANY))


TAKES = ["tget", "tget_nowait", "dist_tget", "collect", "claim"]
READS = ["tread", "tread_nowait", "dist_tread", "update"]


@pytest.mark.parametrize("name", [*TAKES, *READS])
@pytest.mark.parametrize("put", ["tput", "dist_tput"])
def test_a_tuple_whose_value_cannot_be_rebuilt_stays_in_the_space(
    tuples: TupleClient, name: str, put: str
) -> None:
    is_refused = put == "dist_tput" and name in ("claim", "update")  # for striped tuples
    getattr(tuples, put)(("a", 1), {"x": Unreadable()})
    getattr(tuples, put)(("a", 1), 2)
    servers = range(len(tuples.puts))
    held_bytes = [tuples.survey(server)["held_bytes"] for server in servers]
    with pytest.raises(PayloadError) as caught:
        getattr(tuples, name)(("a", 1), *([abs] if name == "update" else []))
    words = [f"{name}(('a', 1)): ", "a builtins.int, ", "ValueError: invalid literal for int()"]
    assert is_refused or all(word in str(caught.value) for word in words)
    assert tuples.count(("a", 1)) == 2
    assert held_bytes == [tuples.survey(server)["held_bytes"] for server in servers]
    with pytest.raises(PayloadError, match="left there"):  # it is still the oldest
        tuples.tget(("a", ANY), timeout=0)


def test_the_plain_take_of_what_cannot_be_rebuilt(tuples: TupleClient) -> None:
    tuples.tput("a", b"known from now on")
    tuples.tget("a")
    tuples.tput("a", Unreadable())
    with pytest.raises(PayloadError, match=r"tget\('a'\): .* left there"):
        tuples.tget("a")
    assert tuples.count("a") == 1


class EndsPython:
    def __reduce__(self) -> Any:
        return sys.exit, (3,)


def test_a_value_that_ends_python_when_it_is_rebuilt(tuples: TupleClient) -> None:
    tuples.tput("a", EndsPython())
    with pytest.raises(PayloadError, match="SystemExit: 3"):
        tuples.tget("a", timeout=0)
    assert tuples.count("a") == 1


def test_a_subscription_to_what_cannot_be_rebuilt(tuples: TupleClient) -> None:
    with tuples.subscribe(("a", ANY)) as subscription:
        tuples.tput(("a", 1), Unreadable())
        tuples.tput(("a", 2), 2)
        with pytest.raises(
            PayloadError, match=r"\('a', 1\)\): .* the tuple itself is where it was"
        ):
            subscription.next(timeout=PATIENCE_S)
        assert subscription.next(timeout=PATIENCE_S) == (("a", 2), 2)
    assert tuples.count(("a", ANY)) == 2


def test_nowait_raises_at_once(tuples: TupleClient) -> None:
    for get, name in [(tuples.tget_nowait, "tget_nowait"), (tuples.tread_nowait, "tread_nowait")]:
        for tag in ("a", ANY, ("a", ANY)):
            with pytest.raises(TupleTimeout, match=name):
                get(tag)
        tuples.tput("a", 1)
        assert get("a", with_tag=True) == ("a", 1)
        tuples.collect(ANY)


def test_tuples_of_a_tag_are_first_in_first_out(tuples: TupleClient) -> None:
    tags = [("a", 1), "b", ("c", 1), ("a", 2)]
    for number in range(12):
        tuples.tput(tags[number % 4], number)
    for index, tag in enumerate(tags):
        assert [tuples.tget(tag) for _ in range(3)] == [index, index + 4, index + 8]


def test_tuples_of_a_long_tag_are_of_one_tag(tuples: TupleClient) -> None:
    tag = "long" * 200
    for value in (1, "two", 3.0):
        tuples.tput(tag, value)
    tuples.tput(tag[:-1], "shorter")
    assert [tuples.tget(tag, timeout=0) for _ in range(3)] == [1, "two", 3.0]
    assert tuples.tread((ANY,), timeout=0) == "shorter"


def test_a_string_and_a_tuple_of_it_are_one_tag(tuples: TupleClient) -> None:
    for tag in [f"tag {number}" for number in range(20)]:
        tuples.tput(tag, 1)
        assert tuples.tget((tag,), timeout=0) == 1
        tuples.tput((tag,), 2)
        assert tuples.tget(tag, timeout=0) == 2


def test_out_of_a_dtype_that_does_not_fit_into_a_message() -> None:
    tuples = TupleClient(LocalTransport())
    wide = np.zeros(
        3, [(f"a field with a long name, number {index}", "f8") for index in range(500)]
    )
    tuples.tput("wide", wide)
    with pytest.raises(PayloadError, match="too many fields"):
        tuples.tget("wide", out=np.empty_like(wide), timeout=0)
    np.testing.assert_array_equal(tuples.tget("wide", timeout=0), wide)


def test_a_wait_that_something_else_ends() -> None:
    transport = LocalTransport()
    tuples, other = TupleClient(transport), TupleClient(transport.another_client())
    asked: list[int] = []

    def interrupt() -> bool:
        asked.append(1)
        return len(asked) == 3

    with pytest.raises(TupleTimeout, match="interrupted"):
        tuples.tget_unless("a", interrupt)
    assert len(asked) == 3
    other.tput("a", 1)  # no request of the wait is left that could take it
    assert tuples.count("a") == 1
    assert tuples.tget_unless("a", interrupt) == 1
    with pytest.raises(TupleTimeout, match="nothing matched"):
        tuples.tget_unless("a", lambda: False, timeout=0.01)


def test_a_timeout_names_tags_that_nearly_match(
    tuples: TupleClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TupleTimeout, match=r"within 0.01 s; the tuple space is empty"):
        tuples.tget(("field", 1), timeout=0.01)
    for tag in (("field", "1"), ("field", "1"), ("feild", 1), "other"):
        tuples.tput(tag, 0)
    words = re.escape("tags there that nearly match: ('field', '1') x 2, ('feild', 1) x 1")
    for wait in (tuples.tget, tuples.tread, tuples.claim):
        tuples._requests._next_survey_s = 0.0
        with pytest.raises(TupleTimeout, match=words):
            wait(("field", 1), timeout=0.01)
    with pytest.raises(TupleTimeout, match=r"within 0 s$"):  # a poll is to be quick
        tuples.tget_nowait(("field", 1))
    asked = []
    tuples._requests._next_survey_s = 0.0
    ask = tuples._requests.ask

    def counted(server: int, operation: int, *arguments: Any, **more: Any) -> Any:
        if operation == Operation.SURVEY:
            asked.append(server)
            raise TupleError("this server cannot answer")
        return ask(server, operation, *arguments, **more)

    monkeypatch.setattr(tuples._requests, "ask", counted)
    with pytest.raises(TupleTimeout, match=r"within 0.01 s$"):
        tuples.tget(("field", 1), timeout=0.01)
    assert len(asked) == 1
    tuples._requests._next_survey_s = time.monotonic() + 60
    with pytest.raises(TupleTimeout, match=r"within 0.01 s$"):
        tuples.tget(("field", 1), timeout=0.01)
    assert len(asked) == 1
