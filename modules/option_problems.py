"""What is wrong with the options of a sweep, each problem at its place and with its remedy."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from difflib import get_close_matches
from itertools import islice
from random import Random
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from .hyperparameters import Hyperparameters, parameters_with
from .space import Space, SpaceError, parse_dimension

_VALUES_CHECKED = 1000
_POINTS_CHECKED = 100


def space_problems(space: dict[str, Any], columns: Collection[str]) -> Iterator[InitErrorDetails]:
    """Read every parameter, then all together.

    Parameters
    ----------
    space : dict
        As the file has it.
    columns : collection of str
        Of the results, like which no parameter may be called.
    """
    sound = True
    for name, entry in space.items():
        if name in columns:
            text = f"{name}: a column of the results; use another name"
            yield at((name,), entry, text)
        try:
            parse_dimension(entry)
        except SpaceError as error:
            sound = False
            yield at((name,), entry, error.reason)
    if sound:
        try:
            Space.parse(space)
        except SpaceError as error:
            yield at((error.parameter,) if error.parameter else (), space, error.reason)


def parameter_problems(space: Space) -> Iterator[InitErrorDetails]:
    """Try every value of every parameter on the model of our own trainer, and then points."""
    known = Hyperparameters.model_fields
    sound = True
    for name, dimension in space.dimensions.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            yield at(
                ("space", name),
                name,
                f"the trainer has no such hyperparameter; it knows {', '.join(known)}",
                f'did you mean "{near[0]}"?' if near else "",
            )
            sound = False
            continue
        for value in islice(dimension.examples(), _VALUES_CHECKED):
            try:
                Hyperparameters.model_validate(parameters_with(name, value))
            except ValidationError as error:
                text = f"{value!r}: {error.errors()[0]['msg']}"
                # diel says it in the words of the model that refused it.
                context = {"text": text, "caught": error, "model": Hyperparameters}
                kind = PydanticCustomError("hyperparameter", "{text}", context)
                yield InitErrorDetails(type=kind, loc=("space", name), input=value)
                sound = False
                break
    if sound:
        yield from _point_problems(space)


def _point_problems(space: Space) -> Iterator[InitErrorDetails]:
    """Yield once for each parameter that it does not go with others: drawn points show it."""
    draw = Random(0)
    texts: dict[str, None] = {}
    for _ in range(_POINTS_CHECKED):
        point = space.sample(lambda name: draw.random())
        try:
            Hyperparameters.model_validate(point)
        except ValidationError as error:
            texts[error.errors()[0]["msg"].removeprefix("Value error, ")] = None
    for text in texts:
        yield at(("space", text.split(" ")[0]), text, text)


def with_remedies(error: ValidationError, model: type[BaseModel]) -> ValidationError:
    """Return an error that lists the keys there are beside each unknown one."""
    problems = []
    for entry in error.errors(include_url=False):
        place = tuple(str(step) for step in entry["loc"])
        if entry["type"] == "extra_forbidden":
            known = [key for key in model.model_fields if key not in ("name", "rule")]
            near = get_close_matches(place[-1], known, 1)
            remedy = f"there are {', '.join(known)}" if known else "it has no options: remove it"
            problems.append(
                at(
                    place,
                    entry["input"],
                    f'unknown key "{place[-1]}"',
                    f'did you mean "{near[0]}"?' if near else remedy,
                )
            )
        else:
            text = f"{entry['msg'][0].lower()}{entry['msg'][1:]}, got {entry['input']!r}"
            problems.append(at(place, entry["input"], text))
    return ValidationError.from_exception_data("strategy", problems)


def at(place: tuple[str, ...], given: Any, text: str, remedy: str = "") -> InitErrorDetails:
    """Return a problem at a place below the field that is validated."""
    return InitErrorDetails(type=problem(text, remedy), loc=place, input=given)


def problem(text: str, remedy: str = "") -> PydanticCustomError:
    """Return a problem with what to do about it, as `diel check` shows it."""
    return PydanticCustomError("sweep", text, {"remedy": remedy})
