"""The page that documents each key of a workflow file, from the models themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from diel.workflow.contents import ONE_OF
from diel.workflow.problems import keys_of
from diel.workflow.scalars import LONGEST_NAME
from diel.workflow.tables import tables
from diel.workflow.wording import Spot, describe, item_of, show

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
    """Return the page."""
    sections = [_HEAD]
    parts: dict[type[BaseModel], list[str]] = {}
    for table in tables():
        sections.append(
            "\n".join(_section(f"`{table.header}`", table.key, table.model, ONE_OF.get(table.key)))
        )
        _collect_parts(table.key, table.model, parts)
    for model, places in parts.items():
        where = " and ".join(f"`{place}`" for place in places)
        sections.append("\n".join(_section(f"Tables in {where}", places[0], model, None)))
    return "\n".join(sections)


def _section(
    title: str, key: str, model: type[BaseModel], one_of: tuple[str, ...] | None
) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"{(model.__doc__ or '').partition(chr(10))[0]}"
    known = [one for one in one_of or () if one in model.model_fields]
    if len(known) > 1:
        yield f"One of {' and '.join(f'`{one}`' for one in known)} is given, never both."
    yield ""
    for name, info in keys_of(model).items():
        yield from _entry(f"{key}.{name}", name, info)


def _entry(path: str, name: str, info: FieldInfo) -> Iterator[str]:
    spot = Spot(info.annotation, tuple(info.metadata), tuple(info.examples or ()))
    yield f"### `{path}`\n"
    yield f"{info.description}\n"
    yield f"- type: {describe(spot) or 'anything that TOML can write'}"
    yield f"- default: {_default(info)}"
    yield f"- unit: {unit_of(info)}"
    for example in spot.examples[:1]:
        yield f"- example: `{name} = {show(example)}`"
    yield ""


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "none, the key is required"
    default = info.get_default(call_default_factory=True, validated_data={})
    is_too_short = Spot(info.annotation, tuple(info.metadata)).limit("min_length") and not default
    return "not set" if default is None or is_too_short else f"`{show(_as_toml(default))}`"


def _as_toml(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def unit_of(info: FieldInfo) -> str:
    """Return the unit of a key: what its author said, or its description says, or none."""
    extra = info.json_schema_extra
    if isinstance(extra, dict) and "unit" in extra:
        return str(extra["unit"])
    found = re.search(r"^How many (\w+)|\bin (seconds|bytes)\b", info.description or "")
    return str(found[1] or found[2]) if found else "none"


def _collect_parts(
    path: str, model: type[BaseModel], parts: dict[type[BaseModel], list[str]]
) -> None:
    """Find the tables inside a table, with the keys that hold them."""
    for name, info in keys_of(model).items():
        spot = Spot(info.annotation, tuple(info.metadata))
        part = item_of(spot, 0).model if spot.is_list else spot.model
        if part is not None:
            is_new = part not in parts
            parts.setdefault(part, []).append(f"{path}.{name}")
            if is_new:
                _collect_parts(f"{path}.{name}", part, parts)
