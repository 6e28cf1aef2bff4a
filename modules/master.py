"""The master of a sweep: streams the points of a grid to trainers and gathers their results.

There is no barrier between batches: each result makes room for the next trial.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

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
from .trainer import METRICS, Hyperparameters
from .trial import Outcome, Trial, result_tag, trial_seed, trial_tag

if TYPE_CHECKING:
    from diel import Context

_OURS = "modules.trainer:run"
_VALUES_CHECKED = 1000
_OUR_COLUMNS = ("trial", *METRICS, "trainer", "seed")


class Options(BaseModel):
    """What the workflow file says of a sweep."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    space: dict[str, Any] = Field(description="what each hyperparameter may be")
    objective: Literal["accuracy", "loss", "mcc", "training_time_s"] = "accuracy"
    seed: int = Field(0, ge=0, description="from which the seed of each trial follows")
    trainer: str = Field("trainer", description="the module that trains")

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
            if modules[self.trainer].processes > 1:
                raise ValueError(f"our trainer is one process: module {self.trainer!r} has more")
            _check_parameters(Space.parse(self.space))
        return self

    @property
    def maximise(self) -> bool:
        """Whether a larger value of the objective is better."""
        return self.objective in ("accuracy", "mcc")


def run(ctx: Context) -> dict[str, Any]:
    """Try every point of the grid; return the best trial."""
    options: Options = ctx.options
    if options.trainer not in ctx.copies_of:
        raise ValueError(f"module {options.trainer!r} is not in group {ctx.group!r}")
    space = Space.parse(options.space)
    trainers = ctx.copies_of[options.trainer]
    ctx.results.declare(
        ["trial", *space.dimensions, *METRICS, "trainer", "seed"],
        objective=options.objective,
        maximise=options.maximise,
        expected=space.size,
    )
    best: dict[str, Any] | None = None
    for row in _stream(ctx, space, options.seed, ahead=2 * trainers):
        ctx.results.add(row)
        if best is None or _badness(row, options) < _badness(best, options):
            best = row
    for _ in range(trainers):
        ctx.tuples.tput(trial_tag(ctx.group), None)
    assert best is not None  # a space has at least one point
    return best


def _stream(ctx: Context, space: Space, seed: int, ahead: int) -> Any:
    """Yield results in order of completion, with at most `ahead` trials under way."""
    sent = 0
    for received in range(space.size):
        while sent < min(space.size, received + ahead):
            trial = Trial(sent, space.point(sent), trial_seed(seed, sent))
            ctx.tuples.tput(trial_tag(ctx.group), trial)
            sent += 1
        outcome: Outcome = ctx.tuples.tget(result_tag(ctx.group))
        yield {
            "trial": outcome.trial.index,
            **outcome.trial.parameters,
            **{name: outcome.metrics[name] for name in METRICS},
            "trainer": outcome.trainer,
            "seed": outcome.trial.seed,
        }


def _badness(row: dict[str, Any], options: Options) -> tuple[bool, float, int]:
    """Return what is smallest for the best row: NaN last, of equals the earlier point first."""
    value, trial = row[options.objective], row["trial"]
    if value != value:
        return True, 0.0, trial
    return False, -value if options.maximise else value, trial


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
