"""Expressions of metrics, and functions of a user's."""

from __future__ import annotations

import enum
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diel import load_plugin
from diel.errors import PluginError
from diel.expressions import ExpressionError
from modules.metrics import check_metrics, plain_number
from modules.objective import Objective, ObjectiveError, compile_expression

METRICS = {"accuracy": 0.9, "loss": 0.25, "mcc": 0.8, "training_time_s": 100.0, "rows": 30}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("accuracy", 0.9),
        ("accuracy - 0.01 * training_time_s", 0.9 - 1.0),
        ("-loss", -0.25),
        ("+loss / 2 ** 2", 0.0625),
        ("accuracy - 0.1 * log10(training_time_s)", 0.9 - 0.2),
        ("min(accuracy, mcc, 1)", 0.8),
        ("max(loss, 0.5) % 0.4", 0.1),
        ("sqrt(loss) + abs(-1) + exp(0) + tanh(0) + log(1) + log2(8)", 0.5 + 1 + 1 + 3),
        ("accuracy if training_time_s < 60 else 0.0 * loss", 0.0),
        ("mcc if accuracy >= 0.5 else loss", 0.8),
        ("  accuracy\n", 0.9),
        ("rows", 30.0),
    ],
)
def test_the_value_of_an_expression(text: str, value: float) -> None:
    objective = Objective.parse(text, True)
    assert objective.value(METRICS) == pytest.approx(value)
    assert isinstance(objective.value(METRICS), float)


def test_the_metrics_that_an_expression_needs() -> None:
    _, names = compile_expression("accuracy - loss * accuracy + log(rows)")
    assert names == ["accuracy", "loss", "rows"]


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "accuracy.__class__",
        "metrics['accuracy']",
        "[accuracy][0]",
        "lambda: accuracy",
        "(x := accuracy)",
        "accuracy @ loss",
        "accuracy and loss",
        "not accuracy",
        "'accuracy'",
        "True",
        "1j * accuracy",
        "open(accuracy)",
        "f'{accuracy}'",
        "sum(x for x in accuracy)",
        "max(*accuracy)",
        "max(accuracy, key=loss)",
        "0 < accuracy < 1",
        "accuracy.real(loss)",
        "accuracy // loss",
        "accuracy << 2",
        "...",
        "(lambda a: a)(accuracy)",
    ],
)
def test_nothing_but_arithmetic_is_allowed(text: str) -> None:
    with pytest.raises(ExpressionError, match="an expression has numbers"):
        compile_expression(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("accuracy -", "is no expression"),
        ("", "is no expression"),
        ("import os", "is no expression"),
        ("accuracy; loss", "is no expression"),
        ("log(accuracy, loss)", "log takes 1 arguments, not 2"),
        ("min(accuracy)", "min takes 2 to 8 arguments, not 1"),
        ("-" * 200 + "accuracy", "nested too deeply"),
        ("(" * 500 + "accuracy" + ")" * 500, ""),
        ("accuracy" + " + 1" * 300, "too long"),
        ("9" * 400 + " * accuracy", "too large"),
        ("accuracy\0", ""),
    ],
)
def test_a_bad_expression_is_told(text: str, words: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_expression(text)
    assert words in str(caught.value)


@given(st.text("ab1.+-*/()% <>=e,", max_size=40))
def test_any_text_is_a_number_or_an_error(text: str) -> None:
    try:
        objective = Objective.parse(text, True, known="abe")
    except (ExpressionError, ObjectiveError):
        return
    assert isinstance(objective.value({"a": 1.5, "b": 0.0, "e": -1.0}), float)


@pytest.mark.parametrize(
    "text", ["accuracy / 0", "log(0 - accuracy)", "exp(1e6 * accuracy)", "(0 - accuracy) ** 0.5"]
)
def test_arithmetic_without_a_value_is_nan(text: str) -> None:
    objective = Objective.parse(text, True)
    assert math.isnan(objective.value(METRICS))
    assert objective.score(objective.value(METRICS)) is None


@pytest.mark.parametrize(
    ("text", "maximise"),
    [("accuracy", True), ("mcc", True), ("loss", False), ("training_time_s", False)],
)
def test_which_direction_is_better(text: str, maximise: bool) -> None:
    objective = Objective.parse(text)
    assert objective.maximise == maximise
    assert objective.score(0.5) == (0.5 if maximise else -0.5)
    assert Objective.parse(text, not maximise).maximise != maximise


def test_the_direction_of_an_expression_has_to_be_said() -> None:
    with pytest.raises(ObjectiveError, match="maximise = true or false"):
        Objective.parse("accuracy - loss")


def test_a_name_that_is_not_reported_is_told_with_near_ones() -> None:
    for name in ("acuracy", "ACCURACY", "Accuracy"):
        with pytest.raises(ObjectiveError, match=r"no '\w+' \(did you mean 'accuracy'\?\)"):
            Objective.parse(name, True, known=METRICS)
        with pytest.raises(ObjectiveError, match=r"did you mean 'accuracy'\?.*it reports accuracy"):
            Objective.parse(name, True).value(METRICS)
    with pytest.raises(ObjectiveError, match="it reports nothing"):
        Objective.parse("accuracy").value({})
    with pytest.raises(ObjectiveError, match="accuracy = 'high' is text, and no number"):
        Objective.parse("accuracy").value({"accuracy": "high"})


def test_an_expression_needs_a_metric() -> None:
    with pytest.raises(ObjectiveError, match="no metric in it"):
        Objective.parse("1 + 1", True)


@pytest.mark.parametrize(
    ("text", "threshold", "possible"),
    [
        ("accuracy", 1.0, True),
        ("accuracy", 1.01, False),
        ("mcc", -0.5, True),
        ("mcc", 1.01, False),
        ("loss", -1.0, True),  # that of counts may be negative
        ("rmse", -0.1, False),
        ("training_time_s", -1.0, False),
        ("accuracy * 2", 1.9, True),
    ],
)
def test_whether_a_threshold_can_be_reached(text: str, threshold: float, possible: bool) -> None:
    assert Objective.parse(text, True if "*" in text else None).reaches(threshold) == possible


def test_the_lower_bound_of_a_metric_counts_where_it_is_made_small() -> None:
    for text, low in (("mcc", -1.0), ("accuracy", 0.0)):
        assert Objective.parse(text, False).reaches(low)
        assert not Objective.parse(text, False).reaches(low - 0.01)


@pytest.mark.parametrize("maximise", [True, False])
def test_any_threshold_of_an_unknown_metric_may_be_reached(maximise: bool) -> None:
    assert all(Objective.parse("rows", maximise).reaches(one) for one in (-1e300, 0.0, 1e300))


# -- functions of a user's ------------------------------------------------------------------------

CODE = """
class Chooser:
    def __init__(self, space, seed): self.space = space
    def ask(self, trial): return {}
    def tell(self, trial, parameters, score): pass
def fast_and_good(metrics): return metrics["accuracy"] / metrics["training_time_s"]
def broken(metrics): return metrics["nothing"]
number = 3
"""


def test_a_function_beside_the_workflow_file(tmp_path: Path) -> None:
    (tmp_path / "f_objectives.py").write_text(CODE)
    for spec in ("./f_objectives.py:fast_and_good", "f_objectives:fast_and_good"):
        objective = Objective.parse(spec, True, tmp_path)
        assert objective.value(METRICS) == pytest.approx(0.009)
    with pytest.raises(ObjectiveError, match="say whether"):
        Objective.parse("f_objectives:fast_and_good", None, tmp_path)
    with pytest.raises(ObjectiveError, match="broken' raised KeyError: 'nothing'"):
        Objective.parse("./f_objectives.py:broken", True, tmp_path).value(METRICS)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("./f_gone.py:f", "there is no file"),
        ("f_no_such_module:f", "there is no module f_no_such_module"),
        ("./f_code.py:fast_and_god", 'did you mean "fast_and_good"'),
        ("./f_code.py:number", "is a value, not a function"),
        ("./f_code.py:a.b", "does not name a function"),
        (":f", "does not name a function"),
        ("./f_wrong.py:f", "f_wrong.py:1: invalid syntax"),
        ("./f_raises.py:f", "ZeroDivisionError at import"),
    ],
)
def test_a_function_that_is_not_there(tmp_path: Path, spec: str, words: str) -> None:
    (tmp_path / "f_code.py").write_text(CODE)
    (tmp_path / "f_wrong.py").write_text("def f(:\n")
    (tmp_path / "f_raises.py").write_text("def f(metrics): ...\n1 / 0\n")
    with pytest.raises(PluginError) as caught:
        load_plugin(spec, tmp_path)
    assert words in str(caught.value)


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "f_same.py").write_text(f"def f(metrics): return {number}\n")
        assert load_plugin("./f_same.py:f", folder)({}) == number


class OddFloat(float):
    def __float__(self) -> float:
        raise RuntimeError("no")


class Words(str, enum.Enum):
    HIGH = "high"


NUMBERS = [
    (2, 2),
    (True, 1),
    (np.float32(0.5), 0.5),
    (np.array(0.5), 0.5),
    (np.array([[3]]), 3),
    (np.bool_(True), 1),
    (Decimal("0.25"), 0.25),
    (Fraction(1, 4), 0.25),
    (float("inf"), float("inf")),
]
NO_NUMBERS = [
    ("0.9", "text, and no number: return float"),
    (np.str_("0.9"), "text, and no number"),
    (Words.HIGH, "text, and no number"),
    (None, "no number"),
    (b"1", "a bytes, and no number"),
    (1j, "a complex, and no number"),
    (np.complex64(1), "a complex64, and no number"),
    ([0.5], "a list, and no number"),
    ({"a": 1}, "a dict, and no number"),
    (np.array([1, 2]), "a ndarray, and no number"),
    (np.datetime64("2026-01-01"), "a datetime64, and no number"),
    (10**400, "too large a number"),
    (Fraction(10**400), "too large a number"),
    (OddFloat(1), "a OddFloat that cannot be read: RuntimeError: no"),
]


@pytest.mark.parametrize(("value", "number"), NUMBERS)
def test_whatever_is_a_number_is_an_objective(value: Any, number: float) -> None:
    assert plain_number(value) == number
    assert type(plain_number(value)) in (int, float)
    metrics = check_metrics({"score": value})
    assert Objective.parse("score", True).value(metrics) == number
    assert Objective.parse("2 * score", True).value(metrics) == 2 * number


@pytest.mark.parametrize(("value", "words"), NO_NUMBERS)
def test_whatever_is_no_number_is_no_objective(value: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=words):
        plain_number(value)
    with pytest.raises((TypeError, ObjectiveError), match=words) as raised:
        Objective.parse("1 - score", True).value(check_metrics({"score": value}))
    assert "score" in str(raised.value)
    if isinstance(value, str):
        assert type(check_metrics({"note": value})["note"]) is str
    (tmp_path / "own.py").write_text("def same(metrics):\n    return metrics['score']\n")
    with pytest.raises(ObjectiveError, match=f"it returned .*, which is {words}"):
        Objective.parse("./own.py:same", True, tmp_path).value({"score": value})


def test_a_masked_number_is_none() -> None:
    assert math.isnan(check_metrics({"score": np.ma.masked})["score"])
    assert check_metrics({"score": np.ma.array([2.0])}) == {"score": 2.0}
