"""Options of a master and its trainers, and the stream of trials between them, without MPI."""

from __future__ import annotations

import itertools
import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from diel.errors import TupleTimeout
from diel.tuples.client import TupleClient
from diel.tuples.local_transport import LocalTransport
from diel.tuples.store import TupleStore
from modules import master, trainer
from modules.space import Space
from modules.trial import Outcome, Trial, result_tag, trial_seed, trial_tag

OURS = {"trainer": SimpleNamespace(function="modules.trainer:run", processes=1)}
THEIRS = {"trainer": SimpleNamespace(function="work:train", processes=1)}


def location(modules: Any, shipped: bool = True) -> dict[str, Any]:
    return {
        name: SimpleNamespace(
            spec=module.function, shipped=shipped and "modules." in module.function
        )
        for name, module in modules.items()
    }


def master_options(
    options: dict[str, Any], modules: Any = OURS, shipped: bool = True
) -> master.Options:
    return master.Options.model_validate(
        options,
        context={"folder": Path(), "modules": modules, "locations": location(modules, shipped)},
    )


def complaint(call: Any, *arguments: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        call(*arguments)
    (error,) = caught.value.errors()
    return str(error["msg"])


# -- the master's options -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({}, "the grid is empty"),
        ({"learning_rate": []}, "the grid has no points"),
        ({"lerning_rate": [0.1]}, "did you mean 'learning_rate'?"),
        ({"zzz": [0.1]}, "it knows learning_rate"),
        ({"learning_rate": [0.1, -1.0]}, "space.learning_rate: -1.0: Input should be greater"),
        ({"learning_rate": ["fast"]}, "space.learning_rate: 'fast'"),
        ({"epochs": [1.5]}, "space.epochs: 1.5"),
        ({"activation": ["relu", "rleu"]}, "space.activation: 'rleu'"),
        ({"hidden": [64]}, "space.hidden: 64"),
        ({"hidden": [[64, 0]]}, "space.hidden: [64, 0]"),
        ({"momentum": {"from": 0.5, "to": 1.0, "step": 0.25}}, "space.momentum: 1.0"),
    ],
)
def test_a_space_that_our_trainer_cannot_train_is_refused(
    space: dict[str, Any], words: str
) -> None:
    assert words in complaint(master_options, {"space": space})


@pytest.mark.parametrize("name", ["trial", "seed", "trainer", "accuracy"])
def test_a_parameter_cannot_be_called_like_a_column_of_the_results(name: str) -> None:
    text = complaint(master_options, {"space": {name: [1]}}, THEIRS)
    assert f"{name}: a column of the results" in text


def test_our_trainer_is_one_process() -> None:
    modules = {"trainer": SimpleNamespace(function="modules.trainer:run", processes=2)}
    text = complaint(master_options, {"space": {"epochs": 1}}, modules)
    assert "our trainer is one process: module 'trainer' has more" in text


def test_another_trainer_knows_its_own_parameters() -> None:
    options = master_options({"space": {"anything": [1, 2]}}, THEIRS)
    assert options.space == {"anything": [1, 2]}


def test_the_trainer_has_to_be_a_module() -> None:
    text = complaint(master_options, {"space": {"epochs": 1}, "trainer": "trianer"})
    assert "trainer = 'trianer': there is no module of that name" in text


@pytest.mark.parametrize(
    "options", [{"objective": "speed"}, {"seed": -1}, {"seed": 1.5}, {"sead": 1}]
)
def test_other_options_of_a_master(options: dict[str, Any]) -> None:
    assert complaint(master_options, {"space": {"epochs": 1}, **options})


@pytest.mark.parametrize(
    ("objective", "maximise"),
    [("accuracy", True), ("mcc", True), ("loss", False), ("training_time_s", False)],
)
def test_which_direction_is_better(objective: str, maximise: bool) -> None:
    options = master_options({"space": {"epochs": 1}, "objective": objective})
    assert options.maximise == maximise


# -- a trainer's options --------------------------------------------------------------------------


def trainer_options(folder: Path, **options: Any) -> trainer.Options:
    return trainer.Options.model_validate(options, context={"folder": folder})


def test_data_by_path_is_found_beside_the_workflow_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("PLACE", "data")
    for path in ("data", "$PLACE", "${PLACE}", str(tmp_path / "data"), "./data/"):
        options = trainer_options(tmp_path, dataset="mnist", path=path)
        assert options.resolve(tmp_path) == tmp_path / "data"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dataset": "mnist"}, "dataset 'mnist' needs path"),
        ({"dataset": "mnist", "path": "gone"}, "(path = 'gone')"),
        ({"dataset": "cleveland", "path": "$NO_SUCH_THING/x"}, "environment variable is not set"),
        ({"dataset": "digits", "path": "x"}, "leave out path"),
        ({"dataset": "digts"}, "Input should be 'digits'"),
        ({"dataset": "digits", "validation_fraction": 1.0}, "less than 1"),
        ({"dataset": "digits", "split_seed": -1}, "greater than or equal to 0"),
        ({}, "Field required"),
    ],
)
def test_bad_options_of_a_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], words: str
) -> None:
    monkeypatch.delenv("NO_SUCH_THING", raising=False)
    with pytest.raises(ValidationError) as caught:
        trainer_options(tmp_path, **options)
    (error,) = caught.value.errors()
    assert words in str(error["msg"])
    if "path" in options and options["path"] == "gone":
        assert str(tmp_path / "gone") in str(error["msg"])


# -- the stream of trials -------------------------------------------------------------------------


class Results:
    """Keeps what a master declares and adds."""

    def __init__(self) -> None:
        self.declared: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []

    def declare(self, columns: list[str], **fields: Any) -> None:
        self.declared = {"columns": columns, **fields}

    def add(self, row: dict[str, Any]) -> None:
        assert list(row) == self.declared["columns"]
        self.rows.append(row)


class Group:
    """A master and fake trainers that meet in one process.

    A trainer's accuracy is the trial's ``x``. It gathers as many trials as `held`, if the master
    sends them, and answers the last one first.
    """

    def __init__(self, trainers: int, held: int = 1) -> None:
        self.store = TupleStore()
        self.transport = LocalTransport([self.store])
        self.results = Results()
        self.trainers = [TupleClient(self.transport.another_client()) for _ in range(trainers)]
        self.held = held

    def context(self, options: master.Options | None = None) -> Any:
        return SimpleNamespace(
            group="g",
            tuples=TupleClient(self.transport),
            results=self.results,
            options=options,
            copies_of={"master": 1, "trainer": len(self.trainers)},
        )

    def train(self, copy_index: int) -> list[Trial]:
        tuples = self.trainers[copy_index]
        trials: list[Trial] = []
        held: list[Trial] = []
        while True:
            try:
                trial = tuples.tget(trial_tag("g"), timeout=0.2 if held else 20)
            except TupleTimeout:
                self.answer(copy_index, held)
                continue
            if trial is None:
                assert held == []
                return trials
            trials.append(trial)
            held.append(trial)
            if len(held) == self.held:
                self.answer(copy_index, held)

    def answer(self, copy_index: int, held: list[Trial]) -> None:
        assert held
        while held:
            trial = held.pop()
            metrics = dict.fromkeys(trainer.METRICS, 0.0) | {
                "accuracy": float(trial.parameters["x"])
            }
            outcome = Outcome(trial, metrics, copy_index)
            self.trainers[copy_index].tput(result_tag("g"), outcome)


def sweep(group: Group, options: dict[str, Any]) -> tuple[Any, list[Trial]]:
    """Run a master and its trainers; return what it returned and what they trained."""
    with ThreadPoolExecutor() as pool:
        training = [pool.submit(group.train, index) for index in range(len(group.trainers))]
        running = pool.submit(master.run, group.context(master_options(options, THEIRS)))
        best = running.result(30)
        return best, [trial for one in training for trial in one.result(30)]


@pytest.mark.parametrize("trainers", [1, 3])
@pytest.mark.parametrize("points", [1, 2, 25])
def test_every_point_is_tried_once(trainers: int, points: int) -> None:
    group = Group(trainers)
    table = {"x": {"from": 1, "to": points, "step": 1}, "kind": "k"}
    best, trained = sweep(group, {"space": table, "seed": 5})
    assert sorted(trial.index for trial in trained) == list(range(points))
    rows = sorted(group.results.rows, key=lambda row: row["trial"])
    assert [(row["trial"], row["x"], row["kind"]) for row in rows] == [
        (index, index + 1, "k") for index in range(points)
    ]
    assert [row["seed"] for row in rows] == [trial_seed(5, index) for index in range(points)]
    assert group.results.declared["expected"] == points
    assert group.results.declared["objective"] == "accuracy"
    assert (best["trial"], best["accuracy"]) == (points - 1, float(points))
    # Nothing is left over: neither trials nor results nor the ends.
    assert group.store.tuples_held == 0


def test_results_come_in_order_of_completion() -> None:
    group = Group(1, held=2)
    sweep(group, {"space": {"x": list(range(20))}})
    order = [row["trial"] for row in group.results.rows]
    assert sorted(order) == list(range(20))
    assert order != sorted(order)


@pytest.mark.parametrize(("ahead", "points"), [(1, 6), (4, 20), (8, 3)])
def test_no_more_than_the_window_is_under_way(ahead: int, points: int) -> None:
    group = Group(1)
    context = group.context()
    store = group.store
    space = Space.parse({"x": list(range(points))})
    rows = []

    def answer() -> None:
        tuples = group.trainers[0]
        for _ in range(points):
            trial = tuples.tget(trial_tag("g"), timeout=20)
            metrics = dict.fromkeys(trainer.METRICS, 0.0)
            tuples.tput(result_tag("g"), Outcome(trial, metrics, 0))

    with ThreadPoolExecutor() as pool:
        stream = master._stream(context, space, seed=0, ahead=ahead)
        # The first result can come only once someone answers: look before that.
        first = pool.submit(next, stream)
        while store.tuples_held < min(ahead, points):
            time.sleep(0.005)
        time.sleep(0.05)
        assert store.tuples_held == min(ahead, points)
        answering = pool.submit(answer)
        rows.append(first.result(20))
        for row in stream:
            rows.append(row)
            # Trials not yet trained and results not yet taken never exceed the window.
            assert store.tuples_held <= ahead
        answering.result(20)
    assert [row["trial"] for row in rows] == list(range(points))


@pytest.mark.parametrize(
    ("results", "best"),
    [
        ([(0, 0.5), (1, 0.7), (2, 0.6)], 1),
        ([(2, 0.7), (0, 0.7), (1, 0.7)], 0),  # of equals, the earlier point
        ([(2, math.nan), (1, 0.1), (0, math.nan)], 1),
        ([(2, math.nan), (1, -math.inf), (0, math.nan)], 1),
        ([(1, math.nan), (0, math.nan)], 0),
    ],
)
@pytest.mark.parametrize("objective", ["accuracy", "loss"])
def test_the_best_does_not_depend_on_who_was_faster(
    results: list[tuple[int, float]], best: int, objective: str
) -> None:
    options = master_options({"space": {"epochs": 1}, "objective": objective})
    sign = 1 if options.maximise else -1
    for order in itertools.permutations(results):
        rows = [{"trial": trial, objective: sign * value} for trial, value in order]
        assert min(rows, key=lambda row: master._badness(row, options))["trial"] == best


def test_a_master_without_its_trainer_in_the_group_is_told() -> None:
    context = Group(1).context(master_options({"space": {"epochs": 1}}))
    context.copies_of = {"master": 1}
    with pytest.raises(ValueError, match="module 'trainer' is not in group 'g'"):
        master.run(context)


def test_a_trainer_trains_what_it_takes(tmp_path: Path) -> None:
    """Our own trainer on the real digits, if scikit-learn is here."""
    pytest.importorskip("sklearn")
    tuples = TupleClient(LocalTransport())
    options = trainer_options(tmp_path, dataset="digits")
    parameters = {"epochs": 1, "hidden": [8]}
    for trial in (Trial(0, parameters, 1), Trial(1, parameters, 1), Trial(2, parameters, 2), None):
        tuples.tput(trial_tag("g"), trial)
    context: Any = SimpleNamespace(
        group="g",
        tuples=tuples,
        options=options,
        folder=tmp_path,
        copy_index=4,
        log=logging.getLogger("test"),
    )
    assert trainer.run(context) == 3
    outcomes = [tuples.tget(result_tag("g"), timeout=0) for _ in range(3)]
    assert [(one.trial.index, one.trainer) for one in outcomes] == [(0, 4), (1, 4), (2, 4)]
    for one in outcomes:
        assert tuple(sorted(one.metrics)) == tuple(sorted(trainer.METRICS))
    same, again, other = ({**one.metrics, "training_time_s": 0} for one in outcomes)
    assert same == again != other
    assert np.isfinite(same["loss"])


def test_a_users_own_trainer_of_the_same_name_is_not_checked_against_ours() -> None:
    assert master_options({"space": {"viscosity": [0.1]}}, shipped=False).space
    with pytest.raises(ValidationError, match="no such hyperparameter"):
        master_options({"space": {"viscosity": [0.1]}})
