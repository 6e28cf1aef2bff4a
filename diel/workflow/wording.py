"""Values and types in the words of a workflow file.

``describe`` says what a type accepts, ``show`` what was given, ``example`` what could be written
instead. All three speak TOML, since that is what the reader has open.
"""

from __future__ import annotations

import enum
import json
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

LONGEST_SHOWN = 60

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class InWords:
    """Put in an ``Annotated`` type, says in plain words what the type accepts."""

    words: str


@dataclass(frozen=True)
class Spot:
    """A type at some place of a model, its ``Annotated`` wrapping taken apart.

    Attributes
    ----------
    type : Any
        The bare type, ``None`` if it is not known.
    metadata : tuple
        Constraints and other annotations.
    examples : tuple
        Examples that the field's author gave.
    """

    type: Any
    metadata: tuple[Any, ...] = ()
    examples: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        bare, metadata = self.type, [*_flat(self.metadata)]
        while True:
            if hasattr(bare, "__value__"):  # type X = ...
                bare = bare.__value__
            elif get_origin(bare) is Annotated:
                bare, *more = get_args(bare)
                metadata += _flat(more)
            elif _is_union(bare) and len(_branches(bare)) == 1:  # X | None
                bare = _branches(bare)[0]
            else:
                break
        object.__setattr__(self, "type", bare)
        object.__setattr__(self, "metadata", tuple(metadata))

    @property
    def origin(self) -> Any:
        """``list`` for ``list[int]``, the type itself if it takes no arguments."""
        return get_origin(self.type) or self.type

    @property
    def branches(self) -> tuple[Any, ...]:
        """The alternatives of a union, without None; empty if it is none."""
        return _branches(self.type) if _is_union(self.type) else ()

    @property
    def model(self) -> type[BaseModel] | None:
        """The pydantic model at this place, if it is one."""
        return self.type if self.is_a(BaseModel) else None

    @property
    def is_list(self) -> bool:
        """Whether TOML writes it as a list."""
        return not self.is_a(str, bytes) and self.is_a(Sequence, AbstractSet)

    @property
    def is_table(self) -> bool:
        """Whether TOML writes it as a table."""
        return self.is_a(Mapping, BaseModel)

    def is_a(self, *kinds: type) -> bool:
        """Whether the type is one of these classes or derives from one."""
        return isinstance(self.origin, type) and issubclass(self.origin, kinds)

    def limit(self, name: str) -> Any:
        """Return a constraint such as ``ge`` or ``min_length``, None if there is none."""
        found = [getattr(one, name, None) for one in self.metadata]
        return next((one for one in found if one is not None), None)


def _flat(metadata: Iterable[Any]) -> Iterable[Any]:
    for one in metadata:
        if isinstance(one, FieldInfo):
            yield from one.metadata
        else:
            yield one


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def _branches(union: Any) -> tuple[Any, ...]:
    return tuple(branch for branch in get_args(union) if branch is not type(None))


def describe(spot: Spot) -> str | None:
    """Say what a type accepts, such as ``a whole number of at least 1 or "fill"``.

    Returns
    -------
    str or None
        None for a type that this module has no words for.
    """
    words = [one.words for one in spot.metadata if isinstance(one, InWords)]
    if words:
        return words[0]
    if spot.branches:
        parts = [describe(Spot(branch)) for branch in spot.branches]
        return " or ".join(part for part in parts if part) if all(parts) else None
    if spot.origin is Literal:
        return " or ".join(show(value) for value in get_args(spot.type))
    if spot.is_a(enum.Enum):
        return " or ".join(show(member.value) for member in spot.type)
    if spot.is_list:
        return _describe_list(spot)
    if spot.is_table:
        return "a table"
    for kind, noun in _NOUNS.items():
        if spot.is_a(kind):
            return f"{noun}{_bounds(spot)}"
    return None


_NOUNS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    Path: "a path, as a string",
}
_PLURALS: dict[type, str] = {
    int: "whole numbers",
    float: "numbers",
    str: "strings",
    Path: "paths",
}


def _describe_list(spot: Spot) -> str:
    shortest, longest = spot.limit("min_length"), spot.limit("max_length")
    head = "a non-empty list" if shortest == 1 else "a list"
    if shortest is not None and shortest > 1:
        head += f" of at least {shortest}"
    if longest is not None:
        head += f" of at most {longest}"
    item = item_of(spot, 0)
    plural = next((words for kind, words in _PLURALS.items() if item.type is kind), None)
    if plural and all(isinstance(one, AfterValidator) for one in item.metadata):
        return f"{head} of {plural}"
    words = describe(item)
    return f"{head}, each item {words}" if words else head


def item_of(spot: Spot, index: int) -> Spot:
    """Return the type of one item of a list or tuple; unknown if the type does not say."""
    arguments = get_args(spot.type)
    if spot.origin is tuple and arguments[-1:] != (...,):
        return Spot(arguments[index] if index < len(arguments) else None)
    return Spot(arguments[0] if arguments else None)


def _bounds(spot: Spot) -> str:
    names = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
    parts = [
        f"{words} {show(spot.limit(name))}"
        for name, words in names.items()
        if spot.limit(name) is not None
    ]
    pattern, shortest = spot.limit("pattern"), spot.limit("min_length")
    longest, multiple = spot.limit("max_length"), spot.limit("multiple_of")
    if pattern is not None:
        parts.append(f"that matches {getattr(pattern, 'pattern', pattern)}")
    if shortest is not None:
        parts.append(f"of at least {shortest} character{'s' if shortest > 1 else ''}")
    if longest is not None:
        parts.append(f"of at most {longest} characters")
    if multiple is not None:
        parts.append(f"that is a multiple of {show(multiple)}")
    return f" {' and '.join(parts)}" if parts else ""


def show(value: Any) -> str:
    """Write a value as TOML does, cut to a length that fits a message."""
    text = _toml(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        # Python refuses to write a whole number of thousands of digits.
        return str(value) if value.bit_length() < 1000 else "a very long number"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{show_key(key)} = {_toml(one)}" for key, one in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_toml(one) for one in value)}]"
    if value is None:
        return "nothing"
    return str(value)


def show_key(key: Any) -> str:
    """Write a key as TOML does: bare where that is allowed, quoted otherwise."""
    return str(key) if BARE_KEY.fullmatch(str(key)) else json.dumps(str(key), ensure_ascii=False)


def show_given(value: Any) -> str:
    """Write a value with its kind, where the kind is not plain to see."""
    kinds: dict[type, str] = {str: "the string ", dict: "the table ", list: "the list "}
    return f"{kinds.get(type(value), '')}{show(value)}"


def join_path(prefix: str, steps: Iterable[str | int]) -> str:
    """Write a place in a file: ``join_path("module[2]", ["options", "a"])``."""
    path = prefix
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{show_key(step)}" if path else show_key(step)
    return path


def example(spot: Spot, given: Any) -> str | None:
    """Say what could be written instead of a value that does not fit.

    The value itself in another spelling is best (``"2"`` becomes ``2``), then an example that
    the field's author gave, then any value of the type.
    """
    candidates = [*_respelt(given), *spot.examples, *_samples(spot)]
    fitting = (show(one) for one in candidates if _fits(spot, one))
    return next(fitting, None)


def _respelt(value: Any) -> list[Any]:
    if isinstance(value, str):
        text = value.strip()
        spelt: list[Any] = [text.lower() == "true"] if text.lower() in ("true", "false") else []
        for kind in (int, float):
            try:
                spelt.append(kind(text))
            except ValueError:
                continue
        return [*spelt, text, text.lower(), [value]]
    if isinstance(value, float) and value.is_integer():
        return [int(value), [value]]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return [[value], str(value)]
    return []


def _samples(spot: Spot) -> list[Any]:
    if spot.branches:
        return [one for branch in spot.branches for one in _samples(Spot(branch))]
    if spot.origin is Literal:
        return list(get_args(spot.type))
    if spot.is_a(enum.Enum):
        return [member.value for member in spot.type]
    if spot.is_list:
        return [[one] for one in _samples(item_of(spot, 0))]
    if spot.is_a(bool):
        return [True]
    if spot.is_a(int, float):
        limits = [spot.limit(name) for name in ("ge", "gt", "le", "lt")]
        numbers = [limit for limit in limits if isinstance(limit, (int, float))]
        return [2, 1, 0.5, 0.1, *numbers, *(limit + 1 for limit in numbers), -1]
    if spot.is_a(str):
        return ["text", "name"]
    return []


def _fits(spot: Spot, value: Any) -> bool:
    kind: Any = spot.type
    for one in spot.metadata:
        kind = Annotated[kind, one]
    try:
        # As JSON, a strict tuple may be written as a list: the manners of TOML.
        TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except Exception:  # a validator of the user may raise anything; then it is no example
        return False
    return True
