"""``diel tuple``: the tuple space of a run, for the programs that run in it.

It asks the rank that started the program, through a Unix socket; see `diel.programs.tuple_socket`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
from typing import Any, Final

from diel.cli.tag_spelling import SPELLING, parse_tag, spell_tag
from diel.errors import TupleSocketError
from diel.programs.tuple_protocol import (
    DONE,
    LATE,
    TOKEN,
    TUPLE_SOCKET,
    NotUnderstood,
    Parcel,
    Unpacker,
    pack,
)

LATE_EXIT: Final = 1
INTERRUPTED_EXIT: Final = 130
_RECEIVE_BYTES: Final = 2**18
_EXIT_CODES: Final = (
    "exit codes: 0 fine, 1 not in time (--timeout, --nowait), 2 anything else, with a message"
)


def use_tuples(options: argparse.Namespace) -> int:
    """Put, get or read one tuple; return the exit code.

    Raises
    ------
    TagError
        If the tag is none.
    TupleSocketError
        If there is no run around this process, or it refuses.
    """
    try:
        return _use(options)
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT


def _use(options: argparse.Namespace) -> int:
    head: dict[str, Any] = {
        "operation": options.operation,
        "tag": parse_tag(options.tag),
        "form": options.form,
        "timeout_s": 0 if options.nowait else options.timeout,
    }
    body = b""
    if options.operation == "put":
        head["form"], body = _given(options.value, options.form)
    with _connect() as connection:
        _send(connection, pack({**head, "token": os.environ.get(TOKEN, "")}, body))
        answer = _receive(connection)
        status = answer.head.get("status")
        if status == LATE:
            what = "there was no room" if options.operation == "put" else "nothing matched"
            print(f"diel: {options.tag}: {what} in time", file=sys.stderr)
            return LATE_EXIT
        if status != DONE:
            raise TupleSocketError(str(answer.head.get("why")))
        if options.operation != "put":
            _print(answer, with_tag=options.with_tag)
            if options.operation == "get":
                # Only now is the tuple gone: had this process died, it would be there again.
                _send(connection, pack({"received": True}))
    return 0


def _given(value: str, form: str | None) -> tuple[str, bytes]:
    """Return the form and the bytes of a value to put."""
    if value != "-":
        return form or "text", os.fsencode(value)
    if sys.stdin is None:
        raise TupleSocketError("there is no standard input to read the value from")
    try:
        return form or "bytes", sys.stdin.buffer.read()
    except OSError as error:
        raise TupleSocketError(f"standard input cannot be read: {error.strerror}") from None


def _connect() -> socket.socket:
    address = os.environ.get(TUPLE_SOCKET, "")
    if not address:
        raise TupleSocketError(
            f"{TUPLE_SOCKET} is not set: diel tuple works in what a run's executable starts; a "
            "function module has ctx.tuples"
        )
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(address)
    except OSError as error:
        connection.close()
        raise TupleSocketError(
            f"{address} cannot be reached ({error.strerror or error}): the run is over, or goes "
            "on on another node"
        ) from None
    return connection


def _send(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # what the rank has said, or its silence, tells why
        connection.sendall(data)


def _receive(connection: socket.socket) -> Parcel:
    unpacker = Unpacker()
    try:
        while True:
            parcel = unpacker.next()
            if parcel is not None:
                return parcel
            data = connection.recv(_RECEIVE_BYTES)
            if not data:
                break
            unpacker.feed(data)
    except (OSError, NotUnderstood):
        pass
    raise TupleSocketError("the run has ended, or is ending: it has not answered")


def _print(answer: Parcel, *, with_tag: bool) -> None:
    data = f"{spell_tag(answer.head['tag'])}\n".encode() if with_tag else b""
    data += answer.body + (b"\n" if answer.head["is_line"] else b"")
    try:
        # Not through sys.stdout, which forgives what cannot be written.
        with open(1, "wb", closefd=False) as output:
            output.write(data)
    except OSError as error:
        raise TupleSocketError(
            f"the value cannot be written: {error.strerror}; it was left there"
        ) from None


# -- the command line -----------------------------------------------------------------------------


def add_tuple_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the three operations."""
    parser.epilog = f"{SPELLING}\n{_EXIT_CODES}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    operations = parser.add_subparsers(dest="operation", required=True, metavar="OPERATION")
    put = _add(operations, "put", "put a tuple into the space")
    put.add_argument("value", metavar="VALUE", help='the value, a string; "-" reads it from stdin')
    _add_forms(
        put,
        json="the value is JSON: a number, a list, a table, ...",
        bytes="the value is bytes, as stdin is without this",
        npy="the value is an array, a .npy file on stdin",
        text="the value is text, as VALUE is without this",
    )
    for name, words in (
        ("get", "take the oldest tuple that matches, and print its value"),
        ("read", "print the value of the oldest tuple that matches; it stays"),
    ):
        get = _add(operations, name, words)
        get.add_argument("--with-tag", action="store_true", help="print its tag too, a line before")
        _add_forms(
            get,
            json="print JSON, whatever the value is",
            bytes="print text without a line end, or bytes as they are",
            npy="print an array as a .npy file",
        )


def _add(operations: Any, name: str, words: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = operations.add_parser(
        name,
        help=words,
        description=f"{words[0].upper()}{words[1:]}.",
        epilog=f"{SPELLING}\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tag", metavar="TAG", help="see below")
    parser.set_defaults(with_tag=False)
    what = "for room" if name == "put" else "for a match"
    patience = parser.add_mutually_exclusive_group()
    patience.add_argument(
        "--timeout", type=_seconds, metavar="S", help=f"wait {what} so many seconds at most"
    )
    patience.add_argument("--nowait", action="store_true", help=f"do not wait {what}")
    return parser


def _add_forms(parser: argparse.ArgumentParser, **forms: str) -> None:
    group = parser.add_mutually_exclusive_group()
    for form, words in forms.items():
        group.add_argument(f"--{form}", dest="form", action="store_const", const=form, help=words)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds >= 0:
        raise argparse.ArgumentTypeError("cannot be negative")
    return seconds


_seconds.__name__ = "number of seconds"  # what argparse calls it in its messages
