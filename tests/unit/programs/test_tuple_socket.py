"""The server: commands of a program use the tuple space through the rank that waits for it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import random
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import case_count

from diel import ANY
from diel.comm.waiting import wait_for
from diel.errors import ModuleFailed, RunStopped
from diel.programs import tuple_socket as tuple_socket_module
from diel.programs.tuple_protocol import NotUnderstood, SocketMessage, Unpacker, pack
from diel.programs.tuple_socket import TupleSocket
from diel.testing import TupleSpace
from diel.tuples.client import TupleClient

PATIENCE_S = 20


@pytest.fixture(params=[1, 3], ids=["1 server", "3 servers"])
def space(request: pytest.FixtureRequest) -> Iterator[TupleSpace]:
    with TupleSpace(servers=request.param) as space:
        yield space


@pytest.fixture
def other(space: TupleSpace) -> TupleClient:
    """Another rank."""
    return space.client()


@pytest.fixture
def server(space: TupleSpace) -> Iterator[TupleSocket]:
    with contextlib.closing(TupleSocket(space.client)) as server:
        yield server
        Client.close_all()


@pytest.fixture(autouse=True)
def _no_socket_is_left_open() -> Iterator[None]:
    yield
    Client.close_all()


class Client:
    """A connection to a server, made by this very process."""

    open: ClassVar[list[socket.socket]] = []

    def __init__(self, server: TupleSocket, token: str | None = None) -> None:
        self._server = server
        self._token = server.facts["DIEL_TOKEN"] if token is None else token
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.open.append(self.socket)
        self.socket.connect(server.address)
        self.socket.setblocking(False)
        self._unpacker = Unpacker()

    @classmethod
    def close_all(cls) -> None:
        while cls.open:
            cls.open.pop().close()

    def ask(self, operation: str, *tag: object, body: bytes = b"", **more: Any) -> None:
        head = {"operation": operation, "tag": list(tag), "token": self._token, **more}
        if operation == "put":
            head.setdefault("form", "text")
        self.send(pack(head, body))

    def send(self, data: bytes) -> None:
        def part() -> bool | None:
            nonlocal data
            with contextlib.suppress(BlockingIOError):
                data = data[self.socket.send(data) :]
            self._server.serve()
            return None if data else True

        assert wait_for(part, PATIENCE_S)

    def look(self) -> SocketMessage | None:
        self._server.serve()
        with contextlib.suppress(BlockingIOError):
            data = self.socket.recv(2**20)
            assert data, "the server has closed the connection"
            self._unpacker.feed(data)
        return self._unpacker.next()

    def answer(self) -> SocketMessage:
        found = wait_for(self.look, PATIENCE_S)
        assert found is not None
        return found

    def confirm(self) -> None:
        self.send(pack({"received": True}))

    def leave(self) -> None:
        self.socket.close()
        for _ in range(3):
            self._server.serve()


# -- put, get, read -------------------------------------------------------------------------------


def test_a_put_is_there_when_it_is_answered(server: TupleSocket, other: TupleClient) -> None:
    client = Client(server)
    client.ask("put", "a", 3, body=b"text")
    assert client.answer().head["status"] == "done"
    assert other.tget(("a", 3), timeout=0) == "text"


def test_a_get_takes_once_it_is_confirmed(server: TupleSocket, other: TupleClient) -> None:
    other.tput(("a", 3), "text")
    client = Client(server)
    client.ask("get", "a", None)
    head, body = client.answer()
    assert (head["tag"], body, head["is_line"]) == (["a", 3], b"text", True)
    assert other.count(("a", ANY)) == 0
    client.confirm()
    client.leave()
    assert other.count(("a", ANY)) == 0


def test_a_read_leaves_it_there(server: TupleSocket, other: TupleClient) -> None:
    other.tput("a", 1.5)
    for _ in range(2):
        client = Client(server)
        client.ask("read", "a")
        assert client.answer().body == b"1.5"
        client.leave()
    assert other.tget("a", timeout=0) == 1.5


@pytest.mark.parametrize("operation", ["get", "read"])
@pytest.mark.parametrize("pattern", [["a", 1], ["a", None], [None, 1]])
def test_a_wait_blocks_nobody(
    server: TupleSocket, other: TupleClient, operation: str, pattern: list[object]
) -> None:
    waiting = Client(server)
    waiting.ask(operation, *pattern)
    for _ in range(20):
        assert waiting.look() is None
    busy = Client(server)
    busy.ask("put", "b", body=b"meanwhile")
    assert busy.answer().head["status"] == "done"
    other.tput(("a", 1), "at last")
    assert waiting.answer().body == b"at last"


def test_of_many_who_wait_each_gets_one(server: TupleSocket, other: TupleClient) -> None:
    clients = [Client(server) for _ in range(10)]
    for client in clients:
        client.ask("get", "job", None)
        client.look()
    for number in range(10):
        other.tput(("job", number), number)
    bodies = []
    for client in clients:
        bodies.append(int(client.answer().body))
        client.confirm()
        client.leave()
    assert sorted(bodies) == list(range(10))
    assert other.count(("job", ANY)) == 0


def test_another_rank_that_is_faster_is_no_harm(server: TupleSocket, other: TupleClient) -> None:
    client = Client(server)
    client.ask("get", "a")
    assert client.look() is None
    for _ in range(5):  # the watch tells, and there is nothing any more
        other.tput("a", "not for you")
        other.tget("a", timeout=0)
        for _ in range(3):
            assert client.look() is None
    other.tput("a", "for you")
    assert client.answer().body == b"for you"


def test_timeouts(server: TupleSocket) -> None:
    for timeout_s in (0, 0.05):
        client = Client(server)
        began_s = time.monotonic()
        client.ask("get", "a", timeout_s=timeout_s)
        assert client.answer().head["status"] == "late"
        assert time.monotonic() - began_s >= timeout_s


def test_large_values_pass_both_ways(server: TupleSocket, other: TupleClient) -> None:
    data = np.random.default_rng(0).bytes(3_000_000)
    client = Client(server)
    client.ask("put", "a", form="bytes", body=data)
    assert client.answer().head["status"] == "done"
    client = Client(server)
    client.ask("get", "a")
    assert client.answer().body == data


def test_a_put_waits_for_room_without_blocking_who_makes_it() -> None:
    with (
        TupleSpace(memory="64 KiB") as space,
        contextlib.closing(TupleSocket(space.client)) as server,
    ):
        space.client().tput("large", bytes(50_000), wait=True)
        putting, impatient = Client(server), Client(server)
        putting.ask("put", "a", form="bytes", body=bytes(50_000))
        impatient.ask("put", "a", form="bytes", body=bytes(50_000), timeout_s=0.01)
        assert impatient.answer().head["status"] == "late"
        assert putting.look() is None
        getting = Client(server)
        getting.ask("get", "large")
        assert len(getting.answer().body) == 50_000
        getting.confirm()
        assert putting.answer().head["status"] == "done"
        refused = Client(server)
        refused.ask("put", "a", form="bytes", body=bytes(100_000))
        assert "65,536" in refused.answer().head["why"]


def test_a_client_may_send_many_requests_at_once(server: TupleSocket, other: TupleClient) -> None:
    token = server.facts["DIEL_TOKEN"]

    def request(operation: str, tag: object, body: bytes = b"", **more: Any) -> bytes:
        form = "text" if operation == "put" else None
        head = {"operation": operation, "tag": tag, "token": token, "form": form, **more}
        return pack(head, body)

    client = Client(server)
    client.send(
        request("put", "a/1", b"one")
        + request("read", ["a", None])
        + request("get", "b", timeout_s=0)
        + request("get", "a//b")
        + request("get", "a/*")
        + pack({"received": False})
        + request("get", "a/1")
        + pack({"received": True})
        + request("get", "c")
    )
    said = [client.answer() for _ in range(6)]
    assert [answer.head["status"] for answer in said] == [
        *("done", "done", "late", "refused", "done", "done"),
    ]
    assert [answer.body for answer in said] == [b"", b"one", b"", b"", b"one", b"one"]
    assert other.count("a") == 0
    assert client.look() is None
    other.tput("c", "at last")
    assert client.answer().body == b"at last"
    client.leave()
    assert other.tget("c", timeout=0) == "at last"


# -- those who leave ------------------------------------------------------------------------------


def test_who_leaves_with_a_value_unconfirmed_gives_it_back(
    server: TupleSocket, other: TupleClient
) -> None:
    for value in ("first", "second"):
        other.tput("a", value)
    client = Client(server)
    client.ask("get", "a")
    assert client.answer().body == b"first"
    assert other.count("a") == 1
    client.leave()
    assert [other.tget("a", timeout=0) for _ in range(2)] == ["first", "second"]  # in its place


def test_who_leaves_while_waiting_takes_nothing(server: TupleSocket, other: TupleClient) -> None:
    client = Client(server)
    client.ask("get", "a")
    assert client.look() is None
    client.leave()
    other.tput("a", "still there")
    for _ in range(3):
        server.serve()
    assert other.tget("a", timeout=0) == "still there"


@pytest.mark.parametrize("end", ["told", "late", "left"])
def test_nobody_waits_at_a_server_any_more(
    space: TupleSpace, server: TupleSocket, end: str
) -> None:
    client = Client(server)
    client.ask("read", None, "x", timeout_s=0.05 if end == "late" else None)  # watches them all
    client.look()
    if end == "left":
        client.leave()
    else:
        if end == "told":
            space.client().tput(("a", "x"), 1)
        client.answer()
    assert not any(store._waiters for store in space._transport._stores)


def test_who_leaves_before_the_answer_is_sent_takes_nothing(
    server: TupleSocket, other: TupleClient
) -> None:
    other.tput("a", bytes(5_000_000))  # more than a socket holds
    client = Client(server)
    client.ask("get", "a")
    server.serve()
    client.leave()
    assert len(other.tget("a", timeout=0)) == 5_000_000


def test_a_put_whose_command_was_killed_is_whole_or_not_there(
    server: TupleSocket, other: TupleClient
) -> None:
    request = pack(
        {"operation": "put", "tag": ["a"], "form": "text", "token": server.facts["DIEL_TOKEN"]},
        b"0123456789",
    )
    for length in (0, 1, len(request) // 2, len(request) - 1):
        client = Client(server)
        client.send(request[:length])
        client.leave()
        assert other.count("a") == 0
    client = Client(server)
    client.socket.send(request)
    client.leave()
    assert other.tget("a", timeout=0) == "0123456789"


def test_half_a_request_disturbs_nobody(server: TupleSocket, other: TupleClient) -> None:
    slow = Client(server)
    slow.send(b'{"operation"')
    quick = Client(server)
    quick.ask("put", "a", body=b"x")
    assert quick.answer().head["status"] == "done"
    token = server.facts["DIEL_TOKEN"]
    slow.send(f': "get", "tag": ["a"], "token": "{token}", "size": 0}}\n'.encode())
    assert slow.answer().body == b"x"


def test_what_was_said_last_still_counts_when_the_server_closes(space: TupleSpace) -> None:
    other = space.client()
    other.tput("a", "taken")
    with contextlib.closing(TupleSocket(space.client)) as server:
        client = Client(server)
        client.ask("get", "a")
        assert client.answer().body == b"taken"
        client.socket.send(pack({"received": True}))
        client.socket.close()
        putting = Client(server)
        head = {
            "operation": "put",
            "tag": ["b"],
            "form": "text",
            "token": server.facts["DIEL_TOKEN"],
        }
        putting.socket.send(pack(head, b"put"))
        putting.socket.close()
    assert other.count("a") == 0
    assert other.tget("b", timeout=0) == "put"


def test_a_server_closes_in_time_and_gives_back_what_was_not_confirmed(space: TupleSpace) -> None:
    other = space.client()
    other.tput("a", "not confirmed")
    with contextlib.closing(TupleSocket(space.client)) as server:
        holding, waiting = Client(server), Client(server)
        holding.ask("get", "a")
        holding.answer()
        waiting.ask("get", "b")
        waiting.look()
    assert other.tget("a", timeout=0) == "not confirmed"
    for client in (holding, waiting):
        assert client.socket.recv(100) == b""
    assert not Path(server.address).parent.exists()


@pytest.mark.parametrize("operation", ["put", "get"])
def test_a_run_that_stops_ends_the_serving(
    space: TupleSpace, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    def stop(*_: object, **keys: object) -> None:
        raise RunStopped("the run is stopping")

    def serve_while_it_stops() -> None:
        with contextlib.closing(TupleSocket(space.client)) as server:
            client = Client(server)
            for name in ("tput", "claim"):
                monkeypatch.setattr(TupleClient, name, stop)
            client.ask(operation, "a", body=b"x" if operation == "put" else b"")

    with pytest.raises(RunStopped):
        serve_while_it_stops()


# -- those who are not let in ---------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "wrong", "\u00fc", "\ud800"])
def test_without_the_token_nothing_is_done(
    server: TupleSocket, other: TupleClient, token: str
) -> None:
    other.tput("a", "secret")
    for operation in ("get", "put"):
        client = Client(server, token)
        client.ask(operation, "a", body=b"x")
        head, body = client.answer()
        assert (head["status"], body) == ("refused", b"")
        assert token == "" or token not in head["why"]
    assert other.count("a") == 1


def test_the_folder_is_for_this_user_alone(server: TupleSocket) -> None:
    assert stat.S_IMODE(os.stat(Path(server.address).parent).st_mode) == 0o700
    assert len(os.fsencode(server.address)) < 108


def test_a_long_name_of_the_temporary_folder_is_no_harm(
    space: TupleSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tuple_socket_module.tempfile, "tempdir", str(deep))
    with contextlib.closing(TupleSocket(space.client)) as server:
        assert server.address.startswith("/tmp/")
    assert list(deep.iterdir()) == []


def test_what_killed_ranks_have_left_is_removed_by_the_next(
    space: TupleSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place, contextlib.ExitStack() as stack:
        monkeypatch.setattr(tuple_socket_module.tempfile, "tempdir", place)
        sockets = []
        for name in ("diel-dead", "diel-alive", "diel-young", "diel-no-socket", "other"):
            folder = Path(place, name)
            folder.mkdir()
            if name != "diel-no-socket":
                sockets.append(stack.enter_context(socket.socket(socket.AF_UNIX)))
                sockets[-1].bind(str(folder / "tuples"))
                if name == "diel-alive":
                    sockets[-1].listen()
                else:
                    sockets[-1].close()
            if name != "diel-young":
                os.utime(folder, (1e9, 1e9))
        with contextlib.closing(TupleSocket(space.client)):
            assert not Path(place, "diel-dead").exists()
            assert len(os.listdir(place)) == 5
        assert len(os.listdir(place)) == 4


def test_no_place_for_a_socket_is_said(space: TupleSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuple_socket_module, "_LONGEST_ADDRESS_BYTES", 10)
    with pytest.raises(ModuleFailed, match="TMPDIR"):
        TupleSocket(space.client)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"operation": "take"}, "the operation is none of put, get and read"),
        ({"operation": ["get"]}, "the operation is none of put, get and read"),
        ({"form": "pickle"}, "the form is none of bytes, fitting, json, n"),
        ({"form": []}, "the form is none of bytes, fitting, json, n"),
        ({"tag": "a//b"}, "a field of a tag cannot be empty"),
        ({"tag": None}, "a tag is a list, or a string such as job/3"),
        ({"tag": []}, "at least one field"),
        ({"tag": [1.5]}, "1.5: a field of a tag is a string, an integer, or null"),
        ({"tag": [True]}, "True: a field of a tag"),
        ({"tag": [""]}, "cannot be an empty string"),
        ({"tag": ["\ud800"]}, "not a valid Unicode string"),
        ({"timeout_s": "soon"}, "the timeout is no number of seconds"),
        ({"timeout_s": -1}, "the timeout is no number of seconds"),
        ({"timeout_s": float("nan")}, "the timeout is no number of seconds"),
        ({"operation": "put", "form": "text", "tag": [None]}, "not in a tag to put"),
        ({"operation": "put", "form": "json"}, "the value is not JSON"),
        ({"operation": "put", "form": "npy"}, "the value is not a .npy file"),
        ({"operation": "put"}, "the form is none of bytes, json, n"),
    ],
)
def test_what_is_wrong_is_said(server: TupleSocket, change: dict[str, object], words: str) -> None:
    client = Client(server)
    head = {"operation": "get", "tag": ["a"], "token": server.facts["DIEL_TOKEN"], **change}
    client.send(pack(head, b"{" if change.get("operation") == "put" else b""))
    answer = client.answer().head
    assert answer["status"] == "refused"
    assert words in answer["why"]


def test_a_put_of_what_is_no_text_is_refused(server: TupleSocket) -> None:
    client = Client(server)
    client.ask("put", "a", body=b"\xff")
    assert "the value is not UTF-8 text" in client.answer().head["why"]


def test_a_value_that_cannot_be_shown_stays(server: TupleSocket, other: TupleClient) -> None:
    for value, words in [
        (np.zeros(3), "an array of dtype float64 and shape (3,) is not printed: say --npy"),
        (1j, "it holds a value of type complex"),
        ("\ud800", "surrogates not allowed"),
    ]:
        other.tput("a", value)
        client = Client(server)
        client.ask("get", "a")
        why = client.answer().head["why"]
        assert words in why
        assert "it was left there" in why
        assert other.count("a") == 1
        other.tget("a", timeout=0)


@given(data=st.binary(max_size=200))
@settings(max_examples=case_count(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("space", [1], indirect=True)
def test_garbage_disturbs_nobody(server: TupleSocket, other: TupleClient, data: bytes) -> None:
    garbage = Client(server)
    with contextlib.suppress(OSError):
        garbage.send(data)
    client = Client(server)
    client.ask("put", "a", body=b"x")
    assert client.answer().head["status"] == "done"
    other.tget("a", timeout=0)
    garbage.leave()
    client.leave()


NUMBERS = [
    "1" + "0" * 400, "-1", "-1" + "0" * 400, "1e999", "-1e999", "1e301", "NaN", "Infinity",
    "-Infinity", "true", "[]", '"5"', "{}", "9" * 5000, "[" * 5000, "[" * 200 + "]" * 200,
]  # fmt: skip


@pytest.mark.parametrize("space", [1], indirect=True)
@pytest.mark.parametrize("name", ["timeout_s", "size", "tag", "form", "operation", "token"])
def test_odd_numbers_end_a_request_and_nothing_else(
    server: TupleSocket, other: TupleClient, name: str
) -> None:
    for number in NUMBERS:
        head = {"operation": "get", "tag": ["a"], "form": None, "timeout_s": 0, "size": 0}
        fields = {**head, "token": server.facts["DIEL_TOKEN"], name: "ODD"}
        client = Client(server)
        client.send(json.dumps(fields).replace('"ODD"', number).encode() + b"\n")
        answer = client.answer().head
        is_tag = name == "tag" and number == '"5"'
        assert answer["status"] == ("late" if is_tag else "refused"), (number, answer)
        client.leave()
    other.tput("a", "x")
    client = Client(server)
    client.ask("get", "a")
    assert client.answer().body == b"x"
    client.confirm()


def npy(descr: str = "'<f8'", shape: str = "(2,)", body: bytes = bytes(16)) -> bytes:
    head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode() + b"\n"
    return b"\x93NUMPY\x02\x00" + len(head).to_bytes(4, "little") + head + body


@pytest.mark.parametrize("space", [1], indirect=True)
def test_files_of_arrays_that_promise_too_much_are_refused(
    server: TupleSocket, other: TupleClient
) -> None:
    archive = io.BytesIO()
    np.savez(archive, np.zeros(2))
    bodies = [
        npy(shape="(1000000000000000,)"), npy(shape="(2**70,)"), npy(shape=f"({10**400},)"),
        npy(shape="(-1,)"), npy(shape="(True, 2)"), npy(shape="(2.0,)"), npy(shape="2"),
        npy(shape="(0, -5)"), npy(shape=f"(0, {10**30})", body=b""), npy(shape="(1,)"),
        npy(shape="(" + "1," * 70 + ")", body=bytes(8)), npy(body=bytes(15)),
        npy(descr="'|O'"), npy(descr="'<f9'"), npy(descr="[('a', '<f8'), ('a', '<f8')]"),
        npy(descr="'|V999999999999999999'"), npy(descr="(" * 300 + ")" * 300),
        npy(descr="0" * 9999), npy(descr="'\x00'"), npy(descr="lambda: 0"),
        b"\x93NUMPY", b"\x93NUMPY\x09\x00", b"PK\x03\x04", b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
        archive.getvalue(), pickle.dumps(np.zeros(2)), b"",
    ]  # fmt: skip
    good = npy()
    damaged = []
    draw = random.Random(1)
    for _ in range(case_count(300)):
        body = bytearray(good)
        for _ in range(draw.randrange(1, 5)):
            body[draw.randrange(len(body))] = draw.randrange(256)
        damaged.append(bytes(body))
    client = Client(server)
    for number, data in enumerate(bodies + damaged):
        client.ask("put", "a", body=data, form="npy")
        answer = client.answer().head
        if number < len(bodies):
            assert answer["status"] == "refused", data
            assert "the value is not a .npy file of plain numbers" in answer["why"]
    client.ask("put", "b", body=good, form="npy")
    assert client.answer().head["status"] == "done"
    assert other.tget("b", timeout=0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("space", [1], indirect=True)
def test_no_body_ends_more_than_its_request(
    server: TupleSocket, other: TupleClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(server)
    for body in (b"[" * 100_000, b"[" * 900 + b"]" * 900, b"9" * 5000, b"1e999", b'"\\ud800"'):
        client.ask("put", "a", body=body, form="json", timeout_s=0)
        if client.answer().head["status"] == "done":
            client.ask("get", "a", form="json")
            if client.answer().head["status"] == "done":
                client.confirm()

    def without_memory(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(TupleClient, "tput", without_memory)
        client.ask("put", "b", body=b"x")
        assert client.answer().head["why"] == "MemoryError"
    client.ask("put", "b", body=b"x")
    assert client.answer().head["status"] == "done"


def test_a_head_without_an_end_is_refused(server: TupleSocket) -> None:
    client = Client(server)
    client.send(b" " * 70_000)
    assert "a head without an end" in client.answer().head["why"]


# -- messages --------------------------------------------------------------------------------------


@given(
    messages=st.lists(st.tuples(st.dictionaries(st.text(), st.integers()), st.binary())),
    cuts=st.lists(st.integers(1, 50), min_size=1),
)
def test_messages_arrive_however_they_are_cut(
    messages: list[tuple[dict[str, int], bytes]], cuts: list[int]
) -> None:
    data = b"".join(pack(head, body) for head, body in messages)
    unpacker = Unpacker()
    found = []
    start = number = 0
    while start < len(data):
        end = start + cuts[number % len(cuts)]
        unpacker.feed(data[start:end])
        start, number = end, number + 1
        while (message := unpacker.next()) is not None:
            found.append(message)
    assert found == [({**head, "size": len(body)}, body) for head, body in messages]


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"{}", b'{"size": -1}', b'{"size": true}'])
def test_what_is_no_message(line: bytes) -> None:
    unpacker = Unpacker()
    unpacker.feed(line + b"\n")
    with pytest.raises(NotUnderstood):
        unpacker.next()


def test_json_is_what_travels() -> None:
    assert json.loads(pack({"a": "\u00fc"}, b"xy").partition(b"\n")[0]) == {
        "a": "\u00fc",
        "size": 2,
    }
