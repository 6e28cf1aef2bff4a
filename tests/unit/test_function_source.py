"""Functions of a notebook as a file: `diel.function_source`."""

from __future__ import annotations

import linecache
import math
from collections.abc import Iterator
from typing import Any

import pytest

from diel.errors import SweepCallError
from diel.function_source import source_of

CELL = """
import json
import math
import os.path as places
import numpy as np
from math import pi, sqrt as root
from textwrap import dedent

RATES = {"a": [1, 2.5, (3,)], "none": None, "far": float("inf")}
SMALL = np.float64(0.25)
BIG = np.zeros(100_000)
FILE = open(__import__("os").devnull)
square = lambda x: x * x

def decorated(function):
    return function

def helper(x, factor=SMALL):
    BIG = 3  # its own: not that of the notebook
    return root(x) * factor + BIG

@decorated
def train(parameters: "what is it", report):
    def inner():
        return RATES["a"][0] + pi
    return {"score": helper(parameters["rate"]) + inner() + np.sum([1]), "text": dedent(" x")}

def reads_file(parameters, report):
    return FILE.read()

def reads_array(parameters, report):
    return through()

def through():
    return BIG.sum()

def uses_lambda(parameters, report):
    return square(2)

def maker():
    bound = 3
    def made(parameters, report):
        return bound
    return made

made = maker()

def recursive(parameters, report):
    return recursive({}, None) if parameters else again()

def again():
    return recursive({}, None)
"""


@pytest.fixture(scope="module")
def cell() -> Iterator[dict[str, Any]]:
    """The names that a notebook has after a cell."""
    linecache.cache["<cell>"] = (len(CELL), None, CELL.splitlines(keepends=True), "<cell>")
    names: dict[str, Any] = {"__name__": "__notebook__"}
    exec(compile(CELL, "<cell>", "exec"), names)
    yield names
    names["FILE"].close()


def test_a_function_comes_with_what_it_uses(cell: dict[str, Any]) -> None:
    source = source_of(cell["train"])
    names: dict[str, Any] = {"__name__": "elsewhere"}
    exec(compile(source, "<file>", "exec"), names)
    assert names["train"]({"rate": 4.0}, None) == cell["train"]({"rate": 4.0}, None)
    assert names["RATES"] == cell["RATES"]
    for line in ("import numpy as np", "from math import sqrt as root", "SMALL = 0.25"):
        assert f"\n{line}\n" in source
    assert f"pi = {math.pi!r}" in source
    for unused in ("json", "places", "reads_file", "square"):
        assert unused not in source
    assert source.index("def helper") < source.index("def train")
    assert source_of(cell["train"]) == source


def test_what_is_set_on_a_function_comes_with_it(cell: dict[str, Any]) -> None:
    def keeps(name: str, attribute: str, value: Any) -> dict[str, Any]:
        setattr(cell[name], attribute, value)
        made: dict[str, Any] = {}
        try:
            exec(source_of(cell["train"]), made)
        finally:
            delattr(cell[name], attribute)
        return made

    made = keeps("train", "save_model", cell["helper"])
    assert made["train"].save_model is made["helper"]
    assert keeps("train", "limits", {"a": 1.5})["train"].limits == {"a": 1.5}
    assert keeps("helper", "calls", 3)["helper"].calls == 3
    assert keeps("train", "_open", cell["FILE"])["train"]
    for value, words in ((cell["BIG"], "a ndarray of 800,000 bytes"), (cell["square"], "a lambda")):
        with pytest.raises(SweepCallError, match=words):
            keeps("train", "save_model", value)


def test_functions_may_call_each_other(cell: dict[str, Any]) -> None:
    source = source_of(cell["recursive"])
    assert source.count("def recursive") == source.count("def again") == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("reads_file", r"reads_file uses FILE, a TextIOWrapper, which cannot be written.* load it"),
        ("reads_array", r"through uses BIG, a ndarray of 800,000 bytes.*save it to a file"),
        ("uses_lambda", r"square is a lambda: define it by def"),
        ("made", r"made uses bound of the function around it: define it at the top"),
    ],
)
def test_what_cannot_be_written_is_named(cell: dict[str, Any], name: str, words: str) -> None:
    with pytest.raises(SweepCallError, match=words):
        source_of(cell[name])


def test_a_function_without_source_is_refused() -> None:
    names: dict[str, Any] = {}
    exec("def train(parameters, report): return {}", names)
    with pytest.raises(SweepCallError, match="the source of train is not known: write it to a f"):
        source_of(names["train"])
