"""The handle of a message on its way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diel.comm.direct import Transfer
    from diel.coupling.address import Address
    from diel.coupling.channel import Channel


class Sending:
    """A message on its way, from `Channel.send`."""

    def __init__(
        self,
        channel: Channel,
        transfers: Sequence[Transfer],
        receivers: Sequence[Address],
    ) -> None:
        self._channel = channel
        self._transfers = list(transfers)
        self._receivers = tuple(receivers)

    @property
    def done(self) -> bool:
        """Whether it has left: from then on nothing of the value is needed."""
        self._channel.poll()
        while self._transfers and self._transfers[-1]():
            self._transfers.pop()
        return not self._transfers

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it has left.

        Parameters
        ----------
        timeout : float, seconds, optional

        Raises
        ------
        CouplingTimeout
            If it has not been received in time; it still can be.
        RunStopped
            If the run is stopping.
        """
        self._channel.await_receipt(lambda: self.done or None, self._receivers, timeout)
