"""``diel tuple``, in a process of its own, at the server of this one."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diel import ANY
from diel.cli.tuple import _CLIENTS
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
    with contextlib.closing(TupleSocket(space.client)) as server:
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
        (np.ma.array([1, 2], mask=[0, 1]), ["--npy"], "a MaskedArray of dtype int64 does not fit"),
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
    server = TupleSocket(space.client)
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


# -- many operations in one process ---------------------------------------------------------------


def test_a_session_answers_each_line_as_the_command_would(
    command: Command, other: TupleClient
) -> None:
    for number in range(2):
        other.tput(("job", number), number)
    for tag, value in {"lines": "two\nlines", "bytes": b"x", "text": "a b"}.items():
        other.tput(tag, value)
    lines = {
        "put --json area/3 9": "0",
        'put \'["a b", 1]\' "it\'s"': "0",
        "read --with-tag '[\"a b\", null]'": '0 ["a\\u0020b",1] it\'s',
        "get 'job/*'": "0 0",
        "read --with-tag 'job/*'": "0 job/1 1",
        "get --json text": '0 "a b"',
        "": None,
        "get --nowait nobody": "1 nobody: nothing matched in time",
        "get --timeout 0.01 nobody": "1 nobody: nothing matched in time",
        "get lines": "2 the value is not a line of text: say --json; it was left there",
        "get bytes": "2 the value is not a line of text: say --json; it was left there",
        "read --json bytes": "2 a value of type bytes cannot be printed as JSON",
        "get a//b": '2 "a//b": a field of a tag cannot be empty; for a slash in one: [...]',
        "take a": "2 argument OPERATION: invalid choice: 'take' (choose from",
        "get": "2 the following arguments are required: TAG",
        "get 'a": "2 No closing quotation",
        "put a -": "2 standard input is the session's: diel tuple put TAG - reads its own",
        "get --json lines": '0 "two\\nlines"',
    }
    given = "".join(f"{line}\n" for line in lines)
    status, printed, error = command("session", given=given.encode())
    assert (status, error) == (0, b"")
    answers = printed.decode().splitlines()
    expected = [words for words in lines.values() if words is not None]
    assert len(answers) == len(expected)
    for answer, words in zip(answers, expected, strict=True):
        assert answer.startswith(words), (answer, words)
    assert other.tget(("area", 3), timeout=0) == 9
    assert other.tget(("a b", 1), timeout=0) == "it's"
    assert other.count("bytes") == 1


def test_a_session_whose_run_ends_says_so(space: TupleSpace) -> None:
    server = TupleSocket(space.client)
    session = Command(server).start("session", stdin=subprocess.PIPE)
    assert session.stdin is not None
    session.stdin.write(b"get a\n")
    session.stdin.flush()
    assert wait_for(lambda: (server.serve(), server._connections)[1] or None, PATIENCE_S)
    server.close()
    printed, error = session.communicate(timeout=PATIENCE_S)
    assert (session.returncode, error) == (2, b"")
    assert printed == b"2 the run has ended, or is ending: it has not answered\n"


SCRIPT = """
. "$(diel tuple client sh)"
diel_tuple_open
while length=$(diel_tuple get --nowait 'job/*'); do
    diel_tuple put --json "area/$length" $((length * length)) || exit 9
done
diel_tuple get --nowait 'job/*'
echo "then $?"
diel_tuple put quoted "it's 'x' *"
diel_tuple read --json quoted
diel_tuple get 'a//b'
echo "then $?"
diel_tuple put lines "two
lines"
echo "then $?"
diel_tuple_close
"""


def test_the_client_for_the_shell(command: Command, other: TupleClient) -> None:
    for length in (2, 3, 5):
        other.tput(("job", length), length)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        ["sh", "-c", SCRIPT],
        env={**environment, **command._server.facts},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    status, printed, error = command.finish(process)
    assert printed.decode() == "then 1\n\"it's 'x' *\"\nthen 2\nthen 2\n"
    assert [other.tget(("area", length), timeout=0) for length in (2, 3, 5)] == [4, 9, 25]
    assert b"a field of a tag cannot be empty" in error
    assert b"a word of several lines" in error
    assert status == 0


PROGRAM = r"""
#include "diel_tuple.h"
#include <assert.h>
int main(void) {
    diel_tuple space;
    double sum = 0;
    if (diel_tuple_open(&space) != DIEL_TUPLE_DONE) { puts(space.why); return 3; }
    while (diel_tuple_get(&space, "job/*/*", NULL, 0) == DIEL_TUPLE_DONE) {
        sum += atof(space.value);
        printf("%s %s\n", space.tag, space.value);
    }
    puts(space.why);
    char text[64];
    int length = snprintf(text, sizeof text, "[%g, null]", sum);
    assert(diel_tuple_put(&space, "[\"sum \\\"\u00fc/\", 3]", "json", text, length, -1) == 0);
    assert(diel_tuple_put(&space, "big", "bytes", calloc(3000000, 1), 3000000, 1.5) == 0);
    assert(diel_tuple_read(&space, "big", NULL, -1) == 0 && space.size == 3000000);
    assert(diel_tuple_get(&space, "big", "json", -1) == DIEL_TUPLE_FAILED);
    puts(space.why);
    assert(diel_tuple_get(&space, "a//b", NULL, -1) == DIEL_TUPLE_FAILED);
    puts(space.why);
    assert(diel_tuple_get(&space, "nobody", NULL, 0.05) == DIEL_TUPLE_LATE);
    diel_tuple_close(&space);
    assert(diel_tuple_get(&space, "nobody", NULL, 0.05) == DIEL_TUPLE_FAILED);
    puts(space.why);
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler, cc")
def test_the_client_in_c(command: Command, other: TupleClient, tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text(PROGRAM)
    header = Path(_CLIENTS["c"])
    line = ["cc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined"]
    line += ["-I", str(header.parent), "-o", "program", "program.c"]
    subprocess.run(line, cwd=tmp_path, check=True)
    for number, value in enumerate([2, "3.5", {"no": "number"}]):
        other.tput(("job", 'x]"', number), value)
    environment = {**os.environ, **command._server.facts}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([tmp_path / "program"], env=environment, **pipes)
    status, printed, error = command.finish(process)
    assert error == b""
    assert printed.decode().splitlines() == [
        '["job", "x]\\"", 0] 2',
        '["job", "x]\\"", 1] 3.5',
        '["job", "x]\\"", 2] {"no": "number"}',
        "nothing matched in time",
        "a value of type bytes cannot be printed as JSON: it holds a value of type bytes; it was "
        "left there",
        '"a//b": a field of a tag cannot be empty; for a slash in one: [...]',
        "there is no connection any more",
    ]
    assert status == 0
    assert other.tget(('sum "\u00fc/', 3), timeout=0) == [5.5, None]
    assert other.count("big") == 1
    outside = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=False)
    assert outside.stdout == "DIEL_TUPLE_SOCKET is not set: no diel run has started this\n"
    assert outside.returncode == 3
