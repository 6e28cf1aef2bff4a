"""Splits by a column of the table: groups that stay together, time, and a column's own word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from modules import trainer
from modules.evaluation import EvaluationError, EvaluationOptions, NestedFold, data_warnings
from modules.trainer_data import load_split
from modules.trial import Trial

DRAW = np.random.default_rng(3)
GROUPS = np.sort(DRAW.integers(0, 40, 300)).astype(float)
CLASSES = (GROUPS % 3 == 0).astype(int)
TIMES = DRAW.permutation(np.repeat(np.arange(60.0), 5))
BESIDE = {
    "patient": GROUPS,
    "ward": np.array(["a", "b"], object)[(GROUPS % 2).astype(int)],
    "day": TIMES,
}


def cut(**options: Any) -> list[Any]:
    return EvaluationOptions(**options).cut(CLASSES, BESIDE)


@pytest.mark.parametrize("stratified", [True, False])
def test_no_group_is_on_both_sides(stratified: bool) -> None:
    folds = cut(method="k_fold", folds=4, repeats=2, groups="patient", stratified=stratified)
    assert len(folds) == 8
    for repeat in (folds[:4], folds[4:]):
        assert sorted(np.concatenate([fold.test for fold in repeat]).tolist()) == [*range(300)]
    assert [fold.test.tolist() for fold in folds[:4]] != [fold.test.tolist() for fold in folds[4:]]
    for fold in folds:
        assert not {*GROUPS[fold.train]} & {*GROUPS[fold.test]}
        assert len(fold.train) + len(fold.test) == 300
        assert abs(len(fold.test) - 75) < 15
        if stratified:
            assert abs(CLASSES[fold.test].mean() - CLASSES.mean()) < 0.08
    (single,) = cut(fraction=0.3, groups="patient", seed=2)
    assert not {*GROUPS[single.train]} & {*GROUPS[single.test]}
    assert abs(len(single.test) - 90) < 15
    (other,) = cut(fraction=0.3, groups="patient", seed=5)
    assert other.test.tolist() != single.test.tolist()
    (wards,) = cut(groups="ward")
    assert len({*BESIDE["ward"][wards.test]}) == 1


def test_groups_as_scikit_learn_keeps_them() -> None:
    selection = pytest.importorskip("sklearn.model_selection")
    theirs = selection.StratifiedGroupKFold(5).split(GROUPS, CLASSES, GROUPS)
    worst = max(abs(CLASSES[test].mean() - CLASSES.mean()) for _, test in theirs)
    ours = cut(method="k_fold", folds=5, groups="patient")
    assert max(abs(CLASSES[fold.test].mean() - CLASSES.mean()) for fold in ours) < worst + 0.03


def test_rows_are_scored_that_come_later() -> None:
    (single,) = cut(fraction=0.2, time="day")
    assert TIMES[single.train].max() < TIMES[single.test].min()
    assert (len(single.train), len(single.test)) == (240, 60)
    folds = cut(method="k_fold", folds=4, time="day")
    for number, fold in enumerate(folds, start=1):
        assert TIMES[fold.train].max() < TIMES[fold.test].min()
        assert (len(fold.train), len(fold.test)) == (60 * number, 60)
    uneven = {"day": np.array([1.0, 2, 2, 2, 2, 3])}
    (fold,) = EvaluationOptions(fraction=0.5, time="day").cut(np.zeros(6, int), uneven)
    assert (fold.train.tolist(), fold.test.tolist()) == ([0], [1, 2, 3, 4, 5])


@pytest.mark.parametrize("option", [{"groups": "patient"}, {"time": "day"}])
def test_nested_folds_keep_it_inside_too(option: dict[str, str]) -> None:
    for fold in cut(method="nested", folds=3, inner_folds=2, **option):
        assert isinstance(fold, NestedFold)
        assert len(fold.inner) == 2
        for inner in fold.inner:
            assert {*inner.train.tolist(), *inner.test.tolist()} <= {*fold.train.tolist()}
            if "time" in option:
                assert TIMES[inner.train].max() < TIMES[inner.test].min()
            else:
                assert not {*GROUPS[inner.train]} & {*GROUPS[inner.test]}


def test_a_column_says_the_part_of_each_row() -> None:
    words = np.array(["train", "Train", "validation", "test", "val"], object)
    options, y = EvaluationOptions(split="part"), np.zeros(5, int)
    (fold,) = options.cut(y, {"part": words})
    assert isinstance(fold, NestedFold)
    assert (fold.train.tolist(), fold.test.tolist()) == ([0, 1, 2, 4], [3])
    assert [(inner.train.tolist(), inner.test.tolist()) for inner in fold.inner] == [
        ([0, 1], [2, 4])
    ]
    words[3] = "train"
    (fold,) = options.cut(y, {"part": words})
    assert (fold.train.tolist(), fold.test.tolist()) == ([0, 1, 3], [2, 4])
    words[0] = "maybe"
    with pytest.raises(
        EvaluationError, match="row 1 says 'maybe', and is to say train, validation"
    ):
        options.cut(y, {"part": words})
    for cell, said in (("", "is empty"), (np.nan, "is empty"), (2.0, "says '2'")):
        words[0] = cell
        with pytest.raises(EvaluationError, match=f"row 1 {said}, and is to say train"):
            options.cut(y, {"part": words})
    with pytest.raises(EvaluationError, match="no row says validation or test"):
        options.cut(y, {"part": np.array(["train"] * 5, object)})


@pytest.mark.parametrize(
    ("options", "columns", "words"),
    [
        ({"groups": "g"}, {}, "groups = 'g': there is no such column"),
        ({"groups": "g"}, {"g": np.zeros(6)}, "there is 1 group, too few for 2 parts"),
        (
            {"groups": "g"},
            {"g": np.array([1, np.nan] * 3)},
            "'g' is missing in 3 rows, the first of them row 2",
        ),
        ({"groups": "g"}, {"g": np.array(["a", ""] * 3, object)}, "'g' is missing in 3 rows"),
        (
            {"time": "g"},
            {"g": np.array(["a"] * 6, object)},
            "time = 'g': its cells are texts; dates",
        ),
        ({"time": "a b"}, {"a b": np.array(["a"] * 6, object)}, 'dates = { "a b" = '),
        ({"time": "g"}, {"g": np.zeros(6)}, "1 different times are too few for 2 parts"),
    ],
)
def test_columns_that_cannot_split(options: Any, columns: Any, words: str) -> None:
    with pytest.raises(EvaluationError, match=words):
        EvaluationOptions(**options).cut(np.zeros(6, int), columns)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"groups": "a", "time": "b"}, "rows are split by one column"),
        (
            {"time": "a", "method": "k_fold", "repeats": 2},
            "time orders the rows, and repeats is of",
        ),
        ({"split": "a", "fraction": 0.3}, "split says which rows are scored, and fraction too"),
    ],
)
def test_options_that_do_not_go_together(options: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        EvaluationOptions(**options)


def write(folder: Path, repeats: int = 1) -> None:
    lines = ["patient,day,part,a,colour,sick"]
    for row in range(60):
        part = "train" if row < 40 else "validation" if row < 50 else "test"
        cells = f"p{row // 6},2024-{1 + row // 28:02d}-{1 + row % 28:02d},{part}"
        lines += [f"{cells},{row % 7},{'red' if row % 3 else 'blue'},{'yes' if row % 2 else 'no'}"]
    lines[1:] *= repeats
    (folder / "mine.csv").write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("option", "counts"),
    [({"groups": "patient"}, (48, 12)), ({"time": "day"}, (48, 12)), ({"split": "part"}, (40, 10))],
)
@pytest.mark.parametrize("is_plain", [True, False])
def test_a_trainer_splits_by_a_column(
    option: dict[str, str], counts: tuple[int, int], is_plain: bool, tmp_path: Path
) -> None:
    write(tmp_path)
    given: dict[str, Any] = {"dataset": "csv", "path": "mine.csv"}
    given |= option if is_plain else {"evaluation": option}
    given["reading"] = {"drop": sorted({"patient", "day", "part"} - {*option.values()})}
    options = trainer.Options.model_validate(given, context={"folder": tmp_path})
    task = options.task(tmp_path)
    train = task.load()
    job = train._rounds.jobs[0]
    assert (len(job.train), len(job.test)) == counts
    assert train._rounds[0].features == 3  # a, and a column for each colour
    metrics = train({"hidden": [4], "epochs": 1}, task.report(Trial(0, {}, 1)))
    assert 0 <= metrics["accuracy"] <= 1
    assert train._rounds.describe()[next(iter(option))] == next(iter(option.values()))


@pytest.mark.parametrize(
    ("option", "counts"),
    [({"groups": "patient"}, (48, 12)), ({"time": "day"}, (48, 12)), ({"split": "part"}, (40, 10))],
)
def test_other_estimators_split_alike(
    option: dict[str, str], counts: tuple[int, int], tmp_path: Path
) -> None:
    write(tmp_path)
    given: dict[str, Any] = {"dataset": "csv", "path": "mine.csv", **option}
    given["reading"] = {"drop": sorted({"patient", "day", "part"} - {*option.values()})}
    training, validation = load_split(given, tmp_path)
    assert (len(training), len(validation)) == counts
    assert training.columns is not None
    assert training.columns.features == ("a", "colour")
    ours = trainer.Options.model_validate(given, context={"folder": tmp_path}).task(tmp_path).load()
    assert validation.x.tolist() == ours._rounds[0].validation.x.tolist()


def test_other_estimators_split_by_one_column(tmp_path: Path) -> None:
    write(tmp_path)
    given = {"dataset": "csv", "path": "mine.csv", "groups": "patient", "time": "day"}
    with pytest.raises(ValueError, match="groups and time: rows are split by one column"):
        load_split(given, tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dataset": "digits", "groups": "a"}, "groups: dataset 'digits' has no columns beside"),
        (
            {"dataset": "digits", "evaluation": {"time": "a"}},
            "time: dataset 'digits' has no columns",
        ),
        ({"groups": "a", "evaluation": {}}, "evaluation says which rows: leave out groups"),
        ({"groups": "a", "split": "b"}, "rows are split by one column"),
        ({"groups": "sick", "reading": {"label": "sick"}}, "groups = 'sick': that column is to be"),
        ({"split": "part", "validation_fraction": 0.3}, "split says which rows are scored"),
    ],
)
def test_columns_of_a_trainer_that_are_none(options: Any, words: str, tmp_path: Path) -> None:
    write(tmp_path)
    given = {"dataset": "csv", "path": "mine.csv"} | options
    if given["dataset"] == "digits":
        pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
        del given["path"]
    with pytest.raises(ValidationError, match=words):
        trainer.Options.model_validate(given, context={"folder": tmp_path})


def test_equal_rows_on_both_sides_and_texts_of_their_own_are_said(tmp_path: Path) -> None:
    write(tmp_path, repeats=2)
    given = {"dataset": "csv", "path": "mine.csv", "split": "part"}
    given["reading"] = {"drop": ["day"]}  # type: ignore[assignment]
    options = trainer.Options.model_validate(given, context={"folder": tmp_path})
    problem, lines = trainer.look_at_data(options, tmp_path)
    assert (problem, lines) == ("", [])
    given["reading"] = {"drop": ["day", "patient"]}  # type: ignore[assignment]
    options = trainer.Options.model_validate(given, context={"folder": tmp_path})
    _, (line,) = trainer.look_at_data(options, tmp_path)
    assert "equal rows that were trained on" in line
    import dnn

    names = {"name": [f"n{row}" for row in range(50)], "y": [0, 1] * 25}
    (line,) = data_warnings(dnn.load_table(names), [(np.arange(40), np.arange(40, 50))])
    assert "column 'name' has 50 categories in 50 rows" in line
    assert 'reading.drop = ["name"]' in line
