"""The client of the tuple space that modules use as ``ctx.tuples``.

::

    TupleClient       the calls
    ├── Requests       routing to servers, credit for puts, waits for replies
    │   └── Transport   messages to servers and back: over MPI, or within a process
    ├── Striper        tuples in pieces on all servers
    └── Claim, Subscription, Watch   handles that some calls return
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from diel.errors import PayloadError, TupleTimeout
from diel.tuples import codec
from diel.tuples.handles import Claim, Subscription, Watch
from diel.tuples.protocol import (
    INLINE_BYTES,
    LONGEST_META_BYTES,
    SMALL_BYTES,
    STRIPED,
    TUPLE_OVERHEAD_BYTES,
    Operation,
    Reply,
    Status,
    unpack_frames,
)
from diel.tuples.requests import Requests, Wait, seconds, value_of, whole_value
from diel.tuples.striping import Striper
from diel.tuples.tags import Pattern, Tag, decode_tag, format_tag
from diel.tuples.transport import Interrupted

if TYPE_CHECKING:
    from diel.tuples.transport import Transport


class TupleClient:
    """One rank's access to the tuple space.

    A tag is a string or a tuple of strings and integers. Values are NumPy arrays and bytes,
    which are sent without pickling, numbers, and any Python object that can be pickled. Several
    tuples may share a tag: first in, first out. With several servers, the first field of a tag
    decides which server has it. Not thread-safe.
    """

    def __init__(self, transport: Transport) -> None:
        self._requests = Requests(transport)
        self._striper = Striper(self._requests)
        # For the fast paths of tput and tget, looked up once.
        self._known = self._requests.known
        self._senders = [transport.sender(server) for server in range(transport.servers)]
        self._take_quickly = transport.take_quickly

    # -- tuples into the space, and changes -------------------------------------------------

    def tput(
        self, tag: Tag, value: object, *, wait: bool = False, timeout: float | None = None
    ) -> None:
        """Put a tuple into the space.

        Returns when `value` may be changed, without waiting for a rank to take the tuple. If the
        server has no room, it waits for room or raises, as the workflow file says. Tuples of the
        same tag keep the order in which a rank has put them.

        Parameters
        ----------
        tag : str or tuple of str and int
        value : object
        wait : bool, optional
            Return only when the tuple is in the space, visible to all ranks.
        timeout : float, seconds, optional
            The longest wait for room.

        Raises
        ------
        TagError
            If `tag` is not a valid tag.
        PayloadError
            If `value` cannot be pickled.
        TupleSpaceFull
            If there is no room and the workflow file says to raise, or the tuple can never fit.
        TupleTimeout
            If there was no room in time.
        """
        known = self._known.get(tag) if type(tag) is str else None
        if known is not None and type(value) is bytes and len(value) <= SMALL_BYTES:
            _, server, credit, heads, _ = known
            message = heads[len(value)] + value
            cost = TUPLE_OVERHEAD_BYTES + len(message)
            if cost <= credit.credit_bytes:
                # Fast path for a short bytes value under a tag that was used before.
                credit.credit_bytes -= cost
                credit.puts += 1
                self._senders[server](message)
                if wait:
                    self._requests.ask(server, Operation.FLUSH)
                return
        server = self._requests.put(tag, value, timeout)
        if wait:
            self._requests.ask(server, Operation.FLUSH)

    def put_if_absent(self, tag: Tag, value: object) -> bool:
        """Put a tuple unless its tag has a tuple, claimed or not; return whether it was put.

        Raises
        ------
        TagError, PayloadError, TupleSpaceFull
            As `tput`.
        """
        reply = self._requests.change(Operation.PUT_IF_ABSENT, tag, 0, value)
        return reply.number == 1

    def increment(self, tag: Tag, by: float = 1) -> Any:
        """Add to the number in a tuple, atomically.

        Parameters
        ----------
        tag : str or tuple of str and int
            The tag of an int or float; if there is no such tuple, one with the value `by` is put.
        by : int or float, optional

        Returns
        -------
        int or float
            The new number. The tuple stays in the space and keeps its place in the order.

        Raises
        ------
        TagError
            If `tag` is not a valid tag.
        PayloadError
            If the tuple there is no number, or the result needs more than 64 bits.
        """
        return self._requests.increment(tag, by)

    def update(
        self, tag: Tag, function: Callable[[Any], object], *, timeout: float | None = None
    ) -> Any:
        """Replace a tuple's value by a function of it; the tuple keeps its place in the order.

        The function runs here, again if another rank changed the tuple meanwhile.

        Parameters
        ----------
        tag : str or tuple of str and int
        function : callable
            From the old value to the new one, which is returned.
        timeout : float, seconds, optional
            The longest wait for a tuple of this tag.

        Raises
        ------
        TagError, PayloadError, TupleSpaceFull
            As `tput`.
        TupleTimeout
            If there was no tuple in time.
        """
        timeout_s = seconds(timeout)
        key, server = self._requests.place(tag)
        while True:
            reply = self._requests.ask(server, Operation.READ, key, timeout_s=timeout_s)
            self._requests.raise_for(reply, "update", tag, timeout_s)
            value = function(whole_value(reply, "update", tag))
            answer = self._requests.change(Operation.REPLACE, tag, reply.number, value)
            if answer.status == Status.OK:
                return value

    def flush(self) -> None:
        """Wait until all tuples that this rank has put are in the space."""
        self._requests.flush()

    def dist_tput(self, tag: Tag, value: object, *, timeout: float | None = None) -> None:
        """Put a tuple whose payload is spread over all servers.

        For large arrays: the servers share the memory and the transfer. The tuple becomes visible
        when every server has its piece, and is taken like any other tuple. The timeout applies to
        the wait for room on each server.

        Raises
        ------
        TagError, PayloadError, TupleSpaceFull, TupleTimeout
            As `tput`; then nothing was put.
        """
        self._striper.put(tag, value, timeout)

    # -- tuples out of the space ------------------------------------------------------------

    def tget(
        self,
        tag: Pattern,
        *,
        timeout: float | None = None,
        out: object = None,
        with_tag: bool = False,
    ) -> Any:
        """Take the oldest tuple that matches; wait for one if there is none.

        With several servers and `ANY` as the first field, the order is kept only among tuples of
        the same server; with ``timeout=0`` the servers are then asked one after the other, so that
        a tuple that moves meanwhile can be missed.

        Parameters
        ----------
        tag : str or tuple of str, int and ANY
        timeout : float, seconds, optional
            Give up after this long; 0 looks once; without it, wait for ever.
        out : array, optional
            A NumPy array or an array on a GPU to receive into. A tuple that does not fit it stays
            in the space.
        with_tag : bool, optional
            Return (tag, value), with the tag that matched.

        Returns
        -------
        object
            The value; for an array, `out` if given, else a new, writable NumPy array, even if the
            array was on a GPU when it was put.

        Raises
        ------
        TagError
            If `tag` is not a valid pattern.
        TupleTimeout
            If nothing matched in time.
        PayloadError
            If the tuple does not fit `out`, or its value cannot be rebuilt on this rank. It stays
            in the space then.
        RunStopped
            If the run is stopping.
        """
        known = self._known.get(tag) if type(tag) is str else None
        if known is not None and timeout is None and out is None:
            # Fast path for a plain take under a tag that was used before.
            _, server, _, _, rest = known
            request_id, value = self._take_quickly(server, rest)
            if value is None:
                reply = self._requests.await_take(request_id, tag)
                value = self._taken("tget", reply, self._payload_of(reply))
            return (tag, value) if with_tag else value
        return self._get(Operation.TAKE, "tget", tag, timeout, out, with_tag)

    def tget_unless(
        self, tag: Pattern, interrupt: Callable[[], bool], *, timeout: float | None = None
    ) -> Any:
        """Take the oldest tuple that matches, or give up once `interrupt` returns true.

        For waits for a tuple or an event outside of the tuple space, such as a new file. Unlike
        repeated calls with short timeouts, this is one wait, so that deadlocks are detected.

        Parameters
        ----------
        tag : str or tuple of str, int and ANY
        interrupt : callable
            Called several times a second during a wait; it must not use the tuple space.
        timeout : float, seconds, optional

        Raises
        ------
        TupleTimeout
            If there was no tuple in time, or `interrupt` has ended the wait. In the latter case
            `start_over` was called: the client's claims and subscriptions have ended.
        """
        transport = self._requests.transport
        transport.interrupt = interrupt
        try:
            return self.tget(tag, timeout=timeout)
        except Interrupted:
            transport.interrupt = None
            self.start_over()
            raise TupleTimeout("tget", format_tag(tag), 0.0, "the wait was interrupted") from None
        finally:
            transport.interrupt = None

    def tread(
        self,
        tag: Pattern,
        *,
        timeout: float | None = None,
        out: object = None,
        with_tag: bool = False,
    ) -> Any:
        """Return the oldest tuple that matches and leave it in the space; otherwise as `tget`."""
        return self._get(Operation.READ, "tread", tag, timeout, out, with_tag)

    def tget_nowait(self, tag: Pattern, *, out: object = None, with_tag: bool = False) -> Any:
        """Take the oldest tuple that matches, or raise `TupleTimeout` at once."""
        return self._get(Operation.TAKE, "tget_nowait", tag, 0, out, with_tag)

    def tread_nowait(self, tag: Pattern, *, out: object = None, with_tag: bool = False) -> Any:
        """Return the oldest tuple that matches and leave it, or raise `TupleTimeout` at once."""
        return self._get(Operation.READ, "tread_nowait", tag, 0, out, with_tag)

    def claim(
        self, tag: Pattern, *, timeout: float | None = None, lease: float | None = None
    ) -> Claim:
        """Take a tuple until the work on it is done; it is given back if this rank fails or dies.

        ::

            with ctx.tuples.claim(("job", ANY)) as job:
                work(job.value)

        At the end of the block the tuple is removed; if the block raises, or the rank that holds
        the claim dies, it is given back to its old place in the order.

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
        return Claim(self._requests, tag, timeout, lease)

    def count(self, tag: Pattern) -> int:
        """Return how many tuples match, claimed tuples excluded."""
        key, servers = self._requests.pattern_places(tag)
        return sum(self._requests.ask(server, Operation.COUNT, key).number for server in servers)

    def collect(self, tag: Pattern, *, limit: int | None = None) -> list[tuple[Tag, Any]]:
        """Take all tuples that match, in bulk, without waiting.

        Parameters
        ----------
        tag : str or tuple of str, int and ANY
        limit : int, optional
            The largest number of tuples to take.

        Returns
        -------
        list of (tag, value)
            Oldest first, server by server.
        """
        if limit is not None and limit < 1:
            raise ValueError(f"limit is at least 1; got {limit!r}")
        key, servers = self._requests.pattern_places(tag)
        found: list[tuple[Tag, Any]] = []
        for server in servers:
            while limit is None or len(found) < limit:
                left = 0 if limit is None else limit - len(found)
                reply = self._requests.ask(server, Operation.COLLECT, key, argument=left)
                items = list(unpack_frames(reply.payload))
                for index, item in enumerate(items):
                    payload = self._payload_of(item)
                    try:
                        value = value_of(item, payload, "collect", "all are in the space again")
                    except PayloadError:
                        for earlier, value in found:
                            self.tput(earlier, value)
                        if item.kind & STRIPED:
                            self._striper.put_pieces(item, payload)
                        for later in items[index:]:
                            self._requests.put_again(later)
                        raise
                    found.append((decode_tag(item.key), value))
                if not reply.meta:
                    break  # a meta means that more tuples match than fit into a reply
        return found

    def dist_tget(
        self,
        tag: Pattern,
        *,
        timeout: float | None = None,
        out: object = None,
        with_tag: bool = False,
    ) -> Any:
        """Take a tuple, its pieces from all servers in parallel; otherwise as `tget`.

        `tget` does the same: it takes striped tuples too.
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
        """Return a tuple, its pieces from all servers in parallel; otherwise as `tread`."""
        return self._get(Operation.READ, "dist_tread", tag, timeout, out, with_tag)

    def _get(
        self,
        operation: int,
        name: str,
        tag: Pattern,
        timeout: float | None,
        out: object,
        with_tag: bool,
    ) -> Any:
        """Take or read a tuple; `name` is the call's name in errors."""
        timeout_s = seconds(timeout)
        transport = self._requests.transport
        destination = None if out is None else codec.Destination.of(out, transport, INLINE_BYTES)
        target = None if destination is None else destination.encoded
        if target is not None and len(target.meta) > LONGEST_META_BYTES:
            raise PayloadError(f"{name}({format_tag(tag)}): out= has a dtype of too many fields")
        deadline_s = time.monotonic() + timeout_s
        left_s = timeout_s
        while True:
            _, reply = self._requests.match(operation, name, tag, left_s, target)
            if reply.status:
                self._requests.raise_for(reply, name, tag, timeout_s, target)
            payload = reply.payload
            if reply.kind & STRIPED:
                into = None if target is None else target.buffer
                on_device = destination is not None and destination.on_device
                if operation == Operation.TAKE:
                    payload = self._striper.take(reply, into, on_device=on_device)
                else:
                    payload = self._striper.fetch(operation, reply, into, on_device=on_device)
            if payload is not None:
                break
            # Another rank has taken the pieces meanwhile: wait for the next tuple.
            left_s = max(0.0, deadline_s - time.monotonic())
        if destination is None and operation == Operation.TAKE:
            value = self._taken(name, reply, payload)
        elif destination is None:
            value = value_of(reply, payload, name, "it is left there")
        else:
            destination.finish(payload, transport.meter, lambda: decode_tag(reply.key))
            value = out
        return (decode_tag(reply.key), value) if with_tag else value

    def _payload_of(self, reply: Reply) -> Any:
        return self._striper.take(reply) if reply.kind & STRIPED else reply.payload

    def _taken(self, name: str, reply: Reply, payload: Any) -> Any:
        """Return the value of a tuple that was taken; put it back if it cannot be rebuilt."""
        try:
            return value_of(reply, payload, name, "it is left there")
        except PayloadError:
            if reply.kind & STRIPED:
                self._striper.put_pieces(reply, payload)
            self._requests.put_back(reply)
            raise

    # -- subscriptions, and the whole space -------------------------------------------------

    def subscribe(self, tag: Pattern) -> Subscription:
        """Receive a copy of each tuple that is put from now on and matches.

        Returns
        -------
        Subscription
            An iterator over (tag, value), and a context manager that ends it. Tuples that it has
            not returned yet count in the server's memory.
        """
        key, servers = self._requests.pattern_places(tag)
        return Subscription(self._requests, servers, key, tag)

    def watch(self, tag: Pattern) -> Watch:
        """Return a handle that polls, without waiting, whether a tuple has matched."""
        key, servers = self._requests.pattern_places(tag)
        return Watch(self._requests, servers, key)

    @property
    def waiting_for(self) -> Wait | None:
        """The call that waits at the moment, its tag, and its timeout in seconds; None if none."""
        return self._requests.waiting_for

    @property
    def puts(self) -> list[int]:
        """How many puts this client has sent to each server."""
        return self._requests.puts

    def start_over(self) -> None:
        """Reset the client after an exception, which may have ended a wait.

        Its waiting requests, claims and subscriptions at the servers are ended. A tuple that it was
        about to take goes back into the space, as the newest of its tag.
        """
        self._requests.start_over()

    def is_empty(self) -> bool:
        """Whether no tuple is in the space, claimed or not."""
        return not any(
            self.survey(server)["held_bytes"] for server in range(self._requests.servers)
        )

    def survey(self, server: int) -> dict[str, Any]:
        """Return what a server holds and which requests wait there, to find deadlocks."""
        return self._requests.survey(server)

    def checkpoint(self, path: str | os.PathLike[str]) -> int:
        """Write all tuples of the space into a file; they stay in the space.

        Each server's part is a snapshot, and the snapshots are taken at nearly the same time.
        Tuples that other ranks put or take meanwhile may be in the file or not: if tuples of
        several servers belong together, no module should put or take any during the call.

        Parameters
        ----------
        path : path
            A module writes to ``ctx.run_dir / "checkpoints" / name``. The folder is created if
            needed; an existing file is replaced once the new file is complete.

        Returns
        -------
        int
            Tuples in the file, claimed tuples included.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        from diel.tuples import checkpoint

        return checkpoint.save(path, self._requests)

    def restore(self, path: str | os.PathLike[str]) -> int:
        """Put all tuples of a checkpoint into the space, in addition to the tuples there.

        The number of servers may differ from that of the run that wrote it. Tuples of the same
        tag keep their order. Values may be pickled objects: restore only what you trust.

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
            If there is no room and the workflow file says to raise; tuples put before that stay.
        """
        from diel.tuples import checkpoint

        return checkpoint.restore(path, self._requests)
