"""Rules of the house: who may import whom, and what is public."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import ROOT

import diel
import dnn

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# From the ground; rooms on one floor know nothing of each other.
FLOORS = [
    {"errors", "run"},
    {"comm", "workflow"},
    {"tuples"},
    {"coupling"},
    {"loading"},
    {"programs"},
    {"executive"},
    {"cli", "testing"},
    {"embedding"},
    {"iel"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# Below the floors: they belong to no room.
DOORS = {"diel/__init__.py", "diel/__main__.py"}

# Who starts or speaks MPI. Others name its types at most, in TYPE_CHECKING blocks.
MPI_FILES = {
    "diel/comm/direct.py",
    "diel/comm/mailbox.py",
    "diel/comm/mpi.py",
    "diel/comm/parent.py",
    "diel/comm/wakeup.py",
    "diel/executive/lead.py",
    "diel/tuples/server.py",
    "diel/tuples/mpi_transport.py",
}


@dataclass(frozen=True)
class Import:
    """One import statement's target, with the names it takes from it."""

    file: str
    line: int
    module: str
    at_top: bool
    for_types: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def imports_of(file: str, tree: ast.AST) -> Iterator[Import]:
    """Find every import of a file: in functions and TYPE_CHECKING blocks too."""

    def visit(node: ast.AST, at_top: bool, for_types: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name, at_top, for_types)
        elif isinstance(node, ast.ImportFrom):
            module = absolute(file, node)
            yield Import(file, node.lineno, module, at_top, for_types)
            for alias in node.names:  # the name may be a module of its own
                yield Import(file, node.lineno, f"{module}.{alias.name}", at_top, for_types)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            at_top = False
        guarded = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    types = for_types or (guarded and name == "body")
                    yield from visit(child, at_top, types)

    yield from visit(tree, True, False)


def absolute(file: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = Path(file).parent.parts
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def all_imports(*packages: str) -> list[Import]:
    found = []
    for package in packages:
        files = sorted((ROOT / package).rglob("*.py"))
        assert files, package
        for path in files:
            file = path.relative_to(ROOT).as_posix()
            found += imports_of(file, ast.parse(path.read_text(encoding="utf-8")))
    return found


def room_of(module: str) -> str | None:
    package, *rest = module.split(".")
    return rest[0] if package == "diel" and rest and rest[0] in FLOOR else None


def room_of_file(file: str) -> str:
    return Path(file).parts[1].removesuffix(".py")


def test_the_finder_sees_every_kind_of_import() -> None:
    code = """
import a.b
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from c import d
else:
    import e
def f():
    from ..g import h
    class C:
        import i
try:
    import j
except ImportError:
    pass
"""
    found = {
        one.module: (one.at_top, one.for_types)
        for one in imports_of("diel/room/file.py", ast.parse(code))
        if not one.module.startswith("typing")
    }
    assert found == {
        "a.b": (True, False),
        "c": (True, True),
        "c.d": (True, True),
        "e": (True, False),
        "diel.g": (False, False),
        "diel.g.h": (False, False),
        "i": (False, False),
        "j": (True, False),
    }


def test_every_file_of_diel_is_in_a_room() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "diel").rglob("*.py")}
    assert {room_of_file(file) for file in files - DOORS} == set(FLOOR)


def test_no_import_runs_up() -> None:
    """Imports for types alone are exempt: they leave no trace when the program runs."""
    wrong = []
    for one in all_imports("diel"):
        room = room_of(one.module)
        if one.file in DOORS or one.for_types or room is None:
            continue
        here = room_of_file(one.file)
        # Neighbours on a floor do not import each other, except that all stand on the errors.
        if room not in (here, "errors") and FLOOR[room] >= FLOOR[here]:
            wrong.append(str(one))
    assert wrong == []


def test_a_door_is_opened_only_by_those_who_use_it() -> None:
    """`diel/__init__.py` imports rooms on first use, so that ``import diel`` costs nothing."""
    for one in all_imports("diel"):
        if one.file == "diel/__init__.py" and not one.for_types:
            assert room_of(one.module) is None, str(one)


def test_the_run_directory_knows_nothing_but_the_errors() -> None:
    """Even for types: whoever reads a run needs no other room."""
    for one in all_imports("diel"):
        if room_of_file(one.file) == "run" and one.file not in DOORS:
            assert room_of(one.module) in (None, "run", "errors"), str(one)
            assert one.module.split(".")[0] not in ("numpy", "mpi4py", "pydantic", "rich")


@pytest.mark.parametrize(("package", "other"), [("diel", "dnn"), ("dnn", "diel")])
def test_diel_and_dnn_do_not_know_each_other(package: str, other: str) -> None:
    strangers = {other, "modules"}
    wrong = [str(one) for one in all_imports(package) if one.module.split(".")[0] in strangers]
    assert wrong == []


def test_our_modules_use_only_public_names() -> None:
    public = {"diel": set(diel.__all__), "dnn": set(dnn.__all__)}
    for one in all_imports("modules"):
        package, *rest = one.module.split(".")
        if (package, *rest[:1]) == ("diel", "errors"):
            continue  # all of them are public
        if package in public:
            assert len(rest) <= 1, f"{one}: not a public name"
            assert set(rest) <= public[package], f"{one}: not a public name"


def test_our_modules_import_each_other_relatively() -> None:
    """So that they work under another name, beside a user's package ``modules``."""
    for path in (ROOT / "modules").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert all(alias.name.split(".")[0] != "modules" for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                assert (node.module or "").split(".")[0] != "modules"


def test_mpi_is_imported_in_few_files_and_never_at_their_import() -> None:
    speakers = set()
    for one in all_imports("diel", "dnn", "modules"):
        if one.module.split(".")[0] == "mpi4py" and not one.for_types:
            assert not one.at_top, str(one)
            speakers.add(one.file)
    assert speakers == MPI_FILES


def test_tests_are_named_uniquely() -> None:
    """They are imported by their base names."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


# -- public names ---------------------------------------------------------------------------------


def test_the_public_names_of_diel() -> None:
    assert diel.__all__ == [
        "ANY",
        "Address",
        "Context",
        "Executive",
        "__version__",
        "duration_s",
        "import_function",
        "load_workflow",
        "locate_function",
    ]


def test_the_public_names_of_dnn() -> None:
    assert dnn.__all__ == [
        "SGD",
        "Activation",
        "AdaGrad",
        "Adam",
        "AdamW",
        "BatchNorm",
        "BestCheckpoint",
        "BinaryCrossEntropy",
        "Callback",
        "CheckpointError",
        "ConfigurationError",
        "Cosine",
        "DataError",
        "Dataset",
        "DeviceError",
        "DnnError",
        "Dropout",
        "DtypeError",
        "EarlyStopping",
        "Ensemble",
        "Epoch",
        "Flatten",
        "FullyConnected",
        "History",
        "Input",
        "LabelError",
        "Layer",
        "LayerNorm",
        "Loss",
        "MeanSquaredError",
        "MemoryManager",
        "MissingDependencyError",
        "MixedPrecisionWarning",
        "NeuralNetwork",
        "NonFiniteError",
        "Optimizer",
        "OutOfRangeError",
        "Output",
        "ProgressBar",
        "Pruning",
        "RMSProp",
        "Residual",
        "RoutineTable",
        "ShapeError",
        "SoftmaxCrossEntropy",
        "StepDecay",
        "Tensor",
        "WarmUp",
        "batches",
        "class_weights",
        "impute",
        "load_breast_cancer",
        "load_checkpoint",
        "load_cleveland",
        "load_csv",
        "load_dataset",
        "load_digits",
        "load_idx",
        "load_mnist",
        "minimize",
        "mlp",
        "ops_for",
        "prefetch",
        "save_checkpoint",
        "standardise",
        "train_validation_split",
        "train_validation_test_split",
    ]


@pytest.mark.parametrize("package", [diel, dnn], ids=["diel", "dnn"])
def test_every_public_name_is_there(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]
    assert set(names) <= set(dir(package))
    for name in names:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = package.no_such_name  # type: ignore[attr-defined]


def test_the_packages_metadata_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["authors"] == [{"name": "The diel developers"}]
    assert project["license"] == "BSD-3-Clause"
    (license_file,) = project["license-files"]
    assert (ROOT / license_file).read_text().startswith("BSD 3-Clause License")
    assert project["version"] == diel.__version__
