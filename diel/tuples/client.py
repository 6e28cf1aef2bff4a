"""What modules call: ``ctx.tuples``."""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Callable
from typing import Any, Final, Literal, overload

from diel.errors import PayloadError
from diel.tuples import checkpoint, codec
from diel.tuples.asking import ANYWHERE, cost_of, seconds
from diel.tuples.claims import Claim
from diel.tuples.distributed import STRIPED, Layout
from diel.tuples.protocol import (
    BODY_AT,
    KEY_AT,
    LENGTHS,
    QUERY_HEAD,
    SIZE,
    SMALL_BYTES,
    TUPLE_OVERHEAD_BYTES,
    Operation,
    Reply,
    Status,
    pack_put,
    unpack_frames,
    unpack_reply,
)
from diel.tuples.striping import Striping
from diel.tuples.subscriptions import Subscription
from diel.tuples.tags import Pattern, Tag, decode_tag, format_tag
from diel.tuples.watching import Watch

_LENGTHS_OF: Final = LENGTHS.unpack_from
_SIZE_OF: Final = SIZE.pack
_SMALLEST_COST: Final = TUPLE_OVERHEAD_BYTES + KEY_AT
_PUT: Final = int(Operation.PUT)
_TAKE: Final = int(Operation.TAKE)


class TupleClient(Striping):
    """The tuple space, as one rank sees it.

    A tag is a string or a tuple of strings and integers. Values are NumPy arrays and bytes,
    which travel as they are, numbers, and any Python object that can be pickled. Several tuples
    may share a tag: first in, first out. With several servers the first field of a tag decides
    which one has it. Not to be shared by threads.

    Parameters
    ----------
    transport : Transport
    """

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
        if known is not None and type(value) is bytes:
            size = len(value)
            key, server, account, head, _ = known
            cost = _SMALLEST_COST + len(key) + size
            if size <= SMALL_BYTES and cost <= account.credit_bytes:
                # What most calls are, without the detours that the others need.
                account.credit_bytes -= cost
                account.puts += 1
                self._senders[server](b"".join((head, _SIZE_OF(size), key, value)))
                if wait:
                    self._ask(server, Operation.FLUSH)
                return
        key, server = self._place(tag)
        kind, meta, buffer = self._encode(value)
        message, payload = pack_put(_PUT, 0, 0, kind, key, meta, buffer)
        self._spend_credit(server, cost_of(message, payload), tag, timeout)
        self._accounts[server].puts += 1
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
        self._spend_credit(
            server, TUPLE_OVERHEAD_BYTES + QUERY_HEAD.size + len(key) + len(meta), tag, None
        )
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

    # -- getting ------------------------------------------------------------------------------

    @overload
    def tget(
        self,
        tag: Pattern,
        *,
        timeout: float | None = None,
        out: object = None,
        with_tag: Literal[False] = False,
    ) -> Any: ...
    @overload
    def tget(
        self,
        tag: Pattern,
        *,
        timeout: float | None = None,
        out: object = None,
        with_tag: Literal[True],
    ) -> tuple[Tag, Any]: ...
    def tget(
        self,
        tag: Pattern,
        *,
        timeout: float | None = None,
        out: object = None,
        with_tag: bool = False,
    ) -> Any:
        """Take the oldest tuple that matches; wait for one if there is none.

        With several servers and `ANY` as the first field, tuples of one server come in order,
        those of different servers in any; with ``timeout=0`` servers are then asked one after
        the other, so a tuple that moves meanwhile can be missed.

        Parameters
        ----------
        tag : str or tuple of str, int and ANY
        timeout : float, seconds, optional
            Give up after this long; 0 looks once; without it, wait for ever.
        out : numpy.ndarray, optional
            Receive into this array. A tuple that does not fit it stays where it is.
        with_tag : bool, optional
            Return (tag, value): which tag it was that matched.

        Returns
        -------
        object
            The value; for an array, `out` if given, else a new, writable array.

        Raises
        ------
        TagError
            If `tag` is no pattern.
        TupleTimeout
            If nothing matched in time.
        PayloadError
            If the tuple does not fit `out`.
        RunStopped
            If the run is stopping.
        """
        known = self._known.get(tag) if type(tag) is str else None
        if known is not None and timeout is None and out is None:
            # What most calls are, without the detours that the others need.
            _, server, _, _, rest = known
            serial, message = self._transport.ask_quickly(server, _TAKE, rest)
            if message is not None and message[BODY_AT] == codec.BYTES:
                key_bytes, meta_bytes = _LENGTHS_OF(message)
                value = message[KEY_AT + key_bytes + meta_bytes :]
            else:
                value = self._value_of_late(serial, message, tag)
            return (tag, value) if with_tag else value
        return self._get(Operation.TAKE, "tget", tag, timeout, out, with_tag)

    @overload
    def tread(
        self,
        tag: Pattern,
        *,
        timeout: float | None = None,
        out: object = None,
        with_tag: Literal[False] = False,
    ) -> Any: ...
    @overload
    def tread(
        self,
        tag: Pattern,
        *,
        timeout: float | None = None,
        out: object = None,
        with_tag: Literal[True],
    ) -> tuple[Tag, Any]: ...
    def tread(
        self,
        tag: Pattern,
        *,
        timeout: float | None = None,
        out: object = None,
        with_tag: bool = False,
    ) -> Any:
        """Copy the oldest tuple that matches and leave it there; otherwise as `tget`."""
        return self._get(Operation.READ, "tread", tag, timeout, out, with_tag)

    def tget_nowait(self, tag: Pattern, *, out: object = None, with_tag: bool = False) -> Any:
        """Take the oldest tuple that matches, or raise `TupleTimeout` at once."""
        return self._get(Operation.TAKE, "tget_nowait", tag, 0, out, with_tag)

    def tread_nowait(self, tag: Pattern, *, out: object = None, with_tag: bool = False) -> Any:
        """Copy the oldest tuple that matches, or raise `TupleTimeout` at once."""
        return self._get(Operation.READ, "tread_nowait", tag, 0, out, with_tag)

    def claim(
        self, tag: Pattern, *, timeout: float | None = None, lease: float | None = None
    ) -> Claim:
        """Take a tuple for as long as the work on it lasts.

        ::

            with ctx.tuples.claim(("job", ANY)) as job:
                work(job.value)

        At the end of the block the tuple is gone; if the block raises, or the rank that holds
        the claim dies, it is given back to its old place.

        Parameters
        ----------
        tag : str or tuple of str, int and ANY
        timeout : float, seconds, optional
            As for `tget`.
        lease : float, seconds, optional
            Give the tuple back after this long, unless `Claim.renew` is called before.

        Returns
        -------
        Claim
            A context manager with ``tag`` and ``value``.

        Raises
        ------
        TagError, TupleTimeout, RunStopped
            As `tget`.
        """
        timeout_s = seconds(timeout)
        if lease is not None and not lease > 0:
            raise ValueError(f"a lease is longer than 0 s; got {lease!r}")
        lease_ms = 0 if lease is None else max(1, round(lease * 1000))
        server, reply = self._match(Operation.CLAIM, "claim", tag, timeout_s, argument=lease_ms)
        self._raise_for(reply, "claim", tag, timeout_s)
        try:
            value = self._value_of(reply, "claim", tag)
        except PayloadError:
            self._ask(server, Operation.GIVE_BACK, argument=reply.number)
            raise
        return Claim(
            decode_tag(reply.key),
            value,
            lambda operation, seconds: self._ask(
                server, operation, timeout_s=seconds, argument=reply.number
            ),
        )

    def count(self, tag: Pattern) -> int:
        """Return how many tuples match; claimed ones do not."""
        key, server = self._pattern_place(tag)
        where = range(self._servers) if server == ANYWHERE else [server]
        return sum(self._ask(one, Operation.COUNT, key).number for one in where)

    def collect(self, tag: Pattern, *, limit: int | None = None) -> list[tuple[Tag, Any]]:
        """Take all tuples that match, in bulk, without waiting.

        Parameters
        ----------
        tag : str or tuple of str, int and ANY
        limit : int, optional
            Take so many at most.

        Returns
        -------
        list of (tag, value)
            Oldest first, server by server.

        Raises
        ------
        TagError
            If `tag` is no pattern.
        """
        if limit is not None and limit < 1:
            raise ValueError(f"limit is at least 1; got {limit!r}")
        key, server = self._pattern_place(tag)
        found: list[tuple[Tag, Any]] = []
        for one in range(self._servers) if server == ANYWHERE else [server]:
            while limit is None or len(found) < limit:
                left = 0 if limit is None else limit - len(found)
                reply = self._ask(one, Operation.COLLECT, key, argument=left)
                items = list(unpack_frames(reply.payload))
                for index, item in enumerate(items):
                    try:
                        payload = item.payload
                        if item.kind & STRIPED:
                            payload = self._fetch_pieces(_TAKE, Layout.unpack(payload), None)
                        value = codec.decode(item.kind & ~STRIPED, item.meta, payload)
                    except PayloadError:
                        for rest in items[index:]:  # taken, but not to be had: back they go
                            self._put_again(rest)
                        raise
                    found.append((decode_tag(item.key), value))
                if not reply.meta:
                    break  # else there was more than fits into one reply
        return found

    def subscribe(self, tag: Pattern) -> Subscription:
        """Receive a copy of each tuple that is put from now on and matches.

        Parameters
        ----------
        tag : str or tuple of str, int and ANY

        Returns
        -------
        Subscription
            An iterator over (tag, value), and a context manager that ends it. What it has not
            given out yet counts as memory of the server.

        Raises
        ------
        TagError
            If `tag` is no pattern.
        """
        key, server = self._pattern_place(tag)
        where = list(range(self._servers)) if server == ANYWHERE else [server]
        return Subscription(self._transport, where, key, tag, self._note_wait)

    def is_empty(self) -> bool:
        """Whether no tuple is in the space, claimed or not."""
        return not any(self.survey(server)["held_bytes"] for server in range(self._servers))

    def watch(self, tag: Pattern) -> Watch:
        """Return what tells, without waiting, that a tuple matches: for loops that poll.

        Parameters
        ----------
        tag : str or tuple of str, int and ANY

        Raises
        ------
        TagError
            If `tag` is no pattern.
        """
        key, server = self._pattern_place(tag)
        where = list(range(self._servers)) if server == ANYWHERE else [server]
        return Watch(self._transport, where, key)

    def survey(self, server: int) -> dict[str, Any]:
        """Return what a server holds and who waits there, for whoever explains a deadlock."""
        survey: dict[str, Any] = json.loads(bytes(self._ask(server, Operation.SURVEY).payload))
        return survey

    # -- the whole space ----------------------------------------------------------------------

    def checkpoint(self, path: str | os.PathLike[str]) -> int:
        """Write all tuples of the space into a file; they stay in the space.

        Each server's part is as of one instant, and these instants lie close together. Tuples
        that others put or take meanwhile may be in the file or not: where tuples of several
        servers belong together, let the modules be quiet.

        Parameters
        ----------
        path : path
            A module writes to ``ctx.run_dir / "checkpoints" / name``. The folder is made if need
            be; a file that is there is replaced once the new one is whole.

        Returns
        -------
        int
            Tuples in the file, claimed ones included.

        Raises
        ------
        OSError
            If the file cannot be written.
        RunStopped
            If the run is stopping.
        """
        servers = [(server, b"") for server in range(self._servers)]
        first = self._ask_all(Operation.DUMP, servers)
        return checkpoint.save(path, first, self._ask, self._route)

    def restore(self, path: str | os.PathLike[str]) -> int:
        """Put all tuples of a checkpoint into the space, beside those that are there.

        The number of servers may differ from that of the run that wrote it. Tuples of the same
        tag keep their order. Values may be pickled objects: restore only what you trust.

        Parameters
        ----------
        path : path

        Returns
        -------
        int
            Tuples that were put.

        Raises
        ------
        CheckpointError
            If the file is no checkpoint, or a damaged one; nothing was put.
        OSError
            If the file cannot be read.
        TupleSpaceFull
            If there is no room, and the file says to raise; what was put before stays.
        RunStopped
            If the run is stopping.
        """
        return checkpoint.restore(path, self._put_again, self.flush)

    # -- inside -------------------------------------------------------------------------------

    def _value_of_late(self, serial: int, message: bytes | None, tag: object) -> Any:
        """Return the value that a `tget` gets that had to wait, or where it is not bytes."""
        if message is not None:
            reply = unpack_reply(message)
        else:
            self.waiting_for = ("tget", tag, math.inf)
            try:
                reply = self._transport.receive((serial,))[1]
            except BaseException:
                self._name_cut_short(Operation.TAKE)
                raise
            finally:
                self.waiting_for = None
        payload = reply.payload
        if reply.kind & STRIPED:
            payload = self._fetch_pieces(_TAKE, Layout.unpack(payload), None)
        return codec.decode(reply.kind & ~STRIPED, reply.meta, payload)

    @staticmethod
    def _value_of(reply: Reply, name: str, tag: object) -> Any:
        if reply.kind & STRIPED:
            raise PayloadError(
                f"{name}({format_tag(tag)}): the tuple is striped; take it with dist_tget"
            )
        return codec.decode(reply.kind, reply.meta, reply.payload)
