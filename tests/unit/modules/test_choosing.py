"""What is chosen for a sweep whose file leaves its strategy out."""

from __future__ import annotations

from typing import Any

import pytest

from modules.choosing import Limits, choose, cohort_of
from modules.space import Space

RATE = {"from": 1e-4, "to": 1.0, "scale": "log"}
TRAINER: dict[str, Any] = {"dataset": "digits"}
TIMED = Limits(has_time=True)
HALVED = "tpe, halving (after epochs 1, 3, 9, ... 1 of 3 goes on)"


def chosen(table: dict[str, Any], limits: Limits, **more: Any) -> str:
    choice = choose(Space.parse(table), limits, **more)
    return choice.name


@pytest.mark.parametrize(
    ("table", "limits", "more", "name"),
    [
        # Files that name no strategy, and mean a grid.
        ({"a": [1, 2]}, Limits(), {}, "grid"),
        ({"a": [1, 2]}, Limits(trials=2), {}, "grid"),
        ({"a": [1, 2]}, Limits(trials=2, has_time=True, deterministic=True), {}, "grid"),
        ({"a": [1, 2]}, Limits(trials=1), {"has_order": True}, "grid"),
        ({"a": {"from": 1, "to": 10**9}}, Limits(), {}, "grid"),
        ({"a": [1, 2]}, Limits(), {"objectives": 2}, "grid"),
        ({"a": [1, 2]}, TIMED, {"trainer": {"evaluation": {"method": "nested"}}}, "grid"),
        # The time tells.
        ({"a": [1, 2]}, TIMED, {}, "a grid if it fits into the time, else tpe"),
        (
            {"a": [1, 2]},
            TIMED,
            {"trainer": TRAINER},
            f"a grid if it fits into the time, else {HALVED}",
        ),
        # What no grid goes through, or not in so few trials.
        ({"a": [1, 2, 3]}, Limits(trials=2), {}, "tpe"),
        ({"a": {"from": 1, "to": 10**6}}, TIMED, {}, "tpe"),
        ({"learning_rate": RATE}, TIMED, {}, "tpe"),
        (
            {"learning_rate": RATE},
            TIMED,
            {"trainer": TRAINER, "varies_in_plan": True},
            f"{HALVED}, narrow networks 8 of one structure at a time",
        ),
        (
            {"learning_rate": RATE},
            TIMED,
            {"trainer": TRAINER, "varies_in_plan": True, "is_alike": True, "has_rule": True},
            "tpe",
        ),
        # Tiny budgets, other reports, several objectives.
        ({"learning_rate": RATE}, Limits(trials=299), {"trainer": TRAINER}, "tpe"),
        (
            {"learning_rate": RATE},
            Limits(trials=300),
            {"trainer": TRAINER},
            HALVED,
        ),
        (
            {"learning_rate": RATE},
            Limits(trials=30, has_time=True),
            {"trainer": TRAINER},
            f"{HALVED}, unless there is time for all trials",
        ),
        (
            {"learning_rate": RATE},
            Limits(trials=30, has_time=True, deterministic=True),
            {"trainer": TRAINER},
            HALVED,
        ),
        ({"learning_rate": RATE, "epochs": [1, 2]}, TIMED, {"trainer": TRAINER}, "tpe"),
        (
            {"learning_rate": RATE},
            TIMED,
            {"trainer": {"evaluation": {"method": "k_fold"}}},
            "tpe",
        ),
        (
            {"learning_rate": RATE},
            TIMED,
            {"trainer": {"evaluation": {"method": "nested"}}},
            "random",
        ),
        ({"learning_rate": RATE}, TIMED, {"trainer": TRAINER, "objectives": 2}, "nsga2"),
    ],
)
def test_what_is_chosen(
    table: dict[str, Any], limits: Limits, more: dict[str, Any], name: str
) -> None:
    assert chosen(table, limits, **more) == name


def test_it_says_why() -> None:
    space = Space.parse({"learning_rate": RATE, "momentum": {"from": 0.0, "to": 0.9}})
    assert choose(space, Limits(trials=9)).why == (
        "no grid, as learning_rate and 1 more can be any number of a range; no rule, as it is not "
        "known what the trainer's reports say"
    )
    assert choose(Space.parse({"a": [1, 2, 3]}), Limits(trials=2)).why.startswith(
        "no grid, as its 3 points are more than 2 trials"
    )
    assert str(choose(Space.parse({"a": [1]}), Limits())) == "grid: its only point is all tried"


def test_a_genetic_search_has_several_generations() -> None:
    space = Space.parse({"learning_rate": RATE})
    sizes = {
        trials: choose(space, Limits(trials=trials), 2).strategy["population"]
        for trials in (10, 100, 1000)
    }
    assert sizes == {10: 8, 100: 25, 1000: 50}


def test_narrow_networks_are_asked_for_in_cohorts() -> None:
    space = Space.parse({"learning_rate": RATE})
    choice = choose(space, TIMED, trainer=TRAINER, varies_in_plan=True)
    count = cohort_of(choice, TRAINER)
    assert count({"learning_rate": 0.1, "hidden": [64, 32]}) == 8
    assert count({"learning_rate": 0.1, "hidden": [64, 128]}) == 1
    assert count({"learning_rate": 0.1, "channels": [8]}) == 1
    assert count({"learning_rate": 0.1, "no_parameter": 3}) == 1
    table = [{"type": "fully_connected", "units": "$width", "repeat": "$depth"}]
    count = cohort_of(choice, {"layers": table})
    assert [count({"width": width, "depth": 2}) for width in (127, 128)] == [8, 1]
    assert cohort_of(choose(space, TIMED), None)({"hidden": [8]}) == 1
