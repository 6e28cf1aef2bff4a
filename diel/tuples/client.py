"""What modules call: ``ctx.tuples``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, overload

from diel.errors import PayloadError, TupleTimeout
from diel.tuples import codec
from diel.tuples.protocol import Operation, Reply, Request, Status
from diel.tuples.tags import Pattern, Tag, decode_tag, encode_pattern, encode_tag, format_tag

if TYPE_CHECKING:
    from diel.tuples.transport import Transport


class TupleClient:
    """The tuple space, as one rank sees it.

    A tag is a string or a tuple of strings and integers. Values are NumPy arrays and bytes,
    which travel as they are, and any Python object that can be pickled. Not to be shared by
    threads.

    Parameters
    ----------
    transport : Transport
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def tput(self, tag: Tag, value: object, *, wait: bool = False) -> None:
        """Put a tuple into the space.

        Returns when `value` may be changed; it never waits for somebody to take the tuple.
        Tuples of the same tag keep the order in which one rank put them.

        Parameters
        ----------
        tag : str or tuple of str and int
        value : object
        wait : bool, optional
            Return only when the tuple is in the space, visible to all ranks.

        Raises
        ------
        TagError
            If `tag` is no tag.
        PayloadError
            If `value` cannot be pickled.
        """
        key = encode_tag(tag)
        encoded = codec.encode(value)
        self._transport.post(
            Request(
                client=0,
                serial=0,
                operation=Operation.PUT,
                key=key,
                kind=encoded.kind,
                meta=encoded.meta,
                payload=encoded.buffer,
            )
        )
        if wait:
            self.flush()

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

    def flush(self) -> None:
        """Return when everything that this rank has put is in the space.

        Raises
        ------
        RunStopped
            If the run is stopping.
        """
        self._transport.call(Request(client=0, serial=0, operation=Operation.FLUSH, key=b""))

    def _get(
        self,
        operation: Operation,
        name: str,
        tag: Pattern,
        timeout: float | None,
        out: object,
        with_tag: bool,
    ) -> Any:
        key, _ = encode_pattern(tag)
        timeout_s = _seconds(timeout)
        target = codec.receive_into(out) if out is not None else None
        reply = self._transport.call(
            Request(
                client=0,
                serial=0,
                operation=operation,
                key=key,
                timeout_s=timeout_s,
                kind=-1 if target is None else target.kind,
                meta=b"" if target is None else target.meta,
            ),
            None if target is None else target.buffer,
        )
        if reply.status == Status.TIMEOUT:
            raise TupleTimeout(name, format_tag(tag), timeout_s)
        if reply.status == Status.MISMATCH:
            raise PayloadError(_misfit(name, tag, target, reply))
        value = _value(reply, target, out)
        return (decode_tag(reply.key), value) if with_tag else value


def _value(reply: Reply, target: codec.Encoded | None, out: object) -> Any:
    if target is None:
        payload = reply.payload
        buffer = bytearray(payload) if isinstance(payload, bytes) else payload
        return codec.decode(reply.kind, reply.meta, buffer)
    if reply.payload is not target.buffer:
        target.buffer[:] = reply.payload
    return out


def _misfit(name: str, tag: Pattern, target: codec.Encoded | None, reply: Reply) -> str:
    wanted = codec.describe(target.kind, target.meta) if target is not None else ""
    found = codec.describe(reply.kind, reply.meta)
    return f"{name}({format_tag(tag)}): out= is {wanted}, the tuple is {found}; it was left there"


def _seconds(timeout: float | None) -> float:
    if timeout is None:
        return math.inf
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout is in seconds; got {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"timeout cannot be negative; got {timeout!r}")
    return float(timeout)
