"""``diel tuple``: the tuple space of a run, for its programs and for other terminals.

It asks the rank that started the program, or with ``--run`` the executive, through a Unix socket;
see `diel.programs.tuple_socket`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any, Final, NoReturn

from diel.errors import DielError, TupleSocketError
from diel.programs.tuple_protocol import LATE, TupleConnection
from diel.run.directory import RunDirectory
from diel.run.json_values import LARGEST_NUMBER
from diel.tag_text import SPELLING, Fields, parse_tag, spell_tag

LATE_EXIT: Final = 1
INTERRUPTED_EXIT: Final = 130
REFUSED_EXIT: Final = 2
_CLIENTS: Final = {
    "c": Path(__file__).parents[1] / "programs" / "clients" / "diel_tuple.h",
    "sh": Path(__file__).parents[1] / "programs" / "clients" / "diel_tuple.sh",
}
_SESSION: Final = """\
Each line of standard input is the words of a put, get or read, quoted as for a shell:

    put --json area/3 9
    get --timeout 5 'job/*'

and each is answered by a line: the exit code that the command would have had, and after a space
what it would have printed, or the message:

    0
    0 12
    1 job/*: nothing matched in time
    2 the value is not a line of text: say --json; it was left there

A value is text of one line, or JSON with --json; with --with-tag its tag and a space come before.
The session ends with its standard input, or with the run.
"""
_EXIT_CODES: Final = (
    "exit codes: 0 fine, 1 not in time (--timeout, --nowait), 2 anything else, with a message"
)


def use_tuples(options: argparse.Namespace) -> int:
    """Put, get or read a tuple, or many in a session; return the exit code.

    Raises
    ------
    TagError
        If the tag is invalid.
    TupleSocketError
        If there is no run around this process, or it refuses.
    """
    try:
        if options.operation == "client":
            print(_CLIENTS[options.language])
            return 0
        if options.operation == "session":
            return _serve_lines(options)
        return _use(options)
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT


def _use(options: argparse.Namespace) -> int:
    head, body = _request(options)
    with _connection(options) as connection:
        answer = connection.ask(head, body)
        if answer.head.get("status") == LATE:
            print(f"diel: {_why_late(options)}", file=sys.stderr)
            return LATE_EXIT
        if options.operation != "put":
            data = f"{spell_tag(answer.head['tag'])}\n".encode() if options.with_tag else b""
            _print(data + answer.body + (b"\n" if answer.head["is_line"] else b""))
            if options.operation == "get":
                # The tuple is removed only now: if this process dies earlier, it stays there.
                connection.confirm()
    return 0


def _request(options: argparse.Namespace) -> tuple[dict[str, Any], bytes]:
    head: dict[str, Any] = {
        "operation": options.operation,
        "tag": parse_tag(options.tag),
        "form": options.form,
        "timeout_s": 0 if options.nowait else options.timeout,
    }
    body = b""
    if options.operation == "put":
        head["form"], body = _given(options.value, options.form)
    return head, body


def _why_late(options: argparse.Namespace) -> str:
    cause = "there was no room" if options.operation == "put" else "nothing matched"
    return f"{options.tag}: {cause} in time"


# -- sessions: one operation a line ---------------------------------------------------------------


class _LineParser(argparse.ArgumentParser):
    """An argument parser that raises ValueError where argparse prints a message and exits."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _connection(options: argparse.Namespace) -> TupleConnection:
    if options.run_dir is None:
        return TupleConnection.of_program()
    return TupleConnection.of_run(RunDirectory(options.run_dir))


def _serve_lines(options: argparse.Namespace) -> int:
    parser = _LineParser(add_help=False)
    _add_operations(parser, add_help=False)
    with _connection(options) as connection:
        for line in sys.stdin.buffer if sys.stdin is not None else ():
            if not line.strip():
                continue
            try:
                words = shlex.split(os.fsdecode(line))
                code, text, is_taken = _answer_line(parser.parse_args(words), connection)
            except (ValueError, DielError) as error:
                code, text, is_taken = REFUSED_EXIT, str(error), False
            _print(f"{code} {' '.join(text.splitlines())}".rstrip().encode() + b"\n")
            if is_taken:
                connection.confirm()
            if connection.has_ended:
                return REFUSED_EXIT
    return 0


def _answer_line(options: argparse.Namespace, connection: TupleConnection) -> tuple[int, str, bool]:
    """Return the exit code, the text to print, and whether a tuple is to be confirmed after it."""
    if options.operation == "put" and options.value == "-":
        raise ValueError("standard input is the session's: diel tuple put TAG - reads its own")
    answer = connection.ask(*_request(options))
    if answer.head.get("status") == LATE:
        return LATE_EXIT, _why_late(options), False
    if options.operation == "put":
        return 0, "", False
    is_get = options.operation == "get"
    if not answer.head["is_line"] or b"\n" in answer.body or b"\r" in answer.body:
        if is_get:
            connection.confirm(received=False)
        raise ValueError("the value is not a line of text: say --json; it was left there")
    text = answer.body.decode()
    if options.with_tag:
        tag = spell_tag(answer.head["tag"])
        text = f"{tag if ' ' not in tag else _without_spaces(answer.head['tag'])} {text}"
    return 0, text, is_get


def _without_spaces(fields: Fields) -> str:
    return json.dumps(fields, separators=(",", ":")).replace(" ", "\\u0020")


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


def _print(data: bytes) -> None:
    try:
        # Not through sys.stdout, which drops what cannot be written without an error.
        with open(1, "wb", closefd=False) as output:
            output.write(data)
    except OSError as error:
        raise TupleSocketError(
            f"the value cannot be written: {error.strerror}; it was left there"
        ) from None


# -- the command line -----------------------------------------------------------------------------


def add_tuple_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands put, get, read, session and client."""
    parser.epilog = f"{SPELLING}\n{_EXIT_CODES}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--run", dest="run_dir", type=Path, metavar="RUN_DIR",
        help="of this run, which goes on on this host; else of the run that started this process",
    )  # fmt: skip
    operations = _add_operations(parser)
    session = operations.add_parser(
        "session",
        help="many operations in one process: a line each, on standard input",
        description=_SESSION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    session.set_defaults(with_tag=False)
    client = operations.add_parser(
        "client",
        help="print where the clients for other languages lie",
        description="Print the path of a file to include or to source; it says how it is used.",
    )
    client.add_argument("language", choices=sorted(_CLIENTS), help="C and C++, or the shell")


def _add_operations(parser: argparse.ArgumentParser, *, add_help: bool = True) -> Any:
    operations = parser.add_subparsers(dest="operation", required=True, metavar="OPERATION")
    put = _add(operations, "put", "put a tuple into the space", add_help)
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
        get = _add(operations, name, words, add_help)
        get.add_argument("--with-tag", action="store_true", help="print its tag too, a line before")
        _add_forms(
            get,
            json="print JSON, whatever the value is",
            bytes="print text without a line end, or bytes as they are",
            npy="print an array as a .npy file",
        )
    return operations


def _add(operations: Any, name: str, words: str, add_help: bool) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = operations.add_parser(
        name,
        add_help=add_help,
        help=words,
        description=f"{words[0].upper()}{words[1:]}.",
        epilog=f"{SPELLING}\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tag", metavar="TAG", help="see below")
    parser.set_defaults(with_tag=False)
    purpose = "for room" if name == "put" else "for a match"
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument(
        "--timeout", type=_seconds, metavar="S", help=f"wait {purpose} so many seconds at most"
    )
    waiting.add_argument("--nowait", action="store_true", help=f"do not wait {purpose}")
    return parser


def _add_forms(parser: argparse.ArgumentParser, **forms: str) -> None:
    group = parser.add_mutually_exclusive_group()
    for form, words in forms.items():
        group.add_argument(f"--{form}", dest="form", action="store_const", const=form, help=words)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds >= 0:
        raise argparse.ArgumentTypeError("cannot be negative")
    return min(seconds, LARGEST_NUMBER)


_seconds.__name__ = "number of seconds"  # what argparse calls it in its messages
