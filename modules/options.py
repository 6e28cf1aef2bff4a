"""The options of a sweep's master, checked as a whole: `objective`, `strategy`, `until`, `space`.

::

    [module.options]
    objective = "accuracy"
    strategy = "random"
    trials = 500
    until = { objective = 0.98, time = "2 h" }
    [module.options.space]
    learning_rate = { from = 1e-4, to = 1.0, scale = "log" }
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails

from diel.errors import PluginError
from diel.expressions import ExpressionError

from .choosing import AUTO, Choice, Limits, choose
from .hyperparameters import (
    Hyperparameters,
    free_in_a_plan,
    is_scheduled_by_epochs,
    suggested_values,
)
from .layer_list import references
from .metrics import METRICS, metrics_of_task
from .objective import Constraint, Objective, ObjectiveError
from .problems import at, meant, problem, with_remedies
from .space import Finite, Space, SpaceError
from .space_check import (
    are_sound,
    data_problems,
    parameter_problems,
    space_problems,
    stage_problems,
)
from .strategies import MOST_COUNTED, RULES, STRATEGIES, check_strategy, is_known, make_strategy
from .tabular import known_shape, known_task
from .trial_plan import more_metrics
from .trial_ranks import RANKS, TrialRanks, TrialRanksError
from .trial_states import NO_CHECKPOINTS, ONE_TRAINING
from .until import UntilOptions

_OUR_TRAINER = Path(__file__).with_name("trainer.py")
_REPORTED = [name for name, metric in METRICS.items() if metric.task != "on request"]
COLUMNS = ("trial", *_REPORTED, "trainer", "seed", "state", "splits")
"""Columns of the results; no parameter may have such a name."""
_LOSS: Final = "loss"
"""A parameter of our trainer, where it takes the place of the metric."""

_RESERVED_COLUMNS = ("trial", "trainer", "seed", "state")

_BY_KIND = dict.fromkeys(re.sub(r":.*", ":<sampler>", name) for name in STRATEGIES)
"""The strategies, those of one class once."""


class SweepOptions(BaseModel):
    """A sweep: the space, how to go through it, and what is wanted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    space: dict[str, Any] = Field(
        description="what each hyperparameter may be",
        json_schema_extra=lambda extra: extra.update(
            form="space",
            suggestions=suggested_values(),
            notes={
                name: info.description
                for name, info in Hyperparameters.model_fields.items()
                if info.description
            },
        ),
    )
    strategy: dict[str, Any] = Field(
        {"name": AUTO},
        description="a name, or a table of a name and its options; left out, auto, which is a grid "
        "where the limits have room for its points: "
        f"{', '.join(_BY_KIND)}, one of an installed package, or a class of your own as "
        "package.module:Class",
        validate_default=True,
        json_schema_extra={"suggestions": [*STRATEGIES]},
    )
    order: Literal["natural", "shuffled"] | None = Field(None, description="of a grid")
    early_stopping: dict[str, Any] | None = Field(
        None,
        description=f"a rule, or a table of a rule and its options: {', '.join(RULES)}",
        json_schema_extra={"suggestions": [*RULES]},
    )
    objective: list[str] = Field(
        ["accuracy"],
        min_length=1,
        description="a metric, an expression of metrics, or a function of yours; or several; left "
        "out, rmse of a regression, exact_match of several labels",
        json_schema_extra={"form": "value", "suggestions": [*METRICS], "is_first": True},
    )
    maximise: bool | list[bool] | None = Field(
        None, description=f"whether more is better; known of {', '.join(METRICS)}"
    )
    constraints: list[str] | None = Field(
        None,
        description="what a trial has to keep, as in training_time_s <= 2 or 0.9 <= recall: "
        "expressions of metrics on both sides; one that breaks any is never the best",
        json_schema_extra={"form": "value"},
    )
    seed: int = Field(0, ge=0, description="from which the seed of each trial follows")
    trials: int | None = Field(None, ge=1, description="how many at most")
    until: UntilOptions = UntilOptions()
    deterministic: bool = Field(
        False, description="whether an adaptive strategy learns in the order of trials, with a lag"
    )
    lag: int = Field(32, ge=1, description="how many trials later, if deterministic")
    alike: int | None = Field(
        None,
        ge=2,
        description="of so many trials in a row, all agree in what networks of one plan agree in",
    )
    trainer: str = Field(
        "trainer", description="the module that trains", json_schema_extra={"form": "module"}
    )
    _free: frozenset[str] = PrivateAttr(frozenset())
    _choice: Choice | None = PrivateAttr(None)

    _of_trainer: Mapping[str, Any] | None = None
    _is_ours: bool = False
    _ranks: str | None = None

    @field_validator("strategy", mode="before")
    @classmethod
    def _name_strategy(cls, strategy: Any) -> Any:
        return {"name": strategy} if isinstance(strategy, str) else strategy

    @field_validator("early_stopping", mode="before")
    @classmethod
    def _name_rule(cls, rule: Any) -> Any:
        return {"rule": rule} if isinstance(rule, str) else rule

    @field_validator("objective", mode="before")
    @classmethod
    def _list_objectives(cls, objective: Any) -> Any:
        return [objective] if isinstance(objective, str) else objective

    @field_validator("constraints", mode="before")
    @classmethod
    def _list_constraints(cls, constraints: Any) -> Any:
        return [constraints] if isinstance(constraints, str) else constraints or None

    @field_validator("space")
    @classmethod
    def _check_space(cls, space: dict[str, Any]) -> dict[str, Any]:
        problems = list(space_problems(space, [name for name in COLUMNS if name != _LOSS]))
        if problems:
            raise ValidationError.from_exception_data("space", problems)
        return space

    @field_validator("strategy")
    @classmethod
    def _check_strategy(cls, strategy: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        name = strategy.get("name")
        if not isinstance(name, str):
            raise problem("name is missing: which strategy it is", 'add name = "random"')
        own = name.split(":")[0] if ":" in name else ""
        is_ours = f"{own}:<sampler>" in _BY_KIND
        if (not own and not is_known(name)) or (is_ours and name not in STRATEGIES):
            there = f"there are {', '.join(STRATEGIES)}, and yours as package.module:Class"
            raise problem(f'there is no strategy "{name}"', meant(name, STRATEGIES, there))
        try:
            return check_strategy(strategy, _folder(info))
        except ValidationError as error:
            raise with_remedies(error, STRATEGIES[name].options) from None
        except PluginError as error:
            raise problem(str(error)) from None

    @field_validator("early_stopping")
    @classmethod
    def _check_rule(cls, rule: dict[str, Any] | None) -> dict[str, Any] | None:
        if rule is None:
            return None
        name = rule.get("rule")
        if name not in RULES:
            raise problem(
                f"there is no rule {name!r}" if name is not None else "rule is missing",
                meant(str(name), RULES),
            )
        try:
            return RULES[name].options.model_validate(rule).model_dump()
        except ValidationError as error:
            raise with_remedies(error, RULES[name].options) from None

    @model_validator(mode="after")
    def _choose_objective(self, info: ValidationInfo) -> SweepOptions:
        context = info.context or {}
        module = context.get("modules", {}).get(self.trainer)
        self._of_trainer = (
            context.get("options_of", {}).get(self.trainer) if module is None else module.options
        )
        is_known = self._has_our_trainer(info)
        # With `train` it calls a user's function, which may report any metrics.
        self._is_ours = is_known and (self._of_trainer or {}).get("train") is None
        self._ranks = (self._of_trainer or {}).get(RANKS) if is_known else None
        if "objective" not in self.model_fields_set and self._task is not None:
            # Of the default alone: only here may a field of these options still change.
            object.__setattr__(self, "objective", [next(iter(metrics_of_task(self._task)))])
        return self

    @model_validator(mode="after")
    def _find_free(self) -> SweepOptions:
        layers = (self._of_trainer or {}).get("layers")
        inside = references(layers) if layers is not None and are_sound(layers) else ()
        self._free = (free_in_a_plan() & self.space.keys()).difference(inside)
        return self

    @model_validator(mode="after")
    def _choose_strategy(self) -> SweepOptions:
        if self.strategy["name"] != AUTO:
            return self
        self._choice = choose(
            Space.parse(self.space),
            Limits(self.trials, self.until.has_time, self.deterministic),
            len(self.objective),
            self.of_trainer,
            is_alike=self.alike is not None,
            has_rule=self.early_stopping is not None,
            has_order=self.order is not None,
            varies_in_plan=bool(self._free),
        )
        if self._choice.strategy["name"] == "grid":
            # As if the file named it: only here may a field of these options still change.
            object.__setattr__(self, "strategy", {"name": "grid"})
        return self

    @property
    def choice(self) -> Choice | None:
        """What ``auto`` stands for; None if the file names a strategy."""
        return self._choice

    @property
    def free(self) -> frozenset[str]:
        """The parameters of the space in which trials that are `alike` may differ."""
        return self._free

    @property
    def of_trainer(self) -> Mapping[str, Any] | None:
        """Options of a trainer that is known to be that of this package, as the file has them."""
        return self._of_trainer if self._is_ours else None

    @property
    def _task(self) -> str | None:
        """What the data of the trainer are for; None if that is not known."""
        return None if self._of_trainer is None else known_task(self._of_trainer)

    @model_validator(mode="after")
    def _check_together(self, info: ValidationInfo) -> SweepOptions:
        problems = [*self._objective_problems(info), *self._constraint_problems()]
        problems += self._limit_problems()
        is_checked = "modules" in (info.context or {})
        if _LOSS in self.space and is_checked and not self._is_ours:
            text = f"{_LOSS}: a column of the results; use another name"
            problems.append(at(("space", _LOSS), self.space[_LOSS], text))
        problems += [*self._strategy_problems(), *self._refusals(info), *self._rank_problems(info)]
        problems += self._trainer_problems(info)
        if problems:
            raise ValidationError.from_exception_data("sweep", problems)
        return self

    @property
    def _known_metrics(self) -> list[str] | None:
        """The metrics that the trainer can report; None if that is not known."""
        if not self._is_ours:
            return None
        of_task = metrics_of_task(self._task or "classification", on_request=True)
        if "quantile" not in repr(self.space.get(_LOSS)):
            of_task.pop("pinball", None)  # no network predicts quantiles
        return [*of_task, *more_metrics(of_task), *([RANKS] if self._ranks else [])]

    def _constraint_problems(self) -> Iterator[InitErrorDetails]:
        for place, text in enumerate(self.constraints or ()):
            try:
                Constraint.parse(text, self._known_metrics)
            except (ExpressionError, ObjectiveError) as error:
                yield at(("constraints", place), text, str(error), getattr(error, "remedy", ""))
        name = self.strategy["name"]
        if self.constraints and name in STRATEGIES and STRATEGIES[name].reads_scores:
            yield at(
                ("constraints",),
                self.constraints,
                f'"{name}" models scores, and trials that break constraints have none',
                "take tpe or optuna:tpe, which go by ranks, or write a penalty into the objective",
            )

    def _objective_problems(self, info: ValidationInfo) -> Iterator[InitErrorDetails]:
        known = self._known_metrics
        if isinstance(self.maximise, list) and len(self.maximise) != len(self.objective):
            yield at(
                ("maximise",),
                self.maximise,
                f"{len(self.maximise)} directions for {len(self.objective)} objectives",
                "give one for each",
            )
            return
        for text, maximise in zip(self.objective, self._directions(), strict=True):
            if text in self.space or text in _RESERVED_COLUMNS:
                what = "a parameter" if text in self.space else "a column of ours"
                remedy = "have the trainer report it under another name"
                if known is not None and text == _LOSS:
                    remedy = f"losses of different kinds cannot be compared: take {known[0]}"
                yield at(("objective",), text, f'"{text}" is {what}', remedy)
                continue
            try:
                objective = Objective.parse(text, maximise, _folder(info), known)
            except (ExpressionError, ObjectiveError, PluginError) as error:
                yield at(("objective",), text, str(error), getattr(error, "remedy", ""))
                continue
            wanted = self.until.objective
            if wanted is not None and not objective.reaches(wanted):
                yield at(("until", "objective"), wanted, f"{text} is never as good as {wanted:g}")
        if self.until.objective is not None and len(self.objective) > 1:
            yield at(
                ("until", "objective"),
                self.until.objective,
                "there are several objectives, of which this means none",
                "write one expression of them",
            )

    def _limit_problems(self) -> Iterator[InitErrorDetails]:
        if self._is("is_exhaustive") or self.trials or self.until.has_time:
            return
        if self._is_users_strategy:
            return  # a user's strategy ends the sweep itself
        if self._tries_each_once:
            return  # it ends with the last point
        if self.until.objective is not None:
            yield at(
                ("until", "objective"),
                self.until.objective,
                f"may never be reached, and {self.strategy['name']} has no last trial",
                "add trials = 1000, or a time",
            )
        else:
            yield at(
                ("trials",),
                None,
                f"is missing: {self.strategy['name']} has no last trial",
                'add trials = 1000, or until = { time = "2 h" }',
            )

    def _strategy_problems(self) -> Iterator[InitErrorDetails]:
        name = self.strategy["name"]
        if self.order is not None and name != "grid":
            yield at(("order",), self.order, f'only a grid has an order, not "{name}"', "remove it")
        if self._is("is_exhaustive"):
            try:
                _ = Space.parse(self.space).size
            except SpaceError as error:
                loc = ("space", error.parameter) if error.parameter else ("space",)
                limits = 'with trials = 100, or until = { time = "10 min" }, points are chosen'
                yield at(loc, self.space, error.reason, limits if self._choice else "")
        if self.rule is self.strategy and self.early_stopping is not None:
            yield at(
                ("early_stopping",),
                self.early_stopping,
                f'strategy = "{name}" has its own rule',
                'write strategy = "random" for another rule',
            )
        if self.alike is not None and not (self._is_users_strategy or self._is("ask_alike")):
            fits = [name for name, row in STRATEGIES.items() if hasattr(row.kind, "ask_alike")]
            text = f'"{name}" chooses no points that are alike'
            yield at(("alike",), self.alike, text, f"take {' or '.join(fits)}, or leave it out")
        elif self.alike is not None and not self._free:
            text = "trials that are alike would be the same: the space has no parameter in which "
            remedy = f"add one of {', '.join(sorted(free_in_a_plan()))}, or leave it out"
            yield at(("alike",), self.alike, f"{text}networks of one plan may differ", remedy)
        yield from self._population_problems()
        follows_all = self._is_stateless or self._is("takes_all_objectives")
        if len(self.objective) > 1 and not follows_all:
            all_of = [
                name
                for name, row in STRATEGIES.items()
                if getattr(row.kind, "takes_all_objectives", False)
            ]
            yield at(
                ("objective",),
                self.objective,
                f'"{name}" can follow one objective, not {len(self.objective)}',
                f"write one expression of them, or use {', '.join(all_of)}, grid or random",
            )

    def _population_problems(self) -> Iterator[InitErrorDetails]:
        if not self._is("parent"):
            return
        name, perturbed = self.strategy["name"], self.strategy["perturb"]
        if self.early_stopping is not None:
            text = f'"{name}" ends no trial early: the worst members go on from the best'
            yield at(("early_stopping",), self.early_stopping, text, "remove it")
        for each in perturbed or ():
            if each not in self.space:
                yield at(("strategy", "perturb"), each, "is no parameter", meant(each, self.space))
            elif self._is_ours and each not in self._free:
                yield at(
                    ("strategy", "perturb"),
                    each,
                    "cannot change while a network is trained",
                    f"take some of {', '.join(sorted(free_in_a_plan()))}",
                )
        dimensions = Space.parse(self.space).dimensions
        chosen = (dimensions.get(each) for each in (self._free if perturbed is None else perturbed))
        if all(isinstance(each, Finite) and len(each) == 1 for each in chosen if each is not None):
            remedy = f"add one of {', '.join(sorted(free_in_a_plan()))} with several values"
            if not self._is_ours:
                remedy = 'name some of yours, as in { name = "population", perturb = ["rate"] }'
            yield at(("strategy",), self.strategy, "there is no parameter to perturb", remedy)

    def _refusals(self, info: ValidationInfo) -> Iterator[InitErrorDetails]:
        """Yield why a generator of another package refuses the sweep."""
        if not self._is("generator"):
            return
        folder = _folder(info)
        try:
            known = {objective.text: objective.maximise for objective in self.objectives(folder)}
        except (ExpressionError, ObjectiveError, PluginError):
            return  # which is said there
        if len(known) < len(self.objective):
            yield at(("objective",), self.objective, "names one twice", "remove it")
            return
        space = Space.parse(self.space)
        made = make_strategy(self.strategy, space, self.seed, folder=folder, objectives=known)
        try:
            _ = getattr(made, "generator")  # noqa: B009 (no part of the interface)
        except SpaceError as error:
            yield at(("space", str(error.parameter)), self.space, error.reason)
        except PluginError as error:
            yield at(("strategy",), self.strategy, str(error))

    def _trainer_problems(self, info: ValidationInfo) -> Iterator[InitErrorDetails]:
        context = info.context or {}
        modules = context.get("modules")
        if modules is None:
            return
        if self.trainer not in modules:
            # A module that is named but not there: the problem is reported at its own entry.
            if self.trainer not in context.get("names", ()):
                text = f'there is no module "{self.trainer}", which is to try the points'
                yield at(("trainer",), self.trainer, text, meant(self.trainer, modules))
            return
        if self._is_ours:
            space = Space.parse(self.space)
            options = modules[self.trainer].options
            if (layers := options.get("layers")) is not None and not are_sound(layers):
                return  # which is said there
            shape = known_shape(options.get("dataset"))
            found = [*parameter_problems(space, options, shape, known_task(options))]
            yield from found or stage_problems(space, modules[self.trainer])
            yield from data_problems(self.space, self.trainer, options)
            yield from self._evaluation_problems(options)
            if self._is("parent") and not found:
                yield from self._member_problems(space, options)

    def _member_problems(
        self, space: Space, trainer: Mapping[str, Any]
    ) -> Iterator[InitErrorDetails]:
        """Yield why networks of our trainer cannot go on from each other."""
        evaluation = trainer.get("evaluation")
        method = evaluation.get("method") if isinstance(evaluation, dict) else None
        is_several = method not in (None, "holdout") or trainer.get("seeds", 1) != 1
        if is_several or trainer.get("patience") is not None:
            yield at(("strategy",), self.strategy, ONE_TRAINING, f"change {self.trainer}")
        if trainer.get("checkpoints") is not None:
            remedy = f"remove checkpoints of {self.trainer}"
            yield at(("strategy",), self.strategy, NO_CHECKPOINTS, remedy)
        if find_spec("safetensors") is None:
            text = "checkpoints are safetensors files, and safetensors is not installed"
            yield at(("strategy",), self.strategy, text, 'pip install "diel[checkpoint]"')
        for each in space.dimensions["schedule"].examples() if "schedule" in self.space else ():
            if is_scheduled_by_epochs(each):
                text = f"{each} ends with the last epoch, of which a population knows none"
                yield at(("space", "schedule"), self.space["schedule"], text, "leave it out")
        epochs = space.dimensions.get("epochs")
        if epochs is not None and not (isinstance(epochs, Finite) and len(epochs) == 1):
            text = "members are compared after as many epochs each"
            yield at(("space", "epochs"), self.space["epochs"], text, "give one number")

    def _rank_problems(self, info: ValidationInfo) -> Iterator[InitErrorDetails]:
        """Yield why trials cannot have the numbers of ranks that the trainer's options say."""
        if not isinstance(self._ranks, str):
            return
        if RANKS in self.space:
            text = "a column of the results, where trials have different numbers of ranks"
            yield at(("space", RANKS), self.space[RANKS], text, "use another name")
        module = (info.context or {}).get("modules", {}).get(self.trainer)
        where: tuple[str, ...] = ("space",)
        try:
            of_trial = TrialRanks.parse(self._ranks, getattr(module, "processes", 1), _folder(info))
            of_trial.check_names(self.space)
            dimensions = Space.parse(self.space).dimensions
            for name in of_trial.names:
                where = ("space", name)
                for example in dimensions[name].examples():
                    of_trial.number(name, example)
        except TrialRanksError as error:
            text = f"{RANKS} of {self.trainer} = {self._ranks!r}: {error}"
            yield at(where, self.space, text, error.remedy)
        except (ExpressionError, PluginError):
            return  # which is said there

    def _evaluation_problems(self, trainer: Mapping[str, Any]) -> Iterator[InitErrorDetails]:
        evaluation = trainer.get("evaluation")
        if not isinstance(evaluation, dict) or evaluation.get("method") != "nested":
            return
        if not self._is_stateless or self.early_stopping is not None:
            yield at(
                ("strategy",),
                self.strategy,
                f"{self.trainer} evaluates by nested folds, and a strategy that learns from scores "
                "has seen the rows that are to judge its choice",
                "use grid or random without early stopping, or k_fold there",
            )

    def _has_our_trainer(self, info: ValidationInfo) -> bool:
        """Whether the trainer is known to be that of this package."""
        location = (info.context or {}).get("locations", {}).get(self.trainer)
        if location is None or (location.file, location.function) != (_OUR_TRAINER, "run"):
            return False
        return self._of_trainer is not None

    def _directions(self) -> Sequence[bool | None]:
        if isinstance(self.maximise, list):
            return self.maximise
        return [self.maximise] * len(self.objective)

    @property
    def _is_users_strategy(self) -> bool:
        return self.strategy["name"] not in STRATEGIES

    @property
    def rule(self) -> dict[str, Any] | None:
        """The table of the rule that ends trials early: the strategy's own, or that of the file."""
        row = STRATEGIES.get(self.strategy["name"])
        if row is not None and row.rule:
            return self.strategy
        if self.early_stopping is None and self._choice is not None:
            return None if self._choice.rule is None else {**self._choice.rule}
        return self.early_stopping

    def _is(self, attribute: str) -> bool:
        """Whether the strategy, or what was chosen, is of ours and its class has this attribute."""
        chosen = self.strategy if self._choice is None else self._choice.strategy
        row = STRATEGIES.get(chosen["name"])
        return row is not None and getattr(row.kind, attribute, False)

    @property
    def _is_stateless(self) -> bool:
        return self._is("is_stateless") and self.rule is not self.strategy

    @property
    def _tries_each_once(self) -> bool:
        """Whether the strategy ends with the last point of the space, which is small."""
        if not self._is("is_without_repeats"):
            return False
        try:
            counted = Space.parse(self.space).counted()
        except SpaceError:  # which is told of elsewhere
            return False
        return counted is not None and counted.size <= MOST_COUNTED

    @property
    def remark(self) -> str:
        """What the number of points means for the number of trials; empty if nothing."""
        name, wanted = self.strategy["name"], self.trials
        counted = Space.parse(self.space).counted()
        may_be_grid = self._choice is not None and self._choice.may_be_grid
        if self._is("is_exhaustive") or self._is("parent") or self._is_users_strategy:
            return ""
        if may_be_grid or counted is None:
            return ""
        points = counted.size
        how_many = "1 point" if points == 1 else f"{points:,} points"
        if self._tries_each_once:
            if wanted is not None and wanted <= points:
                return ""
            trials = "1 trial" if points == 1 else f"{points:,} trials"
            instead = "" if wanted is None else f", not {wanted:,}"
            return f"the space has {how_many}, and {name} tries each once: {trials}{instead}"
        if wanted is None or wanted <= points:
            return ""
        return (
            f"the space has {how_many}: of {wanted:,} trials at least {wanted - points:,} "
            "repeat one, with another seed (grid tries each once)"
        )

    def objectives(self, folder: Path = Path()) -> list[Objective]:
        """Return the objectives, the first one deciding which trial is the best.

        Functions are looked for beside the workflow file, in `folder`.
        """
        pairs = zip(self.objective, self._directions(), strict=True)
        return [Objective.parse(text, maximise, folder) for text, maximise in pairs]

    def ranks_of(self, processes: int, folder: Path = Path()) -> TrialRanks | None:
        """Return how many of the ranks of a copy a trial has; None if each has all."""
        if self._ranks is None:
            return None
        return TrialRanks.parse(self._ranks, processes, folder)

    def bounds(self) -> list[Constraint]:
        """Return the constraints."""
        return [Constraint.parse(text) for text in self.constraints or ()]


def _folder(info: ValidationInfo) -> Path:
    return Path((info.context or {}).get("folder", Path()))
