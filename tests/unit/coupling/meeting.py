"""Ranks that meet in this thread: channels on one exchange."""

from __future__ import annotations

from diel.comm.direct import LocalExchange
from diel.coupling.address import Address, CopyRanks, Peers
from diel.coupling.channel import Channel


def peers(first_serial: int = 1, **modules: tuple[int, int]) -> Peers:
    """Return a peers of modules with (copies, ranks of each), on world ranks from 0 on."""
    copies: dict[str, tuple[CopyRanks, ...]] = {}
    serial, rank = first_serial, 0
    for name, (count, ranks) in modules.items():
        mine = []
        for _ in range(count):
            mine.append(CopyRanks(serial, tuple(range(rank, rank + ranks))))
            serial, rank = serial + 1, rank + ranks
        copies[name] = tuple(mine)
    return Peers("g", copies)


class Meeting:
    """A channel for everybody in a peers."""

    def __init__(self, people: Peers) -> None:
        self.exchange = LocalExchange()
        self.warnings: list[str] = []
        self.channels: dict[int, Channel] = {}
        self.open(people)

    def open(self, people: Peers) -> None:
        """Let the ranks go on with the copies of another peers."""
        self.peers = people
        for rank, _, address in people.addresses():
            if rank not in self.channels:
                self.channels[rank] = Channel(self.exchange.port(rank), warn=self._warn)
            self.channels[rank].open(address, people)

    def __getitem__(self, address: Address) -> Channel:
        return self.channels[self.peers.place(address)[1]]

    def _warn(self, module: str, copy: int, text: str) -> None:
        self.warnings.append(f"{module}.{copy}: {text}")


def pair() -> tuple[Meeting, Channel, Channel]:
    """Return a meeting of two modules, and their channels."""
    meeting = Meeting(peers(a=(1, 1), b=(1, 1)))
    return meeting, meeting[Address("a")], meeting[Address("b")]
