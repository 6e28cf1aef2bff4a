"""Watches: to learn that a tuple matches while something else goes on."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from diel.tuples.protocol import Operation, pack_query

if TYPE_CHECKING:
    from diel.tuples.transport import Transport


class Watch:
    """Tells once that a tuple matches; made by `TupleClient.watch`.

    It takes nothing: by the time somebody looks, another rank may have been faster. So nothing is
    lost with a watch that is closed, whatever is on its way to it.
    """

    def __init__(self, transport: Transport, servers: list[int], key: bytes) -> None:
        self._transport = transport
        self._asked: dict[int, int] = {}  # serial -> server
        self._is_told = False
        for server in servers:
            serial = transport.next_serial()
            transport.keep(serial)
            self._asked[serial] = server
            transport.send(server, pack_query(Operation.WATCH, serial, key))

    def is_told(self) -> bool:
        """Whether a tuple has matched since the watch began; never waits."""
        if not self._is_told:
            found = self._transport.poll(self._asked)
            if found is not None:
                self._is_told = True
                self._transport.drop(found[1].serial)
                del self._asked[found[1].serial]
        return self._is_told

    def close(self) -> None:
        """End the watch."""
        for serial, server in self._asked.items():
            self._transport.drop(serial)
            self._transport.send(server, pack_query(Operation.CANCEL, 0, argument=serial))
        self._asked.clear()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
