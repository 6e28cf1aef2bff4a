"""How all ranks spent their time, as far as they have told rank 0."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from diel.comm.meter import NO_TIMES, Times
from diel.run.records import ModuleTimes, RankTimes, TimeAccounted

if TYPE_CHECKING:
    from diel.executive.plans import CopyPlan

SERVER = "tuple server"


class Timesheet:
    """Adds up the accounts of copies, by rank and by module.

    Parameters
    ----------
    servers, pool : iterable of int
    host_of : callable
        From a rank to its host.
    """

    def __init__(
        self, servers: Iterable[int], pool: Iterable[int], host_of: Callable[[int], str]
    ) -> None:
        self._host_of = host_of
        self._copies: dict[int, dict[str, None]] = {
            **{rank: {SERVER: None} for rank in servers},
            **{rank: {} for rank in pool},
        }
        self._current: dict[int, CopyPlan] = {}
        self._spent = dict.fromkeys(self._copies, NO_TIMES)
        self._total: dict[int, Times] = {}
        self._modules: dict[str, Times] = {}
        self._ranks_of: dict[str, set[int]] = {}

    def note_order(self, plan: CopyPlan) -> None:
        """Take in that the ranks of a copy are told to run it."""
        for rank in plan.ranks:
            self._current[rank] = plan

    def note_copy(self, rank: int, serial: int, times: Times) -> None:
        """Take in what a rank has spent on the copy that it was told to run."""
        plan = self._current[rank]
        if plan.serial != serial:
            return
        self._copies[rank][plan.name] = None
        self._spent[rank] = self._spent[rank].plus(times)
        self._modules[plan.module] = self._modules.get(plan.module, NO_TIMES).plus(times)
        self._ranks_of.setdefault(plan.module, set()).add(rank)

    def note_total(self, rank: int, times: Times) -> None:
        """Take in what a rank says when it leaves."""
        self._total[rank] = times

    def record(self) -> TimeAccounted:
        """Return the times as the journal has them.

        Of a rank that never said goodbye only the copies that it ended are known.
        """
        return TimeAccounted(
            ranks=[
                RankTimes(
                    rank,
                    self._host_of(rank),
                    tuple(copies),
                    *_rounded(self._total.get(rank, self._spent[rank])),
                )
                for rank, copies in sorted(self._copies.items())
            ],
            modules=[
                ModuleTimes(name, len(self._ranks_of[name]), *_rounded(times))
                for name, times in self._modules.items()
            ],
        )


def _rounded(times: Times) -> list[float]:
    return [round(seconds, 6) for seconds in times]
