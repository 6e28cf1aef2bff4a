"""Comparison of several sweeps: the best of each, histories and fronts on common axes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diel import replace_file

from ..report.figures import comparison_figures
from ..report.live import now
from ..report.page import comparison_page
from ..report.rows import Picture
from .watched import WatchedSweep


class NotComparable(ValueError):
    """Sweeps that are to be compared differ in their objectives."""


def compare(sweeps: Mapping[str, WatchedSweep]) -> dict[str, Any]:
    """Compare sweeps, as far as they have been read.

    Parameters
    ----------
    sweeps : mapping of str to WatchedSweep
        By the names that tell them apart: of runs, say.

    Returns
    -------
    dict
        ``objective``, ``maximise``; ``rows``: of each sweep its name, ``trials``, the objective of
        its best trial, that trial's number and its parameters; ``figures`` by name.

    Raises
    ------
    NotComparable
        If objectives or their directions differ.
    """
    check_comparable(sweeps)
    pictures = _pictures(sweeps)
    first = next(iter(pictures.values())).sweep
    return {
        "objective": first.objective,
        "maximise": first.maximise,
        "rows": [best_row(name, sweep) for name, sweep in sweeps.items()],
        "figures": comparison_figures(pictures),
    }


def write_comparison(sweeps: Mapping[str, WatchedSweep], path: Path) -> Path:
    """Write one report over several sweeps; return its file.

    An OSError if that fails, `NotComparable` as `compare`.
    """
    check_comparable(sweeps)
    replace_file(path, comparison_page(_pictures(sweeps), written=now()))
    return path


def check_comparable(sweeps: Mapping[str, WatchedSweep]) -> None:
    """Check that sweeps have one objective, in one direction; `NotComparable` if not."""
    (first, reference), *rest = sweeps.items()
    for name, sweep in rest:
        if sweep.goal != reference.goal:
            raise NotComparable(
                f"these sweeps have different goals: {first} {reference.goal}, and {name} "
                f"{sweep.goal}; compare sweeps of one objective"
            )


def best_row(name: str, sweep: WatchedSweep) -> dict[str, Any]:
    """Return a row of a table on one sweep: its number of trials, and its best trial."""
    summary = sweep.summary()
    best = summary["best"] or {}
    objective = summary["objective"]
    row = {"run": name, "trials": summary["trials"], objective: best.get(objective)}
    return {**row, "trial": best.get("trial"), **{p: best.get(p) for p in summary["parameters"]}}


def _pictures(sweeps: Mapping[str, WatchedSweep]) -> dict[str, Picture]:
    return {name: sweep.picture() for name, sweep in sweeps.items()}
