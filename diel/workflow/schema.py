"""The JSON Schema of workflow files, and the page that documents each of their keys.

Both are derived from the models. They say what a table may hold; what involves several tables or
the disk is checked in `load` alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, get_args

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from diel.frozen import Frozen
from diel.text import show
from diel.workflow.annotations import FieldType, describe, item_of
from diel.workflow.fields import LONGEST_NAME, ONE_OF
from diel.workflow.load import TABLES
from diel.workflow.model import Workflow, WorkflowTable
from diel.workflow.parameters import Parameter
from diel.workflow.problems import keys_of


class TableModel(Frozen):
    """A table that a workflow file may have: its key, its model, and whether it may be repeated."""

    key: str
    model: type[BaseModel]
    is_list: bool  # whether it may stand there more than once: ``[[key]]``
    is_required: bool
    is_by_name: bool = False  # whether its keys are names that the user chooses, of such tables

    @property
    def place(self) -> str:
        """The path of a key's table."""
        return f"{self.key}.NAME" if self.is_by_name else self.key

    @property
    def header(self) -> str:
        """The line that begins the table in a file: ``[key]`` or ``[[key]]``."""
        return f"[[{self.key}]]" if self.is_list else f"[{self.key}]"


def tables() -> list[TableModel]:
    """Return all tables, in the order in which a file commonly has them.

    Notes
    -----
    ``[[group]]`` fills ``Workflow.groups``, ``[[boundary]]`` ``Workflow.boundaries``: the models
    are found there, so that a new table has to be named in one place only.
    """
    return [_table(key) for key in TABLES]


def _table(key: str) -> TableModel:
    if key == "workflow":
        return TableModel(key, WorkflowTable, is_list=False, is_required=False)
    for field in (key, f"{key}s", f"{key[:-1]}ies"):
        info = Workflow.model_fields.get(field)
        if info is None:
            continue
        field_type = FieldType.of(info)
        if field_type.is_table and field_type.model is None:  # names, each with such a table
            return TableModel(
                key, get_args(field_type.type)[1], False, info.is_required(), is_by_name=True
            )
        model = item_of(field_type, 0).model if field_type.is_list else field_type.model
        if model is not None:
            return TableModel(key, model, field_type.is_list, info.is_required())
    raise LookupError(f"no field of Workflow holds [[{key}]]")  # a test looks at every table


# Editors for TOML support this version best; nothing newer is used below.
DIALECT: Final = "http://json-schema.org/draft-07/schema#"


def workflow_schema() -> dict[str, Any]:
    """Return the JSON Schema of workflow files, as dicts and lists."""
    fields: dict[str, Any] = {table.key: _field(table) for table in tables()}
    file = create_model("WorkflowFile", __config__=ConfigDict(extra="forbid"), **fields)
    raw = file.model_json_schema(ref_template="#/definitions/{model}")
    definitions = raw.pop("$defs")
    for table in tables():
        keys = ONE_OF.get(table.key, ())
        if keys:
            one_of = [{"required": [key]} for key in keys if key in table.model.model_fields]
            definitions[table.model.__name__]["oneOf"] = one_of
    schema: dict[str, Any] = _tidied(raw | {"definitions": definitions})
    for name, table_schema in schema["definitions"].items():
        if name != Parameter.__name__:
            table_schema["properties"] = {
                key: _or_reference(node) for key, node in table_schema["properties"].items()
            }
    head = {
        "$schema": DIALECT,
        "title": "diel workflow",
        "description": "What diel run, diel check and diel graph take.",
    }
    return head | schema


def _field(table: TableModel) -> tuple[Any, Any]:
    kind: Any = list[table.model] if table.is_list else table.model  # type: ignore[name-defined]
    if table.is_by_name:  # the default alone may stand for the whole table
        default: Any = table.model.model_fields["default"].annotation
        kind = dict[str, table.model | default]  # type: ignore[name-defined]
    description = (table.model.__doc__ or "").partition("\n")[0]
    when_missing: Any = ... if table.is_required else None
    shortest = 1 if table.is_required else None
    return kind, Field(default=when_missing, description=description, min_length=shortest)


def _or_reference(node: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a key for which ``${name}`` may stand, too, as for each list in a table.

    Names and choices stay as they are, so that an editor says what is wrong with a value.
    """
    if "anyOf" in node:
        kinds = [_or_reference_inside(kind) for kind in node["anyOf"]]
        return {**node, "anyOf": [*kinds, {"type": "string", **_REFERENCE}]}
    if node.get("type") in (None, "string"):
        return node
    return {**node, "type": [node["type"], "string"], **_REFERENCE}


def _or_reference_inside(node: dict[str, Any]) -> dict[str, Any]:
    inside = node.get("additionalProperties")
    if isinstance(inside, dict) and inside.get("type") == "array":
        return {**node, "additionalProperties": _or_reference(inside)}
    return node


_REFERENCE: Final = {"pattern": r"\$\{"}


def _tidied(node: Any, *, of_names: bool = False) -> Any:
    """Return a part of a schema as TOML needs it.

    TOML has no null, the titles that pydantic makes of names say nothing, and a list of fixed
    length is written as in older versions of JSON Schema. With ``of_names`` the keys of the node
    are names from the workflow file, not keywords of JSON Schema.
    """
    if isinstance(node, list):
        return [_tidied(part) for part in node]
    if not isinstance(node, dict):
        return node
    if of_names:
        return {name: _tidied(item) for name, item in node.items()}
    node = {key: item for key, item in node.items() if key not in ("title", "unit")}
    # Drop a default of null, and an empty list for a key that may be left out but not be empty.
    if node.get("default", 0) is None or (node.get("default") == [] and node.get("minItems")):
        del node["default"]
    if "prefixItems" in node:
        node["items"] = node.pop("prefixItems")
    alternatives = [
        alternative for alternative in node.get("anyOf", []) if alternative != {"type": "null"}
    ]
    if len(alternatives) == 1:
        del node["anyOf"]
        node = {**alternatives[0], **node}
    elif alternatives:
        node["anyOf"] = alternatives
    return {
        key: item
        if key in ("default", "examples", "enum", "const")
        else _tidied(item, of_names=key in ("properties", "definitions"))
        for key, item in node.items()
    }


COMMAND: Final = "diel schema --format markdown > docs/workflow-file.md"

_HEAD: Final = f"""\
# The workflow file

<!-- Written by `{COMMAND}`; the texts are those of the models. -->

A workflow file is [TOML](https://toml.io). It says which modules there are, which of them run
together, and after which others. `diel check FILE` finds everything that is wrong in one, at once;
`diel graph FILE` draws it. [modules.md](modules.md) tells how a module is written.

```toml
#:schema ./diel.schema.json

[workflow]
name = "study"

[[module]]
name = "solver"
function = "./solver.py:run"
processes = 2
copies = 4

[[module]]
name = "plot"
executable = ["./plot.sh", "--fast"]

[[group]]
name = "solve"
modules = ["solver"]

[[group]]
name = "report"
depends = ["solve"]
modules = ["plot"]
```

Paths in a file are relative to its folder. An unknown key is an error, and so is a value of the
wrong type: `copies = "2"` is not `copies = 2`.

Names may have letters of any alphabet. Logs and run directories are called after them, so a name
has {LONGEST_NAME} bytes in UTF-8 at most, and each letter is one character where Unicode has one
(its form NFC). Tags of tuples are compared as they are: an é of two characters is another tag.

## In an editor

`diel schema > diel.schema.json` writes a JSON Schema of this page. In VS Code the extension
[Even Better TOML](https://marketplace.visualstudio.com/items?itemName=tamasfe.even-better-toml)
then completes keys, shows what they mean and underlines mistakes, either for a file that names the
schema in its first line,

```toml
#:schema ./diel.schema.json
```

or for all files of a folder, by `.vscode/settings.json`:

```json
{{
  "evenBetterToml.schema.associations": {{
    ".*/workflows/.*\\\\.toml": "file:///home/me/study/diel.schema.json"
  }}
}}
```

The schema knows what one table can say for itself. That a group names a module that is not there,
or that a function does not exist, is for `diel check` to find.
"""


def reference() -> str:
    """Return the page that documents all keys, in Markdown."""
    sections = [_HEAD]
    parts: dict[type[BaseModel], list[str]] = {}
    for table in tables():
        sections.append(
            "\n".join(
                _section(f"`{table.header}`", table.place, table.model, ONE_OF.get(table.key))
            )
        )
        _collect_parts(table.place, table.model, parts)
    for model, places in parts.items():
        where = " and ".join(f"`{place}`" for place in places)
        sections.append("\n".join(_section(f"Tables in {where}", places[0], model, None)))
    return "\n".join(sections)


def _section(
    title: str, key: str, model: type[BaseModel], one_of: tuple[str, ...] | None
) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"{(model.__doc__ or '').partition(chr(10))[0]}"
    known = [key for key in one_of or () if key in model.model_fields]
    if len(known) > 1:
        yield f"One of {' and '.join(f'`{key}`' for key in known)} is given, never both."
    yield ""
    for name, info in keys_of(model).items():
        yield from _entry(f"{key}.{name}", name, info)


def _entry(path: str, name: str, info: FieldInfo) -> Iterator[str]:
    field_type = FieldType.of(info)
    yield f"### `{path}`\n"
    yield f"{info.description}\n"
    yield f"- type: {describe(field_type) or 'anything that TOML can write'}"
    yield f"- default: {_default(info)}"
    yield f"- unit: {unit_of(info)}"
    for example in field_type.examples[:1]:
        yield f"- example: `{name} = {show(example)}`"
    yield ""


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "none, the key is required"
    default = default_of(info)
    return f"`{default}`" if default else "not set"


def default_of(info: FieldInfo) -> str:
    """Return the default of a key as TOML writes it; empty if it has none."""
    if info.is_required():
        return ""
    default = info.get_default(call_default_factory=True, validated_data={})
    is_too_short = FieldType.of(info).limit("min_length") and not default
    is_table = isinstance(default, BaseModel)
    return "" if default is None or is_too_short or is_table else show(_as_toml(default))


def _as_toml(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def extra_of(info: FieldInfo) -> dict[str, Any]:
    """Return the ``json_schema_extra`` of a field, which may be a function that fills it in."""
    given = info.json_schema_extra or {}
    if not callable(given):
        return {**given}
    extra: dict[str, Any] = {}
    given(extra)
    return extra


def unit_of(info: FieldInfo) -> str:
    """Return the unit of a key, from its schema or its description; ``none`` if it has none."""
    extra = extra_of(info)
    if "unit" in extra:
        return str(extra["unit"])
    found = re.search(r"^How many (\w+)|\bin (seconds|bytes)\b", info.description or "")
    return str(found[1] or found[2]) if found else "none"


def _collect_parts(
    path: str, model: type[BaseModel], parts: dict[type[BaseModel], list[str]]
) -> None:
    """Add the tables inside a table to ``parts``, with the keys that hold them."""
    for name, info in keys_of(model).items():
        field_type = FieldType.of(info)
        part = item_of(field_type, 0).model if field_type.is_list else field_type.model
        if part is not None:
            is_new = part not in parts
            parts.setdefault(part, []).append(f"{path}.{name}")
            if is_new:
                _collect_parts(f"{path}.{name}", part, parts)
