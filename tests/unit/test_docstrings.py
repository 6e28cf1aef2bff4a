"""Docstrings of public functions name their parameters as they are called, and what they return."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

import dnn
import dnn.distributed
import dnn.graph
import dnn.initializers

HEADING = re.compile(r"^([A-Z]\w+)\n-{3,}$", re.MULTILINE)


def sections_of(text: str) -> dict[str, str]:
    """Return the sections of a docstring in NumPy style."""
    _, *parts = HEADING.split(inspect.cleandoc(text))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def names_in(section: str) -> list[str]:
    """Return the names that a section of parameters or attributes explains."""
    lines = [line for line in section.splitlines() if line[:1].strip()]
    return [name.strip(" *") for line in lines for name in line.partition(":")[0].split(",")]


def problems_of(function: Callable[..., Any], text: str) -> Iterator[str]:
    """Say what a docstring leaves out, or has too much."""
    signature = inspect.signature(function)
    taken = [name for name in signature.parameters if name not in ("self", "cls")]
    if getattr(function, "_is_protocol", False):  # nobody makes one
        taken = []
    if taken == ["generator", "shape", "dtype"]:  # an initializer: its module explains them
        assert all(f"    {name} : " in (dnn.initializers.__doc__ or "") for name in taken)
        return
    if taken == ["inputs", "outputs"]:  # a network of images: its module explains them
        module = importlib.import_module(function.__module__)
        assert all(f"\n{name} : " in (module.__doc__ or "") for name in taken)
        return
    sections = sections_of(text)
    if inspect.isclass(function):  # the fields of a dataclass are its attributes
        explained = names_in(sections.get("Parameters", "") + sections.get("Attributes", ""))
        yield from (f"no word of {name!r}" for name in taken if name not in explained)
        return
    explained = names_in(sections.get("Parameters", ""))
    if explained != taken:
        yield f"parameters are {taken}, and explained are {explained}"
    returns = signature.return_annotation not in (None, "None")
    if returns and not {"Returns", "Yields"} & sections.keys():
        yield "no word of what it returns"


def test_the_parser() -> None:
    def function(a: int, b: int, *others: int, option: bool = True) -> int:
        """Return something.

        Parameters
        ----------
        a, b : int
            Of which one: is larger.
        *others : int
        option : bool

        Returns
        -------
        int
        """
        return a

    assert list(problems_of(function, function.__doc__ or "")) == []
    wrong = (function.__doc__ or "").replace("option", "options").replace("Returns", "Gives")
    assert [problem.split()[0] for problem in problems_of(function, wrong)] == ["parameters", "no"]
    assert len(list(problems_of(function, "Return something."))) == 2


PUBLIC = [
    (module, name)
    for module in (dnn, dnn.distributed, dnn.graph, dnn.initializers)
    for name in module.__all__
    if callable(getattr(module, name)) and name != "Initializer"  # a type
]


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=[f"{m.__name__}.{n}" for m, n in PUBLIC])
def test_public_functions_and_classes(module: ModuleType, name: str) -> None:
    public = getattr(module, name)
    if inspect.isclass(public) and issubclass(public, Exception):
        return  # most are called with a message
    assert public.__doc__
    assert list(problems_of(public, public.__doc__)) == []


CLASSES = (
    dnn.Dataset,
    dnn.Ensemble,
    dnn.Epoch,
    dnn.History,
    dnn.Layer,
    dnn.Loss,
    dnn.MemoryManager,
    dnn.NeuralNetwork,
    dnn.Tensor,
    dnn.graph.Arena,
    dnn.graph.Graph,
    dnn.graph.Node,
    dnn.graph.Plan,
)
METHODS = [
    (owner, name)
    for owner in CLASSES
    for name, _ in inspect.getmembers(owner, callable)
    if not name.startswith("_")
]


@pytest.mark.parametrize(("owner", "name"), METHODS, ids=[f"{c.__name__}.{n}" for c, n in METHODS])
def test_public_methods(owner: type, name: str) -> None:
    method = getattr(owner, name)
    assert method.__doc__
    assert list(problems_of(method, method.__doc__)) == []
