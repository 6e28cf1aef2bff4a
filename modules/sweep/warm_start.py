"""Results that a sweep takes over from an earlier sweep: to learn from, and not to run again.

::

    warm_start = "runs/study-20261121-120000"                 the sweep of that run
    warm_start = "runs/study-20261121-120000:search.master"   one of several
    warm_start = "kept/trials.jsonl"                          a ledger

The ledger is copied beside that of the new sweep when it begins, so that a session which goes on
finds the same results, whatever has become of the earlier run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from diel import replacing, whole_lines
from diel.errors import ModuleFailed

from ..objective import Constraint, Objective, judge
from ..space import Space, SpaceError
from .ledger import (
    ENDED_BY_TIME,
    RESULTS,
    VIOLATION,
    LedgerReader,
    about_of,
    as_numbers,
    encode,
    ledgers_in,
)
from .lineage import Parent
from .results import ending_of

_COPY: Final = "warm-start.jsonl"
_AT_ONCE: Final = 1000
_OF_CONSTRAINTS: Final = ("reason", VIOLATION)


class WarmStartError(ModuleFailed, ValueError):
    """There is no such earlier sweep, or it is of another space."""


def find_ledger(text: str, folder: Path) -> Path:
    """Return the ledger that `warm_start` names, seen from the folder of the workflow file.

    A `WarmStartError` if there is none, or several.
    """
    path = folder / Path(text).expanduser()
    if path.is_file():
        return path
    run, _, name = text.rpartition(":")
    if path.is_dir() or not run:
        run, name = text, ""
    run_dir = folder / Path(run).expanduser()
    if not run_dir.is_dir():
        raise WarmStartError(f"there is no {run_dir}")
    ledgers = {found.parent.name: found for found in ledgers_in(run_dir)}
    if not ledgers:
        raise WarmStartError(f"{run_dir} holds no sweep")
    if not name and len(ledgers) == 1:
        return next(iter(ledgers.values()))
    if name not in ledgers:
        there = ", ".join(f'"{run}:{sweep}"' for sweep in sorted(ledgers))
        raise WarmStartError(f"{run_dir} has several sweeps; write one of {there}")
    return ledgers[name]


def check_fits(
    ledger: Path,
    space: Space,
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint] = (),
) -> None:
    """Check that a ledger has the same parameters, and a trial that is a result here.

    A `WarmStartError` or a `LedgerError` says why not; an OSError if it cannot be read. A sweep of
    which no trial has come to its end yet fits.
    """
    there = about_of(ledger).get("space")
    names = set(there) if isinstance(there, dict) else set()
    if names != set(space.names):
        raise WarmStartError(
            f"{ledger} is of another space: its parameters are {', '.join(sorted(names))}, "
            f"those here {', '.join(sorted(space.names))}"
        )
    reader, reason = LedgerReader(ledger), ""
    while records := reader.new_records(_AT_ONCE):
        for _, record in records:
            if record["state"] not in RESULTS:
                continue
            problem = judge(as_numbers(record["metrics"]), objectives, constraints).reason
            if not problem:
                return
            reason = reason or f"trial {record['trial']}: {problem}"
    if reason:
        raise WarmStartError(f"{ledger} has no trial that is a result here; {reason}")


def is_copied(run_dir: Path) -> bool:
    """Whether a sweep of a run has copied earlier results: it needs the earlier run no more."""
    return next(run_dir.glob(f"sweeps/*/{_COPY}"), None) is not None


class EarlierResults:
    """The trials of an earlier sweep whose points are in the space, and that are results here.

    `text` and `folder` are those of `find_ledger`, `beside` is the ledger of the new sweep. A copy
    that an earlier session has made beside it counts, whether or not the earlier sweep is still
    there; a `WarmStartError` if there is neither.
    """

    def __init__(
        self,
        text: str,
        folder: Path,
        beside: Path,
        space: Space,
        objectives: Sequence[Objective],
        constraints: Sequence[Constraint] = (),
    ) -> None:
        copy = beside.with_name(_COPY)
        if not copy.exists():
            ledger = find_ledger(text, folder)
            with replacing(copy) as file:
                file.writelines(whole_lines(ledger))
        self.records = list(_results_in(copy, space, objectives, constraints))
        # A trial that time has ended may come further here.
        whole = [record for record in self.records if ENDED_BY_TIME not in record]
        self._by_point = {_key(record["parameters"]): record for record in reversed(whole)}

    def of(self, point: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the record of the first trial with these parameters; None if there is none."""
        return self._by_point.get(_key(point))


def _results_in(
    ledger: Path,
    space: Space,
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint],
) -> Iterator[dict[str, Any]]:
    for _, record in LedgerReader(ledger).new_records():
        # What went on from another trial is no result of its point alone.
        if record["state"] not in RESULTS or Parent.of(record) is not None:
            continue
        try:
            space.check(record["parameters"])
        except (SpaceError, TypeError, ValueError):
            continue
        metrics = as_numbers(record["metrics"])
        judgement = judge(metrics, objectives, constraints)
        if not judgement.reason:
            # The constraints may be others than those of the earlier sweep.
            known = {name: value for name, value in record.items() if name not in _OF_CONSTRAINTS}
            yield {**known, "metrics": metrics, **ending_of(judgement)}


def _key(point: Mapping[str, Any]) -> str:
    return encode(dict(sorted(point.items())))
