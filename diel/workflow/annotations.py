"""Describe what a field's annotation accepts, in words and by an example, as TOML writes it."""

from __future__ import annotations

import enum
import json
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, GetCoreSchemaHandler, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticKnownError, core_schema

from diel.frozen import Frozen
from diel.text import show


class InWords(Frozen):
    """Metadata of an ``Annotated`` type that says in plain words what the type accepts."""

    words: str


class OneOf(Frozen):
    """Metadata of an ``Annotated`` string: it is one of the names that a function returns.

    The function is called when a value is checked, or its choices are shown, so what has the names
    need not be imported before that: ``Annotated[str, OneOf(lambda: SOLVERS)]``.
    """

    names: Callable[[], Iterable[str]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: str) -> str:
        names = [*self.names()]
        if value in names:
            return value
        *others, last = map(repr, names)
        expected = f"{', '.join(others)} or {last}" if others else last
        raise PydanticKnownError("literal_error", {"expected": expected})


@dataclass(frozen=True)
class FieldType:
    """The type of a field or of an item in it, split into the bare type and its metadata.

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

    @classmethod
    def of(cls, info: FieldInfo) -> FieldType:
        """Return the type of a model's field."""
        return cls(info.annotation, tuple(info.metadata), tuple(info.examples or ()))

    @property
    def origin(self) -> Any:
        """``list`` for ``list[int]``, the type itself if it takes no arguments."""
        return get_origin(self.type) or self.type

    @property
    def branches(self) -> tuple[Any, ...]:
        """The alternatives of a union, without None; empty for other types."""
        return _branches(self.type) if _is_union(self.type) else ()

    @property
    def choices(self) -> tuple[Any, ...]:
        """All values of a ``Literal``, an enumeration or a `OneOf`; empty for other types."""
        if self.origin is Literal:
            return get_args(self.type)
        if self.is_a(enum.Enum):
            return tuple(member.value for member in self.type)
        return tuple(
            name for each in self.metadata if isinstance(each, OneOf) for name in each.names()
        )

    @property
    def model(self) -> type[BaseModel] | None:
        """The type itself if it is a pydantic model, else None."""
        return self.type if self.is_a(BaseModel) else None

    @property
    def is_list(self) -> bool:
        """Whether TOML writes values of this type as lists."""
        return not self.is_a(str, bytes) and self.is_a(Sequence, AbstractSet)

    @property
    def is_table(self) -> bool:
        """Whether TOML writes values of this type as tables."""
        return self.is_a(Mapping, BaseModel)

    def is_a(self, *kinds: type) -> bool:
        """Whether the type is one of these classes or derives from one of them."""
        return isinstance(self.origin, type) and issubclass(self.origin, kinds)

    def limit(self, name: str) -> Any:
        """Return the value of a constraint such as ``ge`` or ``min_length``, None without it."""
        found = [getattr(constraint, name, None) for constraint in self.metadata]
        return next((limit for limit in found if limit is not None), None)


def _flat(metadata: Iterable[Any]) -> Iterable[Any]:
    for constraint in metadata:
        if isinstance(constraint, FieldInfo):
            yield from constraint.metadata
        else:
            yield constraint


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def _branches(union: Any) -> tuple[Any, ...]:
    return tuple(branch for branch in get_args(union) if branch is not type(None))


def describe(field_type: FieldType) -> str | None:
    """Say what a type accepts, such as ``a whole number of at least 1 or "fill"``.

    Returns
    -------
    str or None
        None for a type that this module has no words for.
    """
    words = [
        constraint.words for constraint in field_type.metadata if isinstance(constraint, InWords)
    ]
    if words:
        return words[0]
    if field_type.branches:
        parts = [describe(FieldType(branch)) for branch in field_type.branches]
        return " or ".join(part for part in parts if part) if all(parts) else None
    if field_type.choices:
        return " or ".join(map(show, field_type.choices))
    if field_type.is_list:
        return _describe_list(field_type)
    if field_type.is_table:
        return "a table"
    for kind, noun in _NOUNS.items():
        if field_type.is_a(kind):
            return f"{noun}{_bounds(field_type)}"
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


def _describe_list(field_type: FieldType) -> str:
    shortest, longest = field_type.limit("min_length"), field_type.limit("max_length")
    head = "a non-empty list" if shortest == 1 else "a list"
    if shortest is not None and shortest > 1:
        head += f" of at least {shortest}"
    if longest is not None:
        head += f" of at most {longest}"
    item = item_of(field_type, 0)
    plural = next((words for kind, words in _PLURALS.items() if item.type is kind), None)
    if plural and all(isinstance(constraint, AfterValidator) for constraint in item.metadata):
        return f"{head} of {plural}"
    words = describe(item)
    return f"{head}, each item {words}" if words else head


def item_of(field_type: FieldType, index: int) -> FieldType:
    """Return the type of one item of a list or tuple; unknown if the type does not say."""
    arguments = get_args(field_type.type)
    if field_type.origin is tuple and arguments[-1:] != (...,):
        return FieldType(arguments[index] if index < len(arguments) else None)
    return FieldType(arguments[0] if arguments else None)


def _bounds(field_type: FieldType) -> str:
    names = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
    parts = [
        f"{words} {show(field_type.limit(name))}"
        for name, words in names.items()
        if field_type.limit(name) is not None
    ]
    pattern, shortest = field_type.limit("pattern"), field_type.limit("min_length")
    longest, multiple = field_type.limit("max_length"), field_type.limit("multiple_of")
    if pattern is not None:
        parts.append(f"that matches {getattr(pattern, 'pattern', pattern)}")
    if shortest is not None:
        parts.append(f"of at least {shortest} character{'s' if shortest > 1 else ''}")
    if longest is not None:
        parts.append(f"of at most {longest} characters")
    if multiple is not None:
        parts.append(f"that is a multiple of {show(multiple)}")
    return f" {' and '.join(parts)}" if parts else ""


def example(field_type: FieldType, given: Any) -> str | None:
    """Return a valid value, as TOML writes it, to suggest instead of a value that is not.

    The value itself in another spelling is best (``"2"`` becomes ``2``), then an example that
    the field's author gave, then any value of the type.
    """
    candidates = [*_respelt(given), *field_type.examples, *_samples(field_type)]
    fitting = (show(candidate) for candidate in candidates if _fits(field_type, candidate))
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


def _samples(field_type: FieldType) -> list[Any]:
    if field_type.branches:
        return [sample for branch in field_type.branches for sample in _samples(FieldType(branch))]
    if field_type.choices:
        return [*field_type.choices]
    if field_type.is_list:
        return [[sample] for sample in _samples(item_of(field_type, 0))]
    if field_type.is_a(bool):
        return [True]
    if field_type.is_a(int, float):
        limits = [field_type.limit(name) for name in ("ge", "gt", "le", "lt")]
        numbers = [limit for limit in limits if isinstance(limit, (int, float))]
        return [2, 1, 0.5, 0.1, *numbers, *(limit + 1 for limit in numbers), -1]
    if field_type.is_a(str):
        return ["text", "name"]
    return []


def _fits(field_type: FieldType, value: Any) -> bool:
    kind: Any = field_type.type
    for constraint in field_type.metadata:
        kind = Annotated[kind, constraint]
    try:
        # In JSON a strict tuple may be given as a list, as in TOML.
        TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except Exception:  # a validator of the user may raise anything; then it is no example
        return False
    return True
