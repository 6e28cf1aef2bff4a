"""What a report is made from, beside the rows: plain values, known before or after the trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ..trial import METRICS

if TYPE_CHECKING:
    from ..evaluation import BiasReport

# Columns of what belongs to every trial; rows need not have them.
TRIAL: Final = "trial"
TRAINER: Final = "trainer"
STATE: Final = "state"
"""How it ended: what is in neither `DONE` nor `STOPPED` nor `DIVERGED` is a failure."""
REASON: Final = "reason"
"""Why it failed; without it, its state says why."""
STARTED: Final = "started_s"
"""When it began, in seconds since 1970."""
TOOK: Final = "seconds"
"""How long it took where it ran."""
CURVE: Final = "learning curve"
"""A sequence of step and objective: drawn, and in no table."""

DONE: Final = frozenset({"", "ok", "done", "finished", "complete", "completed"})
"""States of a trial whose objective counts."""
DIVERGED: Final = frozenset({"diverged"})
"""States of a trial whose numbers were lost: it came to its end, and has no result."""
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
        The columns that came out of it; those of the first row that are nothing else, if none
        are named.
    expected : int or None
        How many trials there will be, where that is known.
    cost : str
        The column of what a trial costs: its training time in seconds.
    workflow : str
        The text of the workflow file.
    command : str
        What repeats the sweep.
    facts : mapping of str to str
        What else somebody who repeats it wants to know: versions, the machine, seeds.
    about : str
        What tells it from others of that name, in a few words.
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

    def metrics_of(self, row: Mapping[str, Any]) -> list[str]:
        """Return the columns of a row that came out of the trial."""
        known = {TRIAL, TRAINER, STATE, REASON, CURVE, "seed", STARTED, TOOK}
        known -= {self.objective, self.cost}  # which may be called so
        return [name for name in row if name not in known and name not in self.parameters]

    @property
    def direction(self) -> str:
        """``highest`` or ``lowest``."""
        return "highest" if self.maximise else "lowest"

    @property
    def quality(self) -> str:
        """What is shown against the cost: the objective, unless that is the cost itself."""
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
    """How one rank spent its time, as the run's account has it."""

    rank: int
    host: str
    copies: Sequence[str]
    """What ran there."""
    working_s: float
    waiting_s: float
    communicating_s: float
    cpu_s: float | None = None
    """CPU time in this; None where nobody has measured it."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> RankAccount:
        """Return the account of a rank from the journal's record ``TimeAccounted``."""
        known = [name for name in cls.__dataclass_fields__ if name != "cpu_s"]
        return cls(**{name: record[name] for name in known}, cpu_s=record.get("cpu_s"))


@dataclass(frozen=True)
class Moment:
    """When a report was written, and what was known then.

    Attributes
    ----------
    state : str
        ``running``, ``finished``, ``failed`` or ``stopped``.
    elapsed_s : float or None
        Since the sweep began.
    written : str
        Date and time, in words.
    accounts : sequence of RankAccount
        Known when the run has ended.
    bias : BiasReport or None
        How far to believe the best score.
    earlier : int
        How many trials are from before that, in a sweep that was resumed.
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
