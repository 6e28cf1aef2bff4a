"""What is behind a sweep: outcomes become records of the ledger, records become rows.

A trial counts when its line is in the ledger; the strategy and the best rows hear of it after that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..evaluation import Evaluated
from ..objective import ObjectiveError
from ..space import Choices
from ..trial import trial_seed
from .bitmap import Bitmap
from .ledger import FAILED, FINISHED, STOPPED, plain, records_of
from .messages import Outcome, Report
from .standing import Standing
from .trying import SPLITS

if TYPE_CHECKING:
    from ..search import Search
    from ..space import Space

_RECALLED_AT_ONCE: Final = 1000


class Recording:
    """Knows what trials gave, as far as a sweep needs it.

    Parameters
    ----------
    search : Search
        Is told.
    seed : int
        Of the sweep.

    Attributes
    ----------
    standing : Standing
        The best rows.
    succeeded, failed : int
        How many trials.
    """

    def __init__(self, search: Search, seed: int) -> None:
        self._search = search
        self._seed = seed
        self._absent = dict.fromkeys(search.space.names, "")
        self._own = {"trial", *search.space.names}
        self._told_as_text = _told_as_text(search.space)
        self._reports: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        objective = search.objectives[0]
        self.standing = Standing(objective.text, maximise=objective.maximise)
        self.succeeded = self.failed = 0

    def recall(self, ledger: Path, recorded: Bitmap) -> Iterator[list[dict[str, Any]]]:
        """Take in what a ledger holds that is not recorded yet; yield the rows, many at a time."""
        rows = (
            self._recalled(record) for record in records_of(ledger) if recorded.add(record["trial"])
        )
        while batch := list(islice(rows, _RECALLED_AT_ONCE)):
            yield batch

    def _recalled(self, record: dict[str, Any]) -> dict[str, Any]:
        for step, metrics in record.get("reports", ()):
            self._search.report(record["trial"], step, metrics)
        parameters = record["parameters"]
        for name, values in self._told_as_text.items():
            if name in parameters:
                text = repr(parameters[name])
                parameters[name] = values.get(text, parameters[name])
        return self.take_in(record)

    def hear(self, report: Report) -> bool:
        """Take what a trial says meanwhile; return whether it goes on."""
        try:
            goes_on = not self._search.report(report.trial, report.step, report.metrics)
        except ObjectiveError:
            return True  # that is found out and said at its end
        self._reports.setdefault(report.trial, []).append((report.step, report.metrics))
        return goes_on

    def records_of(self, outcome: Outcome, attempt: int) -> list[dict[str, Any]]:
        """Return what a lease gave as records, one for each trial."""
        seed, trainer = self._seed, outcome.trainer
        records = []
        for trial, point, metrics, started_s, seconds in zip(
            range(outcome.start, outcome.start + len(outcome.metrics)),
            outcome.points,
            outcome.metrics,
            outcome.started_s,
            outcome.seconds,
            strict=True,
        ):
            reason = outcome.reasons.get(trial, "") if outcome.reasons else ""
            if not reason:
                reason = self._search.what_is_wrong(metrics)
            state = FINISHED
            if reason:
                state = FAILED
            elif trial in outcome.stopped:
                state = STOPPED
            record = {
                "trial": trial,
                "state": state,
                "parameters": point,
                "metrics": metrics,
                "seed": trial_seed(seed, trial),
                "trainer": trainer,
                "started_s": started_s,
                "seconds": seconds,
            }
            if attempt > 1:
                record["attempt"] = attempt
            if reason:
                record["reason"] = reason
            if SPLITS in metrics and isinstance(metrics[SPLITS], dict):
                record[SPLITS] = metrics.pop(SPLITS)
            if trial in self._reports:
                record["reports"] = self._reports.pop(trial)
            records.append(record)
        return records

    def take_in(self, record: dict[str, Any]) -> dict[str, Any]:
        """Let everybody know of a trial whose line is in the ledger; return its row."""
        trial, state, metrics = record["trial"], record["state"], record["metrics"]
        # A parameter that is not there in this point has an empty cell.
        row = {"trial": trial, **self._absent, **record["parameters"], **metrics}
        if not self._own.isdisjoint(metrics):  # a metric is called like a parameter
            row |= {"trial": trial, **self._absent, **record["parameters"]}
        row["trainer"], row["seed"] = record["trainer"], record["seed"]
        if state == FINISHED:
            splits = record.get(SPLITS)
            evaluated = Evaluated.of(metrics, splits) if splits is not None else None
            values = self._search.tell(trial, record["parameters"], metrics, evaluated).values
        else:
            is_stopped = state == STOPPED
            self._search.tell(trial, record["parameters"], None, is_stopped=is_stopped)
            values = ()
        if state == FAILED:
            self.failed += 1
            row["state"] = record["reason"]
            return row
        self.succeeded += 1
        for objective, value in zip(self._search.objectives, values, strict=False):
            row.setdefault(objective.text, value)
        if state == FINISHED:
            self.standing.add(row)
        row["state"] = state
        return row

    def parameters_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters that are there in the point of a row."""
        return {
            name: row[name]
            for name in self._search.space.names
            if name in row and row[name] != self._absent[name]
        }


def _told_as_text(space: Space) -> dict[str, dict[str, Any]]:
    """Return, of each parameter, the choices that a ledger has in other words, such as infinity."""
    found: dict[str, dict[str, Any]] = {}
    for name, dimension in space.dimensions.items():
        if isinstance(dimension, Choices):
            values = {repr(plain(one)): one for one in dimension.values}
            known = {repr(one) for one in dimension.values}
            odd = {text: one for text, one in values.items() if text not in known}
            if odd:
                found[name] = odd
    return found
