"""Parameters of a workflow file: declared, given by a command line, put where they are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from diel import load_workflow
from diel.errors import WorkflowError
from diel.workflow.load import draft_of_text
from diel.workflow.parameters import fill, read_parameters, setting_of

FILE = """
[parameters]
dt = 0.1
steps = { default = 10, from = 1, to = 100, text = "how many" }
case = { choices = ["dam", "tank"], default = "dam" }
fast = false
sizes = [8, 16]
rate = { default = 1, type = "number" }

[workflow]
name = "study-${case}"

[[module]]
name = "solver"
executable = ["echo", "--dt=${dt}", "${steps}", "$${HOME}", "{copy} of ${case}", "${fast}"]
environment = { RATE = "${rate}" }
copies = "${steps}"

[[module]]
name = "other"
function = "shutil:disk_usage"
options = { sizes = "${sizes}", deep = [{ dt = "${dt}" }], text = "at ${dt}, $${dt}" }

[[group]]
name = "all"
modules = ["solver", "other"]
"""


def draft(text: str = FILE, *given: str) -> Any:
    return draft_of_text(text, Path("/nowhere/study.toml"), given=given)


def problem_of(text: str, *given: str) -> str:
    (problem,) = draft(text, *given).in_order()
    return f"{problem.path}: {problem.message} ({problem.remedy})"


def test_values_stand_where_they_are_named() -> None:
    found = draft()
    assert not found.in_order()
    solver, other = (module for _, module in found.modules)
    words = ("echo", "--dt=0.1", "10", "${{HOME}}", "{copy} of dam", "false")
    assert solver.executable == words
    assert solver.environment == {"RATE": "1"}
    assert solver.copies == 10
    assert other.options == {"sizes": [8, 16], "deep": [{"dt": 0.1}], "text": "at 0.1, ${dt}"}
    assert found.settings.name == "study-dam"
    assert found.values["case"] == "dam"


def test_a_command_line_gives_other_values() -> None:
    given = ["dt=.5", "case=tank", "steps=3", "fast=true", "sizes=[1]", "rate=2.5", "dt=0.25"]
    found = draft(FILE, *given)
    assert not found.in_order()
    expected = {"dt": 0.25, "steps": 3, "case": "tank", "fast": True, "sizes": [1], "rate": 2.5}
    assert found.values == expected
    assert found.modules[0][1].copies == 3
    assert found.settings.name == "study-tank"
    assert found.source == FILE


def test_a_command_line_gives_any_key() -> None:
    given = [
        *("module.other.options.deep[0].dt=7", "module.other.options.new.one=text"),
        *("group.all.iterations=3", "workflow.restarts=2", "tuple_space.memory=64 MiB"),
        'module.solver.executable[1]="--dt"',
    ]
    found = draft(FILE, *given)
    assert not found.in_order()
    options = found.modules[1][1].options
    assert options["deep"] == [{"dt": 7}]
    assert options["new"] == {"one": "text"}
    assert found.groups[0][1].iterations == 3
    assert found.settings.restarts == 2
    assert found.tuple_space.memory_bytes == 2**26
    assert found.modules[0][1].executable[1] == "--dt"


def test_without_the_table_references_are_text() -> None:
    text = '[[module]]\nname = "a"\nexecutable = ["echo", "$HOME"]\nstdin = "a${{b}}"\n'
    found = draft(text + '[[group]]\nname = "g"\nmodules = ["a"]\n')
    assert found.modules[0][1].stdin == "a${{b}}"


SMALL = """
[[module]]
name = "a"
executable = ["echo", "${dt}"]
[[group]]
name = "g"
modules = ["a"]
"""


@pytest.mark.parametrize(
    ("table", "given", "expected"),
    [
        ("dt = 0.1", ["dt"], ': --set dt: it has no value (write --set NAME=VALUE)'),
        ("dt = 0.1", ["=1"], ': --set =1: it has no name (write --set NAME=VALUE)'),
        ("dt = 0.1", ["dtt=1"], ': --set dtt=1: there is no parameter "dtt" (did you mean "dt"?)'),
        (
            "dt = 0.1",
            ["dt=x"],
            'parameters.dt: --set dt=x: expected a number, got the string "x" ()',
        ),
        ("dt = 0.1", ["dt=nan"], "parameters.dt: --set dt=nan: expected a number, got nan ()"),
        (
            "dt = 1",
            ["dt=0.5"],
            "parameters.dt: --set dt=0.5: expected a whole number, got 0.5 "
            '(for any number, let the parameter have type = "number")',
        ),
        (
            "dt = { default = 1, to = 3 }",
            ["dt=4"],
            "parameters.dt: --set dt=4: 4 is above 3 ()",
        ),
        (
            'dt = { choices = ["a", "b"], default = "a" }',
            ["dt=c"],
            'parameters.dt: --set dt=c: "c" is none of "a", "b" ()',
        ),
        (
            'dt = { type = "integer" }',
            [],
            "parameters.dt: has no value (say --set dt=64, or give it a default)",
        ),
        (
            "dt = 0.1",
            ["module.b.copies=2"],
            ': --set module.b.copies=2: there is no module "b" (there are a)',
        ),
        (
            "dt = 0.1",
            ["modul.a.copies=2"],
            ': --set modul.a.copies=2: there is no table "modul" (did you mean "module"?)',
        ),
        (
            "dt = 0.1",
            ["module.a=2"],
            ': --set module.a=2: module "a" is a table, not a value (name one of its keys)',
        ),
        (
            "dt = 0.1",
            ["module.a.executable[7]=x"],
            ": --set module.a.executable[7]=x: there is no executable[7] to be set "
            "(look at the file's keys)",
        ),
        (
            "dt = 0.1",
            ["module.a.copies=x"],
            'module[0].copies: expected a whole number of at least 1 or "fill", got the string '
            '"x" (for example copies = 2)',
        ),
        (
            "d = 0.1",
            [],
            'parameters.d: is used nowhere (write "${d}" where its value is to stand, '
            "or remove it)",
        ),
        (
            "dt = {}",
            [],
            'parameters.dt: says neither default nor type (add default = 0.1, or type = "number")',
        ),
        (
            'dt = { default = "a", from = 1 }',
            [],
            "parameters.dt: a string has no from and to (write choices = [...])",
        ),
        (
            "dt = { default = 5, to = 3 }",
            [],
            "parameters.dt: default: 5 is above 3 ()",
        ),
        (
            "dt = { default = 5, most = 3 }",
            [],
            "parameters.dt.most: unknown key most "
            "(known keys: default, type, from, to, choices, text)",
        ),
        ("dt = [1]", [], "module[0].executable[1]: ${dt} is a list, and does not fit into a text "
         "(let it stand alone, where a list may)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(table: str, given: list[str], expected: str) -> None:
    found = draft(f"[parameters]\n{table}\n{SMALL}", *given).in_order()
    shown = [f"{each.path}: {each.message} ({each.remedy})" for each in found]
    assert expected in shown


def test_a_reference_that_means_nothing() -> None:
    text = "[parameters]\ndt = 0.1\n" + SMALL.replace('"${dt}"', '"${dt}", "${dx}", "${dt"')
    unknown, open_ended = draft(text).in_order()[:2]
    assert unknown.message == "${dx} is no parameter"
    assert unknown.remedy == "there are dt; for the letters themselves, write $${"
    assert open_ended.message == "${dt has no end"


def test_a_list_in_place_of_the_table() -> None:
    assert problem_of("parameters = 3\n" + SMALL).startswith("parameters: expected a table, got 3")


def test_a_file_is_not_written_and_its_values_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text("[parameters]\ndt = 0.1\n" + SMALL)
    workflow = load_workflow(file, ["dt=2.0"])
    assert workflow.values == {"dt": 2.0}
    assert workflow.module("a").executable == ("echo", "2.0")
    assert file.read_text() == "[parameters]\ndt = 0.1\n" + SMALL
    with pytest.raises(WorkflowError, match="expected a number"):
        load_workflow(file, ["dt=two"])


scalars = st.one_of(
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(blacklist_categories=["Cs", "Cc"])),
)


@drawn(scalars, scalars)
def test_any_value_can_be_given(default: Any, value: Any) -> None:
    if type(default) is not type(value):
        return
    document = {"parameters": {"p": default}, "workflow": {"name": "${p}"}}
    _, values, problems = read_parameters(document, [setting_of("p", value)])
    assert not problems
    assert values == {"p": value}
    assert fill(document["workflow"], ["workflow"], values, problems)["name"] == value
    assert not problems


@drawn(st.text(max_size=30), st.text(max_size=30))
def test_no_setting_breaks_it(key: str, text: str) -> None:
    document = {"parameters": {"p": 1}, "module": [{"name": "a", "options": {"p": "${p}"}}]}
    for setting in (f"{key}={text}", f"module.a.{key}={text}", key):
        read_parameters(document, [setting])
