"""Encoding of tags and patterns as bytes, and matching of patterns.

A tag is a string, or a tuple of strings and integers; ``"a"`` and ``("a",)`` are the same tag.
A pattern may have `ANY` in place of a field. Each field becomes a type byte, a length and its
content, so that two tags are equal if and only if their bytes are, on every rank and in every run.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from diel.errors import TagError
from diel.tuples.protocol import LONGEST_KEY_BYTES


class _Any:
    """The type of `ANY`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ANY"

    def __reduce__(self) -> str:
        return "ANY"  # unpickles to the single object of the process


ANY: Final = _Any()
"""A field of a pattern that matches any single field of a tag."""

Field: TypeAlias = "str | int"
Tag: TypeAlias = "str | tuple[str | int, ...]"
Pattern: TypeAlias = "str | _Any | tuple[str | int | _Any, ...]"
Fields: TypeAlias = "tuple[bytes, ...]"
"""The encoded fields of a tag or pattern."""

_ALIKE: Final = 0.6
"""From this ratio of equal letters on, two tags count as alike."""
_STRING, _INTEGER, WILDCARD = b"s", b"i", b"*"


def encode_tag(tag: Tag) -> bytes:
    """Return the bytes of a tag; raise TagError if it is invalid."""
    key, wild = encode_pattern(tag)
    if wild:
        raise TagError(f"{format_tag(tag)}: ANY may stand in tget and tread, not in a tag to put")
    return key


def encode_pattern(pattern: Pattern) -> tuple[bytes, bool]:
    """Return the bytes of a pattern, and whether it has a wildcard; raise TagError if invalid."""
    if isinstance(pattern, tuple):
        fields = pattern
    elif isinstance(pattern, str) or pattern is ANY:
        fields = (pattern,)
    else:
        raise TagError(_not_a_tag(pattern, pattern))
    if not fields:
        raise TagError("a tag needs at least one field; got an empty tuple")
    key = b"".join([_encode_field(field, pattern) for field in fields])
    if len(key) > LONGEST_KEY_BYTES:
        raise TagError(f"a tag of {len(key):,} bytes: {LONGEST_KEY_BYTES:,} are the most")
    return key, ANY in fields


def _encode_field(field: object, pattern: object) -> bytes:
    if isinstance(field, str):
        if not field:
            raise TagError(f"{format_tag(pattern)}: a field of a tag cannot be an empty string")
        try:
            content = field.encode()
        except UnicodeEncodeError as error:
            raise TagError(f"{field!r}: not a valid Unicode string") from error
        return _STRING + len(content).to_bytes(4, "little") + content
    if field is ANY:
        return WILDCARD + b"\0\0\0\0"
    number = None if isinstance(field, bool) else _integer(field)
    if number is not None:
        content = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
        return _INTEGER + len(content).to_bytes(4, "little") + content
    raise TagError(_not_a_tag(pattern, field))


def _not_a_tag(pattern: object, field: object) -> str:
    return (
        f"{format_tag(pattern)}: a tag is a string or a tuple of strings and integers, "
        f"and {field!r} is a {type(field).__name__}"
    )


def _integer(field: object) -> int | None:
    try:
        return operator.index(field)  # type: ignore[arg-type]  # converts NumPy's integers too
    except TypeError:
        return None


def split_fields(key: bytes) -> Fields:
    """Split the bytes of a tag or pattern into its encoded fields."""
    fields = []
    start = 0
    while start < len(key):
        end = start + 5 + int.from_bytes(key[start + 1 : start + 5], "little")
        fields.append(key[start:end])
        start = end
    return tuple(fields)


def is_wildcard(field: bytes) -> bool:
    """Whether a field from `split_fields` is `ANY`."""
    return field[:1] == WILDCARD


def wildcard_fields(key: bytes) -> Fields | None:
    """Return the encoded fields of a pattern with wildcards; None if there is no wildcard."""
    if b"*" not in key:  # a quick test: a string may contain a star too
        return None
    fields = split_fields(key)
    return fields if any(map(is_wildcard, fields)) else None


def fields_match(pattern: Fields, fields: Fields) -> bool:
    """Whether a pattern matches a tag, both given as fields from `split_fields`."""
    return len(pattern) == len(fields) and all(
        wanted == field or is_wildcard(wanted)
        for wanted, field in zip(pattern, fields, strict=True)
    )


def decode_tag(key: bytes) -> Any:
    """Return the tag or pattern that bytes encode; a single string or `ANY` without a tuple."""
    fields = tuple(_decode_field(field) for field in split_fields(key))
    return fields[0] if len(fields) == 1 and not isinstance(fields[0], int) else fields


def _decode_field(field: bytes) -> str | int | _Any:
    if field[:1] == _STRING:
        return field[5:].decode()
    if field[:1] == _INTEGER:
        return int.from_bytes(field[5:], "little", signed=True)
    return ANY


def format_tag(tag: object) -> str:
    """Return a tag or pattern as it is written in Python."""
    return repr(tag)


def near_tags(pattern: object, tags: Iterable[object], most: int = 3) -> list[Any]:
    """Return the tags that somebody may have meant by a pattern that matches none; the best first.

    Those that differ in the type of fields alone (``"1"`` and ``1``) come first, then those with
    the same first field, then those that look alike.
    """
    import difflib  # seldom needed, and each rank would import it

    wanted = pattern if isinstance(pattern, tuple) else (pattern,)
    text = " ".join(map(str, wanted))
    scores: dict[Any, float] = {}
    for tag in tags:
        fields = tag if isinstance(tag, tuple) else (tag,)
        pairs = zip(wanted, fields, strict=False)
        if len(wanted) == len(fields) and all(a is ANY or str(a) == str(b) for a, b in pairs):
            scores[tag] = 3.0
            continue
        alike = difflib.SequenceMatcher(None, text, " ".join(map(str, fields)))
        ratio = alike.ratio() if alike.real_quick_ratio() >= _ALIKE else 0.0
        is_of_kind = wanted[0] is not ANY and wanted[0] == fields[0]
        if is_of_kind or ratio >= _ALIKE:
            scores[tag] = ratio + is_of_kind
    return sorted(scores, key=lambda tag: (-scores[tag], format_tag(tag)))[:most]
