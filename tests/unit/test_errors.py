from __future__ import annotations

import copy
import pickle

import pytest

from diel import errors
from diel.errors import (
    AddressError,
    BoundaryError,
    CheckpointError,
    ClaimLost,
    ConditionError,
    CopyStopped,
    CouplingError,
    CouplingTimeout,
    DielError,
    EditRefused,
    LaunchError,
    MissingPackage,
    ModuleFailed,
    NewModuleError,
    OwnerEnded,
    PageError,
    PayloadError,
    PluginError,
    Problem,
    RunDirectoryError,
    RunStopped,
    SweepCallError,
    TagError,
    TooFarAhead,
    TupleError,
    TupleSocketError,
    TupleSpaceFull,
    TupleTimeout,
    WorkflowError,
)

PROBLEMS = [Problem("module[2].copies", "is missing", "add copies = 1"), Problem("", "is empty")]

# Every class: one of it, its fields, the builtin that it also is.
TABLE = [
    (DielError("words"), {}, Exception),
    (
        WorkflowError("w.toml", PROBLEMS),
        {"file": "w.toml", "problems": tuple(PROBLEMS)},
        ValueError,
    ),
    (
        EditRefused("words", "remedy"),
        {"message": "words", "remedy": "remedy"},
        ValueError,
    ),
    (LaunchError("words"), {}, RuntimeError),
    (PluginError("words"), {}, ValueError),
    (MissingPackage("words"), {}, ImportError),
    (SweepCallError("words"), {}, ValueError),
    (NewModuleError("words"), {}, ValueError),
    (PageError("words"), {}, RuntimeError),
    (ConditionError("words"), {}, ValueError),
    (RunDirectoryError("words"), {}, OSError),
    (ModuleFailed("words"), {}, RuntimeError),
    (RunStopped("words"), {}, RuntimeError),
    (CopyStopped("words"), {}, RunStopped),
    (TupleSocketError("words"), {}, RuntimeError),
    (TupleError("words"), {}, Exception),
    (TagError("words"), {}, ValueError),
    (PayloadError("words"), {}, TypeError),
    (TupleSpaceFull("words"), {}, RuntimeError),
    (ClaimLost("words"), {}, RuntimeError),
    (CheckpointError("words"), {}, ValueError),
    (
        TupleTimeout("tget", "('a', ANY)", 2.5),
        {"operation": "tget", "tag": "('a', ANY)", "timeout_s": 2.5, "reason": "nothing matched"},
        TimeoutError,
    ),
    (CouplingError("words"), {}, Exception),
    (AddressError("words"), {}, ValueError),
    (BoundaryError("words"), {}, ValueError),
    (OwnerEnded("words"), {}, EOFError),
    (TooFarAhead("words"), {}, RuntimeError),
    (
        CouplingTimeout("recv(from fluid.0 rank 0)", 2.5),
        {"operation": "recv(from fluid.0 rank 0)", "timeout_s": 2.5},
        TimeoutError,
    ),
]
IDS = [type(error).__name__ for error, _, _ in TABLE]


def test_the_table_has_every_class() -> None:
    classes = {
        var for var in vars(errors).values() if isinstance(var, type) and issubclass(var, DielError)
    }
    assert classes == {type(error) for error, _, _ in TABLE}
    drawn = errors.__doc__ or ""
    assert all(classe.__name__ in drawn for classe in classes)


@pytest.mark.parametrize(("error", "fields", "builtin"), TABLE, ids=IDS)
def test_an_error_crosses_ranks_whole(
    error: DielError, fields: dict[str, object], builtin: type[Exception]
) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        arrived = pickle.loads(pickle.dumps(error, protocol))
        assert type(arrived) is type(error)
        assert str(arrived) == str(error) != ""
        assert vars(arrived) == vars(error) == fields
    assert str(copy.copy(error)) == str(error)
    assert isinstance(error, builtin)
    assert isinstance(error, DielError)


def test_a_note_crosses_too() -> None:
    error = TagError("words")
    error.__dict__["__notes__"] = ["on rank 3"]
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["on rank 3"]


def test_the_messages() -> None:
    assert str(WorkflowError("w.toml", PROBLEMS)) == (
        "w.toml: 2 problems\n  module[2].copies: is missing (add copies = 1)\n  is empty"
    )
    assert str(WorkflowError("w.toml", PROBLEMS[1:])) == "w.toml: 1 problem\n  is empty"
    timeout = TupleTimeout("tread", "'a'", 0.5)
    assert str(timeout) == "tread('a'): nothing matched within 0.5 s"


def test_a_problem_is_one_line_whatever_a_file_holds() -> None:
    problem = Problem("module[0].function", '"./a\n.py" \x1b[31m is not there', "é is fine")
    assert str(problem) == r'module[0].function: "./a\n.py" \x1b[31m is not there (é is fine)'
