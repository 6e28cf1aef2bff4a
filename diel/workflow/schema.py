"""The JSON Schema of workflow files, for editors: derived from the models.

It says what a table may hold. What has to be true between tables, or on disk, only `load` knows.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import ConfigDict, Field, create_model

from diel.workflow.contents import ONE_OF
from diel.workflow.tables import Table, tables

# What editors for TOML know best; nothing newer is used below.
DIALECT: Final = "http://json-schema.org/draft-07/schema#"


def workflow_schema() -> dict[str, Any]:
    """Return the schema as JSON's own types."""
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
    head = {
        "$schema": DIALECT,
        "title": "diel workflow",
        "description": "What diel run, diel check and diel graph take.",
    }
    return head | schema


def _field(table: Table) -> tuple[Any, Any]:
    kind: Any = list[table.model] if table.is_list else table.model  # type: ignore[name-defined]
    description = (table.model.__doc__ or "").partition("\n")[0]
    default: Any = ... if table.is_required else None
    shortest = 1 if table.is_required else None
    return kind, Field(default=default, description=description, min_length=shortest)


def _tidied(node: Any, *, of_names: bool = False) -> Any:
    """Return a part of a schema as TOML needs it.

    TOML has no null, the titles that pydantic makes of names say nothing, and a list of fixed
    length is written in the older manner.

    Parameters
    ----------
    node : object
    of_names : bool, optional
        Whether the keys are names that the schema speaks of, not words of its language.
    """
    if isinstance(node, list):
        return [_tidied(one) for one in node]
    if not isinstance(node, dict):
        return node
    if of_names:
        return {name: _tidied(one) for name, one in node.items()}
    node = {key: one for key, one in node.items() if key not in ("title", "unit")}
    # The default of a key that has none, or that may be left out but not be empty.
    if node.get("default", 0) is None or (node.get("default") == [] and node.get("minItems")):
        del node["default"]
    if "prefixItems" in node:
        node["items"] = node.pop("prefixItems")
    alternatives = [one for one in node.get("anyOf", []) if one != {"type": "null"}]
    if len(alternatives) == 1:
        del node["anyOf"]
        node = {**alternatives[0], **node}
    elif alternatives:
        node["anyOf"] = alternatives
    return {
        key: one
        if key in ("default", "examples", "enum", "const")
        else _tidied(one, of_names=key in ("properties", "definitions"))
        for key, one in node.items()
    }
