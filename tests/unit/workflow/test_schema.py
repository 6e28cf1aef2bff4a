"""The JSON Schema of workflow files, and the page that documents each key."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from pydantic import BaseModel
from support import ROOT, status_of

from diel.workflow.load import TABLES
from diel.workflow.problems import keys_of
from diel.workflow.schema import COMMAND, reference, tables, unit_of, workflow_schema

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = ROOT / "docs" / "workflow-file.md"
FILES = sorted((ROOT / "workflows").glob("*.toml"))

MODULE = '[[module]]\nname = "a"\nexecutable = ["x"]\n'
GROUP = '[[group]]\nname = "g"\nmodules = ["a"]\n'


@pytest.fixture(scope="module")
def validator() -> Draft7Validator:
    schema = workflow_schema()
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


def complaints(validator: Draft7Validator, text: str) -> list[str]:
    return [error.message for error in validator.iter_errors(tomllib.loads(text))]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert status_of(*arguments) == 0
    return capsys.readouterr().out


# -- the schema -----------------------------------------------------------------------------------


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(printed(capsys, "schema")) == workflow_schema()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_workflow_file_is_valid(validator: Draft7Validator, file: Path) -> None:
    assert complaints(validator, file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", ["README.md", "docs/workflow-file.md", "docs/modules.md"])
def test_every_workflow_of_a_page_is_valid(validator: Draft7Validator, page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    whole = [one for one in found if "[[module]]" in one and "[[group]]" in one]
    assert whole
    for one in whole:
        assert complaints(validator, one) == []


@pytest.mark.parametrize(
    "text",
    [
        MODULE + 'copies = "fill"\ngpus = 2\nplacement = "spread"\n' + GROUP,
        MODULE + "options = { anything = [1, { deep = true }] }\n" + GROUP,
        '[workflow]\nname = "w"\n[tuple_space]\nmemory = 100000\nservers = 2\n' + MODULE + GROUP,
        MODULE + GROUP + 'iterations = 3\nuntil = ["a", 1]\n',
        MODULE + GROUP + '[[group]]\nname = "h"\ngroups = ["g"]\n',
        MODULE + GROUP + 'foreach = { dt = "${steps}", cells = [1, 2] }\n',
    ],
)
def test_what_is_valid(validator: Draft7Validator, text: str) -> None:
    assert complaints(validator, text) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'module' is a required property"),
        (MODULE, "'group' is a required property"),
        (MODULE + GROUP + "[modul]\n", "'modul' was unexpected"),
        (MODULE + "copeis = 2\n" + GROUP, "'copeis' was unexpected"),
        (MODULE + 'copies = "2"\n' + GROUP, "'2' is not valid under any of the given schemas"),
        (MODULE + "processes = 0\n" + GROUP, "0 is less than the minimum of 1"),
        (MODULE + "gpus = -1\n" + GROUP, "-1 is less than the minimum of 0"),
        (MODULE + 'placement = "here"\n' + GROUP, "'here' is not one of ['packed', 'spread']"),
        (MODULE + 'function = "m:f"\n' + GROUP, "is valid under each of"),
        ('[[module]]\nname = "a"\n' + GROUP, "is not valid under any of the given schemas"),
        (MODULE.replace('"a"', '"1 a"') + GROUP, "'1 a' does not match"),
        (MODULE + GROUP.replace('["a"]', "[]"), "[] should be non-empty"),
        (MODULE + GROUP + "[tuple_space]\nspill = 1\n", "1 is not of type 'boolean'"),
    ],
)
def test_what_is_not(validator: Draft7Validator, text: str, words: str) -> None:
    assert any(words in complaint for complaint in complaints(validator, text))


def models() -> dict[str, type[BaseModel]]:
    return {table.model.__name__: table.model for table in tables()}


def test_every_table_is_there_with_its_texts() -> None:
    schema = workflow_schema()
    assert list(schema["properties"]) == list(TABLES)
    for name, model in models().items():
        definition = schema["definitions"][name]
        assert definition["additionalProperties"] is False
        assert set(definition["properties"]) == set(keys_of(model))
        for key, info in keys_of(model).items():
            told = definition["properties"][key]
            assert told["description"] == info.description
            assert told.get("examples", []) == list(info.examples or [])


def test_it_says_nothing_that_toml_or_an_editor_does_not_know() -> None:
    def walk(node: Any) -> None:
        if isinstance(node, dict):
            assert node.get("type") != "null"
            assert not {"prefixItems", "$defs", "unit"} & node.keys()
            assert "default" not in node or node["default"] is not None
            for one in node.values():
                walk(one)
        elif isinstance(node, list):
            for one in node:
                walk(one)

    walk(workflow_schema())


# -- the page -------------------------------------------------------------------------------------


def test_the_page_is_what_the_models_say(capsys: pytest.CaptureFixture[str]) -> None:
    command, _, place = COMMAND.partition(" > ")
    assert ROOT / place == PAGE
    text = printed(capsys, *command.split()[1:])
    assert text == PAGE.read_text(encoding="utf-8"), f"write it anew: {COMMAND}"


def test_the_page_has_every_key_with_type_default_and_unit() -> None:
    entries = dict(re.findall(r"^### `([\w.]+)`\n(.*?)(?=^##|\Z)", reference(), re.M | re.S))
    for table in tables():
        for key, info in keys_of(table.model).items():
            entry = entries[f"{table.place}.{key}"]
            assert str(info.description) in entry
            assert re.search(r"^- type: (?!anything).", entry, re.MULTILINE), key
            assert re.search(r"^- default: .", entry, re.MULTILINE), key
            assert re.search(r"^- unit: .", entry, re.MULTILINE), key
            assert ("- example: `" in entry) == bool(info.examples), key
    assert (
        "- default: `1`\n- unit: ranks\n- example: `processes = 2`" in entries["module.processes"]
    )
    assert "- default: none, the key is required" in entries["module.name"]
    assert '- type: a whole number of at least 1 or "fill"' in entries["module.copies"]


def test_whatever_is_counted_has_a_unit() -> None:
    """Positions and the like have none; whoever adds a number thinks about it here."""
    without = {
        f"{table.key}.{key}"
        for table in tables()
        for key, info in keys_of(table.model).items()
        if re.search(r"\b(int|float|Count)\b", str(info.annotation)) and unit_of(info) == "none"
    }
    values = {f"parameters.{key}" for key in ("default", "from", "to", "choices")}
    uncounted = {"group.until", "group.foreach", "module.environment", "module.retry_memory"}
    shared = {"module.resources", "workflow.resources"}  # of whatever they are
    assert without <= {*uncounted, *shared, *values}
