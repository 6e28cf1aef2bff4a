"""The master of a sweep: has the points of a space tried by trainers, and ranks them."""

from __future__ import annotations

from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from .space import Space
from .strategies.grid import Grid
from .sweep.conducting import Plan, conduct
from .trainer import METRICS, Hyperparameters

if TYPE_CHECKING:
    from diel import Context

_OURS = "modules.trainer:run"
_VALUES_CHECKED = 1000
_OUR_COLUMNS = ("trial", *METRICS, "trainer", "seed")


class Options(BaseModel):
    """What the workflow file says of a sweep."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    space: dict[str, Any] = Field(description="what each hyperparameter may be")
    objective: str = "accuracy"
    seed: int = Field(0, ge=0, description="from which the seed of each trial follows")
    trainer: str = Field("trainer", description="the module that trains")
    retries: int = Field(0, ge=0, description="how often a trial that failed is tried again")

    @field_validator("space")
    @classmethod
    def _check_space(cls, space: dict[str, Any]) -> dict[str, Any]:
        Space.parse(space)
        ours = [name for name in space if name in _OUR_COLUMNS]
        if ours:
            raise ValueError(f"{', '.join(ours)}: a column of the results; use another name")
        return space

    @model_validator(mode="after")
    def _check_trainer(self, info: ValidationInfo) -> Options:
        modules = (info.context or {}).get("modules")
        if modules is None:
            return self
        if self.trainer not in modules:
            if self.trainer in (info.context or {}).get("names", ()):
                return self  # its own entry is wrong, which is said there
            raise ValueError(f"trainer = {self.trainer!r}: there is no module of that name")
        location = (info.context or {}).get("locations", {}).get(self.trainer)
        if location is not None and location.shipped and location.spec == _OURS:
            trains = modules[self.trainer]
            if trains.options.get("train") is not None:
                return self
            if trains.processes > 1:
                raise ValueError(f"our trainer is one process: module {self.trainer!r} has more")
            _check_parameters(Space.parse(self.space))
        return self

    def plan(self) -> Plan:
        """Return what is to be done."""
        space = Space.parse(self.space)
        return Plan(
            strategy=Grid(space, self.seed),
            parameters=space.names,
            score=itemgetter(self.objective),
            objective=self.objective,
            maximise=self.maximise,
            seed=self.seed,
            about=self.model_dump(),
            retries=self.retries,
        )

    @property
    def maximise(self) -> bool:
        """Whether a larger value of the objective is better."""
        return self.objective in ("accuracy", "mcc")


def run(ctx: Context) -> dict[str, Any]:
    """Try every point of the grid; return the best trial."""
    options: Options = ctx.options
    if options.trainer not in ctx.copies_of:
        raise ValueError(f"module {options.trainer!r} is not in group {ctx.group!r}")
    base = (ctx.group, options.trainer)
    return conduct(ctx, base, options.plan(), ctx.copies_of[options.trainer])


def _check_parameters(space: Space) -> None:
    """Try every value of every parameter on the model of our own trainer.

    Raises
    ------
    ValueError
        If the trainer does not know a parameter, or could not train with a value.
    """
    from difflib import get_close_matches

    for name, dimension in space.dimensions.items():
        if name not in Hyperparameters.model_fields:
            close = get_close_matches(name, Hyperparameters.model_fields, 1)
            raise ValueError(
                f"space.{name}: the trainer has no such hyperparameter"
                + (f" (did you mean {close[0]!r}?)" if close else "")
                + f"; it knows {', '.join(Hyperparameters.model_fields)}"
            )
        for value in islice(dimension.examples(), _VALUES_CHECKED):
            try:
                Hyperparameters.model_validate({name: value})
            except ValidationError as error:
                reason = error.errors()[0]["msg"]
                raise ValueError(f"space.{name}: {value!r}: {reason}") from error
