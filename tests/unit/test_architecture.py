"""Rules of the architecture: which package imports which, and what is public."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from support import ROOT

import diel
import dnn
import dnn.distributed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# From the lowest layer up: packages, and files that belong to none. Packages of one layer do not
# import each other.
LAYERS = {
    "diel": """
        errors exit_codes expressions frozen processes run text
        plugins tag_text
        comm workflow
        tuples
        coupling
        loading
        compiled
        programs
        executive
        gui
        cli run_tuples testing
        embedding function_source opened_run
        iel sweeping
    """,
    "dnn": """
        metric_names names
        compilation errors
        backend
        arrays
        initializers metrics precision seeds table
        data graph memory
        penalties
        losses
        layers tensor
        layer_tables linalg parameters summaries
        optimizers
        nets
        compact_nets
        training
        callbacks distributed io
        state_dicts
        model
        by_name ensemble sklearn trained
        averaged trained_file
    """,
    "modules": """
        attributes metrics problems until
        layer_list
        hyperparameters parallel pareto predictions space trial
        networks
        objective strategies
        evaluation
        tabular trial_plan trial_ranks
        choosing pretrained space_check trial_states
        options report
        search
        sweep
        averaging best_network checkpoints compute epochs
        trainer_options
        trainer_data
        fused sklearn_trainer torch_trainer
        training
        network_trainer
        trainer
        master
        reporter tensorboard
    """,
}
LAYER_OF = {
    f"{root}.{name}": number
    for root, lines in LAYERS.items()
    for number, line in enumerate(lines.split("\n"))
    for name in line.split()
}
# Those on which packages of the same layer may stand too.
GROUND = {
    f"diel.{name}"
    for name in ("errors", "exit_codes", "expressions", "frozen", "processes", "text")
}
# In no layer: they import what is asked of them, when it is asked.
ROOTS = {"diel/__init__.py", "diel/__main__.py", "dnn/__init__.py", "modules/__init__.py"}

# Who starts or speaks MPI. Others name its types at most, in TYPE_CHECKING blocks.
MPI_FILES = {
    "diel/comm/dead_ranks.py",
    "diel/comm/direct.py",
    "diel/comm/mailbox.py",
    "diel/comm/mpi.py",
    "diel/comm/parent.py",
    "diel/comm/wakeup.py",
    "diel/tuples/server.py",
    "diel/tuples/mpi_transport.py",
    "dnn/distributed/mpi.py",
}

# A string that may name a module, or something in one: "modules.trainer:run".
DOTTED = re.compile(r"((?:diel|dnn|modules)(?:\.\w+)+)(?::\w+)?")


@dataclass(frozen=True)
class Import:
    """A module that a file imports, or names in a string by which it may be imported."""

    file: str
    line: int
    module: str
    at_top: bool
    for_types: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def imports_of(file: str, tree: ast.AST) -> Iterator[Import]:
    """Find every import of a file: in functions, TYPE_CHECKING blocks and strings too."""

    def visit(node: ast.AST, at_top: bool, for_types: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name, at_top, for_types)
        elif isinstance(node, ast.ImportFrom):
            module = absolute(file, node)
            yield Import(file, node.lineno, module, at_top, for_types)
            for alias in node.names:  # the name may be a module of its own
                yield Import(file, node.lineno, f"{module}.{alias.name}", at_top, for_types)
        elif named := named_in(node):
            yield Import(file, node.lineno, named, False, for_types)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            at_top = False
        guarded = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    types = for_types or (guarded and name == "body")
                    yield from visit(child, at_top, types)

    yield from visit(tree, True, False)


def named_in(node: ast.AST) -> str:
    """Return the module that a string names, "" if it names none."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return ""
    found = DOTTED.fullmatch(node.value)
    return found[1] if found else ""


def absolute(file: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = Path(file).parent.parts
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


@cache
def all_imports(package: str) -> list[Import]:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files, package
    return [
        found
        for path in files
        for found in imports_of(
            path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))
        )
    ]


def package_of(module: str) -> str | None:
    """Return the package, or the file that belongs to none, of a module: "diel.run"."""
    name = ".".join(module.split(".")[:2])
    return name if name in LAYER_OF else None


def package_of_file(file: str) -> str:
    return ".".join(Path(file).with_suffix("").parts[:2])


def file_of(module: str) -> str | None:
    """Return the file of a module of ours, None if the name is something else."""
    path = Path(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if (ROOT / file).is_file():
            return file.as_posix()
    return None


def in_circles(graph: Mapping[str, set[str]]) -> set[str]:
    """Return the nodes of a graph from which a path leads back to them."""

    def reached_from(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = graph.get(waiting.pop(), set()) - seen
            seen |= new
            waiting += new
        return seen

    return {node for node in graph if node in reached_from(node)}


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
k = "modules.l:run"
"""
    found = {
        each.module: (each.at_top, each.for_types)
        for each in imports_of("diel/package/file.py", ast.parse(code))
        if not each.module.startswith("typing")
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
        "modules.l": (False, False),
    }


def test_circles_are_found() -> None:
    assert in_circles({"a": {"b", "d"}, "b": {"c"}, "c": {"b"}, "d": {"d"}}) == {"b", "c", "d"}


@pytest.mark.parametrize("root", LAYERS)
def test_every_file_is_in_a_layer(root: str) -> None:
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / root).rglob("*.py")}
    found = {package_of_file(file) for file in files - ROOTS}
    assert found == {name for name in LAYER_OF if name.startswith(f"{root}.")}


@pytest.mark.parametrize("root", LAYERS)
def test_no_import_runs_up(root: str) -> None:
    """Imports for types alone are exempt: they leave no trace when the program runs."""
    wrong = []
    for found in all_imports(root):
        package, here = package_of(found.module), package_of_file(found.file)
        if found.file in ROOTS or found.for_types or package in {None, here} | GROUND:
            continue
        if package.startswith(f"{root}.") and LAYER_OF[package] >= LAYER_OF[here]:
            wrong.append(str(found))
    assert wrong == []


@pytest.mark.parametrize("root", LAYERS)
def test_no_files_import_each_other_in_a_circle(root: str) -> None:
    """Imports in functions count: a circle that they break is one for who reads the files."""
    graph: dict[str, set[str]] = defaultdict(set)
    for found in all_imports(root):
        file = file_of(found.module)
        if file not in (None, found.file) and not found.for_types and found.file not in ROOTS:
            graph[found.file].add(file)
    assert in_circles(graph) == set()


def test_import_diel_costs_nothing() -> None:
    """`diel/__init__.py` imports packages on first use."""
    for found in all_imports("diel"):
        if found.file == "diel/__init__.py" and found.at_top and not found.for_types:
            assert package_of(found.module) is None, str(found)


def test_the_run_directory_knows_nothing_but_the_errors() -> None:
    """Even for types: whoever reads a run needs no other package."""
    for found in all_imports("diel"):
        if package_of_file(found.file) == "diel.run":
            assert package_of(found.module) in (None, "diel.run", *GROUND), str(found)
            assert found.module.split(".")[0] not in ("numpy", "mpi4py", "pydantic", "rich")


@pytest.mark.parametrize(("package", "other"), [("diel", "dnn"), ("dnn", "diel")])
def test_diel_and_dnn_do_not_know_each_other(package: str, other: str) -> None:
    strangers = {other, "modules"}
    wrong = [
        str(found) for found in all_imports(package) if found.module.split(".")[0] in strangers
    ]
    assert wrong == []


def test_our_modules_use_only_public_names() -> None:
    in_distributed = {f"distributed.{name}" for name in dnn.distributed.__all__}
    public = {
        "diel": set(diel.__all__),
        "dnn": {*dnn.__all__, "distributed", *in_distributed},
    }
    for found in all_imports("modules"):
        package, *rest = found.module.split(".")
        if package == "diel" and rest[:1] in (["errors"], ["expressions"]):
            continue  # all of them are public
        if package in public:
            name = ".".join(rest)
            assert not name or name in public[package], f"{found}: not a public name"


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
    for found in [found for package in LAYERS for found in all_imports(package)]:
        if found.module.split(".")[0] == "mpi4py" and not found.for_types:
            assert not found.at_top, str(found)
            speakers.add(found.file)
    assert speakers == MPI_FILES


def test_tests_are_named_uniquely() -> None:
    """They are imported by their base names."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


# -- public names ---------------------------------------------------------------------------------


def test_the_public_names_of_diel() -> None:
    assert diel.__all__ == [
        "ANY",
        "IQNILS",
        "Address",
        "Aitken",
        "ConstantRelaxation",
        "Context",
        "Executive",
        "JsonLinesFile",
        "MappedField",
        "OneOf",
        "Reporter",
        "ResultsTable",
        "Run",
        "TrialLog",
        "__version__",
        "as_integer",
        "as_number",
        "batch_job",
        "child_environment",
        "describe_error",
        "describe_traceback",
        "duration_s",
        "end_with_parent",
        "file_opener",
        "format_duration",
        "format_value",
        "import_function",
        "installed_plugins",
        "load_plugin",
        "load_workflow",
        "locate_function",
        "mapping_weights",
        "open_regular",
        "open_run",
        "parse_json",
        "part_of",
        "read_json",
        "repeat_command",
        "replace_file",
        "replacing",
        "restoring",
        "start_helper",
        "sweep",
        "whole_lines",
    ]


def test_the_public_names_of_dnn() -> None:
    assert dnn.__all__ == [
        "GRU",
        "L1",
        "L2",
        "LARS",
        "LSTM",
        "RNN",
        "SGD",
        "Activation",
        "AdaGrad",
        "Adam",
        "AdamW",
        "AsynchronousSGD",
        "Augmentation",
        "AveragedModel",
        "AvgPool2D",
        "BatchNorm",
        "BestCheckpoint",
        "BinaryCrossEntropy",
        "Callback",
        "ChannelShuffle",
        "ChannelSlice",
        "Checkpoint",
        "CheckpointError",
        "CommunicationError",
        "Concat",
        "ConfigurationError",
        "Conv1D",
        "Conv2D",
        "Cosine",
        "Crop",
        "CrossEntropy",
        "Cutout",
        "DataError",
        "DataParallel",
        "Dataset",
        "DeviceData",
        "DeviceError",
        "DisagreementError",
        "DnnError",
        "Dropout",
        "DtypeError",
        "EarlyStopping",
        "EmbedColumns",
        "Embedding",
        "Ensemble",
        "Epoch",
        "Flatten",
        "Flip",
        "FocalLoss",
        "FullyConnected",
        "Gate",
        "GlobalAvgPool2D",
        "GradientDescent",
        "GrowingBatch",
        "History",
        "HuberLoss",
        "Images",
        "Input",
        "KullbackLeibler",
        "LabelError",
        "Layer",
        "LayerNorm",
        "LayerNorm2D",
        "LayerScale",
        "LayerSummary",
        "LoadedWeights",
        "LocalSGD",
        "Loss",
        "MaxPool2D",
        "MeanAbsoluteError",
        "MeanSquaredError",
        "MemoryManager",
        "Mesh",
        "MissingDependencyError",
        "MixedPrecisionWarning",
        "MultiLabelCrossEntropy",
        "Muon",
        "NAdam",
        "NeuralNetwork",
        "NonFiniteError",
        "Normalise",
        "OneCycle",
        "OnnxModel",
        "Optimizer",
        "OutOfDeviceMemory",
        "OutOfRangeError",
        "Output",
        "ParameterServer",
        "PeerError",
        "Penalty",
        "PixelMap",
        "PoissonLoss",
        "Progress",
        "ProgressBar",
        "Pruning",
        "QuantileLoss",
        "RMSProp",
        "RadialBasis",
        "Reshape",
        "Residual",
        "RoutineTable",
        "SequenceInput",
        "ShapeError",
        "Shift",
        "SimulatedWorkers",
        "SoftmaxCrossEntropy",
        "SpatialDropout",
        "StepDecay",
        "StochasticDepth",
        "Tensor",
        "TrainedModel",
        "TrainingParameters",
        "Upsample2D",
        "WarmUp",
        "alexnet",
        "batches",
        "bmatmul",
        "catalogue",
        "class_weights",
        "convnext_tiny",
        "copy_training",
        "cuda_problem",
        "densenet121",
        "device_facts",
        "download",
        "efficientnet_b0",
        "encode",
        "free_bytes",
        "free_memory",
        "frozen_parameters",
        "impute",
        "layer_kinds",
        "layer_summaries",
        "layers_from_tables",
        "lenet5",
        "limit_memory",
        "load",
        "load_breast_cancer",
        "load_checkpoint",
        "load_cifar10",
        "load_cifar100",
        "load_cleveland",
        "load_csv",
        "load_dataset",
        "load_diabetes",
        "load_digits",
        "load_fashion_mnist",
        "load_idx",
        "load_image_folder",
        "load_mnist",
        "load_npz",
        "load_progress",
        "load_table",
        "metrics_of_targets",
        "minimize",
        "mlp",
        "mnasnet0_5",
        "mobilenet_v2",
        "mobilenet_v3_large",
        "mobilenet_v3_small",
        "ops_for",
        "pad_sequences",
        "prefetch",
        "progress_of",
        "read_weights",
        "reading_options",
        "resnet18",
        "resnet50",
        "resnext50_32x4d",
        "resume_training",
        "save_checkpoint",
        "shufflenet_v2_x1_0",
        "squeezenet1_1",
        "standardise",
        "summary",
        "train_validation_split",
        "train_validation_test_split",
        "vgg16",
        "watched_compilation",
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
