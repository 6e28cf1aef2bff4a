"""``diel tuple``, in a process of its own, at the server of this one."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from diel import ANY
from diel.comm.waiting import wait_for
from diel.programs.tuple_socket import TupleSocket
from diel.testing import TupleSpace
from diel.tuples.client import TupleClient

PATIENCE_S = 20


@pytest.fixture
def space() -> Iterator[TupleSpace]:
    with TupleSpace() as space:
        yield space


@pytest.fixture
def other(space: TupleSpace) -> TupleClient:
    """Another rank."""
    return space.client()


@pytest.fixture
def server(space: TupleSpace) -> Iterator[TupleSocket]:
    with TupleSocket(space.client()) as server:
        yield server


class Command:
    """``diel tuple``, in a process of its own, while the server is served."""

    def __init__(self, server: TupleSocket) -> None:
        self._server = server

    def start(self, *arguments: str, **keys: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "diel", "tuple", *arguments],
            env={**os.environ, **self._server.facts},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **keys},
        )

    def finish(self, process: subprocess.Popen[bytes], given: bytes = b"") -> tuple[int, Any, Any]:
        if process.stdin is not None:
            process.stdin.write(given)
            process.stdin.close()
            process.stdin = None

        def poll() -> int | None:
            self._server.serve()
            return process.poll()

        status = wait_for(poll, PATIENCE_S)
        assert status is not None
        self._server.serve()
        return status, *process.communicate()

    def __call__(self, *arguments: str, given: bytes = b"") -> tuple[int, Any, Any]:
        return self.finish(self.start(*arguments, stdin=subprocess.PIPE), given)


@pytest.fixture
def command(server: TupleSocket) -> Command:
    return Command(server)


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    ("arguments", "given_bytes", "value"),
    [
        (["hello world"], b"", "hello world"),
        (["3"], b"", "3"),
        (["--", "-x"], b"", "-x"),
        ([""], b"", ""),
        (["--json", "3"], b"", 3),
        (["--json", '{"a": [1, null, 2.5]}'], b"", {"a": [1, None, 2.5]}),
        (["--json", "-"], b"[1, 2]", [1, 2]),
        (["-"], b"\x00\xff", b"\x00\xff"),
        (["--text", "-"], b"two\nlines\n", "two\nlines\n"),
        (["--bytes", "abc"], b"", b"abc"),
        (["--npy", "-"], npy(np.arange(3)), np.arange(3)),
    ],
)
def test_what_is_put(
    command: Command, other: TupleClient, arguments: list[str], given_bytes: bytes, value: object
) -> None:
    assert command("put", "a/1", *arguments, given=given_bytes) == (0, b"", b"")
    found = other.tget(("a", 1), timeout=0)
    assert type(found) is type(value)
    np.testing.assert_array_equal(found, value)


@pytest.mark.parametrize(
    ("value", "arguments", "printed"),
    [
        ("two\nlines", [], b"two\nlines\n"),
        ("text", ["--bytes"], b"text"),
        ("text", ["--json"], b'"text"\n'),
        (b"\x00\xff", [], b"\x00\xff"),
        (3, [], b"3\n"),
        (0.1 + 0.2, [], b"0.30000000000000004\n"),
        (np.float64(0.5), [], b"0.5\n"),
        (True, [], b"true\n"),
        (None, [], b"null\n"),
        ({"a": (1, 2.5)}, [], b'{"a": [1, 2.5]}\n'),
        ({"a": np.arange(2), "b": np.int64(3)}, [], b'{"a": [0, 1], "b": 3}\n'),
        (np.eye(2), ["--json"], b"[[1.0, 0.0], [0.0, 1.0]]\n"),
        (np.eye(2), ["--npy"], npy(np.eye(2))),
        (2.5, ["--npy"], npy(np.asarray(2.5))),
        ("x", ["--with-tag"], b"a/1\nx\n"),
    ],
)
def test_what_is_printed(
    command: Command, other: TupleClient, value: object, arguments: list[str], printed: bytes
) -> None:
    other.tput(("a", 1), value)
    for operation in ("read", "get"):
        assert command(operation, "a/*", *arguments) == (0, printed, b"")
    assert other.count(("a", ANY)) == 0


@pytest.mark.parametrize(
    ("value", "arguments", "words"),
    [
        (np.eye(2), [], "say --npy"),
        (3, ["--bytes"], "has no bytes"),
        ("x", ["--npy"], "is no array"),
        (b"x", ["--json"], "cannot be printed as JSON"),
        (np.array([None]), ["--npy"], "does not fit a .npy file"),
    ],
)
def test_what_is_not_printed(
    command: Command, other: TupleClient, value: object, arguments: list[str], words: str
) -> None:
    other.tput("a", value)
    status, printed, error = command("get", "a", *arguments)
    assert (status, printed) == (2, b"")
    assert words in error.decode()
    assert "Traceback" not in error.decode()
    assert other.count("a") == 1


def test_not_in_time(command: Command) -> None:
    for patience in (["--nowait"], ["--timeout", "0.1"]):
        status, printed, error = command("get", "job/*", *patience)
        assert (status, printed) == (1, b"")
        assert error == b"diel: job/*: nothing matched in time\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_killed_while_it_waits(
    command: Command, server: TupleSocket, other: TupleClient, number: int
) -> None:
    process = command.start("get", "a")

    def waits() -> bool | None:
        server.serve()
        return True if any(connection._watch for connection in server._connections) else None

    assert wait_for(waits, PATIENCE_S)
    process.send_signal(number)
    status, printed, error = command.finish(process)
    assert status != 0
    assert printed + error == b""
    other.tput("a", "left alone")
    server.serve()
    assert other.tget("a", timeout=0) == "left alone"


@pytest.mark.parametrize("place", ["/dev/full", "pipe"])
def test_a_value_that_cannot_be_written_is_left_there(
    command: Command, other: TupleClient, place: str
) -> None:
    other.tput("a", "precious")
    if place == "pipe":
        reading, writing = os.pipe()
        os.close(reading)
    else:
        writing = os.open(place, os.O_WRONLY)
    process = command.start("get", "a", stdout=writing)
    os.close(writing)
    status, _, error = command.finish(process)
    assert status == 2
    assert b"it was left there" in error
    assert other.tget("a", timeout=0) == "precious"


def test_the_rank_dies_while_a_command_waits(space: TupleSpace) -> None:
    server = TupleSocket(space.client())
    command = Command(server)
    process = command.start("get", "a")
    assert wait_for(lambda: (server.serve(), server._connections)[1] or None, PATIENCE_S)
    server.close()
    assert process.wait(PATIENCE_S) == 2
    assert process.communicate()[1].startswith(b"diel: the run has ended, or is ending")


def test_a_wrong_token_and_a_server_that_is_gone(
    server: TupleSocket, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    facts = {**server.facts, "DIEL_TOKEN": "wrong"}
    monkeypatch.setattr(TupleSocket, "facts", property(lambda self: facts))
    status, _, error = Command(server)("get", "a")
    assert (status, error) == (2, b"diel: DIEL_TOKEN is not that of this program\n")
    facts["DIEL_TUPLE_SOCKET"] = "/nowhere/socket"
    status, _, error = Command(server)("get", "a")
    assert status == 2
    assert b"/nowhere/socket cannot be reached" in error
