"""What the models promise by themselves, and how little they need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from diel.errors import LaunchError
from diel.workflow.model import Group, Module, Workflow, WorkflowTable
from diel.workflow.module import _EXECUTABLE_KEYS


def test_defaults_are_one_rank_with_one_thread() -> None:
    module = Module(name="a", function="x:y")
    assert (module.processes, module.copies, module.threads) == (1, 1, 1)
    assert module.options == {}
    assert module.executable is None
    assert Group(name="g", modules=("a",)).depends == ()


@pytest.mark.parametrize("model", [Module, Group, Workflow, WorkflowTable])
def test_every_field_is_described(model: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name


@pytest.mark.parametrize("model", [Module, Group, WorkflowTable])
def test_every_example_is_valid(model: type[BaseModel]) -> None:
    required = {"name": "a", "function": "x:y"} if model is Module else {"name": "a"}
    for name, field in model.model_fields.items():
        for example in field.examples or ():
            values = {**required, "modules": ["a"], name: example}
            if model is not Group:
                del values["modules"]
            if name in ("executable", "retry_memory", *_EXECUTABLE_KEYS) and model is Module:
                del values["function"]
                values.setdefault("executable", ("x",))
            if name == "library":
                del values["function"]
            if name == "signal_before" and model is Module:
                values |= {"time_limit": "1 h"}
            if name == "retry_memory":
                values |= {"memory": "1 GiB", "retries": 1}
            if name == "max_failures" and model is Module:
                values["tasks"] = 20
            if name in ("at_once", "max_failures") and model is Group:
                values["foreach"] = "cases.csv"
            if name == "groups":
                del values["modules"]
            model.model_validate(values)


def test_models_cannot_be_changed() -> None:
    module = Module(name="a", function="x:y")
    with pytest.raises(ValidationError, match="frozen"):
        module.name = "b"


@pytest.mark.parametrize(
    "name",
    [
        *("", "1a", "a b", "a/b", "a\n", "-a", "a" * 101),
        # No letters, or letters that look like others; marks alone; too long in UTF-8.
        *("a…", "a\u202eb", "a\u200bb", "a😀", "×", "e\u0301", "\u0301", "a\u00a0b", "名" * 34),
    ],
)
def test_names_are_safe_as_file_names(name: str) -> None:
    with pytest.raises(ValidationError):
        Module(name=name, function="x:y")


@pytest.mark.parametrize(
    "name",
    ["a", "A-1_b", "a" * 100, "é", "größe-2", "名前", "гипер", "हिन्दी", "𝒜1", "名" * 33],
)
def test_names_that_are_good(name: str) -> None:
    assert Module(name=name, function="x:y").name == name


def test_unknown_names_are_key_errors() -> None:
    workflow = Workflow(name="w", modules=(), groups=(), file=Path("/a/w.toml"))
    assert workflow.max_threads == 1
    for find in (workflow.module, workflow.group):
        with pytest.raises(KeyError, match="zzz"):
            find("zzz")


def test_the_room_imports_neither_mpi_nor_numpy() -> None:
    code = (
        "import sys, diel.workflow.load, diel.executive.placement.planning\n"
        "print([name for name in ('mpi4py', 'numpy', 'modules', 'dnn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_part_of_a_workflow_has_modules_of_one_of_its_groups() -> None:
    workflow = Workflow.model_construct(
        modules=(Module(name="a", function="f"), Module(name="b", function="f")),
        groups=(Group(name="g", modules=("a",)),),
    )
    assert [module.name for module in workflow.only("g", ["a"]).modules] == ["a"]
    for group, modules in (("h", ["a"]), ("g", ["b"]), ("g", []), ("g", ["a", "a"])):
        with pytest.raises(LaunchError, match="the workflow file has no such modules"):
            workflow.only(group, modules)


@pytest.mark.parametrize(
    ("given", "allowed"), [(0, 0), (7, 7), ("5%", 15), ("0.29 %", 0), ("0.5%", 1), ("100%", 300)]
)
def test_how_many_tasks_may_fail(given: int | str, allowed: int) -> None:
    module = Module(name="a", executable=("x",), tasks=300, max_failures=given)
    assert module.failures_allowed == allowed


def test_a_share_of_tasks_is_taken_as_written() -> None:
    module = Module(name="a", executable=("x",), tasks=10_000, max_failures="0.29%")
    assert module.failures_allowed == 29
