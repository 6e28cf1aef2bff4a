"""The tuples of a run for a process outside of it, as `diel.Run.tuples` returns them.

While the run goes on, its executive answers, through the socket that ``diel tuple --run`` uses too;
afterwards the last checkpoint is read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from diel.errors import TupleError, TupleSocketError, TupleTimeout
from diel.programs.tuple_protocol import BEST_FORM, LATE, TupleConnection
from diel.run.directory import RunDirectory
from diel.run.json_values import LARGEST_NUMBER
from diel.tuples.tags import (
    ANY,
    decode_tag,
    encode_pattern,
    encode_tag,
    fields_match,
    format_tag,
    split_fields,
)

_TIMEOUT_S: Final = 10.0


class RunTuples:
    """The tuple space of a run that is running on this host, for reads, puts and takes.

    Tags are written as for `ctx.tuples`: ``"name"`` or ``("job", 3)``, and ``("job", diel.ANY)`` to
    read and take. Values are text, numbers, bytes, arrays, and lists and tables of such; a Python
    tuple arrives as a list. Each call connects anew, except in a ``with`` block, which keeps one
    connection: while it is open, a run whose modules all wait is not ended as a deadlock, since the
    tuples that they wait for may yet be put.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._connection: TupleConnection | None = None
        self._stays = False

    def read(self, tag: Any, timeout_s: float | None = _TIMEOUT_S) -> Any:
        """Return the value of the oldest tuple that matches; it stays there.

        Parameters
        ----------
        tag : str, or tuple of str, int and `diel.ANY`
        timeout_s : float, seconds, optional
            How long to wait for a match; None for as long as the run goes on.

        Raises
        ------
        TupleTimeout
            If nothing matched in time.
        TupleSocketError
            If the run is out of reach, or has ended.
        TagError, PayloadError
            If the tag is invalid, or the value is an object of some class.
        """
        return self._ask("read", tag, timeout_s)

    def take(self, tag: Any, timeout_s: float | None = _TIMEOUT_S) -> Any:
        """Take the oldest tuple that matches and return its value; otherwise as `read`."""
        return self._ask("get", tag, timeout_s)

    def put(self, tag: Any, value: Any, timeout_s: float | None = _TIMEOUT_S) -> None:
        """Put a tuple.

        Parameters
        ----------
        tag : str, or tuple of str and int
        value : str, number, bytes, array, or list or dict of such
        timeout_s : float, seconds, optional
            How long to wait for room.

        Raises
        ------
        TupleTimeout
            If there was no room in time.
        TupleSocketError
            If the run is out of reach, has ended, or refuses.
        TagError, PayloadError
            If the tag is invalid, or the value cannot be put.
        """
        from diel.programs.shell_values import given

        encode_tag(tag)
        form, body = given(value)
        with self._connected() as connection:
            self._send(connection, {"operation": "put", "form": form}, tag, timeout_s, body)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[TupleConnection]:
        if self._connection is None or self._connection.has_ended:
            self.close()
            self._connection = TupleConnection.of_run(self._directory)
        try:
            yield self._connection
        except (TupleError, TupleSocketError):
            if not self._stays:
                self.close()
            raise
        except BaseException:  # an interrupt: a late answer must not pass for the next call's
            self.close()
            raise
        if not self._stays:
            self.close()

    def _ask(self, operation: str, tag: Any, timeout_s: float | None) -> Any:
        from diel.programs.shell_values import value_of

        with self._connected() as connection:
            request = {"operation": operation, "form": BEST_FORM}
            head, body = self._send(connection, request, tag, timeout_s)
            is_taken = operation == "get"
            try:
                value = value_of(str(head["form"]), body)
            except BaseException:
                if is_taken:
                    connection.confirm(received=False)
                raise
            if is_taken:
                connection.confirm()
            return value

    @staticmethod
    def _send(
        connection: TupleConnection,
        head: dict[str, Any],
        tag: Any,
        timeout_s: float | None,
        body: bytes = b"",
    ) -> tuple[dict[str, Any], bytes]:
        plain = decode_tag(encode_pattern(tag)[0])
        fields = plain if isinstance(plain, tuple) else (plain,)
        fields = tuple(None if field is ANY else field for field in fields)
        limit_s = None if timeout_s is None or timeout_s > LARGEST_NUMBER else timeout_s
        request = {**head, "tag": fields, "timeout_s": limit_s}
        answer = connection.ask(request, body)
        if answer.head.get("status") == LATE:
            name = {"put": "put", "read": "read"}.get(head["operation"], "take")
            reason = "there was no room" if name == "put" else "nothing matched"
            raise TupleTimeout(name, format_tag(tag), timeout_s or 0.0, reason)
        return answer.head, answer.body

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> RunTuples:
        self._stays = True
        return self

    def __exit__(self, *_: object) -> None:
        self._stays = False
        self.close()


class SavedTuples:
    """Read-only tuples of the last checkpoint of a run that has ended.

    Iterating over it yields tags and values.
    """

    def __init__(self, file: Path | None) -> None:
        from diel.tuples.checkpoint import stored_tuples

        self._stored = [] if file is None else stored_tuples(file)

    def read(self, tag: Any) -> Any:
        """Return the value of the oldest tuple that matches.

        Raises
        ------
        TupleError
            If no tuple matches.
        TagError, PayloadError
            If the tag is invalid, or the value is an object of some class.
        """
        pattern = split_fields(encode_pattern(tag)[0])
        for found, stored in self._stored:
            if fields_match(pattern, split_fields(encode_tag(found))):
                return stored.value()
        raise TupleError(f"{format_tag(tag)}: nothing matches in the last checkpoint of the run")

    def take(self, tag: Any) -> Any:
        """Refuse: the run has ended."""
        raise TupleError(f"{format_tag(tag)}: the run has ended, its tuples can only be read")

    def put(self, tag: Any, value: Any) -> None:
        """Refuse: the run has ended."""
        raise TupleError(f"{format_tag(tag)}: the run has ended, nothing can be put")

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return ((tag, stored.value()) for tag, stored in self._stored)
