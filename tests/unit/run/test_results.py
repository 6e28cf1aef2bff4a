from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import record

from diel.errors import RunDirectoryError
from diel.run.directory import RunDirectory, new_results_file
from diel.run.journal import JournalReader, Recorder
from diel.run.records import ResultsDeclared
from diel.run.results import ResultsWriter, best_of_table, rank_rows


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_are_in_the_file_at_once_in_the_order_of_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    results = ResultsWriter(path, ["b", "a"])
    assert path.read_text() == "b,a\n"
    results.write({"a": 1, "b": "x"})
    assert path.read_text() == "b,a\nx,1\n"
    results.write({"b": 'with "quotes", and\nlines', "a": None})
    assert read(path)[1] == {"b": 'with "quotes", and\nlines', "a": ""}
    results.close()


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (0.1 + 0.2, "0.30000000000000004"),
        (np.float64(0.1), "0.1"),
        (np.float64("nan"), "nan"),
        (np.float32(0.5), "0.5"),
        (np.int64(3), "3"),
        (math.inf, "inf"),
        (1e-5, "1e-05"),
        ([64, 32], "64x32"),
        ((8,), "8"),
        (True, "True"),
        ("file \udcff", "file ?"),
    ],
)
def test_a_cell_reads_back_as_the_same_number(tmp_path: Path, value: Any, cell: str) -> None:
    path = tmp_path / "results.csv"
    results = ResultsWriter(path, ["a"])
    results.write({"a": value})
    results.close()
    assert read(path) == [{"a": cell}]


@pytest.mark.parametrize("row", [{"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 2}, {}])
def test_a_row_of_other_columns_is_refused(tmp_path: Path, row: dict[str, int]) -> None:
    path = tmp_path / "results.csv"
    results = ResultsWriter(path, ["a", "b"])
    with pytest.raises(RunDirectoryError, match="the table has a, b"):
        results.write(row)
    results.close()
    assert path.read_text() == "a,b\n"


def test_the_header_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    for number in range(2):
        results = ResultsWriter(path, ["a"])
        results.write({"a": number})
        results.close()
    assert path.read_text() == "a\n0\n1\n"


# -- ranking --------------------------------------------------------------------------------------


def ranked(values: list[Any], *, maximise: bool) -> list[int]:
    rows = [{"value": value, "index": index} for index, value in enumerate(values)]
    return [row["index"] for row in rank_rows(rows, "value", maximise)]


NAN = math.nan


@pytest.mark.parametrize(
    ("values", "maximise", "order"),
    [
        ([1.0, 3.0, 2.0], True, [1, 2, 0]),
        ([1.0, 3.0, 2.0], False, [0, 2, 1]),
        ([2, 1, 2, 1], True, [0, 2, 1, 3]),  # ties keep their order
        ([2, 1, 2, 1], False, [1, 3, 0, 2]),
        ([NAN, 1.0, NAN, 2.0], True, [3, 1, 0, 2]),
        ([NAN, 1.0, NAN, 2.0], False, [1, 3, 0, 2]),
        ([NAN, -math.inf, math.inf], True, [2, 1, 0]),
        ([NAN, -math.inf, math.inf], False, [1, 2, 0]),
        (["nan", 0.5, "inf"], False, [1, 2, 0]),  # as a journal spells them
        ([np.float64(1), np.float64("nan"), np.float32(2)], True, [2, 0, 1]),
        ([], True, []),
    ],
)
def test_rows_are_ranked_from_best_to_worst(
    values: list[Any], maximise: bool, order: list[int]
) -> None:
    assert ranked(values, maximise=maximise) == order


@given(st.lists(st.floats(width=16)), st.booleans())
def test_ranking_is_a_permutation_with_nan_at_its_end(values: list[float], maximise: bool) -> None:
    order = ranked(values, maximise=maximise)
    assert sorted(order) == list(range(len(values)))
    found = [values[index] for index in order]
    numbers = [value for value in found if value == value]
    assert numbers == sorted(numbers, reverse=maximise)
    assert all(value != value for value in found[len(numbers) :])
    for before, after in pairwise(order):
        if values[before] == values[after]:
            assert before < after


# -- the recorder ---------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    (tmp_path / "w.toml").write_text("")
    return RunDirectory.create(tmp_path, "w", tmp_path / "w.toml")


def declared(module: str, *columns: str) -> ResultsDeclared:
    return ResultsDeclared(
        module=module, columns=columns, objective="x", maximise=True, expected=None
    )


@pytest.fixture
def recorder(directory: RunDirectory) -> Iterator[Recorder]:
    recorder = Recorder(directory)
    yield recorder
    recorder.close()


def test_results_go_to_the_journal_and_to_the_table(
    directory: RunDirectory, recorder: Recorder
) -> None:
    recorder.record(record("RunStarted", workflow="w", ranks=3, groups=[]))
    table = {"objective": "y", "maximise": True, "expected": None}
    recorder.record(record("ResultsDeclared", module="m", columns=["x", "y"], **table))
    recorder.record(record("ResultAdded", module="m", row={"y": np.float64("nan"), "x": 1}))
    assert directory.results_table(1).read_text() == "x,y\n1,nan\n"  # flushed
    recorder.sync()
    _, *records = JournalReader(directory.journal).new_records()
    assert [type(one).__name__ for one in records] == [
        "RunStarted",
        "ResultsDeclared",
        "ResultAdded",
    ]
    assert records[2].row == {"y": "nan", "x": 1}


def test_tables_of_several_modules_have_files_of_their_own(
    directory: RunDirectory, recorder: Recorder
) -> None:
    recorder.record(declared("one", "x"))
    recorder.record(declared("two", "x"))
    recorder.record(declared("one", "x"))  # by another copy
    recorder.record(declared("one", "x", "y"))
    for module, row in [("two", {"x": 2}), ("one", {"x": 1}), ("one", {"y": 4, "x": 3})]:
        recorder.record(record("ResultAdded", module=module, row=row))
    tables = {file.name: file.read_text() for file in directory.path.glob("*.csv")}
    assert sorted(tables.values()) == ["x\n1\n", "x\n2\n", "x,y\n3,4\n"]
    assert tables[directory.results_table(1).name] == "x\n1\n"


def test_a_run_without_results_has_no_table(directory: RunDirectory, recorder: Recorder) -> None:
    assert recorder.record(record("RunEnded", exit_code=0)).exit_code == 0
    assert not directory.results_table(1).exists()


def test_the_best_rows_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text("trial,x,kind\n0,0.5,a\n1,,b\n2,nan,c\n3,0.75,64x32\n4,0.75,e\n")
    best = best_of_table(path, "x", maximise=True, count=3)
    assert [row["trial"] for row in best] == [3, 4, 0]
    assert best[0] == {"trial": 3, "x": 0.75, "kind": "64x32"}
    assert [row["trial"] for row in best_of_table(path, "x", maximise=False, count=9)][:2] == [0, 3]


def test_rows_that_are_no_results_are_not_among_the_best_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text(
        "trial,x,state\n0,0.5,finished\n1,0.9,diverged\n2,0.8,stopped\n"
        "3,0.7,ValueError: x\n4,0.6,\n"
    )
    assert [row["trial"] for row in best_of_table(path, "x", maximise=True, count=9)] == [4, 0]


def test_a_resumed_run_leaves_the_tables_of_modules_alone(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    own = new_results_file(tmp_path)
    own.write_text("mine\n")
    recorder = Recorder(directory)
    columns = {"columns": ["a"], "objective": "a", "maximise": True, "expected": None}
    recorder.record(record("ResultsDeclared", module="m", file=own.name, **columns))
    recorder.record(record("ResultsDeclared", module="n", **columns))
    recorder.record(record("ResultAdded", module="n", row={"a": 1}))
    recorder.record(record("CheckpointSaved", number=1, file=None, finished={}))
    recorder.record(record("ResultAdded", module="n", row={"a": 2}))
    recorder.record(record("RunResumed", checkpoint=1, file=None, finished={}))
    recorder.close()
    Recorder(directory).close()
    assert own.read_text() == "mine\n"
    assert (tmp_path / "results-2.csv").read_text() == "a\n1\n"
    assert new_results_file(tmp_path).name == "results-3.csv"
