"""What a workflow file may say of a sweep, and every problem at its place."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from diel.workflow.problems import problems_from_validation
from modules import trainer
from modules.options import SweepOptions
from modules.space import Space

RANGE = {"from": 1e-4, "to": 1.0, "scale": "log"}


def context(file: str = "work.py", folder: Path = Path()) -> Any:
    return {
        "folder": folder,
        "modules": {"trainer": SimpleNamespace(processes=1, options={})},
        "names": ["trainer", "broken"],
        "locations": {"trainer": SimpleNamespace(file=Path(file), function="run")},
    }


OURS = context(trainer.__file__)


WIDE = {"x": {"from": 0.0, "to": 1.0}}


def problems(table: dict[str, Any], where: Any = None) -> dict[str, str]:
    """Return what `diel check` would say: words by path."""
    with pytest.raises(ValidationError) as caught:
        SweepOptions.model_validate(table, context=where or context())
    found = problems_from_validation(caught.value, SweepOptions, "module[0].options")
    return {
        one.path.removeprefix("module[0].options."): f"{one.message} | {one.remedy}"
        for one in found
    }


def options(**table: Any) -> SweepOptions:
    return SweepOptions.model_validate({"space": {"a": [1, 2]}, **table}, context=context())


def test_a_space_is_enough() -> None:
    found = options()
    assert found.strategy == {"name": "grid"}
    assert [(objective.text, objective.maximise) for objective in found.objectives()] == [
        ("accuracy", True)
    ]
    assert (found.trials, found.until.objective, found.until.time_s) == (None, None, None)


def test_everything_at_once() -> None:
    found = options(
        space={"a": [1, 2], "rate": {**RANGE, "if": {"a": 1}}},
        strategy={"name": "cross_entropy", "elite": 10},
        early_stopping={"rule": "halving", "reduction": 4},
        objective="accuracy - 0.1 * log10(training_time_s)",
        maximise=True,
        trials=100,
        until={"objective": 0.9, "time": "2 h"},
        deterministic=True,
        lag=8,
    )
    assert found.strategy == {"name": "cross_entropy", "elite": 10, "startup": None, "explore": 0.1}
    assert found.early_stopping == {"rule": "halving", "min_steps": 1, "reduction": 4}
    assert found.until.time_s == 7200
    # They travel between ranks, and are read again there.
    assert pickle.loads(pickle.dumps(found)) == found
    given = found.model_dump(exclude_unset=True)
    assert SweepOptions.model_validate(given, context=context()) == found


def test_several_objectives() -> None:
    found = options(objective=["accuracy", "training_time_s", "rows"], maximise=[True, False, True])
    assert [objective.maximise for objective in found.objectives()] == [True, False, True]
    known = options(objective=["mcc", "training_time_s"])
    assert [objective.maximise for objective in known.objectives()] == [True, False]


@pytest.mark.parametrize(
    ("table", "path", "words"),
    [
        # the space
        ({"space": {}}, "space", "the grid is empty"),
        ({"space": {"a": []}}, "space.a", "an empty list, so the grid has no points"),
        ({"space": {"a": {"from": 2, "to": 1, "step": 1}}}, "space.a", "no values"),
        ({"space": {"a": {"from": 0, "to": 1, "log_steps": 3}}}, "space.a", "cannot touch 0"),
        ({"space": {"a": {"form": 0}}}, "space.a", "is no range; write a list"),
        ({"space": {"a": [1], "b": {"value": 1, "if": {"c": 1}}}}, "space.b", "no parameter 'c'"),
        (
            {"space": {"a": {"value": 1, "if": {"b": 1}}, "b": {"value": 1, "if": {"a": 1}}}},
            "space",
            "in a circle",
        ),
        ({"space": {"a": RANGE}}, "space.a", "a grid cannot go through; add step"),
        ({"space": {"accuracy": [1]}}, "space.accuracy", "accuracy: a column of the results"),
        ({"space": 3}, "space", "expected a table"),
        # the strategy
        ({"strategy": "gird"}, "strategy", 'there is no strategy "gird" | did you mean "grid"?'),
        ({"strategy": "simulated"}, "strategy", "there are grid, random, cross_entropy"),
        (
            {"strategy": {"elite": 3}},
            "strategy",
            "name is missing: which strategy it is | add name",
        ),
        ({"strategy": 3}, "strategy", "got 3"),
        ({"strategy": {"name": "grid", "elite": 3}}, "strategy.elite", "it has no options"),
        (
            {"strategy": {"name": "cross_entropy", "explor": 0.3}, "trials": 9},
            "strategy.explor",
            'unknown key "explor" | did you mean "explore"?',
        ),
        (
            {"early_stopping": {"rule": "median", "zzz": 0.3}},
            "early_stopping.zzz",
            "there are startup_trials, warmup_steps",
        ),
        (
            {"strategy": {"name": "cross_entropy", "elite": 1}, "trials": 9},
            "strategy.elite",
            "got 1",
        ),
        ({"strategy": "optuna:tree"}, "strategy", 'did you mean "optuna:tpe"?'),
        ({"strategy": "f_nowhere:Class", "trials": 9}, "strategy", "there is no module f_nowhere"),
        ({"order": "random"}, "order", ""),
        (
            {"order": "shuffled", "strategy": "random", "trials": 9},
            "order",
            "only a grid has an order",
        ),
        # when it ends
        (
            {"strategy": "random", "space": WIDE},
            "trials",
            "is missing: random has no last trial | add trials",
        ),
        ({"strategy": "halving", "space": WIDE}, "trials", "halving has no last trial"),
        (
            {"strategy": "random", "space": WIDE, "until": {"objective": 0.9}},
            "until.objective",
            "may never be reached, and random has no last trial | add trials = 1000, or a time",
        ),
        ({"until": {"objective": 1.2}}, "until.objective", "accuracy is never as good as 1.2"),
        ({"until": {"objective": -1.0}, "objective": "rmse"}, "until.objective", "rmse is never"),
        ({"until": {"time": "2 weeks"}}, "until.time", "is no duration"),
        ({"until": {"time": 0}}, "until.time", "longer than 0"),
        ({"until": {"core_hours": 0}}, "until.core_hours", "a number above 0, got 0"),
        ({"until": {"accuracy": 0.9}}, "until.accuracy", "unknown key"),
        ({"trials": 0}, "trials", "got 0"),
        # the objective
        ({"objective": "acc(uracy"}, "objective", "is no expression"),
        ({"objective": "accuracy.real", "maximise": True}, "objective", "not allowed"),
        ({"objective": "accuracy - loss"}, "objective", "maximise = true or false"),
        (
            {"objective": "f_nowhere:function", "maximise": True},
            "objective",
            "there is no module f_nowhere",
        ),
        ({"objective": []}, "objective", ""),
        ({"objective": ["accuracy", "loss"], "maximise": [True]}, "maximise", "1 directions for 2"),
        (
            {"objective": ["accuracy", "loss"], "until": {"objective": 0.9}},
            "until.objective",
            "there are several objectives",
        ),
        (
            {"objective": ["accuracy", "loss"], "strategy": "cross_entropy", "trials": 9},
            "objective",
            '"cross_entropy" can follow one objective, not 2',
        ),
        # early stopping
        (
            {"early_stopping": "mean"},
            "early_stopping",
            "there is no rule 'mean' | did you mean \"median\"?",
        ),
        ({"early_stopping": {"startup": 3}}, "early_stopping", "rule is missing"),
        (
            {"alike": 4, "space": {"learning_rate": [0.1, 0.2]}},
            "alike",
            '"grid" chooses no points that are alike',
        ),
        (
            {"alike": 4, "strategy": "random", "space": {"hidden": [[1], [2]]}},
            "alike",
            "trials that are alike would be the same",
        ),
        (
            {"early_stopping": {"rule": "median", "startup_trials": 0}},
            "early_stopping.startup_trials",
            "got 0",
        ),
        (
            {"early_stopping": "median", "strategy": "halving", "trials": 9},
            "early_stopping",
            "its own rule",
        ),
        # the rest
        ({"objective": "a", "maximise": True}, "objective", '"a" is a parameter'),
        ({"objective": "seed", "maximise": True}, "objective", '"seed" is a column of ours'),
        (
            {"trainer": "trianer"},
            "trainer",
            'there is no module "trianer", which is to try the points | did you mean "trainer"?',
        ),
        ({"seed": -1}, "seed", "got -1"),
        ({"sead": 1}, "sead", 'did you mean "seed"?'),
    ],
)
def test_a_problem_is_told_at_its_place(table: dict[str, Any], path: str, words: str) -> None:
    if "optuna" in str(table):
        pytest.importorskip("optuna", reason="Optuna is not installed")
    found = problems({"space": {"a": [1]}, **table})
    assert list(found) == [path]
    assert words in found[path]


def test_every_problem_of_a_space_is_told_at_once() -> None:
    found = problems({"space": {"a": [], "b": {"from": 1}, "seed": [1], "fine": 2}, "sead": 1})
    assert list(found) == ["space.a", "space.b", "space.seed", "sead"]


def test_every_problem_between_options_is_told_at_once() -> None:
    found = problems(
        {
            "space": {"rate": RANGE},
            "strategy": "random",
            "order": "shuffled",
            "objective": ["accuracy", "speed * 2"],
            "trainer": "nobody",
        }
    )
    assert set(found) == {"order", "objective", "trials", "trainer"}


def test_a_module_with_problems_of_its_own_is_not_missed_here() -> None:
    assert options(trainer="broken").trainer == "broken"


# -- beside our own trainer -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "path", "words"),
    [
        ({"lerning_rate": [0.1]}, "space.lerning_rate", 'did you mean "learning_rate"?'),
        ({"zzz": [0.1]}, "space.zzz", "it knows optimizer, learning_rate"),
        ({"learning_rate": [0.1, -1.0]}, "space.learning_rate", "a number above 0, got -1.0"),
        (
            {"momentum": {"from": 0.5, "to": 1.0, "step": 0.25}},
            "space.momentum",
            "below 1, got 1.0",
        ),
        (
            {"epochs": {"value": 0, "if": {"momentum": 0.5}}, "momentum": 0.5},
            "space.epochs",
            "at least 1, got 0",
        ),
        ({"batch_size": [16, "32"]}, "space.batch_size", 'got the string "32" | for example'),
        ({"hidden": 64}, "space.hidden", "for example hidden = [64]"),
    ],
)
def test_a_space_that_our_trainer_cannot_train(
    space: dict[str, Any], path: str, words: str
) -> None:
    found = problems({"space": space}, OURS)
    assert list(found) == [path]
    assert words in found[path]
    assert SweepOptions.model_validate({"space": space}, context=context())


def test_what_our_trainer_reports_is_known() -> None:
    found = problems({"space": {"epochs": 1}, "objective": "acuracy"}, OURS)
    assert "did you mean 'accuracy'?" in found["objective"]


def test_convolutions_are_of_images() -> None:
    table = {"space": {"channels": [[], [8]], "epochs": 1}}
    for dataset, is_table in (("cleveland", True), ("csv", True), ("digits", False)):
        ours = SimpleNamespace(processes=1, options={"dataset": dataset})
        where = {**OURS, "modules": {"trainer": ours}}
        if is_table:
            found = problems(table, where)
            text = f"convolutions are of images, and trainer trains on {dataset}: a table"
            assert text in found["space.channels"]
        else:
            SweepOptions.model_validate(table, context=where)


def test_layers_fit_what_the_trainer_reads() -> None:
    sequences = SimpleNamespace(
        processes=1, options={"dataset": "npz", "reading": {"lengths": "ends"}}
    )
    where = {**OURS, "modules": {"trainer": sequences}}
    found = problems({"space": {"channels": [[4]]}}, where)
    assert "convolutions are of images, and trainer trains on npz: sequences" in str(found)
    assert "no layer reads them" in found["space"]
    assert SweepOptions.model_validate({"space": {"recurrent": [[4]]}}, context=where)
    table = SimpleNamespace(processes=1, options={"dataset": "csv"})
    where = {**OURS, "modules": {"trainer": table}}
    found = problems({"space": {"recurrent": [[4]]}}, where)
    assert "recurrent layers are of sequences" in found["space.recurrent"]


@pytest.mark.parametrize(
    "table", [{"early_stopping": "median"}, {"strategy": "cross_entropy", "trials": 9}]
)
def test_who_learns_from_scores_cannot_be_judged_by_the_same_rows(table: dict[str, Any]) -> None:
    trainer = SimpleNamespace(processes=1, options={"evaluation": {"method": "nested"}})
    where = {**OURS, "modules": {"trainer": trainer}}
    found = problems({"space": {"epochs": 1}, **table}, where)
    assert "has seen the rows that are to judge its choice" in found["strategy"]
    trainer.options["evaluation"]["method"] = "k_fold"
    assert SweepOptions.model_validate({"space": {"epochs": 1}, **table}, context=where)


@pytest.mark.parametrize(
    ("space", "place", "words"),
    [
        ({"hidden": [[8], [8, 8]]}, "space.hidden", "hidden = [8]: mesh: 3 pipeline stages, and"),
        ({"epochs": 1}, "space", "hidden = [64]: mesh: 3 pipeline stages, and layers make 2"),
        ({"hidden": [[8, 8], [8, 8, 8]]}, "", ""),
        ({"channels": [[4], [4, 4]], "hidden": [[8]]}, "", ""),
    ],
)
def test_more_stages_than_layers(space: dict[str, Any], place: str, words: str) -> None:
    options = {"dataset": "digits", "training": {"parallel": {"pipeline": 3}}}
    where = {**OURS, "modules": {"trainer": SimpleNamespace(processes=3, options=options)}}
    if not words:
        SweepOptions.model_validate({"space": space}, context=where)
        return
    found = problems({"space": space}, where)
    assert words in found[place]
    assert "take fewer stages" in found[place]


# -- a strategy of a user's -----------------------------------------------------------------------

CODE = """
class Halves:
    def __init__(self, space, seed, depth=3):
        self.depth = depth
    def ask(self, trial):
        return {"a": 0.5**trial} if trial < self.depth else None
    def tell(self, trial, parameters, score):
        pass

class Deaf:
    def ask(self, trial): ...
"""


def test_a_strategy_beside_the_workflow_file(tmp_path: Path) -> None:
    (tmp_path / "f_halves.py").write_text(CODE)
    where = context(folder=tmp_path)
    table = {"space": {"a": RANGE}, "strategy": {"name": "./f_halves.py:Halves", "depth": 2}}
    found = SweepOptions.model_validate(table, context=where)
    assert found.strategy == table["strategy"]
    for strategy, words in [
        ("./f_halves.py:Deaf", "has no tell: a strategy has both"),
        ("./f_halves.py:Halfs", 'did you mean "Halves"?'),
        ({"name": "./f_halves.py:Halves", "dept": 2}, "does not take these options"),
    ]:
        assert words in problems({**table, "strategy": strategy}, where)["strategy"]


def test_the_forms_of_a_sweep_that_were_there_before_still_hold() -> None:
    found = options(
        space={
            "learning_rate": {"from": 0.01, "to": 1.0, "log_steps": 3},
            "weight_decay": [0.0, 1e-4],
            "batch_size": {"from": 32, "to": 64, "step": 32},
            "hidden": [[32], [64], [64, 32]],
            "activation": "relu",
        },
        objective="accuracy",
        seed=1,
    )
    assert Space.parse(found.space).size == 36
