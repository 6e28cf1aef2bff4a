"""The times of a run's ranks as a table of texts: percentages of working, waiting, and so on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from diel.run.records import ModuleTimes, RankTimes
from diel.run.view import RunView

_RANKS_SHOWN: Final = 16
_COPIES_NAMED: Final = 2
_PARTS: Final = ("working", "waiting", "communicating")


def time_table(view: RunView) -> list[tuple[str, ...]]:
    """Return a row for each rank, or for each module of many ranks, below a row of headings.

    Empty before the run has ended.
    """
    if view.accounts is None or not view.accounts.ranks:
        return []
    ranks, modules = view.accounts.ranks, view.accounts.modules
    return _by_rank(ranks) if len(ranks) <= _RANKS_SHOWN else _by_module(ranks, modules)


def _by_rank(ranks: Sequence[RankTimes]) -> list[tuple[str, ...]]:
    head = ("rank", "host", "what ran there", *_PARTS, "CPU")
    return [
        head,
        *(
            (str(rank.rank), rank.host, _copies(rank.copies), *_percentages([rank]))
            for rank in ranks
        ),
    ]


def _by_module(ranks: Sequence[RankTimes], modules: Sequence[ModuleTimes]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("what ran", "ranks", *_PARTS, "CPU")]
    servers = [rank for rank in ranks if list(rank.copies) == ["tuple server"]]
    pool = [rank for rank in ranks if rank not in servers]
    if servers:
        rows.append(("tuple server", str(len(servers)), *_percentages(servers)))
    rows += [(times.module, str(times.ranks), *_percentages([times])) for times in modules]
    rows.append(("all, and between modules", str(len(pool)), *_percentages(pool)))
    return rows


def _copies(names: Sequence[str]) -> str:
    """Return the names of the copies that ran on a rank, of many only the first."""
    if not names:
        return "nothing"
    shown = ", ".join(names[:_COPIES_NAMED])
    more = len(names) - _COPIES_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def _percentages(times: Sequence[RankTimes | ModuleTimes]) -> list[str]:
    spent_s = [sum(getattr(entry, f"{part}_s") for entry in times) for part in _PARTS]
    total_s = sum(spent_s)
    if not total_s:
        return ["-"] * (len(_PARTS) + 1)
    # CPU time, as a part of the same wall time: where it is well below "working", a rank has slept
    # or waited for a core.
    spent_s.append(sum(entry.cpu_s for entry in times))
    return [f"{seconds / total_s:.0%}".rjust(len("100%")) for seconds in spent_s]
