"""Form fields of a model's keys, and the conversion of values to the texts in fields and back.

::

    fields_of(model)         a FormField for each key that the model knows
    typed(field, text)       a typed text, as a value of the file
    shown(field, value)      a value of the file, as the text in its field

    parameter_of(value)      an entry of a search space as a Parameter: its kind, and a text for
    value_of(parameter)      each of its numbers; and back

An author of ``Options`` may describe a field further in ``json_schema_extra``: ``{"form":
"module"}``, the name of a module of the file; ``{"form": "space"}``, a search space, a table of
parameters; ``{"form": "value"}``, one value, or a list in brackets; ``{"form": "command"}``, words
as a shell reads them; ``{"suggestions": [...]}``, common values, for a space a table of common
parameters and their first values; ``{"notes": {...}}``, what these parameters are;
``{"is_first": True}``, shown above the other fields; ``{"unit": "ranks"}``. It may be a function
that enters these into a dictionary, which is called when the form is shown.
"""

from __future__ import annotations

import csv
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, cast, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from diel.errors import EditRefused
from diel.frozen import Frozen
from diel.text import as_toml
from diel.workflow.annotations import FieldType, describe, item_of
from diel.workflow.problems import keys_of
from diel.workflow.schema import default_of, extra_of, unit_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Kind = Literal[
    "text", "value", "switch", "choice", "names", "table", "space", "module", "variant", "tables"
]


class FormField(Frozen):
    """The field of a form for one key of a table.

    Attributes
    ----------
    path : tuple of str
        The keys that lead from the table to this key.
    kind : str
        ``text``: a string; ``value``: anything that TOML can write; ``switch``; ``choice`` of
        `choices`; ``names``: several words; ``table``: a heading of the fields that follow;
        ``space`` and ``module``: see the file's docstring; ``variant``: a table whose keys depend
        on its kind, or that kind alone, one of `choices`; ``tables``: a list of such tables.
    help : str
        The author's description of the key.
    accepts : str
        The values that are valid, in words.
    unit : str
        Empty if it has none.
    default : str
        As TOML writes it; empty if there is none.
    choices : tuple of str
        For ``choice`` all values; for other kinds common values.
    is_required : bool
    is_first : bool
        Whether the field is shown above other fields.
    starts : mapping of str to any
        For ``space`` the first values of the parameters among `choices`.
    notes : mapping of str to str
        For ``space`` what parameters are.
    holds : tuple of str
        Which of ``text``, ``list`` and ``table`` a value may be, for values that are typed.
    group : str
        What it is folded under, as long as the file does not have it.
    """

    path: tuple[str, ...]
    kind: Kind
    help: str
    accepts: str
    unit: str
    default: str
    choices: tuple[str, ...]
    is_required: bool
    is_first: bool = False
    starts: Mapping[str, Any] = {}
    notes: Mapping[str, str] = {}
    holds: tuple[str, ...] = ()
    group: str = ""

    @property
    def label(self) -> str:
        """The keys, joined by dots."""
        return ".".join(self.path)


class Variants(Frozen):
    """The kinds of a table whose other keys depend on one key, as a layer's on its type.

    Attributes
    ----------
    key : str
        The key that decides, such as ``type``.
    fields : mapping of str to list of FormField
        The other keys, for each value of that key.
    """

    key: str
    fields: Mapping[str, list[FormField]]


def kind_of(key: str, value: Any) -> str | None:
    """Return the kind of a table, such as the type of a layer; None if it has none.

    Parameters
    ----------
    key : str
        The key of the table that has its kind.
    value : Any
        The table, or a text that is the kind alone.
    """
    kind = value.get(key) if isinstance(value, dict) else value
    return kind if isinstance(kind, str) else None


def fields_of(
    model: type[BaseModel], without: tuple[str, ...] = (), above: tuple[str, ...] = ()
) -> Iterator[FormField]:
    """Yield the fields of a model's keys, in order, with those of the tables inside it."""
    for name, info in keys_of(model).items():
        field_type = FieldType.of(info)
        has_one_value = field_type.origin is Literal and len(get_args(field_type.type)) == 1
        if name in without or has_one_value:
            continue
        found = _field((*above, name), info, field_type)
        yield found
        if found.kind == "table" and field_type.model is not None:
            yield from fields_of(field_type.model, above=(*above, name))


def _field(path: tuple[str, ...], info: FieldInfo, field_type: FieldType) -> FormField:
    extra = extra_of(info)
    suggestions = extra.get("suggestions")
    choices = (
        tuple(str(each) for each in suggestions) if isinstance(suggestions, (list, dict)) else ()
    )
    kind: Kind = "value"
    if extra.get("form") in ("space", "module", "value"):
        kind = cast("Kind", extra["form"])
    elif field_type.model is not None:
        kind = "table"
    elif field_type.choices and all(isinstance(word, str) for word in field_type.choices):
        kind, choices = "choice", field_type.choices
    elif field_type.type is bool:
        kind = "switch"
    elif field_type.type is str:
        kind = "text"
    elif field_type.is_list and item_of(field_type, 0).type is str:
        kind = "names"
    unit = unit_of(info)
    default = default_of(info)
    return FormField(
        path,
        kind,
        info.description or "",
        describe(field_type) or "",
        "" if unit == "none" else unit,
        default,
        choices,
        info.is_required(),
        info.is_required() or extra.get("is_first") is True,
        suggestions if isinstance(suggestions, dict) else {},
        extra.get("notes", {}),
        () if "form" in extra else _held(field_type),
    )


def _held(field_type: FieldType) -> tuple[str, ...]:
    """Return which of a text, a list and a table a type has values of."""
    found = []
    for branch in map(FieldType, field_type.branches or (field_type.type,)):
        if branch.is_list or branch.is_table:
            found.append("list" if branch.is_list else "table")
        elif branch.is_a(str) or any(isinstance(each, str) for each in branch.choices):
            found.append("text")
    return tuple(found)


def typed(field: FormField, text: str) -> Any:
    """Convert the text in a field to a value of the file; None if the key is to be left out.

    A text that TOML cannot read is a string, or several words: ``fill`` and ``2 GiB`` need no
    quotes. Where a key takes them, ``a, b`` is a list, and ``a = 1, b = 2`` a table.
    """
    if not text.strip():
        return None
    if field.kind in ("text", "choice", "module", "variant"):
        return text
    value = typed_value(text)
    if isinstance(value, str) and value == text.strip():
        if "table" in field.holds and (table := _pairs(value)):
            return table
        is_list = "," in value or (field.kind != "names" and "text" not in field.holds)
        if "list" in field.holds and is_list:
            return _between_commas(value, field.kind == "names")
    if field.kind != "names" or isinstance(value, list):
        return value
    words = value if isinstance(value, str) else text  # such as true, a program here
    try:
        return shlex.split(words)
    except ValueError:  # a quote that is not closed
        return [words]


def _pairs(text: str) -> dict[str, Any] | None:
    """Return the table in a text without braces; None if that is not a table."""
    try:
        return dict(tomllib.loads(f"v = {{{text}}}")["v"]) if "\n" not in text else None
    except ValueError:
        pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    if not all(name.strip() and sign and value.strip() for name, sign, value in pairs):
        return None
    return {name.strip().strip("\"'"): typed_value(value) for name, _, value in pairs}


def _between_commas(text: str, are_texts: bool) -> list[Any]:
    """Return the values between the commas of a text, which need no quotes."""
    if are_texts:
        (words,) = csv.reader([text], skipinitialspace=True)
        return [word.strip() for word in words if word.strip()]
    try:
        return _items(text)
    except EditRefused:  # quotes or brackets that do not fit
        return [text]


def typed_value(text: str) -> Any:
    """Return the value that TOML reads from a text, or else the text itself."""
    text = text.strip()
    try:
        found = tomllib.loads(f"v = {text}") if "\n" not in text else {}
    except ValueError:
        found = {}
    value = found.get("v") if len(found) == 1 else None
    return value if isinstance(value, (bool, int, float, str, list, dict)) else text


def shown(field: FormField, value: Any) -> str:
    """Convert a value of the file to the text in its field; `typed` reverses it."""
    if value is None:
        return ""
    if isinstance(value, str) and typed(field, value) == value:
        return value
    if field.kind == "names" and isinstance(value, list) and all(isinstance(n, str) for n in value):
        words = ", ".join(value) if "list" in field.holds else shlex.join(value)
        if typed(field, words) == value:
            return words
    return as_toml(value)


def safe(text: str) -> str:
    """Return a text without characters that would end a quoted property of an element."""
    return "".join(sign for sign in text if sign not in '"\\' and sign >= " ")


# -- parameters of a search space -----------------------------------------------------------------

PARAMETER_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "choices": ("values",),
    "one value": ("value",),
    "range": ("from", "to"),
    "log range": ("from", "to"),
    "steps": ("from", "to", "step"),
    "log steps": ("from", "to", "log_steps"),
    "as written": ("text",),
}
"""The kinds of a parameter, each with the keys that describe it."""

_LOG: Final = "log"
_WORD: Final = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)


class Parameter(Frozen):
    """A parameter of a search space, as a form shows it.

    Attributes
    ----------
    kind : str
        One of `PARAMETER_KINDS`.
    texts : mapping of str to str
        The texts in its fields, by the keys of its kind.
    condition : str
        Its ``if``, as TOML writes it; empty if it has none.
    """

    kind: str
    texts: Mapping[str, str]
    condition: str = ""


def parameter_of(value: Any) -> Parameter:
    """Convert an entry of a search space to a `Parameter`."""
    if isinstance(value, list):
        return Parameter("choices", {"values": _listed(value)})
    if not isinstance(value, dict):
        return Parameter("one value", {"value": _value_text(value)})
    rest = {key: item for key, item in value.items() if key != "if"}
    condition = as_toml(value["if"]) if "if" in value else ""
    scale = rest.pop("scale", None)
    for kind, keys in PARAMETER_KINDS.items():
        if set(keys) == set(rest) and scale == (_LOG if kind == "log range" else None):
            return Parameter(kind, {key: as_toml(rest[key]) for key in keys}, condition)
    if set(rest) == {"choices"} and isinstance(rest["choices"], list) and scale is None:
        texts = {"values": _listed(rest["choices"])}
        return Parameter("choices", texts, condition)
    return Parameter("as written", {"text": as_toml(value)})


def _value_text(value: Any) -> str:
    is_plain = isinstance(value, str) and value and typed_value(value) == value
    return str(value) if is_plain else as_toml(value)


def _listed(values: list[Any]) -> str:
    """Join values by commas, without quotes if all of them are plain words."""
    if all(isinstance(value, str) and _WORD.fullmatch(value) for value in values) and all(
        typed_value(value) == value for value in values
    ):
        return ", ".join(values)
    return ", ".join(map(as_toml, values))


def value_of(parameter: Parameter) -> Any:
    """Convert a `Parameter` to an entry of a search space.

    Raises
    ------
    EditRefused
        If one of its texts is missing, or a list cannot be read.
    """
    keys = PARAMETER_KINDS[parameter.kind]
    missing = [key for key in keys if not parameter.texts.get(key, "").strip()]
    if missing:
        raise EditRefused(f"{' and '.join(missing)} missing", "say what the parameter may be")
    texts = {key: parameter.texts[key] for key in keys}
    if parameter.kind == "choices":
        values = _items(texts["values"])
        value: Any = {"choices": values} if parameter.condition else values
    elif parameter.kind in ("one value", "as written"):
        value = typed_value(next(iter(texts.values())))
        if parameter.kind == "one value" and isinstance(value, list):
            value = [value]  # a list alone would be choices
        if parameter.condition and parameter.kind == "one value":
            value = {"value": value}
    else:
        value = {key: typed_value(text) for key, text in texts.items()}
        if parameter.kind == "log range":
            value["scale"] = _LOG
    if parameter.condition and isinstance(value, dict):
        value["if"] = typed_value(parameter.condition)
    return value


def _items(text: str) -> list[Any]:
    """Parse values between commas: TOML values, or words without quotes."""
    try:
        return list(tomllib.loads(f"v = [{text}]")["v"])
    except ValueError:
        if any(sign in text for sign in "[]{}\"'"):
            raise EditRefused(
                f"{text!r} is no list", 'write values with commas between them: 16, 32 or "a", "b"'
            ) from None
        return [typed_value(item) for item in text.split(",") if item.strip()]
