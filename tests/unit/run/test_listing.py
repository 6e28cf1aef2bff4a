"""Lists of runs: which parameters get columns, and which runs a condition chooses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from diel.errors import ConditionError
from diel.run.history import RunSummary
from diel.run.listing import (
    MOST_COLUMNS,
    ListedRun,
    choose,
    common_objective,
    parameter_columns,
    shown_best,
)
from diel.run.scores import Score


def run(
    name: str = "a", best: float | None = None, objective: str = "loss", **parameters: Any
) -> ListedRun:
    summary = RunSummary(
        path=Path("runs", name), workflow="study", state="finished", started_s=1.7e9,
        duration_s=12.0, ranks=4, reason="", parameters=parameters, versions={},
    )  # fmt: skip
    scores = () if best is None else (Score("m", objective, maximise=False, best=best),)
    return ListedRun(summary, scores)


def with_keys(parameters: Mapping[str, Any]) -> ListedRun:
    return run(**parameters)


def test_parameters_that_differ_get_columns() -> None:
    runs = [run(dt=0.1, seed=1, mode="a"), run(dt=0.2, seed=1), run(dt=0.2, seed=1, mode="a")]
    assert parameter_columns(runs) == ["dt"]
    assert runs[0].parameters_but(["dt"]) == "seed=1 mode=a"
    assert parameter_columns(runs[:1]) == []
    # 1 and true are equal to Python alone; lists are values too.
    assert parameter_columns([run(a=1, b=[1, 2]), run(a=True, b=[1, 2])]) == ["a"]


def test_of_many_parameters_those_that_most_runs_have_get_columns() -> None:
    rare = {f"rare{number}": 1 for number in range(4)}
    often = {f"often{number}": 1 for number in range(MOST_COLUMNS)}
    runs = [run(**rare, **often), run(**dict.fromkeys({**rare, **often}, 2)), run(**often)]
    assert parameter_columns(runs) == list(often)
    assert "rare0=1" in runs[0].parameters_but(list(often))


def test_the_best_score_is_named_where_objectives_differ() -> None:
    runs = [run(best=0.25), run(best=3.0), run()]
    assert common_objective(runs) == "loss"
    assert [shown_best(each, "loss") for each in runs] == ["0.25", "3", ""]
    mixed = [*runs, run(best=0.5, objective="accuracy")]
    assert common_objective(mixed) == ""
    assert [shown_best(each, "") for each in mixed[2:]] == ["", "accuracy 0.5"]


RUNS = [
    run("a", 0.5, dt=0.1, method="euler", adaptive=False),
    run("b", 0.25, dt=0.05, method="midpoint", adaptive=True),
    run("c", dt=0.2, method="euler"),
    with_keys({"name": "d", "module.solver.options.cells": 64, "step-size": 2}),
]


@pytest.mark.parametrize(
    ("condition", "chosen"),
    [
        ("dt < 0.15", "ab"),
        ('dt < 0.15 and state == "finished"', "ab"),
        ("dt <= 0.1 and not method == 'midpoint'", "a"),
        ("method == 'euler' or module_solver_options_cells == 64", "acd"),  # d has no method
        ("dt > 1 and method == 'euler'", ""),
        ("not (dt < 0.1 and best < 1)", "ac"),  # c has no score, and is false without it
        ("0.01 < dt < 0.1", "b"),
        ("adaptive", "b"),
        ("adaptive == false", "a"),
        ("not adaptive", "a"),  # c has no such parameter
        ("best < 0.4", "b"),
        ("loss < 0.4", "b"),
        ("max(best, dt) >= 0.5", "a"),
        ("run == 'c'", "c"),
        ("workflow == 'study' and seconds > 10 and ranks == 4", "abcd"),
        ("started > '2023'", "abcd"),
        ("started > '2024'", ""),
        ("module_solver_options_cells > 32", "d"),
        ("step_size * 2 == 4", "d"),
        ("parameters_dt == 0.2", "c"),
        ("method == 3", ""),
        ("1 / (dt - 0.1) > 0", "c"),  # a has no value
    ],
)
def test_a_condition_chooses(condition: str, chosen: str) -> None:
    assert "".join(each.summary.path.name for each in choose(RUNS, condition)) == chosen


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("dtt < 1", 'no run has dtt (did you mean "dt"?; a text stands in quotes)'),
        ("state == finished", "no run has finished ("),
        ("dt <", "is no expression"),
        ("dt = 1", "is no expression"),
        ("", "is no expression"),
        ("dt < 1\0", "is no expression"),
        ("__import__('os').system('true')", "is not allowed"),
        ("dt.real < 1", "is not allowed"),
        ("[dt for dt in (1,)]", "is not allowed"),
        ("method < 3", '"euler" and 3 have no order'),
        ("dt < 'a'", "have no order"),
        ("method * 1000000000 == 1", '"euler" is no number'),
        ("'euler'", '"euler" is a text, neither true nor false'),
        ("dt / 0 > 1", "zero"),
        ("(" * 70 + "dt" + ")" * 70 + " < " + "-" * 70 + "1", "nested too deeply"),
        ("dt < 1 and " * 100 + "dt < 1", "too long"),
    ],
)
def test_what_is_no_condition(condition: str, said: str) -> None:
    with pytest.raises(ConditionError) as caught:
        choose(RUNS[:2], condition)
    assert said in str(caught.value)


def test_of_no_runs_no_name_is_wrong() -> None:
    assert choose([], "anything < 1") == []
