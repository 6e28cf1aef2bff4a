"""What a report shows beside the rows: plain values, known before or after the trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ..trial import METRICS

if TYPE_CHECKING:
    from ..evaluation import BiasReport

# Columns that belong to every trial; rows need not have them.
TRIAL: Final = "trial"
TRAINER: Final = "trainer"
STATE: Final = "state"
"""How a trial ended: a state in neither `DONE` nor `STOPPED` nor `DIVERGED` is a failure."""
REASON: Final = "reason"
"""Why a trial failed; without a reason, its state is shown."""
STARTED: Final = "started_s"
"""When a trial began, in seconds since 1970."""
TOOK: Final = "seconds"
"""How long a trial took on its trainer, in seconds."""
CURVE: Final = "learning curve"
"""Steps and objectives that a trial reported: drawn, and in no table."""

DONE: Final = frozenset({"", "ok", "done", "finished", "complete", "completed"})
"""States of a trial whose objective counts."""
DIVERGED: Final = frozenset({"diverged"})
"""States of a trial that came to its end with NaN or infinity, and has no result."""
STOPPED: Final = frozenset({"stopped", "pruned"})
"""States of a trial that was stopped early: its objective is of a training that is not over."""


@dataclass(frozen=True)
class Sweep:
    """What is known of a sweep from its start.

    Attributes
    ----------
    name : str
    objective : str
        The column that ranks the trials.
    maximise : bool
        Whether a larger value is better.
    parameters : sequence of str
        The columns that were chosen for a trial.
    metrics : sequence of str
        The columns that a trial reported; if none are named, those of the first row that are
        nothing else.
    expected : int or None
        How many trials there will be, where that is known.
    cost : str
        The column of what a trial costs: its training time in seconds.
    workflow : str
        The text of the workflow file.
    command : str
        The command that repeats the sweep.
    facts : mapping of str to str
        What else is needed to repeat it: versions, the machine, seeds.
    about : str
        What tells it from other sweeps of that name, in a few words.
    model : mapping of str to str
        How to use the model of the best trial: its ``file``, a ``command`` that scores new rows
        with it, and the same in ``python``; empty if there is none.
    """

    name: str
    objective: str
    maximise: bool
    parameters: Sequence[str]
    metrics: Sequence[str] = ()
    expected: int | None = None
    cost: str = "training_time_s"
    workflow: str = ""
    command: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    about: str = ""
    model: Mapping[str, str] = field(default_factory=dict)

    def metrics_of(self, row: Mapping[str, Any]) -> list[str]:
        """Return the columns of a row that are metrics of the trial."""
        known = {TRIAL, TRAINER, STATE, REASON, CURVE, "seed", STARTED, TOOK}
        known -= {self.objective, self.cost}  # which may have such a name
        return [name for name in row if name not in known and name not in self.parameters]

    @property
    def direction(self) -> str:
        """The word for the better end of the objective: ``highest`` or ``lowest``."""
        return "highest" if self.maximise else "lowest"

    @property
    def quality(self) -> str:
        """The column that is shown against the cost: the objective, unless that is the cost."""
        if self.objective != self.cost:
            return self.objective
        metrics = [name for name in self.metrics if name != self.cost]
        return "accuracy" if "accuracy" in metrics or not metrics else metrics[0]

    @property
    def maximise_quality(self) -> bool:
        """Whether more of `quality` is better."""
        if self.quality == self.objective:
            return self.maximise
        return self.quality in METRICS and METRICS[self.quality].maximise


@dataclass(frozen=True)
class RankAccount:
    """How one rank spent its time, from the journal's record ``TimeAccounted``."""

    rank: int
    host: str
    copies: Sequence[str]
    """Copies of modules that ran on the rank."""
    working_s: float
    waiting_s: float
    communicating_s: float
    cpu_s: float | None = None
    """CPU time in all of this; None where it was not measured."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> RankAccount:
        """Return the account of a rank from the journal's record ``TimeAccounted``."""
        known = [name for name in cls.__dataclass_fields__ if name != "cpu_s"]
        return cls(**{name: record[name] for name in known}, cpu_s=record.get("cpu_s"))


@dataclass(frozen=True)
class Moment:
    """How a sweep stood when its report was written: running or over, its time, its bias.

    Attributes
    ----------
    state : str
        ``running``, ``finished``, ``failed`` or ``stopped``.
    elapsed_s : float or None
        Seconds since the sweep began, or was resumed.
    written : str
        Date and time, in words.
    accounts : sequence of RankAccount
        Known when the run has ended.
    bias : BiasReport or None
        Selection bias of the best score.
    earlier : int
        How many trials are from before that time, in a sweep that was resumed.
    reload_s : float or None
        How often a browser reads the page again.
    """

    state: str = "finished"
    elapsed_s: float | None = None
    written: str = ""
    accounts: Sequence[RankAccount] = ()
    bias: BiasReport | None = None
    earlier: int = 0
    reload_s: float | None = None
