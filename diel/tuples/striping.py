"""Tuples in pieces on all servers, and how any tuple is taken or read, in pieces or not."""

from __future__ import annotations

import math
import time
from typing import Any

from diel.errors import PayloadError
from diel.tuples import codec
from diel.tuples.arrays import np
from diel.tuples.asking import Asking, seconds
from diel.tuples.distributed import Layout
from diel.tuples.protocol import (
    LONGEST_META_BYTES,
    STRIPED,
    Operation,
    Payload,
    Status,
    pack_put,
)
from diel.tuples.tags import Pattern, Tag, decode_tag, format_tag


class Striping(Asking):
    """The part of a `TupleClient` that knows of pieces."""

    def dist_tput(self, tag: Tag, value: object, *, timeout: float | None = None) -> None:
        """Put a tuple whose payload is spread over all servers.

        For large arrays: the servers share the memory and the transfer. It becomes visible when
        every server has its piece, and is taken like any other tuple.

        Parameters
        ----------
        tag : str or tuple of str and int
        value : object
            A NumPy array or bytes; any other object is pickled first.
        timeout : float, seconds, optional
            How long to wait for room at most, on each server.

        Raises
        ------
        TagError, PayloadError, TupleSpaceFull, TupleTimeout
            As `tput`; then nothing was put.
        """
        key, server = self._place(tag)
        kind, meta, buffer = self._encode(value)
        payload = memoryview(buffer)
        layout = Layout.plan(len(payload), self._servers)
        message, _ = pack_put(Operation.PUT, 0, 0, kind | STRIPED, key, meta, layout.pack())
        parts = self._pack_pieces(layout, payload)
        # All credit first: what is sent cannot be refused any more.
        self._spend_together([*parts, (server, message, None)], tag, timeout)
        for one, _, _ in parts:
            self._credits[one].puts += 1
        self._transport.send_all(parts)
        self._ask_all(Operation.FLUSH, [(one, b"") for one, _, _ in parts])
        self._credits[server].puts += 1
        self._transport.send(server, message)

    def dist_tget(
        self,
        tag: Pattern,
        *,
        timeout: float | None = None,
        out: object = None,
        with_tag: bool = False,
    ) -> Any:
        """Take a tuple, its pieces from all servers at the same time; otherwise as `tget`.

        `tget` does the same: how a tuple lies in the space is its own affair.
        """
        return self._get(Operation.TAKE, "dist_tget", tag, timeout, out, with_tag)

    def dist_tread(
        self,
        tag: Pattern,
        *,
        timeout: float | None = None,
        out: object = None,
        with_tag: bool = False,
    ) -> Any:
        """Copy a tuple, its pieces from all servers at the same time; otherwise as `tread`."""
        return self._get(Operation.READ, "dist_tread", tag, timeout, out, with_tag)

    def _pack_pieces(self, layout: Layout, payload: memoryview) -> list[tuple[int, bytes, Payload]]:
        """Return (server, message, payload that travels apart) for each piece."""
        parts = []
        for key, piece in zip(layout.piece_keys(), layout.cut(payload), strict=True):
            message, apart = pack_put(Operation.PUT, 0, 0, codec.BYTES, key, b"", piece)
            parts.append((self._route(key), message, apart))
        return parts

    def _fetch_pieces(
        self, operation: int, layout: Layout, target: memoryview | None
    ) -> memoryview | None:
        """Take or read all pieces into one buffer; None if somebody else has taken them."""
        if target is None:
            target = np.empty(layout.size_bytes, np.uint8).data
        cuts = layout.cut(target)
        places = [(self._route(key), key) for key in layout.piece_keys()]
        replies = self._ask_all(operation, places, cuts)
        for reply, cut in zip(replies, cuts, strict=True):
            if reply.status != Status.OK:
                return None
            if reply.payload is not cut:
                cut[:] = reply.payload
        return target

    def _take_pieces(self, layout: Layout, target: memoryview | None = None) -> memoryview:
        """Take all pieces of a layout that was taken, and so is nobody else's."""
        payload = self._fetch_pieces(Operation.TAKE, layout, target)
        if payload is None:
            raise PayloadError("a damaged tuple: a piece of a striped tuple is not there")
        return payload

    def _get(
        self,
        operation: Operation,
        name: str,
        tag: Pattern,
        timeout: float | None,
        out: object,
        with_tag: bool,
    ) -> Any:
        timeout_s = math.inf if timeout is None else seconds(timeout)
        target = None if out is None else codec.receive_into(out)
        if target is not None and len(target.meta) > LONGEST_META_BYTES:
            raise PayloadError(f"{name}({format_tag(tag)}): out= has a dtype of too many fields")
        deadline_s = time.monotonic() + timeout_s
        left_s = timeout_s
        while True:
            _, reply = self._match(operation, name, tag, left_s, target)
            if reply.status:
                self._raise_for(reply, name, tag, timeout_s, target)
            payload = reply.payload
            if reply.kind & STRIPED:
                into = None if target is None else target.buffer
                layout = Layout.unpack(payload)
                if operation == Operation.TAKE:
                    payload = self._take_pieces(layout, into)
                else:
                    payload = self._fetch_pieces(operation, layout, into)
                if payload is None:
                    left_s = max(0.0, deadline_s - time.monotonic())
                    continue  # it was taken while we read it: look for the next
            break
        if target is None:
            value = codec.decode(reply.kind & ~STRIPED, reply.meta, payload)
        else:
            if payload is not target.buffer:
                target.buffer[:] = payload
            value = out
        return (decode_tag(reply.key), value) if with_tag else value
