"""Tags and patterns of tuples as texts, ``job/3`` or ``job/*``: for shells and compiled modules."""

from __future__ import annotations

import json
import re
from typing import Final, TypeAlias

from diel.errors import TagError
from diel.run.json_values import parse_json

Fields: TypeAlias = "list[str | int | None]"
"""The fields of a tag or pattern; None stands for any."""

SPELLING: Final = """\
how a TAG is written:
  name             the tag "name"
  job/3/fine       the tag ("job", 3, "fine"): a whole number is an integer
  'job/*'          ("job", ANY), for get and read; quoted, since a shell expands the star
  '["a/b", "3"]'   exactly these fields, as a JSON list; null stands for ANY
"""
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)


def parse_tag(text: str) -> Fields:
    """Return the fields of a tag or pattern.

    A field is an integer only if it is written as Python writes one: ``007`` is a string.
    """
    if text.startswith("["):
        return _parse_list(text)
    fields = text.split("/")
    if not all(fields):
        raise TagError(f'"{text}": a field of a tag cannot be empty; for a slash in one: [...]')
    return [_field(field) for field in fields]


def spell_tag(fields: Fields) -> str:
    """Write a tag so that `parse_tag` reads it; as a JSON list only where it must be."""
    plain = "/".join("*" if field is None else str(field) for field in fields)
    is_readable = plain.isprintable() and not plain.startswith("[") and all(plain.split("/"))
    if is_readable and [_field(field) for field in plain.split("/")] == fields:
        return plain
    return json.dumps(fields)


def _field(text: str) -> str | int | None:
    if text == "*":
        return None
    return int(text) if _INTEGER.fullmatch(text) and len(text) < 1000 else text


def _parse_list(text: str) -> Fields:
    try:
        fields = parse_json(text.encode(errors="surrogatepass"))
    except ValueError:
        raise TagError(f"{text}: begins as a JSON list and is not one") from None
    for field in fields:
        if not (field is None or isinstance(field, str) or type(field) is int):
            raise TagError(f"{text}: {json.dumps(field)} is no string, integer or null")
    if not fields:
        raise TagError("[]: a tag needs at least one field")
    parsed: Fields = fields
    return parsed
