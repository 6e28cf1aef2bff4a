"""The master of a sweep: gives the points of a space to trainers, and ranks the results."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import (
    BaseModel,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from diel import installed_plugins
from diel.errors import ModuleFailed

from .attributes import unread_of_strategy
from .choosing import AUTO
from .options import SweepOptions
from .problems import at, meant, problem
from .search import Search
from .space import Space
from .space_check import point_problems, remarks_on_points
from .strategies import RULES, STRATEGIES
from .sweep.ledger import ledgers_in
from .sweep.master_loop import SweepPlan
from .sweep.messages import Tags
from .sweep.output import check_formats, export
from .sweep.shared import run_sweep
from .sweep.warm_start import check_fits, find_ledger, is_copied
from .trainer_data import data_to_look_at, shape_of
from .trainer_options import TrainerOptions

if TYPE_CHECKING:
    from diel import Context


_POINTS_SHOWN: Final = 5
_IN_ONE_CALL: Final = "modules.sklearn_trainer:train"
"""A function for trials that reports nothing before its end."""
_OWN_PROCESS: Final = ("isolated", "time_limit", "memory_limit")
"""Options of a trainer for which its trials have a process of their own."""


class Options(SweepOptions):
    """What the workflow file says of a sweep."""

    retries: int = Field(0, ge=0, description="how often a trial that failed is tried again")
    warm_start: str | None = Field(
        None,
        description="an earlier run, or a ledger of it, whose results count: RUN_DIR, "
        "RUN_DIR:GROUP.MODULE where it has several sweeps, or a trials.jsonl",
    )

    log: list[str] = Field(
        [],
        json_schema_extra={"suggestions": ["tensorboard"]},
        description="what takes each trial as it ends: reporters on request of installed packages, "
        "by their names; tensorboard writes event files",
    )
    _is_uninterrupted: bool = PrivateAttr(False)

    @field_validator("log")
    @classmethod
    def _check_log(cls, log: list[str]) -> list[str]:
        known = installed_plugins("reporters")
        for name in log:
            if name not in known:
                raise problem(f"no installed package has a reporter {name!r}", meant(name, known))
        return log

    @model_validator(mode="after")
    def _check_warm_start(self, info: ValidationInfo) -> Options:
        if self.warm_start is None:
            return self
        if self._is("parent"):
            text = "trials that go on from each other cannot take over the results of others"
            found = at(("warm_start",), self.warm_start, text, "remove it")
            raise ValidationError.from_exception_data("sweep", [found])
        context = info.context or {}
        folder, run_dir = context.get("folder", Path()), context.get("run_dir")
        try:
            earlier = find_ledger(self.warm_start, folder)
            space = Space.parse(self.space)
            check_fits(earlier, space, self.objectives(folder), self.bounds())
        except (OSError, ValueError) as error:
            if run_dir is not None and is_copied(run_dir):
                return self  # this run has begun: the master goes on with its copy of the ledger
            found = at(("warm_start",), self.warm_start, str(error), "name a run with such a sweep")
            raise ValidationError.from_exception_data("sweep", [found]) from None
        return self

    @model_validator(mode="after")
    def _look_at_trainer(self) -> Options:
        given = self._of_trainer or {}
        is_here = not any(given.get(name) for name in _OWN_PROCESS)
        self._is_uninterrupted = is_here and given.get("train") == _IN_ONE_CALL
        return self

    @property
    def remarks(self) -> list[str]:
        """What a user may not expect of the sweep, a line each."""
        found = [self.remark] if self.remark else []
        if self.until.has_time and self._is_uninterrupted:
            found.append(
                f"{_IN_ONE_CALL} fits a trial in one call, which the time of until does not end: "
                f"with isolated = true in the options of {self.trainer} it does"
            )
        return found


def run(ctx: Context) -> dict[str, Any]:
    """Run the sweep to its end; return the row of the best trial."""
    options: Options = ctx.options
    if options.trainer not in ctx.copies_of:
        raise ModuleFailed(
            f"module {options.trainer!r}, which is to try the points, is not in the group of the "
            f"master: add it to the modules of group {ctx.group!r}"
        )
    trainers, ranks = ctx.copies_of[options.trainer], ctx.ranks_of(options.trainer)
    ranks_of = options.ranks_of(ranks // trainers, ctx.folder)
    if ranks_of is not None:
        trainers = ranks
    search = Search(options, ctx.folder, trainers, ranks)
    for remark in [] if any(ctx.iteration) else options.remarks:
        ctx.log.warning("%s", remark)
    for name, read in unread_of_strategy(search.strategy):
        text = "strategy %s has %r, which diel does not read: did you mean %s?"
        ctx.log.warning(text, options.strategy["name"], name, read)
    plan = SweepPlan(
        search,
        seed=options.seed,
        retries=options.retries,
        # It may be another one when the run is resumed.
        about=options.model_dump(mode="json", exclude={"log"}),
        warm_start=options.warm_start,
        log=tuple(dict.fromkeys(options.log)),
        ranks_of=ranks_of,
    )
    return run_sweep(ctx, Tags(ctx.group, options.trainer), plan, trainers)


# What `diel sweep` looks for in the code of a workflow file's modules.


@dataclass(frozen=True)
class Preview:
    """The strategy, the size and the first trials of a sweep that has not begun."""

    strategy: str
    size: int | None
    """How many trials there are; None if that is not known."""
    points: list[dict[str, Any]]
    """The parameters of the first trials, as far as they follow from no result."""
    trainer: str
    """Name of the module that runs the trials."""
    what_is_wrong: Callable[[Mapping[str, Any]], str]
    """Returns why the metrics of a trial cannot be ranked; empty if they can."""
    what_is_broken: Callable[[Mapping[str, Any]], str]
    """Returns which constraints the metrics of a trial break; empty if none."""


def missing_here(options: Options, module: Any) -> tuple[str, str] | None:
    """Return what this machine lacks to log trials as asked, and what to do; None if nothing."""
    for name in options.log:
        where, _, attribute = installed_plugins("reporters")[name].value.partition(":")
        reporter: Any = import_module(where)  # never a file of the current directory
        lacks = getattr(getattr(reporter, attribute, reporter), "missing_here", None)
        found: tuple[str, str] | None = lacks() if callable(lacks) else None
        if found is not None:
            return found
    return None


def look_at_data(
    options: Options, folder: Path, largest_bytes: int | None = None
) -> tuple[str, list[str]]:
    """Look at the trainer's data, if the trainer is that of this package, and at the options.

    Returns why no trial of some points could train on them, empty if all can, and what is odd: what
    the number of points means for the number of trials, and a patience that ends no training. A
    file larger than `largest_bytes`, and a folder, is not read then.
    """
    remarks = [*options.remarks]
    try:
        trainer = TrainerOptions.model_validate(options.of_trainer, context={"folder": folder})
    except ValidationError:  # it is another module, or the problem is told there
        return "", remarks
    space, data = Space.parse(options.space), None
    # What is known of a bundled set has been compared already, but for names and values.
    if trainer.path or "class_weight" in space.dimensions or "poisson" in repr(options.space):
        with suppress(OSError, ValueError):  # told of by the trainer
            data = data_to_look_at(trainer, folder, largest_bytes)
    remarks += remarks_on_points(space, trainer.layers, trainer.patience, data)
    if data is None:
        return "", remarks
    shape = shape_of(trainer, folder) if trainer.freeze and trainer.encode else None
    about: dict[str, Any] = {"freeze": trainer.freeze, "trains_last": trainer.head == "new"}
    problems = point_problems(space, trainer.layers, shape, data=data, **about)
    problem = problems[0] if problems else ""
    name = next((name for name in space.dimensions if re.search(rf"\b{name}\b", problem)), "")
    return f"space.{name}: {problem}" if name else problem, remarks


def preview_sweep(options: Options, folder: Path) -> Preview:
    """Return what a sweep will do, without doing it; `folder` is that of the workflow file."""
    search = Search(options, folder)
    points = []
    for trial in range(_POINTS_SHOWN):
        point = search.ask(trial)
        if not isinstance(point, dict):
            break
        points.append(point)
    return Preview(
        f"auto: {search.chosen}" if options.strategy["name"] == AUTO else options.strategy["name"],
        search.size,
        points,
        options.trainer,
        lambda metrics: search.judge(metrics).reason,
        lambda metrics: search.judge(metrics).broken,
    )


def option_variants() -> dict[str, tuple[str, dict[str, type[BaseModel]]]]:
    """Return, for each option that is a table, the key that names its kind, and a model by kind."""
    return {
        option: (key, {name: row.options for name, row in rows.items()})
        for option, key, rows in (
            ("strategy", "name", STRATEGIES),
            ("early_stopping", "rule", RULES),
        )
    }


def export_sweep(run_dir: Path, formats: list[str], folder: Path) -> list[Path]:
    """Export the results of a run's sweeps in other formats; return the files.

    A ValueError if a format is unknown, or what it needs is not installed.
    """
    return [file for ledger in ledgers_in(run_dir) for file in export(ledger, formats, folder)]


def check_export(formats: list[str]) -> None:
    """Check, before a sweep is run, that it can be exported so; errors as `export_sweep`."""
    check_formats(formats)
