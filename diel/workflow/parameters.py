"""Parameters of a workflow file, and settings that a command line gives to a run.

::

    [parameters]
    dt = 0.1                                          --set dt=0.05
    cells = { default = 64, from = 8, to = 4096 }     --set cells=128
                                                      --set module.solver.options.cells=128

A text that is ``${dt}`` stands for the value of the parameter, and a longer one, such as
``--dt=${dt}``, has the value in its place; ``$${`` stands for ``${``. In a file without the table
[parameters] these are letters like any other.

Settings are texts ``KEY=VALUE``. A key is the name of a parameter, or leads to any other value:
a table, the entry's name where there are several, and its keys. They are applied to the document
that was read, and never to the file.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from diel.errors import Problem
from diel.text import as_toml, did_you_mean, from_toml, join_path, show, show_with_type
from diel.workflow.annotations import InWords
from diel.workflow.fields import StrictTable
from diel.workflow.problems import problems_from_validation
from diel.workflow.references import tables_in

TABLE: Final = "parameters"

Number: TypeAlias = Annotated[float | int, InWords("a number")]
Scalar: TypeAlias = Annotated[bool | int | float | str, InWords("a string, number, true or false")]
Value: TypeAlias = Annotated[
    bool | int | float | str | list[Scalar], InWords("a string, number, true, false or a list")
]

_WORDS: Final = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a string",
    "boolean": "true or false",
    "list": "a list",
}
_EXAMPLES: Final = {
    "integer": "64",
    "number": "0.1",
    "string": "fast",
    "boolean": "true",
    "list": "[1, 2]",
}
_ENTRIES: Final = ("module", "group", "boundary")
_SETTABLE: Final = ("workflow", "tuple_space", *_ENTRIES)
NAME: Final = re.compile(r"[^\W\d][\w-]*")
_REFERENCE: Final = re.compile(r"(\$?)\$\{([^{}]*)(\}?)")
_STEP: Final = re.compile(r'\[(\d+)\]|([^\s."\[\]]+)|"((?:[^"\\]|\\.)*)"')
# Keys of a module whose texts may have {placeholders}; what stands in for a parameter has none.
_WITH_PLACEHOLDERS: Final = (
    *("executable", "launcher", "directory", "environment", "stdin", "inputs", "outputs"),
)


class Parameter(StrictTable):
    """A value that --set NAME=VALUE gives to a run; `NAME = 0.1` says the default alone."""

    default: Value | None = Field(
        default=None,
        description="Its value where a run is given none; without it each run has to be given one.",
        examples=[0.1],
    )
    type: Literal["integer", "number", "string", "boolean", "list"] | None = Field(
        default=None,
        description="What its values are; what the default is, where that is given.",
        examples=["number"],
    )
    low: Number | None = Field(
        default=None, alias="from", description="The least value, of a number.", examples=[0.01]
    )
    high: Number | None = Field(
        default=None, alias="to", description="The largest value, of a number.", examples=[1.0]
    )
    choices: tuple[Scalar, ...] = Field(
        default=(),
        strict=False,
        min_length=1,
        description="The values that it may have.",
        examples=[["dam", "tank"]],
    )
    text: str = Field(
        default="",
        description="What it is, in words, with its unit.",
        examples=["time step, in s"],
    )

    @model_validator(mode="after")
    def _check_agreement(self) -> Parameter:
        if self.default is None and self.type is None and not self.choices:
            raise _wrong("says neither default nor type", 'add default = 0.1, or type = "number"')
        kind = self.kind
        if (self.low is not None or self.high is not None) and kind not in ("integer", "number"):
            raise _wrong(f"{_WORDS[kind]} has no from and to", "write choices = [...]")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise _wrong(f"from {self.low} to {self.high} there is nothing", "swap them")
        for choice in self.choices:
            if not _is_a(kind, choice):
                raise _wrong(f"expected {_WORDS[kind]} as a choice, got {show_with_type(choice)}")
        if self.default is not None and (reason := self.refusal(self.default)):
            raise _wrong(f"default: {reason}")
        return self

    @property
    def kind(self) -> str:
        """The type of its values, as ``type`` names it."""
        if self.type is not None:
            return self.type
        given = self.default if self.default is not None else self.choices[0]
        return next(kind for kind in _KINDS if _is_a(kind, given))

    def refusal(self, value: Any) -> str:
        """Return why it cannot have a value; empty if it can."""
        if not _is_a(self.kind, value):
            return f"expected {_WORDS[self.kind]}, got {show_with_type(value)}"
        if self.choices and value not in self.choices:
            return f"{show(value)} is none of {', '.join(map(show, self.choices))}"
        if self.low is not None and value < self.low:
            return f"{value} is below {self.low}"
        if self.high is not None and value > self.high:
            return f"{value} is above {self.high}"
        return ""

    def value_of(self, text: str) -> Any:
        """Return the value that a text on a command line stands for."""
        if self.kind == "string":
            return text
        value = from_toml(text)
        if self.kind == "number" and isinstance(value, str):
            try:  # .5 and 1e5 are numbers, too
                value = float(text)
            except ValueError:
                return text
        return value


_KINDS: Final = ("boolean", "integer", "number", "string", "list")


def _is_a(kind: str, value: Any) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "number":
        return isinstance(value, int | float) and math.isfinite(value)
    types: dict[str, type] = {"integer": int, "string": str, "list": list}
    return kind in types and isinstance(value, types[kind])


def _wrong(message: str, remedy: str = "") -> PydanticCustomError:
    return PydanticCustomError("parameter", "{message}", {"message": message, "remedy": remedy})


def read_parameters(
    document: dict[str, Any], settings: Sequence[str] = ()
) -> tuple[dict[str, Parameter], dict[str, Any], list[Problem]]:
    """Apply settings to a document, and return its parameters; `fill` puts their values into it.

    Parameters
    ----------
    document : dict
        As TOML reads a workflow file; it is changed.
    settings : sequence of str, optional
        Texts ``KEY=VALUE``; of several for one key the last one counts.

    Returns
    -------
    dict of str to Parameter
        Those that are valid.
    dict of str to value
        The values of parameters, as far as they are known.
    list of Problem
    """
    problems: list[Problem] = []
    declared: dict[str, Parameter] = {}
    table = document.get(TABLE, {})
    if not isinstance(table, dict):
        wrong = Problem(
            TABLE, f"expected a table, got {show_with_type(table)}", "write [parameters]"
        )
        return {}, {}, [wrong]
    for name, entry in table.items():
        found, wrong_here = _declared(name, entry)
        problems += wrong_here
        if found is not None:
            declared[name] = found
    values = {name: each.default for name, each in declared.items() if each.default is not None}
    for setting in settings:
        problems += _apply(setting, document, declared, values)
    for name, each in declared.items():
        if each.default is None and name not in values and not problems:
            example = as_text(each.choices[0]) if each.choices else _EXAMPLES[each.kind]
            remedy = f"say --set {name}={example}, or give it a default"
            problems.append(Problem(join_path(TABLE, [name]), "has no value", remedy))
    if TABLE in document and not problems:
        used = {*names_in_references([value for key, value in document.items() if key != TABLE])}
        for _, group in tables_in(document, "group"):
            used.update(re.findall(r"[^\W\d]\w*", str(group.get("when", ""))))
        for name in declared.keys() - used:
            remedy = f'write "${{{name}}}" where its value is to stand, or remove it'
            problems.append(Problem(join_path(TABLE, [name]), "is used nowhere", remedy))
    return declared, {name: values[name] for name in declared if name in values}, problems


def _declared(name: str, entry: Any) -> tuple[Parameter | None, list[Problem]]:
    path = join_path(TABLE, [name])
    if not NAME.fullmatch(name):
        words = 'a name has letters, digits, "_" and "-", a letter first'
        return None, [Problem(path, f"{show(name)} is no name of a parameter", words)]
    table = entry if isinstance(entry, dict) else {"default": entry}
    try:
        return Parameter.model_validate(table), []
    except ValidationError as error:
        return None, problems_from_validation(error, Parameter, path)


def _apply(
    setting: str,
    document: dict[str, Any],
    declared: Mapping[str, Parameter],
    values: dict[str, Any],
) -> list[Problem]:
    """Apply one setting to a document, or to the values of parameters."""
    said = f"--set {setting}"
    key, equals, text = setting.partition("=")
    key = key.strip()
    if not equals or not key:
        remedy = "write --set NAME=VALUE"
        return [Problem("", f"{said}: it has no {'name' if equals else 'value'}", remedy)]
    name = key.removeprefix(f"{TABLE}.")
    if name in declared:
        value = declared[name].value_of(text)
        if reason := declared[name].refusal(value):
            remedy = ""
            if declared[name].kind == "integer" and isinstance(value, float):
                remedy = 'for any number, let the parameter have type = "number"'
            return [Problem(join_path(TABLE, [name]), f"{said}: {reason}", remedy)]
        values[name] = value
        return []
    if name in document.get(TABLE, {}):
        return []  # what is wrong with it is said there
    found = [bare or quoted or int(index) for index, bare, quoted in _STEP.findall(key)]
    if _STEP.sub("", key).strip("."):
        return [Problem("", f"{said}: {show(key)} is no key", "write keys with dots between")]
    if len(found) < 2:
        near = did_you_mean(key, [*declared, *document])
        known = f"there are {', '.join(declared)}" if declared else "the file has no [parameters]"
        hint = f'did you mean "{near}"?' if near else known
        return [Problem("", f"{said}: there is no parameter {show(key)}", hint)]
    if found[0] not in _SETTABLE:
        near = did_you_mean(str(found[0]), _SETTABLE)
        hint = f'did you mean "{near}"?' if near else f"known tables: {', '.join(_SETTABLE)}"
        return [Problem("", f"{said}: there is no table {show(found[0])}", hint)]
    try:
        value = from_toml(text)
        if found[0] == "group" and found[-1] == "when" and not isinstance(value, str):
            value = text  # an expression that is a value, too, such as false
        _put(document, found, value)
    except LookupError as error:
        message, remedy = error.args
        return [Problem("", f"{said}: {message}", remedy)]
    return []


def _put(document: dict[str, Any], steps: Sequence[str | int], value: Any) -> None:
    """Set a value of a document; a LookupError with message and remedy if it has no place."""
    inside: Any = document
    rest = list(steps)
    if rest[0] in _ENTRIES:
        kind, name = str(rest.pop(0)), rest.pop(0)
        entries = {entry.get("name"): entry for _, entry in tables_in(document, kind)}
        if name not in entries:
            known = [str(each) for each in entries]
            near = did_you_mean(str(name), known)
            hint = f'did you mean "{near}"?' if near else f"there are {', '.join(known) or 'none'}"
            raise LookupError(f"there is no {kind} {show(name)}", hint)
        inside = entries[name]
        if not rest:
            raise LookupError(
                f"{kind} {show(name)} is a table, not a value", "name one of its keys"
            )
    for step in rest[:-1]:
        if isinstance(inside, list) and isinstance(step, int) and step < len(inside):
            inside = inside[step]
        elif isinstance(inside, dict) and isinstance(step, str):
            inside = inside.setdefault(step, {})
        else:
            break
    last = rest[-1]
    is_key = isinstance(inside, dict) and isinstance(last, str)
    is_item = isinstance(inside, list) and isinstance(last, int) and last < len(inside)
    if not is_key and not is_item:
        raise LookupError(f"there is no {join_path('', rest)} to be set", "look at the file's keys")
    inside[last] = value


def fill(
    value: Any,
    steps: Sequence[str | int],
    values: Mapping[str, Any],
    problems: list[Problem],
    texts: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """Return a part of a document with values where ``${name}`` stands.

    Parameters
    ----------
    value : object
    steps : sequence of str or int
        Its place in the document.
    values : mapping of str to value
    problems : list of Problem
        What is wrong is added to it.
    texts : mapping of str to str, optional
        How values are written in longer texts, where not as `as_text` writes them.
    """
    if isinstance(value, dict):
        return {k: fill(item, [*steps, k], values, problems, texts) for k, item in value.items()}
    if isinstance(value, list):
        return [fill(item, [*steps, i], values, problems, texts) for i, item in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    is_filled_later = steps[0] == "module" and len(steps) > 2 and steps[2] in _WITH_PLACEHOLDERS
    is_expression = steps[0] == "group" and list(steps[2:]) == ["when"]
    whole = None if is_expression else _REFERENCE.fullmatch(value)
    if whole and not whole[1] and whole[3] and whole[2] in values and not is_filled_later:
        return copy.deepcopy(values[whole[2]])
    wrong: list[Problem] = []

    def replacement(found: re.Match[str]) -> str:
        is_kept, name, end = found.groups()
        if is_kept:
            text = f"${{{name}{end}"
            return _doubled(text) if is_filled_later else text
        if not end:
            remedy = "close it with }, or write $${ for the letters themselves"
            wrong.append(Problem(join_path("", steps), f"{found[0]} has no end", remedy))
            return ""
        if name not in values:
            near = did_you_mean(name, values)
            hint = f'did you mean "${{{near}}}"?' if near else f"there are {', '.join(values)}"
            hint += "; for the letters themselves, write $${"
            wrong.append(Problem(join_path("", steps), f"{found[0]} is no parameter", hint))
            return ""
        if isinstance(values[name], list):
            message = f"{found[0]} is a list, and does not fit into a text"
            wrong.append(
                Problem(join_path("", steps), message, "let it stand alone, where a list may")
            )
            return ""
        text = texts.get(name) or as_text(values[name])
        return _doubled(text) if is_filled_later else text

    filled = _REFERENCE.sub(replacement, value)
    problems += wrong
    return value if wrong else filled


def setting_of(name: str, value: Any) -> str:
    """Return the setting ``NAME=VALUE`` that gives a parameter, or another key, a value."""
    is_own_text = isinstance(value, str) and "." not in name
    return f"{name}={value if is_own_text else as_toml(value)}"


def as_text(value: Any) -> str:
    """Return a value of a parameter as it stands in a longer text."""
    return value if isinstance(value, str) else show(value)


def _doubled(text: str) -> str:
    """Return a text without placeholders as it stands where placeholders are filled in."""
    return text.replace("{", "{{").replace("}", "}}")


def names_in_references(value: Any) -> Iterator[str]:
    """Yield the names in the references ``${name}`` of a part of a document."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from names_in_references(item)
    elif isinstance(value, str) and "${" in value:
        yield from (name for is_kept, name, _ in _REFERENCE.findall(value) if not is_kept)
