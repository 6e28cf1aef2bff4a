"""The results of a sweep: outcomes become records of the ledger, records become rows.

A trial counts when its line is in the ledger; the strategy and the best rows get it after that.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from diel import describe_error, format_value

from ..evaluation import Evaluated
from ..metrics import SPLITS, is_splits
from ..objective import Judgement, ObjectiveError
from ..space import Choices
from ..trial import OUT_OF_TIME, Reports, thinned, trial_seed
from ..trial_plan import BEST_EPOCH
from ..trial_ranks import RANKS
from .leases import Bitmap
from .ledger import (
    DIVERGED,
    ENDED_BY_TIME,
    FAILED,
    FINISHED,
    INFEASIBLE,
    RESULTS,
    STOPPED,
    VIOLATION,
    LedgerError,
    as_numbers,
    plain,
    trials_of,
)
from .lineage import LINEAGE, PARENT, Lineage, Parent, drawn
from .messages import IntermediateReport, Outcome

if TYPE_CHECKING:
    from ..search import Search
    from ..space import Space

_ROWS_AT_ONCE: Final = 1000
_CURVES: Final = 20_000
"""Most learning curves in a ledger, beside those of trials that are among the best at their end."""
_MOST_REPORTS: Final = 10_000
"""Most reports that a ledger keeps of a trial that a rule may stop, which needs them when the sweep
is resumed."""
COMPUTED_BY: Final = "computed_by"
"""Key of a trainer's device facts, in its first record in a session."""
_MATTERS_FOR_ROUNDING: Final = ("device", "device_name", "precision")
"""Of a trainer's device facts."""
CURVE: Final = "learning curve"
"""Key of a row's learning curve, (step, objective) pairs: no column, and no parameter's name."""


class SweepResults:
    """Turns outcomes into ledger records and rows, counts them, and passes them to the search.

    `in_groups` says whether trials have different numbers of ranks, and each rank is a trainer.

    Attributes
    ----------
    succeeded, failed, stopped, diverged, infeasible : int
        Numbers of trials; those that were stopped early count as succeeded too.
    computed_by : dict of str to str
        Device facts of the first trial of an earlier session; empty if they are not known.
    ended_at : dict of int to int
        Of trials that time has ended, the step that their metrics are of.
    seconds : float
        How long the trials of earlier sessions have taken their trainers.
    lineage : Lineage
        Which trials go on from which; empty if none can.
    """

    def __init__(self, search: Search, seed: int, *, in_groups: bool = False) -> None:
        self._search = search
        self._seed = seed
        self._in_groups = in_groups
        self._absent = dict.fromkeys(search.space.names, "")
        self._own = {"trial", *search.space.names}
        self._choices_as_text = choices_as_text(search.space)
        self._reports: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        # Reports that came with an outcome, of which the search has not been told.
        self._untold: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        self._wrong_reports: dict[int, str] = {}
        objective = search.objectives[0]
        self.best_rows = BestRows(objective.text, maximise=objective.maximise)
        self._curves = 0
        # Of the trials that break constraints the one that does least: its rank, row and reason.
        self._least: tuple[tuple[float, int], dict[str, Any], str] | None = None
        self.succeeded = self.failed = self.stopped = self.diverged = self.infeasible = 0
        self.computed_by: dict[str, str] = {}
        self.ended_at: dict[int, int] = {}
        self.seconds = 0.0
        self.lineage = Lineage()

    def read(self, ledger: Path, recorded: Bitmap) -> Iterator[list[dict[str, Any]]]:
        """Add what a ledger holds that is not in `recorded`; yield the rows, many at a time.

        A `LedgerError` if a record is not of this sweep, as in a damaged file.
        """

        def restored(record: dict[str, Any]) -> dict[str, Any]:
            try:
                return self._restored(record)
            except (ObjectiveError, LookupError, TypeError, ValueError, ArithmeticError) as error:
                raise LedgerError(
                    f"{ledger}: the record of trial {record['trial']} does not fit the sweep "
                    f"({describe_error(error)}). Remove its line: a run that is resumed tries that "
                    "trial again"
                ) from error

        rows = (restored(record) for record in trials_of(ledger) if recorded.add(record["trial"]))
        while batch := list(islice(rows, _ROWS_AT_ONCE)):
            yield batch

    def _restored(self, record: dict[str, Any]) -> dict[str, Any]:
        if "reports" in record:
            self._curves += 1
            record["reports"] = [(step, as_numbers(metrics)) for step, metrics in record["reports"]]
        if not self.computed_by and isinstance(record.get(COMPUTED_BY), dict):
            self.computed_by = record[COMPUTED_BY]
        self._untold[record["trial"]] = record.get("reports", [])
        if (parent := Parent.of(record)) is not None:
            self._search.restore_parent(record["trial"], parent.trial)
        restore_choices(record["parameters"], self._choices_as_text)
        if isinstance(seconds := record.get("seconds"), (int, float)):
            ranks = record["metrics"].get(RANKS, 1) if self._in_groups else 1
            self.seconds += seconds * ranks
        return self.add(record)

    def add_report(self, report: IntermediateReport) -> bool:
        """Record what a trial has reported so far; return whether it goes on.

        It does not if its objective is text: then it has failed.
        """
        if wrong := self._wrong_report(report.step, report.metrics):
            self._wrong_reports[report.trial] = wrong
            return False
        try:
            goes_on = not self._search.report(report.trial, report.step, report.metrics)
        except ObjectiveError:
            return True  # the error is reported when the trial ends
        reports = self._reports.setdefault(report.trial, [])
        reports.append((report.step, report.metrics))
        if len(reports) > _MOST_REPORTS:
            del reports[1::2]
        return goes_on

    def records_of(self, outcome: Outcome, attempt: int) -> list[dict[str, Any]]:
        """Return the outcome of a lease as records, one for each trial."""
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
            if trial in outcome.untried:
                continue
            reason = outcome.reasons.get(trial, "") if outcome.reasons else ""
            wrong = self._wrong_reports.pop(trial, "") if self._wrong_reports else ""
            for step, reported in outcome.reports.get(trial, ()):
                wrong = wrong or self._wrong_report(step, reported)
            reason = reason or wrong
            ending: dict[str, Any] = {"state": FAILED, "reason": reason}
            reports = [*self._reports.pop(trial, ()), *outcome.reports.get(trial, ())]
            ended: dict[str, int] | None = None
            if trial in outcome.out_of_time and not reason:
                metrics, ended = self._best_in_time(metrics, reports)
            if not reason:
                ending = ending_of(self._search.judge(metrics))
            is_result = ending["state"] in RESULTS and ended is not None
            is_stopped = trial in outcome.stopped and ending["state"] != DIVERGED and not wrong
            if is_stopped and not is_result:
                # Also without metrics: it was stopped before it reported any.
                ending = {"state": STOPPED}
            state = ending["state"]
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
            if self._search.has_parents:
                parent = self._search.parent(trial)
                step = 0 if parent is None else self.lineage.last_step(parent)
                record[PARENT] = None if parent is None else {"trial": parent, "step": step}
            if outcome.worker:
                record["worker"] = outcome.worker
            record |= ending
            if is_result:
                record[ENDED_BY_TIME] = ended
            elif trial in outcome.out_of_time and state == STOPPED:
                record["reason"] = "the time of the sweep was over, and it had reported nothing"
            if is_splits(metrics.get(SPLITS)):
                record[SPLITS] = metrics.pop(SPLITS)
            if self._search.wants_reports:
                self._untold[trial] = outcome.reports.get(trial, [])
            is_kept = self._search.wants_reports or trial in outcome.out_of_time
            is_kept = is_kept or self._search.has_parents
            if reports and (is_kept or self._keeps_curve(state, metrics)):
                record["reports"] = reports
            records.append(record)
        return records

    def _best_in_time(
        self, metrics: dict[str, Any], reports: Reports
    ) -> tuple[dict[str, Any], dict[str, int] | None]:
        """Return the best metrics of a trial that time has ended, and the table `ENDED_BY_TIME`.

        Those that its function has returned, if it says which epoch they are of, or how they come
        from several splits.
        """
        last = max((step for step, _ in reports), default=0)
        if BEST_EPOCH in metrics:
            best = int(metrics[BEST_EPOCH])
            return metrics, {"at_step": max(last, best), "best_step": best}
        found = [(last, metrics), *(() if SPLITS in metrics else reports)]
        judged = [(step, each, self._search.judge(each)) for step, each in found]
        sound = [(step, each, of.violation) for step, each, of in judged if not of.reason]
        if not sound:
            return metrics, None
        objective = self._search.objectives[0]
        # Of equals the first: what it has returned, then the earliest step.
        step, best_metrics, _ = max(
            sound,
            key=lambda entry: (-entry[2], objective.score(objective.value(entry[1])) or 0.0),
        )
        return dict(best_metrics), {"at_step": last, "best_step": step}

    def _wrong_report(self, step: int, metrics: Mapping[str, Any]) -> str:
        text = self._search.text_among(metrics)
        return f"step {step}: {text}" if text else ""

    def _keeps_curve(self, state: str, metrics: Mapping[str, Any]) -> bool:
        """Whether the ledger gets a trial's learning curve: after `_CURVES`, only good ones do."""
        self._curves += 1
        if self._curves <= _CURVES:
            return True
        return state == FINISHED and self.best_rows.would_keep(
            self._search.objectives[0].value(metrics)
        )

    def add(self, record: dict[str, Any]) -> dict[str, Any]:
        """Pass a trial whose line is in the ledger to the search, count it, and return its row.

        A trial is a failed one if it has finished by its line, and its metrics do not give the
        objectives: an earlier version took text for a number.
        """
        trial, state, metrics = record["trial"], record["state"], record["metrics"]
        if self._search.has_parents:
            self.lineage.add(record)
        for step, reported in self._untold.pop(trial, ()):
            with suppress(ObjectiveError):  # of a curve, which no rule has asked for
                self._search.report(trial, step, reported)
        # A parameter that is not there in this point has an empty cell.
        row = {"trial": trial, **self._absent, **record["parameters"], **metrics}
        if not self._own.isdisjoint(metrics):  # a metric is called like a parameter
            row |= {"trial": trial, **self._absent, **record["parameters"]}
        row.pop(CURVE, None)  # a metric of that name
        row["trainer"], row["seed"] = record.get("trainer", ""), record.get("seed", "")
        values: tuple[float, ...] = ()
        if state in RESULTS:
            splits = record.get(SPLITS, {})
            evaluated = Evaluated.of(metrics, splits) if is_splits(splits) else None
            if isinstance(seconds := record.get("seconds"), (int, float)):
                self._search.took(seconds)
            try:
                values = self._search.tell(trial, record["parameters"], metrics, evaluated)
            except ObjectiveError as error:
                state, record = FAILED, {**record, "reason": str(error)}
        if state not in RESULTS:
            is_stopped = state == STOPPED
            self._search.tell(trial, record["parameters"], None, is_stopped=is_stopped)
        for objective in self._search.objectives:
            if isinstance(row.get(objective.text), str):
                row[objective.text] = ""  # the reason says what it was; the column has numbers
        if state == FAILED:
            self.failed += 1
            row["state"] = record["reason"]
            return row
        if state == DIVERGED:
            self.diverged += 1
            row["state"] = state
            return row
        self.succeeded += state != INFEASIBLE
        self.stopped += state == STOPPED
        for objective, value in zip(self._search.objectives, values, strict=False):
            if type(row.get(objective.text)) not in (int, float):  # not there, or true
                row[objective.text] = value
        if (best_step := best_step_of(record)) is not None:
            self.ended_at[trial] = best_step
        if state == INFEASIBLE:
            self._add_infeasible(record, row)
            return row
        is_good = state == FINISHED and self.best_rows.add(row)
        # For the report: a row that is among its best at the end is so when it comes.
        if "reports" in record and (is_good or state == STOPPED):
            row[CURVE] = self._search.objectives[0].curve(thinned(record["reports"]))
        if PARENT in record:
            row[LINEAGE] = drawn(record)
        row["state"] = state_of(record) if state == FINISHED else state
        return row

    def _add_infeasible(self, record: dict[str, Any], row: dict[str, Any]) -> None:
        self.infeasible += 1
        row["state"] = f"{INFEASIBLE}: {record['reason']}"
        rank = record[VIOLATION], row["trial"]
        if self._least is None or rank < self._least[0]:
            self._least = rank, row, record["reason"]

    @property
    def best(self) -> dict[str, Any] | None:
        """The row of the best trial, or of the one that breaks constraints least; None without."""
        if self.best_rows.best:
            return self.best_rows.best[0]
        return None if self._least is None else self._least[1]

    @property
    def infeasible_text(self) -> str:
        """That no trial keeps the constraints, and which breaks them least; else empty."""
        if self._least is None or self.best_rows.best:
            return ""
        (violation, trial), _, broken = self._least
        return (
            f"no trial keeps the constraints: trial {trial}, which breaks them least, {broken}, "
            f"by {format_value(violation)}"
        )

    @property
    def unranked(self) -> dict[str, int]:
        """How many trials are not ranked, by the reason."""
        counts = {
            "failed": self.failed,
            "diverged": self.diverged,
            "infeasible": self.infeasible,
            "stopped early": self.stopped,
        }
        return {reason: count for reason, count in counts.items() if count}

    def parameters_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters that exist in the point of a row."""
        return {
            name: row[name]
            for name in self._search.space.names
            if name in row and row[name] != self._absent[name]
        }


def best_step_of(record: Mapping[str, Any]) -> int | None:
    """Return the step that the metrics of a trial are of that time has ended; None for others."""
    ended = record.get(ENDED_BY_TIME)
    step = ended.get("best_step") if isinstance(ended, dict) else None
    return step if type(step) is int and step > 0 else None


def ending_of(judgement: Judgement) -> dict[str, Any]:
    """Return what the record of a trial that has ended has of its judgement, its state first."""
    if judgement.reason:
        state = DIVERGED if judgement.is_diverged else FAILED
        return {"state": state, "reason": judgement.reason}
    if judgement.violation > 0:
        return {"state": INFEASIBLE, "reason": judgement.broken, VIOLATION: judgement.violation}
    return {"state": FINISHED}


def state_of(record: Mapping[str, Any]) -> str:
    """Return the state of a finished trial in the table, which says when time has ended it."""
    ended = record.get(ENDED_BY_TIME)
    if not isinstance(ended, dict):
        return FINISHED
    return f"{OUT_OF_TIME}: step {ended.get('best_step')} of {ended.get('at_step')}"


def choices_as_text(space: Space) -> dict[str, dict[str, Any]]:
    """Return, for each parameter, the choices that a ledger writes as text, such as infinity."""
    found: dict[str, dict[str, Any]] = {}
    for name, dimension in space.dimensions.items():
        if isinstance(dimension, Choices):
            values = {repr(plain(value)): value for value in dimension.values}
            known = {repr(value) for value in dimension.values}
            odd = {text: value for text, value in values.items() if text not in known}
            if odd:
                found[name] = odd
    return found


def restore_choices(parameters: dict[str, Any], as_text: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace the texts that JSON has for choices, in place; `as_text` is of `choices_as_text`."""
    for name, values in as_text.items():
        if name in parameters:
            text = repr(parameters[name])
            parameters[name] = values.get(text, parameters[name])


RankingKey: TypeAlias = "tuple[bool, float, int]"


class BestRows:
    """The best rows of a sweep, and which columns are the same in all rows.

    The column `objective` ranks them; `kept` is how many to keep.
    """

    def __init__(self, objective: str, *, maximise: bool, kept: int = 20) -> None:
        self._objective = objective
        self._sign = -1.0 if maximise else 1.0
        self._kept = kept
        self._best: list[tuple[RankingKey, dict[str, Any]]] = []
        self._worst_kept: RankingKey | None = None
        self._constants: dict[str, Any] | None = None
        self._version = 0

    @property
    def best(self) -> list[dict[str, Any]]:
        """The best rows, best first: NaN last, of equals the earlier trial first."""
        return [row for _, row in self._best]

    @property
    def constants(self) -> dict[str, Any]:
        """The columns that have had one value so far, but for the objective."""
        return dict(self._constants or {})

    @property
    def version(self) -> int:
        """A number that grows when `best` or `constants` change."""
        return self._version

    def would_keep(self, value: float) -> bool:
        """Whether a row with this objective may be among the best."""
        if value != value or self._worst_kept is None:
            return value == value
        return self._sign * value <= self._worst_kept[1]

    def add(self, row: Mapping[str, Any]) -> bool:
        """Add a row; return whether it is among the best so far."""
        if self._constants is None:
            self._constants = {
                name: value for name, value in row.items() if name != self._objective
            }
        elif self._constants:
            varies = [
                name
                for name, value in self._constants.items()
                if name not in row or row[name] != value
            ]
            for name in varies:
                del self._constants[name]
                self._version += 1
        value = float(row[self._objective])
        badness = (value != value, self._sign * value if value == value else 0.0, row["trial"])
        if self._worst_kept is not None and badness > self._worst_kept:
            return False
        insort(self._best, (badness, dict(row)), key=lambda entry: entry[0])
        del self._best[self._kept :]
        if len(self._best) == self._kept:
            self._worst_kept = self._best[-1][0]
        self._version += 1
        return True


def note_on_rounding(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return that results differ in rounding, as facts of trainers do; empty if they do not."""
    if not before or all(before.get(name) == now.get(name) for name in _MATTERS_FOR_ROUNDING):
        return ""
    return (
        f"trials until now were computed on {_computer(before)}, these on {_computer(now)}: "
        "results differ in rounding"
    )


def _computer(facts: Mapping[str, str]) -> str:
    """Return the device and the precision as text: ``NVIDIA H200 in float16``."""
    name = facts.get("device_name") or facts.get("device", "")
    on = f"cpu ({name})" if facts.get("device") == "cpu" else name
    return f"{on} in {facts.get('precision', 'float32')}"
