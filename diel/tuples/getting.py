"""Tuples out of the space: taken, read, claimed; one at a time, or all that match."""

from __future__ import annotations

import math
from typing import Any, Literal, overload

from diel.errors import PayloadError
from diel.tuples import codec
from diel.tuples.asking import seconds
from diel.tuples.claims import Claim
from diel.tuples.distributed import Layout
from diel.tuples.protocol import (
    STRIPED,
    Operation,
    unpack_frames,
)
from diel.tuples.striping import Striping
from diel.tuples.tags import Pattern, Tag, decode_tag


class Getting(Striping):
    """The part of a `TupleClient` that takes, reads, claims, counts and collects tuples."""

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
            # Fast path for a plain take under a tag that was used before.
            serial, value = self._transport.take_quickly(known.server, known.question_rest)
            if value is None:
                value = self._late_value(serial, tag)
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
        key, servers = self._pattern_places(tag)
        return sum(self._ask(server, Operation.COUNT, key).number for server in servers)

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
        key, servers = self._pattern_places(tag)
        found: list[tuple[Tag, Any]] = []
        for server in servers:
            while limit is None or len(found) < limit:
                left = 0 if limit is None else limit - len(found)
                reply = self._ask(server, Operation.COLLECT, key, argument=left)
                items = list(unpack_frames(reply.payload))
                for index, item in enumerate(items):
                    try:
                        payload = item.payload
                        if item.kind & STRIPED:
                            payload = self._take_pieces(Layout.unpack(payload))
                        value = codec.decode(item.kind & ~STRIPED, item.meta, payload)
                    except PayloadError:
                        for rest in items[index:]:  # taken, but not to be had: back they go
                            self._put_again(rest)
                        raise
                    found.append((decode_tag(item.key), value))
                if not reply.meta:
                    break  # else there was more than fits into one reply
        return found

    def _late_value(self, serial: int, tag: object) -> Any:
        """Return the value that a `tget` gets that has to wait, or where it is not bytes."""
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
            payload = self._take_pieces(Layout.unpack(payload))
        return codec.decode(reply.kind & ~STRIPED, reply.meta, payload)
