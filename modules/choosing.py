"""What ``strategy = "auto"`` stands for, by the space, the limits and the trainer of a sweep.

A pure function of what the workflow file says, so a sweep that is resumed comes to the same choice.
One thing is left to the first trials: whether a grid fits into the time, or all trials that a file
allows, each trained to its end (`strategies.auto`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from .hyperparameters import WIDE, Hyperparameters
from .layer_list import with_layers
from .space import Parameters, Space
from .strategies import MOST_COUNTED

AUTO: Final = "auto"
_COHORT: Final = 8
"""Of 4, 8 and 16 networks of one structure the best in the replays of docs/performance.md."""
_FEW: Final = 300
"""Of fewer trials each is trained to its end, where no time ends the sweep: a rule saves most of
that time, but what is found is worse, by points in the replays of docs/performance.md."""
_RULE: Final = {"rule": "halving", "min_steps": 1, "reduction": 3}
_FEWEST_EPOCHS: Final = 3
"""With fewer a rung saves nothing."""
_LEAST_POPULATION, _MOST_POPULATION = 8, 50


@dataclass(frozen=True)
class Limits:
    """When a sweep ends, as far as a choice depends on it."""

    trials: int | None = None
    has_time: bool = False
    """Of the clock or of cores."""
    deterministic: bool = False
    """Whether nothing may depend on how long trials take."""


@dataclass(frozen=True)
class Choice:
    """What is chosen for a sweep that leaves its strategy out."""

    strategy: Mapping[str, Any]
    """The table of a strategy."""
    why: str
    rule: Mapping[str, Any] | None = None
    """The table of a rule that ends trials early."""
    cohort: int = 1
    """So many trials in a row have networks of one structure, where these are narrow."""
    may_be_grid: bool = False
    """Whether it begins as a grid, which it stays if that fits into the time."""
    may_spare: bool = False
    """Whether no trial is stopped early at first, and none at all if there is time for all."""

    @property
    def name(self) -> str:
        """What is chosen, in words, without the reasons."""
        parts = [str(self.strategy["name"])]
        if self.rule is not None:
            first, by = self.rule["min_steps"], self.rule["reduction"]
            rungs = ", ".join(str(first * by**place) for place in range(3))
            parts.append(f"{self.rule['rule']} (after epochs {rungs}, ... 1 of {by} goes on)")
            parts[-1] += ", unless there is time for all trials" if self.may_spare else ""
        if self.cohort > 1:
            parts.append(f"narrow networks {self.cohort} of one structure at a time")
        text = ", ".join(parts)
        return f"a grid if it fits into the time, else {text}" if self.may_be_grid else text

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"


def choose(
    space: Space,
    limits: Limits,
    objectives: int = 1,
    trainer: Mapping[str, Any] | None = None,
    *,
    is_alike: bool = False,
    has_rule: bool = False,
    has_order: bool = False,
    varies_in_plan: bool = False,
) -> Choice:
    """Choose a strategy.

    Parameters
    ----------
    space : Space
    limits : Limits
    objectives : int
        How many there are.
    trainer : mapping, optional
        Options of the trainer, if it is that of this package and trains networks.
    is_alike, has_rule, has_order : bool
        Whether the file says ``alike``, ``early_stopping`` or ``order``.
    varies_in_plan : bool
        Whether the space has parameters in which networks of one plan may differ.
    """
    points = None if space.endless else space.size
    method = _method(trainer)
    is_endless_sweep = limits.trials is None and not limits.has_time
    is_within = points is not None and (limits.trials is None or points <= limits.trials)
    is_measured = limits.has_time and not limits.deterministic and method != "nested"
    if has_order or is_endless_sweep or (is_within and not is_measured):
        return Choice({"name": "grid"}, _points(points, "all tried"))
    reason = _beyond(space, points, limits)
    if method == "nested":
        return Choice({"name": "random"}, f"{reason}; nested folds judge what has learnt nothing")
    may_be_grid = is_within and points is not None and points <= MOST_COUNTED
    if objectives > 1:
        return Choice(
            _genetic(limits.trials), f"{reason}; {objectives} objectives", may_be_grid=may_be_grid
        )
    rule, about_rule = (None, "the rule is the file's") if has_rule else _rule(
        space, limits, trainer, method
    )  # fmt: skip
    is_in_cohorts = (
        trainer is not None and varies_in_plan and not is_alike and not trainer.get("augment")
    )
    why = "; ".join(filter(None, (reason, about_rule)))
    cohort = _COHORT if is_in_cohorts else 1
    may_spare = rule is not None and limits.trials is not None and is_measured and not may_be_grid
    return Choice({"name": "tpe"}, why, rule, cohort, may_be_grid, may_spare)


def _method(trainer: Mapping[str, Any] | None) -> str:
    evaluation = (trainer or {}).get("evaluation")
    method = evaluation.get("method") if isinstance(evaluation, Mapping) else None
    return str(method or "holdout")


def _points(count: int | None, what: str) -> str:
    if count is None:
        return "no number of trials or time is given"
    return f"its only point is {what}" if count == 1 else f"its {count:,} points are {what}"


def _beyond(space: Space, points: int | None, limits: Limits) -> str:
    """Return why a grid is not what is wanted, or that it is not known yet."""
    if points is None:
        more = f" and {len(space.endless) - 1} more" if len(space.endless) > 1 else ""
        return f"no grid, as {space.endless[0]}{more} can be any number of a range"
    if limits.trials is not None and points > limits.trials:
        return f"no grid, as its {points:,} points are more than {limits.trials:,} trials"
    if points > MOST_COUNTED:
        return f"no grid, as its {points:,} points are too many for a time"
    return f"how many of {points:,} points fit into the time is known from the first trials"


def _genetic(trials: int | None) -> dict[str, Any]:
    """Return `nsga2`, whose first population takes a quarter of the trials at most."""
    wanted = _MOST_POPULATION if trials is None else trials // 4
    population = min(max(wanted, _LEAST_POPULATION), _MOST_POPULATION)
    return {"name": "nsga2", "population": population}


def _rule(
    space: Space, limits: Limits, trainer: Mapping[str, Any] | None, method: str
) -> tuple[Mapping[str, Any] | None, str]:
    """Return a rule that stops trials, or None, and why there is none."""
    if trainer is None:
        return None, "no rule, as it is not known what the trainer's reports say"
    if method != "holdout":
        return None, "no rule, as trials report folds and not epochs"
    if not limits.has_time and limits.trials is not None and limits.trials < _FEW:
        return None, f"no rule for fewer than {_FEW} trials"
    if _most_epochs(space) < _FEWEST_EPOCHS:
        return None, "no rule for so few epochs"
    return _RULE, ""


def _most_epochs(space: Space) -> int:
    dimension = space.dimensions.get("epochs")
    if dimension is None:
        return int(Hyperparameters.model_fields["epochs"].default)
    values = [dimension.at(place / 64) for place in range(64)] + [dimension.at(1 - 2**-53)]
    return max((int(value) for value in values if isinstance(value, int | float)), default=0)


def cohort_of(choice: Choice, trainer: Mapping[str, Any] | None) -> Callable[[Parameters], int]:
    """Return a function from a point to the number of trials of one structure that it begins.

    Narrow networks gain by a plan, wide ones do not: they learn from each other's results instead.
    """
    layers = (trainer or {}).get("layers")

    def count(parameters: Parameters) -> int:
        if choice.cohort == 1:
            return 1
        try:
            wanted = Hyperparameters.model_validate(with_layers(parameters, layers))
        except ValueError:
            return 1  # the trial fails, and says why
        is_dense = not wanted.is_convolutional and not wanted.is_recurrent
        return choice.cohort if is_dense and wanted.widest < WIDE else 1

    return count
