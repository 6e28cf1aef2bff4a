"""The decisions of a sweep: which trial comes next, how results rank, when it is over.

They are pure: they use neither ranks nor tuples nor files nor a clock::

    while (asked := search.ask(trial)) is not None:      parameters for a trainer
        search.report(trial, step, metrics)              its intermediate metrics
        search.tell(trial, parameters, metrics)          and its result
        search.clock(elapsed_s)
    search.best, search.front, search.bias.report()

A sweep is resumed by telling a new one what was recorded, then asking for the trials that were not.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diel import format_value

from .choosing import cohort_of
from .evaluation import Evaluated, SelectionBias
from .objective import Judgement, judge
from .options import SweepOptions
from .pareto import ParetoFront, infeasible_score
from .space import Finite, Parameters, Space
from .strategies import (
    MOST_COUNTED,
    Auto,
    Cutoffs,
    Lagged,
    Strategy,
    Wait,
    make_rule,
    make_strategy,
    with_rule,
)
from .until import Until


@dataclass
class Points:
    """Which points of a space have been tried, if it is small."""

    counted: Space | None
    count: int | None
    """How many points there are; None if they cannot be counted."""
    tried: set[tuple[int, ...]] = field(default_factory=set)
    repeats: int = 0

    @classmethod
    def of(cls, space: Space) -> Points:
        """Return those of a space, none of which has been tried."""
        counted = space.counted()
        count = None if counted is None else counted.size
        return cls(counted if count is not None and count <= MOST_COUNTED else None, count)

    def add(self, parameters: Parameters) -> None:
        """Record a trial."""
        if self.counted is None:
            return
        try:
            key = self.counted.indices(parameters)
        except ValueError:
            return  # of an earlier sweep, or a strategy of a user's own: no point of this space
        self.repeats += key in self.tried
        self.tried.add(key)


_FRONT_LINES = 20
_COHORTS = 64
"""Of how many cohorts the first point is known: more than are in flight at a time."""


class StrategyError(ValueError):
    """A user's strategy returned something else than the parameters of a point."""


class Search:
    """Chooses the trials of a sweep by its strategy, and ranks their results.

    Parameters
    ----------
    folder : Path
        Folder of the workflow file, beside which a user's own functions are found.
    trainers, ranks : int
        How many trainers there are, and how many ranks they have together.

    Attributes
    ----------
    choice : Choice or None
        What was chosen for a file that names no strategy.
    most : int or None
        How many trials the strategy has, if that is known.
    is_stateless : bool
        Whether any trial may be asked for, at any time, on any rank.
    has_parents : bool
        Whether trials may go on from the end of others.
    members : int or None
        How many trials in a row depend on none of each other, but on all before them.
    alike : int
        Of so many trials in a row, all have networks that can be trained in one plan.
    has_one_structure : bool
        Whether the networks of all points can be trained in one plan.
    best : (int, dict, tuple) or None
        Trial, parameters and values of the best so far; as long as all trials break constraints,
        of the one that breaks them least.
    """

    def __init__(
        self, options: SweepOptions, folder: Path = Path(), trainers: int = 1, ranks: int = 1
    ) -> None:
        self.space = Space.parse(options.space)
        self.objectives = options.objectives(folder)
        self.constraints = options.bounds()
        self._name = f"strategy {options.strategy['name']}"
        until, rule, choice = options.until, options.rule, options.choice
        lag = options.lag if options.deterministic else None
        table = options.strategy if choice is None else {**choice.strategy}
        self._own_strategy = make_strategy(
            table,
            self.space,
            options.seed,
            options.order or "natural",
            folder,
            options.free,
            {objective.text: objective.maximise for objective in self.objectives},
        )
        self.choice = choice
        self._auto: Auto | None = None
        if choice is not None and not getattr(self._own_strategy, "is_stateless", False):
            room = Until(None, None, until.time_s, until.core_s).left_s(0.0, 0.0, ranks) or 0.0
            self._own_strategy = self._auto = Auto(
                self.space,
                options.seed,
                table,
                choice.may_be_grid,
                room * trainers,
                spares=options.early_stopping is None,
                trials=options.trials if choice.may_spare else None,
            )
        self.strategy: Strategy = with_rule(
            self._own_strategy,
            make_rule(rule) if rule is not None else None,
            lag,
        )
        self._parent_of = getattr(self._own_strategy, "parent", None)
        self.has_parents = self._parent_of is not None
        self.members: int | None = getattr(self._own_strategy, "members", None)
        # Of trials that were asked for and are not told of: the trials that they go on from.
        self._parents: dict[int, int] = {}
        self.alike = options.alike or 1
        self._cohort_of: Callable[[Parameters], int] | None = None
        if choice is not None and choice.cohort > 1:
            self._cohort_of = cohort_of(choice, options.of_trainer)
        # The cohort that was begun last: its first trial, one more than its last, its first point.
        self._cohort: tuple[int, int, Parameters] | None = None
        self._free = options.free
        given = self.space.dimensions.items()
        varied = {name for name, each in given if not isinstance(each, Finite) or len(each) > 1}
        self.has_one_structure = varied <= self._free
        # The first points of cohorts that are alike, by their trials.
        self._first: dict[int, Parameters] = {}
        self.is_stateless = not self.learns and self.alike == 1
        self.most: int | None = getattr(self.strategy, "size", None)
        self._points = Points.of(self.space)
        self._enqueued: list[int] = []
        wanted = options.until.objective
        first = self.objectives[0]
        score = None if wanted is None else first.score(wanted)
        self._until = Until(options.trials, score, until.time_s, until.core_s)
        self._is_lagged = isinstance(self.strategy, Lagged)
        self._front: ParetoFront[tuple[int, Parameters, tuple[float, ...]]] = ParetoFront()
        self._best_score: tuple[float, int] | None = None
        self.best: tuple[int, Parameters, tuple[float, ...]] | None = None
        self.bias = SelectionBias(first)

    @property
    def learns(self) -> bool:
        """Whether results change which trials are asked for, or are stopped."""
        return not getattr(self.strategy, "is_stateless", False)

    @property
    def chooses_by_results(self) -> bool:
        """Whether results change which points are asked for, and not only which trials are stopped.

        Not as long as a sweep that chooses for itself has found a grid to fit into its time.
        """
        if self._auto is not None and self._auto.is_grid and self._auto.measured:
            return False
        return not getattr(self._own_strategy, "is_stateless", False)

    @property
    def chosen(self) -> str:
        """What was chosen for a file that names no strategy, and why; empty if it names one."""
        if self.choice is None:
            return ""
        measured = "" if self._auto is None else self._auto.measured
        if not measured:
            return str(self.choice)
        assert self._auto is not None
        if self._auto.is_grid:
            return measured
        choice = replace(self.choice, may_be_grid=False, may_spare=False, why=measured)
        if self.choice.may_spare:
            choice = replace(choice, why=f"{self.choice.why}; {measured}")
        if self._auto.lets_all_finish:
            choice = replace(choice, rule=None)
        return str(choice)

    @property
    def is_chosen(self) -> bool:
        """Whether a strategy was chosen that is not just a grid, and is known by now."""
        if self._auto is None:
            return self.choice is not None and self.choice.strategy["name"] != "grid"
        return not self._auto.is_grid or bool(self._auto.measured)

    def took(self, seconds: float) -> None:
        """Record how long a trial took that has a result, before that is told."""
        if self._auto is not None:
            self._auto.took(seconds)

    @property
    def size(self) -> int | None:
        """How many trials the strategy will have, if nothing ends the sweep before.

        None if that is unknown. Trials that were enqueued come on top.
        """
        sizes = (self.most, self._until.trials)
        return min((size for size in sizes if size is not None), default=None)

    def repeat_lines(self) -> list[str]:
        """Return a line on points that were tried more than once; none if there are no such."""
        points = self._points
        if not points.repeats:
            return []
        repeat = "repeats" if points.repeats == 1 else "repeat"
        tried = "the only point was"
        if points.count != 1:
            were = "was" if len(points.tried) == 1 else "were"
            tried = f"{len(points.tried):,} of {points.count:,} points {were}"
        return [
            f"{points.repeats:,} of {points.repeats + len(points.tried):,} trials {repeat} a point "
            f"of another, with another seed: {tried} tried"
        ]

    def finalize(self) -> None:
        """Have the strategy end what it has running, if it has something."""
        finalize = getattr(self._own_strategy, "finalize", None)
        if finalize is not None:
            finalize()

    def limit(self, trials: int | None) -> None:
        """Set the most trials that the strategy may have; None for no limit."""
        self._until.trials = trials

    def limit_time(self, time_s: float | None) -> None:
        """Set after how many seconds trials end; None for no limit."""
        self._until.time_s = time_s

    def enqueue(self, trial: int) -> None:
        """Record the number of a trial that was enqueued, and not chosen by the strategy."""
        self._enqueued.append(trial)

    def place(self, trial: int) -> int:
        """Return the number of a trial among the strategy's: enqueued trials do not count."""
        return trial - bisect_left(self._enqueued, trial)

    def is_enqueued(self, trial: int) -> bool:
        """Whether a trial was enqueued by a user, and not chosen by the strategy."""
        return bisect_left(self._enqueued, trial) != bisect_left(self._enqueued, trial + 1)

    def ask(self, trial: int) -> Parameters | Wait | None:
        """Return the parameters of a new trial; `WAIT` before another `tell`, None for no more.

        A `StrategyError` if a user's strategy returns something else, or a parameter that is not in
        the space.
        """
        place = self.place(trial)
        if not self._until.allows(place):
            return None
        asked: Parameters | Wait | None = self._asked(place)
        if isinstance(asked, dict):
            if not asked.keys() <= self.space.dimensions.keys():
                odd = ", ".join(str(name) for name in asked if name not in self.space.dimensions)
                raise StrategyError(f"{self._name}: trial {trial}: {odd} is not in the space")
        elif asked is not None and not isinstance(asked, Wait):
            raise StrategyError(
                f"{self._name}: ask({trial}) returned {asked!r:.100}; it is to return a "
                "dictionary of parameters, WAIT, or None for no more"
            )
        if isinstance(asked, dict) and self._parent_of is not None:
            parent = self._parent_of(place)
            if parent is not None:
                self._parents[trial] = self._trial_at(self._earlier_place(parent, place))
        return asked

    def _earlier_place(self, parent: Any, place: int) -> int:
        if type(parent) is not int or not 0 <= parent < place:
            raise StrategyError(
                f"{self._name}: parent({place}) returned {parent!r:.100}; it is to return the "
                "number of an earlier trial, or None"
            )
        return parent

    def _trial_at(self, place: int) -> int:
        """Return the number of a trial of the strategy: the reverse of `place`."""
        trial = place
        for enqueued in self._enqueued:
            trial += enqueued <= trial
        return trial

    def restore_parent(self, trial: int, parent: int) -> None:
        """Set the trial from which one went on that an earlier session has recorded."""
        self._parents[trial] = parent

    def parent(self, trial: int) -> int | None:
        """Return the trial from whose end a trial goes on, which is not told of; None for none."""
        return self._parents.get(trial)

    def possible_parents(self) -> set[int] | None:
        """Return the trials from which others may still go on; None if that may be any."""
        possible = getattr(self._own_strategy, "possible_parents", None)
        return None if possible is None else {self._trial_at(place) for place in possible()}

    def _asked(self, place: int) -> Any:
        """Ask for a point that is like the first one of its cohort, as far as the strategy can."""
        if self._cohort_of is not None:
            return self._asked_in_cohort(place, self._cohort_of)
        ask_alike = getattr(self.strategy, "ask_alike", None)
        first = place - place % self.alike
        like = None if place == first else self._first.get(first)
        if ask_alike is not None and like is not None:
            asked = ask_alike(place, like, self._free)
            if asked is not None:
                return asked
        asked = self.strategy.ask(place)
        if place == first and self.alike > 1 and isinstance(asked, dict):
            self._begin_cohort(place, self._first.get(place, asked))
        return asked

    def _asked_in_cohort(self, place: int, cohort_of: Callable[[Parameters], int]) -> Any:
        """Ask for a point of the cohort that was begun, or for one that begins another."""
        ask_alike = getattr(self.strategy, "ask_alike", None)
        if ask_alike is not None and self._cohort is not None and self.is_in_cohort(place):
            asked = ask_alike(place, self._cohort[2], self._free)
            return self.strategy.ask(place) if asked is None else asked
        asked = self.strategy.ask(place)
        if isinstance(asked, dict):
            self._cohort = place, place + cohort_of(asked), asked
        return asked

    def is_in_cohort(self, place: int) -> bool:
        """Whether the strategy's trial has a network like that of one asked for before it."""
        return self._cohort is not None and self._cohort[0] < place < self._cohort[1]

    @property
    def most_in_cohort(self) -> int:
        """How many trials in a row may have networks of one structure because of their points."""
        return 1 if self.choice is None else self.choice.cohort

    def _begin_cohort(self, place: int, parameters: Parameters) -> None:
        self._first.pop(place, None)
        self._first[place] = parameters
        if len(self._first) > _COHORTS:
            del self._first[next(iter(self._first))]

    @property
    def wants_reports(self) -> bool:
        """Whether intermediate metrics are of use to the strategy, or to a rule."""
        if isinstance(self.strategy, Lagged):
            return self.strategy.rule is not None
        return hasattr(self.strategy, "report")

    def cohorts(self, trials: Sequence[int]) -> tuple[list[Cutoffs], list[int]] | None:
        """Return what trials are judged by where they are trained together.

        None where only the strategy itself can judge, and for trials that were enqueued, which end
        by themselves.
        """
        cohorts = getattr(self.strategy, "cohorts", None)
        if cohorts is None or any(map(self.is_enqueued, trials)):
            return None
        found: tuple[list[Cutoffs], list[int]] | None = cohorts([*map(self.place, trials)])
        return found

    def report(self, trial: int, step: int, metrics: Mapping[str, Any]) -> bool:
        """Record intermediate metrics; True if the trial is to be stopped.

        An `ObjectiveError` if the objective needs a metric that is not reported.
        """
        report = getattr(self.strategy, "report", None)
        if report is None or self.is_enqueued(trial):
            return False
        objective = self.objectives[0]
        score = objective.score(objective.value(metrics))
        return bool(report(self.place(trial), step, math.nan if score is None else score))

    def text_among(self, metrics: Mapping[str, Any]) -> str:
        """Return which metric that an objective names is text, in words; empty if none is."""
        return next(filter(None, (own.text_among(metrics) for own in self.objectives)), "")

    def tell(
        self,
        trial: int,
        parameters: Parameters,
        metrics: Mapping[str, Any] | None,
        evaluated: Evaluated | None = None,
        *,
        is_stopped: bool = False,
    ) -> tuple[float, ...]:
        """Record the result of a trial; return the values of its objectives, NaN without one.

        `metrics` are those at the end; None if the trial failed, or was stopped early: then its
        scores have had a part in the choice. `evaluated` has them split by split, for the selection
        bias. A trial that breaks constraints is ranked by how much alone, behind all others. An
        `ObjectiveError` if an objective or a constraint needs a metric that is not there.
        """
        if self._parents.pop(trial, None) is None:
            self._points.add(parameters)
        if metrics is None:
            self._tell_strategy(trial, parameters, None)
            if is_stopped:
                self.bias.add_stopped()
            return (math.nan,) * len(self.objectives)
        values = tuple(objective.value(metrics) for objective in self.objectives)
        violation = sum(constraint.violation(metrics) for constraint in self.constraints)
        scores = self._scores(values, violation)
        score = scores[0]
        self._tell_strategy(trial, parameters, self._told(scores))
        if not violation > 0:
            self._until.told(score)
            if len(scores) > 1:
                known = [math.nan if score is None else score for score in scores]
                self._front.add(trial, known, (trial, parameters, values))
            if evaluated is not None:
                self.bias.add(trial, evaluated)
        if score is not None and (self._best_score is None or (score, -trial) > self._best_score):
            self._best_score, self.best = (score, -trial), (trial, parameters, values)
        return values

    def _scores(self, values: Sequence[float], violation: float) -> list[float | None]:
        """Return values such that larger is better: all the same for a trial that is infeasible."""
        if violation > 0:
            return [infeasible_score(violation)] * len(values)
        return [each.score(value) for each, value in zip(self.objectives, values, strict=True)]

    def _told(self, scores: Sequence[float | None]) -> Any:
        """Return what the strategy is told of a result: the first score, or all of them."""
        if not getattr(self._own_strategy, "takes_all_objectives", False):
            return scores[0]
        return None if None in scores else tuple(scores)

    def _tell_strategy(self, trial: int, parameters: Parameters, score: Any) -> None:
        if not self.is_enqueued(trial):
            place = self.place(trial)
            if self.alike > 1 and place % self.alike == 0:
                self._begin_cohort(place, parameters)  # of an earlier session, it may be another
            self.strategy.tell(place, parameters, score)
        elif not self._is_lagged:  # `Lagged` learns in the order of the strategy's trials
            self._add(parameters, score)

    def learn(self, parameters: Parameters, metrics: Mapping[str, Any]) -> None:
        """Let the strategy learn from a result of an earlier sweep, if it can be ranked."""
        judgement = self.judge(metrics)
        if not judgement.reason:
            values = [objective.value(metrics) for objective in self.objectives]
            self._add(parameters, self._told(self._scores(values, judgement.violation)))

    def _add(self, parameters: Parameters, score: Any) -> None:
        add = getattr(self.strategy, "add", None)
        if add is not None and score is not None and score == score:
            add(parameters, score)

    def judge(self, metrics: Mapping[str, Any]) -> Judgement:
        """Judge whether the metrics at the end of a trial are a result that can be ranked.

        They are not if a metric that an objective or a constraint needs is missing, if one of these
        is NaN or infinite, or if the trainer has reported ``diverged`` as true.
        """
        return judge(metrics, self.objectives, self.constraints)

    def left_s(self, elapsed_s: float, core_s: float = 0.0, ranks: int = 1) -> float | None:
        """Return for how many seconds trials may go on; None without a limit of time.

        `elapsed_s` has passed since the sweep began, `core_s` for all `ranks` of trainers together.
        """
        return self._until.left_s(elapsed_s, core_s, ranks)

    def clock(self, elapsed_s: float, core_s: float = 0.0) -> None:
        """Set the time since the sweep began, and that of all ranks of trainers, in seconds."""
        self._until.clock(elapsed_s, core_s)

    @property
    def reason(self) -> str | None:
        """Why no further trial begins though there may be more, as `Until.reason`."""
        return self._until.reason

    @property
    def front(self) -> list[tuple[int, Parameters, tuple[float, ...]]]:
        """Trials on the Pareto front of all objectives; empty if there is only one objective."""
        return self._front.front

    def front_lines(self) -> list[str]:
        """Return the Pareto front as lines of text, a trial each; nothing for one objective."""
        names = [objective.text for objective in self.objectives]
        front = self.front
        if not front:
            return []
        count = f"{len(front)} trials" if len(front) > 1 else "one trial"
        lines = [f"{count} that no other beats in {' and '.join(names)}:"]
        for trial, parameters, values in front[:_FRONT_LINES]:
            reached = ", ".join(
                f"{name} {format_value(value)}" for name, value in zip(names, values, strict=True)
            )
            chosen = ", ".join(
                f"{name} {format_value(value)}" for name, value in parameters.items()
            )
            lines.append(f"  trial {trial}: {reached} ({chosen})")
        if len(front) > _FRONT_LINES:
            lines.append(f"  ... and {len(front) - _FRONT_LINES} more")
        return lines
