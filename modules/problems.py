"""Functions that word problems of a master's or trainer's options, with place and remedy."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError


def with_remedies(error: ValidationError, model: type[BaseModel]) -> ValidationError:
    """Return a validation error that lists the known keys beside each unknown key."""
    problems = []
    for entry in error.errors(include_url=False):
        place = tuple(str(step) for step in entry["loc"])
        if entry["type"] == "extra_forbidden":
            known = [key for key in model.model_fields if key not in ("name", "rule")]
            remedy = meant(place[-1], known, None if known else "it has no options: remove it")
            problems.append(at(place, entry["input"], f'unknown key "{place[-1]}"', remedy))
        else:
            text = f"{entry['msg'][0].lower()}{entry['msg'][1:]}, got {entry['input']!r}"
            problems.append(at(place, entry["input"], text))
    return ValidationError.from_exception_data("strategy", problems)


def meant(name: str, known: Collection[str], otherwise: str | None = None) -> str:
    """Return the remedy for an unknown name: the nearest known name, or a list of all."""
    near = get_close_matches(name, known, 1)
    if near:
        return f'did you mean "{near[0]}"?'
    return f"there are {', '.join(known)}" if otherwise is None else otherwise


def at(place: tuple[str | int, ...], given: Any, text: str, remedy: str = "") -> InitErrorDetails:
    """Return a problem at a place below the field that is validated."""
    return InitErrorDetails(type=problem(text, remedy), loc=place, input=given)


def problem(text: str, remedy: str = "") -> PydanticCustomError:
    """Return a problem with its remedy, as `diel check` shows it."""
    return PydanticCustomError("sweep", text, {"remedy": remedy})
