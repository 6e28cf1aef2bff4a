"""`Address`, (module, copy, rank) in a group, and `Peers`: which rank of the run each one is."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import NamedTuple, TypeAlias

from diel.errors import AddressError
from diel.frozen import Frozen
from diel.text import did_you_mean


class Address(NamedTuple):
    """A rank of a copy of a module; `copy` and `rank` count from 0."""

    module: str
    copy: int = 0
    rank: int = 0

    def __str__(self) -> str:
        return f"{self.module}.{self.copy} rank {self.rank}"


To: TypeAlias = "str | tuple[str] | tuple[str, int] | tuple[str, int, int] | Address"
"""``"heat"``, ``("heat", copy)`` or ``("heat", copy, rank)``; what is left out is 0."""


class CopyRanks(NamedTuple):
    """A copy of a module: its serial number, and the ranks that it runs on."""

    serial: int
    """Different for every copy that is ever started in a run, and larger for later ones."""
    ranks: tuple[int, ...]
    """Of the parent communicator; the i-th is rank i of the copy."""


class Peers(Frozen):
    """The ranks of a group that can send to each other."""

    group: str
    copies: Mapping[str, tuple[CopyRanks, ...]]
    """The copies of each function module."""
    executables: tuple[str, ...] = ()
    """The modules that are executables: they receive no messages."""
    by_mpi: tuple[str, ...] = ()
    """The modules that are libraries compiled with MPI: these exchange boundaries in C."""

    @cached_property
    def by_world_rank(self) -> Mapping[int, tuple[int, Address]]:
        """The serial and the address of each rank, by its world rank."""
        return {world_rank: (serial, address) for world_rank, serial, address in self.addresses()}

    @property
    def has_one_rank(self) -> bool:
        """Whether the group has a single rank, which has no other rank to send to."""
        copies = next(iter(self.copies.values()), ())
        return len(self.copies) == 1 and len(copies) == 1 and len(copies[0].ranks) == 1

    def place(self, address: Address) -> tuple[int, int]:
        """Return the world rank that an address means, behind the serial of its copy."""
        copy = self.copies[address.module][address.copy]
        return copy.serial, copy.ranks[address.rank]

    def addresses(self) -> Iterator[tuple[int, int, Address]]:
        """Yield (world rank, serial, address) of each rank."""
        for module, copies in self.copies.items():
            for index, copy in enumerate(copies):
                for rank, world_rank in enumerate(copy.ranks):
                    yield world_rank, copy.serial, Address(module, index, rank)

    def resolve(self, to: To) -> Address:
        """Return the address that a module has written; raise AddressError if no rank has it."""
        address = _read(to)
        if address.module not in self.copies:
            raise AddressError(self._no_such_module(address.module))
        copies = self.copies[address.module]
        if not 0 <= address.copy < len(copies):
            raise AddressError(
                f"there is no copy {address.copy} of {address.module}: it has "
                f"{_counted(len(copies), 'copy', 'copies')}, from 0"
            )
        ranks = len(copies[address.copy].ranks)
        if not 0 <= address.rank < ranks:
            raise AddressError(
                f"there is no rank {address.rank} of {address.module}.{address.copy}: it has "
                f"{_counted(ranks, 'rank', 'ranks')}, from 0"
            )
        return address

    def _no_such_module(self, name: str) -> str:
        if name in self.executables:
            remedy = "use files, or the tuple space"
            return f"{name} is an executable, which receives no messages: {remedy}"
        there = ", ".join(
            f"{module} ({_counted(len(copies), 'copy', 'copies')} of "
            f"{_counted(len(copies[0].ranks), 'rank', 'ranks')})"
            for module, copies in self.copies.items()
        )
        near = did_you_mean(name, self.copies)
        hint = f'; did you mean "{near}"?' if near else ""
        return f'there is no module "{name}" in group "{self.group}", which has {there}{hint}'


def _read(to: object) -> Address:
    if isinstance(to, str):
        return Address(to)
    if isinstance(to, tuple) and 1 <= len(to) <= 3 and isinstance(to[0], str):
        try:
            return Address(to[0], *map(operator.index, to[1:]))
        except TypeError:
            pass
    raise AddressError(
        f'{to!r} is no address: write "module", ("module", copy) or ("module", copy, rank)'
    )


def _counted(count: int, singular: str, plural: str) -> str:
    return f"{count} {singular if count == 1 else plural}"
