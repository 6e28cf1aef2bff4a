"""Generators of the gest-api standard as strategies."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from diel.errors import PluginError
from diel.workflow.problems import problems_from_validation
from modules.options import SweepOptions
from modules.search import Search
from modules.space import Space
from modules.strategies import WAIT, GestSearch, make_strategy

from .sweeping import Sweep

pytest.importorskip("gest_api", reason="gest-api is not installed")

CODE = """
import json, random
from pathlib import Path
from gest_api import Generator

class Uniform(Generator):
    returns_id = True

    def __init__(self, vocs, seed=0, at_once=1, most=10**9, needs=0):
        self._validate_vocs(vocs)
        self.vocs, self.draws, self.at_once, self.most = vocs, random.Random(seed), at_once, most
        self.seed, self.needs, self.given, self.suggested = seed, needs, [], 0

    def _validate_vocs(self, vocs):
        if vocs.n_objectives > 2:
            raise ValueError("two objectives at most")

    def suggest(self, num_points):
        if len(self.given) < self.needs:
            raise RuntimeError("no data")
        if num_points is not None and num_points != self.at_once:
            raise ValueError(f"{self.at_once} or none")
        return [self.point() for _ in range(self.at_once) if self.suggested < self.most]

    def point(self):
        self.suggested += 1
        found = {"_id": self.suggested}
        for name, variable in self.vocs.variables.items():
            values = getattr(variable, "values", None)
            found[name] = self.draws.choice(sorted(values)) if values else self.draws.random()
        return found

    def ingest(self, results):
        self.given += results

    def finalize(self):
        Path(__file__).with_name("given.json").write_text(json.dumps(self.given))

class Beyond(Uniform):
    def point(self):
        return {**super().point(), "rate": 1.5}

class Simplex(Uniform):
    def suggest(self, num_points):
        assert len(self.given) == self.suggested, "the last value first"
        return super().suggest(num_points)

def nothing(vocs):
    return object()
"""

TABLE = {
    "rate": {"from": 1.0, "to": 1e-4, "scale": "log"},
    "momentum": {"from": 0.0, "to": 0.9},
    "units": {"from": 4, "to": 512, "scale": "log"},
    "depth": {"from": 1, "to": 9, "step": 2},
    "decay": {"from": 1e-6, "to": 1e-2, "log_steps": 5},
    "batch": [16, 64, 256],
    "hidden": [[16], [32, 16]],
    "nesterov": [False, True],
    "epochs": 20,
}
SPACE = Space.parse(TABLE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(CODE)
    return tmp_path


def made(folder: Path, name: str = "Uniform", space: Space = SPACE, **options: Any) -> GestSearch:
    objectives = options.pop("objectives", {"accuracy": True})
    table = {"name": "gest", "generator": f"./mine.py:{name}", **options}
    found = make_strategy(table, space, 3, folder=folder, objectives=objectives)
    assert isinstance(found, GestSearch)
    return found


def test_every_kind_of_parameter_goes_there_and_back(folder: Path) -> None:
    strategy = made(folder)
    variables = strategy.generator.vocs.variables
    ranges = {name: getattr(each, "domain", None) for name, each in variables.items()}
    assert [name for name, domain in ranges.items() if domain == [0, 1]] == [*TABLE][:5]
    assert [variables[name].values for name in ("batch", "hidden", "nesterov")] == [
        {16, 64, 256},
        {0, 1},
        {0, 1},
    ]
    assert "epochs" not in variables
    for trial in range(200):
        point = strategy.ask(trial)
        assert isinstance(point, dict)
        SPACE.check(point)
        # What another session is told by its point alone is a variable of the same point.
        for name, axis in strategy._axes.items():
            assert axis.inner(axis.outer(point[name])) == pytest.approx(point[name], rel=1e-12)


def test_it_is_given_what_it_suggested_with_names_and_directions(folder: Path) -> None:
    strategy = made(folder, objectives={"accuracy": True, "time": False})
    first, second = strategy.ask(0), strategy.ask(1)
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    strategy.tell(1, second, (0.5, -2.0))
    strategy.tell(0, first, (0.75, -4.0))
    strategy.ask(2)
    given = strategy.generator.given
    assert [each["_id"] for each in given] == [2, 1]
    assert [(each["accuracy"], each["time"]) for each in given] == [(0.5, 2.0), (0.75, 4.0)]
    share = math.log(first["rate"] / 1.0) / math.log(1e-4)
    assert given[1]["rate"] == pytest.approx(share)


def test_a_failed_trial_is_the_worst_so_far_and_a_stopped_one_what_it_had(folder: Path) -> None:
    strategy = made(folder)
    points = [strategy.ask(trial) for trial in range(4)]
    strategy.tell(0, points[0], None)  # type: ignore[arg-type]
    strategy.ask(4)
    assert strategy.generator.given == []  # nothing to compare with yet
    strategy.tell_curve(1, points[1], [(1, 0.1), (2, 0.3)], None)  # type: ignore[arg-type]
    strategy.tell(2, points[2], (0.8,))  # type: ignore[arg-type]
    strategy.ask(5)
    told = {each["_id"]: each["accuracy"] for each in strategy.generator.given}
    assert told == {1: 0.3, 2: 0.3, 3: 0.8}


def test_one_that_suggests_several_at_once_is_asked_when_they_are_used(folder: Path) -> None:
    strategy = made(folder, options={"at_once": 3, "most": 6})
    points = [strategy.ask(trial) for trial in range(6)]
    assert all(isinstance(point, dict) for point in points)
    assert strategy.ask(6) is WAIT  # a result may give it new ideas
    for trial, point in enumerate(points):
        strategy.tell(trial, point, (0.0,))  # type: ignore[arg-type]
    assert strategy.ask(6) is None


def test_points_are_random_until_there_are_results(folder: Path) -> None:
    with pytest.raises(PluginError, match=r"suggest of \./mine.*RuntimeError: no data.*startup"):
        made(folder, options={"needs": 2}).ask(0)
    strategy = made(folder, options={"needs": 2}, startup=2)
    points = [strategy.ask(trial) for trial in range(5)]
    assert len({point["rate"] for point in points if isinstance(point, dict)}) == 5
    for trial, point in enumerate(points[:3]):
        strategy.tell(trial, point, None if trial == 1 else (0.5,))  # type: ignore[arg-type]
    assert isinstance(strategy.ask(5), dict)
    assert [each.get("_id") for each in strategy.generator.given] == [None] * 3


def test_a_simplex_has_one_point_at_a_time(folder: Path) -> None:
    hasty = made(folder, "Simplex")
    hasty.ask(0)
    with pytest.raises(PluginError, match="AssertionError: the last value first"):
        hasty.ask(1)
    strategy = made(folder, "Simplex", most_in_flight=1)
    for trial in range(5):
        point = strategy.ask(trial)
        assert strategy.ask(trial + 1) is WAIT
        strategy.tell(trial, point, (float(trial),))  # type: ignore[arg-type]


def test_a_resumed_sweep_tells_all_at_once_and_draws_other_points(folder: Path) -> None:
    strategy = made(folder)
    points = [strategy.ask(trial) for trial in range(4)]
    resumed = made(folder)
    for trial, point in enumerate(points[:3]):
        resumed.tell(trial, point, (0.1 * trial,))  # type: ignore[arg-type]
    # A master asks for all trials again.
    assert [resumed.ask(trial) for trial in range(3)] == points[:3]
    assert resumed.ask(3) not in points
    assert resumed.generator.seed != strategy.generator.seed
    assert ["_id" in each for each in resumed.generator.given] == [False] * 3
    assert made(folder, options={"seed": 77}).generator.seed == 77


def problem_of(folder: Path, **options: Any) -> tuple[str, str]:
    table: dict[str, Any] = {"space": {"rate": {"from": 0.1, "to": 1.0}}, "trials": 9, **options}
    table["strategy"] = {"name": "gest", **table["strategy"]}
    with pytest.raises(ValidationError) as caught:
        SweepOptions.model_validate(table, context={"folder": folder})
    (problem,) = problems_from_validation(caught.value, SweepOptions, "")
    return problem.path.strip("."), f"{problem.message} {problem.remedy}"


@pytest.mark.parametrize(
    ("options", "path", "words"),
    [
        ({"strategy": {}}, "strategy.generator", "required"),
        ({"strategy": {"generator": "./mine.py:Unifrom"}}, "strategy", "Unifrom"),
        ({"strategy": {"generator": "./mine.py:nothing"}}, "strategy", "no suggest and no ingest"),
        (
            {"strategy": {"generator": "./mine.py:Uniform", "options": {"sead": 1}}},
            "strategy",
            "refuses: TypeError",
        ),
        (
            {
                "strategy": {"generator": "./mine.py:Uniform"},
                "objective": ["accuracy", "loss", "training_time_s"],
            },
            "strategy",
            "refuses: ValueError: two objectives at most",
        ),
        (
            {
                "strategy": {"generator": "./mine.py:Uniform"},
                "space": {"kind": ["a", "b"], "rate": {"choices": [1, 2], "if": {"kind": "a"}}},
            },
            "space.rate",
            "exists beside some values of others only",
        ),
        (
            {"strategy": {"generator": "./mine.py:Uniform"}, "space": {"rate": 0.1}},
            "strategy",
            "there is nothing to choose",
        ),
        (
            {"strategy": {"generator": "./mine.py:Uniform"}, "objective": ["loss", "loss"]},
            "objective",
            "names one twice",
        ),
        (
            {"strategy": {"generator": "./mine.py:Uniform", "start": 3}},
            "strategy.start",
            "startup",
        ),
        ({"strategy": {"generator": "./mine.py:Uniform"}, "trials": None}, "trials", "is missing"),
    ],
)
def test_what_it_cannot_say_is_refused_when_checked(
    folder: Path, options: dict[str, Any], path: str, words: str
) -> None:
    where, what = problem_of(folder, **options)
    assert where == path
    assert words in what


def test_a_point_outside_of_the_space_is_an_error_that_says_so(folder: Path) -> None:
    with pytest.raises(PluginError, match=r"Beyond suggests .* no point: rate: .* between 0 and 1"):
        made(folder, "Beyond").ask(0)


def test_a_sweep_runs_with_it_and_ends_it(sweep: Sweep) -> None:
    (sweep.folder / "generators.py").write_text(CODE)
    strategy = {"name": "gest", "generator": "./generators.py:Uniform"}
    space = {"x": {"from": 0, "to": 20, "step": 1}}
    options = {"space": space, "strategy": strategy, "trials": 12, "objective": ["score", "square"]}
    sweep.run({**options, "maximise": [True, False]}, trainers=2)
    assert len(sweep.records) == 12
    given = json.loads((sweep.folder / "given.json").read_text())
    assert given
    assert all(each["score"] == -abs(math.sqrt(each["square"]) - 7) for each in given)


def test_generators_of_xopt_learn(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        name = "xopt.generators.sequential.neldermead"
        pytest.importorskip(name, reason="Xopt is not installed", exc_type=ImportError)
        start = {"a": 0.9, "b": 0.9}
        table = {
            "space": {each: {"from": -1.0, "to": 1.0} for each in start},
            "objective": "loss",
            "strategy": {
                "name": "gest",
                "generator": f"{name}:NelderMeadGenerator",
                "options": {"initial_point": start},
                "most_in_flight": 1,
            },
            "trials": 60,
        }
        search = Search(SweepOptions.model_validate(table, context={"folder": tmp_path}), tmp_path)
        for trial in range(60):
            point = search.ask(trial)
            assert isinstance(point, dict)
            search.tell(trial, point, {"loss": point["a"] ** 2 + (point["b"] - 0.3) ** 2})
    assert search.best is not None
    assert search.best[2][0] < 1e-3
