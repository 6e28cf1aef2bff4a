"""Odd labels and rows: each is said once, by ``diel check``, a preview and a run alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import diel

from diel.errors import ModuleFailed
from diel.testing import Module, run_module, run_modules
from dnn import DataError, Dataset, load_table
from modules import master, trainer
from modules.evaluation import EvaluationOptions, data_warnings

X = np.arange(30, dtype=np.float32).reshape(15, 2)
SWEEP = """\
[[module]]
name = "master"
function = "modules.master:run"
options = {{ space = {{ learning_rate = [0.1, 0.01], epochs = 1, hidden = [[4]] }} }}
[[module]]
name = "trainer"
function = "modules.trainer:run"
options = {options}
[[group]]
name = "search"
modules = ["master", "trainer"]
"""
FROM_1 = "the labels begin with 1"
EQUAL = "rows that are scored"


def k_fold(labels: Any, folds: int) -> list[Any]:
    return EvaluationOptions(method="k_fold", folds=folds).cut(labels)


def found(y: Any, x: Any = X, folds: int = 3) -> list[str]:
    labels = np.asarray(y)
    data = Dataset(x, labels, int(labels.max()) + 1, "mine")
    splits = k_fold(np.zeros(len(labels), int), folds)
    return list(data_warnings(data, [(fold.train, fold.test) for fold in splits]))


def test_sound_rows_are_not_odd() -> None:
    assert found([0, 1, 2] * 5) == []


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([1, 2, 3] * 5, FROM_1),
        ([0, 2, 5] * 5, "no row has the label 1, 3, 4, and networks have an output for each label"),
        ([0, 1, 40] * 5, "no row has the label 2, 3, 4, 5, 6, 7, 8, 9 or 30 more"),
        ([0] * 15, "all 15 rows have the label 0: there is nothing to learn"),
        ([2] * 15, "all 15 rows have the label 2"),
        ([0, 1] * 7 + [2], "rows of class 2 are scored by networks that were trained on none"),
    ],
)
def test_odd_labels(labels: list[int], words: str) -> None:
    (line,) = found(labels)
    assert line.startswith("mine: ")
    assert words in line


def test_rows_that_are_equal_across_a_split_are_counted_once() -> None:
    x = X.copy()
    x[3] = x[4] = x[0]  # in three different folds or not: each is scored once in all
    x[7, 0] = np.nan
    x[8] = x[7]
    folds = k_fold(np.zeros(15, int), 5)
    place = {int(row): number for number, fold in enumerate(folds) for row in fold.test}
    apart = [
        row
        for group in ((0, 3, 4), (7, 8))
        for row in group
        if {place[other] for other in group} != {place[row]}
    ]
    (line,) = found([0, 1, 2] * 5, x, folds=5)
    assert f"{len(apart)} of 15 rows that are scored ({len(apart) / 15:.0%}) equal rows" in line


def test_a_zero_is_a_zero_whatever_its_sign() -> None:
    x = X.copy()
    x[0], x[1] = 0.0, -0.0
    (line,) = found([0, 1, 2] * 5, x, folds=15)
    assert "2 of 15" in line


def write(folder: Path, labels: list[Any], repeats: int = 1) -> None:
    rows = [f"{2 * i},{i * i % 17},{label}" for i, label in enumerate(labels)] * repeats
    (folder / "mine.csv").write_text("\n".join(["a,b,kind", *rows]) + "\n")


def write_sweep(folder: Path, options: str) -> None:
    (folder / "w.toml").write_text(SWEEP.format(options=options))


CSV = 'dataset = "csv", path = "mine.csv"'
THEIRS = f'{{ train = "modules.sklearn_trainer:train", options = {{ {CSV} }} }}'


@pytest.mark.parametrize("options", [f"{{ {CSV} }}", THEIRS], ids=["ours", "scikit-learn"])
def test_labels_that_are_none_are_a_problem_of_the_file(options: str, tmp_path: Path) -> None:
    write(tmp_path, [0, 1, "1.5", 0] * 5)
    write_sweep(tmp_path, options)
    checked = diel("check", "w.toml", cwd=tmp_path)
    previewed = diel("sweep", "w.toml", "--dry-run", cwd=tmp_path)
    assert checked.status == previewed.status == 2
    assert checked.stderr == previewed.stderr
    assert "line 8, module[1].options: module 'trainer': LabelError: " in checked.stderr
    assert "label 1.5 in row 2 of column 'kind' is no integer from 0" in checked.stderr


def test_classes_are_called_as_in_the_table(tmp_path: Path) -> None:
    write(tmp_path, ["light", "dark"] * 10 + ["odd"])
    write_sweep(tmp_path, f"{{ {CSV}, evaluation = {{ method = 'k_fold', folds = 3 }} }}")
    assert (
        "class 'odd' has 1 row, too few for 3 folds" in diel("check", "w.toml", cwd=tmp_path).stderr
    )
    write(tmp_path, [1, 2] * 10)
    write_sweep(tmp_path, f"{{ {CSV} }}")
    checked = diel("check", "w.toml", cwd=tmp_path)
    assert 'or say reading.categories = ["kind"], which takes' in checked.stdout + checked.stderr


def test_what_is_odd_is_said_once_by_each(tmp_path: Path) -> None:
    write(tmp_path, [1, 2] * 20, repeats=2)
    write_sweep(tmp_path, f"{{ {CSV} }}")
    checked = diel("check", "w.toml", cwd=tmp_path)
    previewed = diel("sweep", "w.toml", "--dry-run", cwd=tmp_path)
    assert checked.status == previewed.status == 0
    assert checked.stderr == previewed.stderr
    said = checked.stderr.splitlines()
    assert [FROM_1 in said[0], EQUAL in said[1], len(said)] == [True, True, 2]
    # A run says the same, however many trainers it has.
    context = {"folder": tmp_path, "run_dir": tmp_path / "run"}
    (tmp_path / "run").mkdir()
    space = {"learning_rate": [0.1, 0.01], "epochs": 1, "hidden": [[4]]}
    options = trainer.Options.model_validate(
        {"dataset": "csv", "path": "mine.csv"}, context=context
    )
    runs = run_modules(
        {
            "master": Module(
                master.run, master.Options.model_validate({"space": space}, context=context)
            ),
            "trainer": Module(trainer.run, options, copies=2),
        },
        folder=tmp_path,
        run_dir=tmp_path / "run",
        timeout=60,
    )
    warnings = [text for copy in runs["trainer"] for text in copy.warnings]
    assert [f"diel: {text}" for text in warnings] == said


def test_wrong_data_end_a_trainer_with_the_message_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("a,y\n1,p\nmany,q\n")
    context = {"folder": tmp_path, "run_dir": tmp_path}
    options = {"dataset": "csv", "path": "mine.csv"}
    given = trainer.Options.model_validate(options, context=context)
    with pytest.raises(ModuleFailed, match="line 3, column 'a': 'many' is no number"):
        run_module(trainer.run, given, folder=tmp_path, run_dir=tmp_path)


def test_names_that_differ_in_capitals_alone_are_said() -> None:
    colours = ["Red", "blue", "red", "blue"] * 10
    data = load_table({"a": colours, "y": ["Yes", "no", "no", "yes"] * 10})
    lines = [each for each in data_warnings(data, []) if "alike" in each]
    assert lines == [
        "table: classes are 'Yes' and 'yes': write what is one alike",
        "table: categories of column 'a' are 'Red' and 'red': write what is one alike",
    ]


def test_names_that_were_taken_as_cells_are_said(tmp_path: Path) -> None:
    path = tmp_path / "towns.csv"
    rows = "".join(f"{'AB'[i % 2]},{i % 5},{i % 7},{'pq'[i % 3 > 1]}\n" for i in range(40))
    path.write_text(f"town,2019,2020,kind\n{rows}")
    (line,) = (each for each in data_warnings(load_table(path), []) if "first row" in each)
    assert line.endswith("if it holds names, say reading.header = true")
    assert not [*data_warnings(load_table(path, header=True), [])]
    path.write_text(rows)
    assert not [*data_warnings(load_table(path), [])]
    path.write_text("id,2019\n1,0\n2,1\n")
    with pytest.raises(DataError, match="if the first row holds names, say header = true"):
        load_table(path)


def test_a_large_file_is_left_to_the_preview(tmp_path: Path) -> None:
    write(tmp_path, [1, 2] * 20)
    options = trainer.Options.model_validate(
        {"dataset": "csv", "path": "mine.csv"}, context={"folder": tmp_path}
    )
    problem, (line,) = trainer.look_at_data(options, tmp_path, largest_bytes=10)
    assert problem == ""
    assert "was not read" in line
    assert "--dry-run" in line
    _, said = trainer.look_at_data(options, tmp_path)
    assert any("labels begin with 1" in line for line in said)


def regression(*columns: list[float], task: str = "regression") -> Dataset:
    y = np.array(columns).T
    names = tuple("abcd"[: y.shape[1]])
    x = np.arange(2.0 * len(y)).reshape(-1, 2)
    return Dataset(x, y, 0, "d", task=task, targets=names)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (regression([3.0] * 80), ["target a is 3 in all 80 rows: there is nothing to learn"]),
        (
            regression(np.arange(80.0).tolist(), [*np.sin(np.arange(79.0)), 1e6]),
            ["target b is further than 10 deviations from the median in 1 of 80 rows, 1e+06: if"],
        ),
        (regression([1.0, 2.0] * 40), ["target a is one of 1, 2: if these are classes, say label"]),
        (regression(np.arange(80.0).tolist()), []),
        (
            regression(np.arange(60.0).tolist()),
            ["only 15 rows are scored, so that by"],
        ),
        (
            regression([0.0] * 80, [1.0] * 80, [0.0, 1.0] * 40, task="multilabel"),
            ["no row has the label a: there is", "every row has the label b: there is"],
        ),
    ],
)
def test_what_is_odd_about_targets(data: Dataset, words: list[str]) -> None:
    rows = np.arange(len(data))
    test = rows % (2 if len(data) > 60 else 4) == 0
    found = list(data_warnings(data, [(rows[~test], rows[test])]))
    assert len(found) == len(words)
    for line, text in zip(found, words, strict=True):
        assert text in line


@pytest.mark.parametrize(
    ("first", "step", "is_odd"), [(0, 1, True), (1, 1, True), (5, 1, False), (0, 2, False)]
)
def test_a_column_that_numbers_the_rows_is_odd(first: int, step: int, is_odd: bool) -> None:
    table = {"": first + step * np.arange(40), "a": np.arange(40) ** 2, "y": np.arange(40) % 2}
    data = load_table(table)
    rows = np.arange(40)
    lines = list(data_warnings(data, [(rows[:30], rows[30:])]))
    said = "table: column '' numbers the rows, which says nothing of new ones unless"
    assert [line.startswith(said) for line in lines] == [True] * is_odd
