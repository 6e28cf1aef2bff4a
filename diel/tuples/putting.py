"""Tuples into the space, and changes to those that are there."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from diel.errors import PayloadError
from diel.tuples import codec
from diel.tuples.asking import Asking, seconds
from diel.tuples.protocol import (
    SMALL_BYTES,
    TUPLE_OVERHEAD_BYTES,
    Operation,
    Status,
    message_cost,
    number_cost,
    pack_put,
)
from diel.tuples.tags import Tag, format_tag

_PUT: Final = int(Operation.PUT)


class Putting(Asking):
    """The part of a `TupleClient` that puts and changes tuples."""

    def tput(
        self, tag: Tag, value: object, *, wait: bool = False, timeout: float | None = None
    ) -> None:
        """Put a tuple into the space.

        Returns when `value` may be changed; it never waits for somebody to take the tuple. If
        the server has no room it waits for room, or raises, as the workflow file says. Tuples
        of the same tag keep the order in which one rank put them.

        Parameters
        ----------
        tag : str or tuple of str and int
        value : object
        wait : bool, optional
            Return only when the tuple is in the space, visible to all ranks.
        timeout : float, seconds, optional
            How long to wait for room at most.

        Raises
        ------
        TagError
            If `tag` is no tag.
        PayloadError
            If `value` cannot be pickled.
        TupleSpaceFull
            If there is no room, and the file says to raise, or there never will be.
        TupleTimeout
            If there was no room in time.
        """
        known = self._known.get(tag) if type(tag) is str else None
        if known is not None and type(value) is bytes and len(value) <= SMALL_BYTES:
            _, server, credit, heads, _ = known
            message = heads[len(value)] + value
            cost = TUPLE_OVERHEAD_BYTES + len(message)
            if cost <= credit.credit_bytes:
                # Fast path for some bytes under a tag that was used before.
                credit.credit_bytes -= cost
                credit.puts += 1
                self._senders[server](message)
                if wait:
                    self._ask(server, Operation.FLUSH)
                return
        key, server = self._place(tag)
        kind, meta, buffer = self._encode(value)
        message, payload = pack_put(_PUT, 0, 0, kind, key, meta, buffer)
        self._spend_credit(server, message_cost(message, payload), tag, timeout)
        self._credits[server].puts += 1
        self._transport.send(server, message, payload)
        if wait:
            self._ask(server, Operation.FLUSH)

    def put_if_absent(self, tag: Tag, value: object) -> bool:
        """Put a tuple unless its tag has one already, claimed ones included.

        Parameters
        ----------
        tag : str or tuple of str and int
        value : object

        Returns
        -------
        bool
            Whether it was put.

        Raises
        ------
        TagError, PayloadError, TupleSpaceFull
            As `tput`.
        """
        reply = self._send_tuple(Operation.PUT_IF_ABSENT, tag, 0, value)
        return reply.number == 1

    def increment(self, tag: Tag, by: float = 1) -> Any:
        """Add to a number in one step that nobody can come between.

        Parameters
        ----------
        tag : str or tuple of str and int
            Of a tuple that is an int or float; without one, there is one afterwards that is `by`.
        by : int or float, optional

        Returns
        -------
        int or float
            The new number. It stays in the space, in its place.

        Raises
        ------
        TagError
            If `tag` is no tag.
        PayloadError
            If the tuple there is no number, or the result needs more than 64 bits.
        """
        key, server = self._place(tag)
        if hasattr(by, "__index__") and not isinstance(by, bool):
            by = operator.index(by)  # NumPy's integers too
        if isinstance(by, bool) or not isinstance(by, (int, float)):
            raise PayloadError(f"increment({format_tag(tag)}): by is a number, not {by!r}")
        try:
            kind, meta = codec.encode_number(by)
        except OverflowError:
            raise PayloadError(f"increment({format_tag(tag)}): {by} needs over 64 bits") from None
        # If there is no tuple yet, there is one afterwards: that has its price.
        self._spend_credit(server, number_cost(key), tag, None)
        reply = self._ask(server, Operation.INCREMENT, key, kind=kind, meta=meta)
        if reply.status == Status.NOT_A_NUMBER:
            raise PayloadError(f"increment({format_tag(tag)}): the tuple there is not a number")
        if reply.status == Status.TOO_LARGE:
            raise PayloadError(f"increment({format_tag(tag)}): the result needs over 64 bits")
        return codec.decode_number(reply.kind, reply.payload)

    def update(
        self, tag: Tag, function: Callable[[Any], object], *, timeout: float | None = None
    ) -> Any:
        """Replace a tuple's value by a function of it; the tuple keeps its place.

        The function runs here, again if another rank changed the tuple meanwhile.

        Parameters
        ----------
        tag : str or tuple of str and int
        function : callable
            From the old value to the new one.
        timeout : float, seconds, optional
            How long to wait for a tuple of this tag at most.

        Returns
        -------
        object
            The new value.

        Raises
        ------
        TagError, PayloadError, TupleSpaceFull
            As `tput`.
        TupleTimeout
            If there was no tuple in time.
        """
        timeout_s = seconds(timeout)
        key, server = self._place(tag)
        while True:
            reply = self._ask(server, Operation.READ, key, timeout_s=timeout_s, tag=tag)
            self._raise_for(reply, "update", tag, timeout_s)
            value = function(self._value_of(reply, "update", tag))
            answer = self._send_tuple(Operation.REPLACE, tag, reply.number, value)
            if answer.status == Status.OK:
                return value

    def flush(self) -> None:
        """Return when everything that this rank has put is in the space.

        Raises
        ------
        RunStopped
            If the run is stopping.
        """
        for server in range(self._servers):
            self._ask(server, Operation.FLUSH)
