"""The last table of a run: what its ranks spent their time on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from diel.cli.output import aligned
from diel.run.view import RunView

_RANKS_SHOWN: Final = 16
_COPIES_NAMED: Final = 2
_PARTS: Final = ("working", "waiting", "communicating")


def account_lines(view: RunView) -> list[str]:
    """Return a line for each rank, or for each module where there are many ranks."""
    if view.accounts is None or not view.accounts["ranks"]:
        return []
    ranks, modules = view.accounts["ranks"], view.accounts["modules"]
    table = _by_rank(ranks) if len(ranks) <= _RANKS_SHOWN else _by_module(ranks, modules)
    return ["", *(f"  {line}" for line in aligned(table)), ""]


def _by_rank(ranks: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    head = ("rank", "host", "what ran there", *_PARTS, "CPU")
    return [
        head,
        *(
            (str(one["rank"]), one["host"], _copies(one["copies"]), *_percentages([one]))
            for one in ranks
        ),
    ]


def _by_module(
    ranks: Sequence[dict[str, Any]], modules: Sequence[dict[str, Any]]
) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("what ran", "ranks", *_PARTS, "CPU")]
    servers = [one for one in ranks if one["copies"] == ["tuple server"]]
    pool = [one for one in ranks if one not in servers]
    if servers:
        rows.append(("tuple server", str(len(servers)), *_percentages(servers)))
    rows += [(one["module"], str(one["ranks"]), *_percentages([one])) for one in modules]
    rows.append(("all, and between modules", str(len(pool)), *_percentages(pool)))
    return rows


def _copies(names: Sequence[str]) -> str:
    """Say which copies ran on a rank: the first of them where there were many."""
    if not names:
        return "nothing"
    shown = ", ".join(names[:_COPIES_NAMED])
    more = len(names) - _COPIES_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def _percentages(accounts: Sequence[dict[str, Any]]) -> list[str]:
    spent_s = [sum(one[f"{part}_s"] for one in accounts) for part in _PARTS]
    total_s = sum(spent_s)
    if not total_s:
        return ["-"] * (len(_PARTS) + 1)
    # Of the same wall time: what is well below "working" has slept, or waited for a core.
    spent_s.append(sum(one.get("cpu_s", 0.0) for one in accounts))
    return [f"{seconds / total_s:.0%}".rjust(len("100%")) for seconds in spent_s]
