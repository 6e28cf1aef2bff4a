"""Subscriptions: copies of tuples that are yet to be put."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from diel.errors import PayloadError, TupleError, TupleTimeout
from diel.tuples import codec
from diel.tuples.protocol import STRIPED, Operation, Status, pack_query
from diel.tuples.tags import Tag, decode_tag, format_tag

if TYPE_CHECKING:
    from diel.tuples.transport import Transport


_EARLY_S: Final = 1e-3


class Subscription:
    """An iterator over (tag, value) of the tuples that are put; made by `TupleClient.subscribe`.

    Each server keeps what has not been given out, so no tuple is missed however slow this rank
    is. With several servers, the tuples of one come in order.
    """

    def __init__(
        self,
        transport: Transport,
        servers: list[int],
        key: bytes,
        tag: object,
        note_wait: Callable[[tuple[str, object, float] | None], None],
    ) -> None:
        self._transport = transport
        self._tag = tag
        self._shown_as = format_tag(tag)
        self._note_wait = note_wait
        self._names: dict[int, int] = {}  # server -> its name for this subscription
        self._asked: dict[int, int] = {}  # serial of a request for the next tuple -> server
        for server in servers:
            serial = transport.next_serial()
            transport.send(server, pack_query(Operation.SUBSCRIBE, serial, key))
            transport.receive((serial,))
            self._names[server] = serial

    def next(self, timeout: float | None = None) -> tuple[Tag, Any]:
        """Return the next (tag, value).

        Parameters
        ----------
        timeout : float, seconds, optional
            Give up after this long; without it, wait for ever.

        Raises
        ------
        TupleTimeout
            If nothing was put in time.
        RunStopped
            If the run is stopping.
        TupleError
            If the subscription is closed.
        """
        timeout_s = math.inf if timeout is None else float(timeout)
        if not timeout_s >= 0:
            raise ValueError(f"timeout cannot be negative; got {timeout!r}")
        self._note_wait(("subscription.next", self._tag, timeout_s))
        try:
            return self._next(timeout_s)
        finally:
            self._note_wait(None)

    def _next(self, timeout_s: float) -> tuple[Tag, Any]:
        deadline_s = time.monotonic() + timeout_s
        if not self._names:
            raise TupleError(f"the subscription to {self._shown_as} is closed")
        unanswered = self._ask_idle_servers(deadline_s)
        while True:
            _, reply = self._transport.receive(list(self._asked), timeout_s)
            del self._asked[reply.serial]
            unanswered.discard(reply.serial)
            self._transport.drop(reply.serial)
            if reply.status == Status.OK:
                if reply.kind & STRIPED:
                    raise PayloadError(
                        f"a subscription to {self._shown_as} met the striped tuple "
                        f"{decode_tag(reply.key)!r}: read that with dist_tread"
                    )
                value = codec.decode(reply.kind, reply.meta, reply.payload)
                return decode_tag(reply.key), value
            if time.monotonic() < deadline_s - _EARLY_S:  # of an earlier, shorter wait
                unanswered |= self._ask_idle_servers(deadline_s)
            elif not unanswered:  # else another server may have something
                raise TupleTimeout("subscription.next", self._shown_as, timeout_s)

    def _ask_idle_servers(self, deadline_s: float) -> set[int]:
        """Ask each server for its next tuple, where a question is not under way already."""
        asked = set()
        left_s = max(0.0, deadline_s - time.monotonic())
        for server, name in self._names.items():
            if server in self._asked.values():
                continue
            serial = self._transport.next_serial()
            self._asked[serial] = server
            asked.add(serial)
            self._transport.keep(serial)
            query = pack_query(Operation.NEXT, serial, argument=name, timeout_s=left_s)
            self._transport.send(server, query)
        return asked

    def close(self) -> None:
        """End the subscription; what it has not given out is dropped."""
        for serial in self._asked:
            self._transport.drop(serial)
        self._asked.clear()
        for server, name in self._names.items():
            serial = self._transport.next_serial()
            query = pack_query(Operation.UNSUBSCRIBE, serial, argument=name)
            self._transport.send(server, query)
            self._transport.receive((serial,))
        self._names.clear()

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> tuple[Tag, Any]:
        if not self._names:
            raise StopIteration
        return self.next()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
