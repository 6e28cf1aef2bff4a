"""What a report keeps of any number of rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import case_count

from diel.run.results import rank_rows
from modules.pareto import ParetoFront
from modules.report.data import RowSelection, Sweep

SWEEP = Sweep("s", "accuracy", True, ("a",), ("accuracy", "training_time_s"))


def row(trial: int, accuracy: float, time_s: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"trial": trial, "a": trial, "accuracy": accuracy, "training_time_s": time_s, **more}


@given(
    st.lists(st.floats(0, 1, width=16), max_size=60),
    st.booleans(),
    st.integers(1, 20),
    st.randoms(use_true_random=False),
)
def test_the_best_are_those_that_diel_ranks_first(
    values: list[float], maximise: bool, top: int, order: Any
) -> None:
    rows = [row(trial, value) for trial, value in enumerate(values)]
    order.shuffle(rows)
    selection = RowSelection(Sweep("s", "accuracy", maximise, ("a",)), top=top)
    for one in rows:
        selection.add([one])
    ranked = rank_rows(rows, "accuracy", maximise)[:top]
    assert [one.row["trial"] for one in selection.top] == [record["trial"] for record in ranked]


@given(st.lists(st.floats(0, 1, width=16), max_size=50), st.booleans())
def test_the_steps_are_the_trials_that_beat_all_before(values: list[float], maximise: bool) -> None:
    selection = RowSelection(Sweep("s", "accuracy", maximise, ("a",)))
    selection.add([row(trial, value) for trial, value in enumerate(values)])
    sign = 1 if maximise else -1
    expected = [
        trial
        for trial, value in enumerate(values)
        if all(sign * value > sign * other for other in values[:trial])
    ]
    assert [step.row["trial"] for step in selection.steps] == expected


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40))
def test_the_front_holds_what_nothing_dominates(pairs: list[tuple[int, int]]) -> None:
    front: ParetoFront[int] = ParetoFront()
    for number, (cost, gain) in enumerate(pairs):
        front.add(number, (-float(cost), float(gain)), number)

    def beaten(number: int) -> bool:
        cost, gain = pairs[number]
        return any(
            (other_cost <= cost and other_gain >= gain)
            and ((other_cost, other_gain) != (cost, gain) or other < number)
            for other, (other_cost, other_gain) in enumerate(pairs)
        )

    expected = [number for number in range(len(pairs)) if not beaten(number)]
    assert sorted(front.front) == sorted(expected)
    assert [pairs[one][0] for one in front.front] == sorted(pairs[one][0] for one in expected)


def test_a_very_long_front_is_thinned_out_but_for_its_ends() -> None:
    front: ParetoFront[int] = ParetoFront(largest=50)
    for number in range(1000):
        front.add(number, (-float(number), float(number)), number)
    assert len(front.front) <= 51
    assert front.thinned
    assert front.front[0] == 0
    assert front.front[-1] == 999


def test_memory_is_bounded_and_the_sample_is_uniform() -> None:
    selection = RowSelection(SWEEP, sample=500, top=20)
    for start in range(0, 50_000, 1000):
        selection.add(
            row(trial, trial / 1e5, 1 / (1 + trial)) for trial in range(start, start + 1000)
        )
    assert selection.count == 50_000
    assert len(selection.sampled) == 500
    assert len(selection.top) == 20
    assert len(selection.steps) <= 1001  # every trial was the best so far
    assert selection.steps[0].row["trial"] == 0
    assert selection.steps[-1].row["trial"] == 49_999
    assert not selection.shows_all
    # Of 500 draws over ten equal parts: 50 each, standard deviation below 7.
    parts = [0] * 10
    for order, _ in selection.sampled:
        parts[order // 5000] += 1
    assert all(25 <= part <= 75 for part in parts)
    again = RowSelection(SWEEP, sample=500, top=20)
    again.add(row(trial, trial / 1e5, 1 / (1 + trial)) for trial in range(50_000))
    assert [order for order, _ in again.sampled] == [order for order, _ in selection.sampled]


@pytest.mark.parametrize("accuracy", [math.nan, math.inf, -math.inf, None, "", "none"])
def test_a_row_without_a_number_has_diverged(accuracy: Any) -> None:
    selection = RowSelection(SWEEP)
    selection.add([row(0, accuracy), row(1, 0.5)])
    assert (selection.count, selection.failed, selection.diverged, selection.good) == (2, 0, 1, 1)
    assert [one.row["trial"] for one in selection.top] == [1]
    (reason,) = selection.reasons
    assert reason.startswith("accuracy is ")


def test_reasons_of_failures_are_counted() -> None:
    selection = RowSelection(SWEEP)
    selection.add([row(0, 0.9, state="finished"), row(1, 0.8, state="stopped")])
    selection.add([row(2, math.nan, state="killed:\n 2 GiB"), row(3, 0.7, state="out of time")])
    selection.add([row(4, math.nan, state="failed", reason="killed: 2 GiB")])
    assert selection.reasons == {"killed: 2 GiB": 2, "out of time": 1}
    assert selection.good == 2
    selection.add(row(5 + one, math.nan, state=f"reason {one}") for one in range(100))
    assert len(selection.reasons) <= 21
    assert sum(selection.reasons.values()) == selection.lost == 103
    assert len(selection.failures) == 50


def test_metrics_are_found_in_the_first_row_if_they_are_not_named() -> None:
    selection = RowSelection(Sweep("s", "score", False, ("a",), cost="seconds"))
    selection.add([{"trial": 0, "a": 1, "score": 2.0, "seconds": 3.0, "trainer": 0, "seed": 9}])
    assert list(selection.sweep.metrics) == ["score", "seconds"]
    assert selection.front.front[0][0] == 0


def test_trainers_are_counted() -> None:
    selection = RowSelection(SWEEP)
    selection.add(row(trial, 0.5, 2.0, trainer=trial % 2) for trial in range(5))
    assert selection.trainers == {0: 3, 1: 2}


@settings(max_examples=case_count(30))
@given(st.lists(st.floats(0, 1, width=16), min_size=1, max_size=30))
def test_where_time_is_the_objective_quality_is_accuracy(values: list[float]) -> None:
    sweep = Sweep("s", "training_time_s", False, ("a",), ("accuracy", "training_time_s"))
    assert (sweep.quality, sweep.maximise_quality) == ("accuracy", True)
    selection = RowSelection(sweep)
    selection.add(row(trial, value, 1.0) for trial, value in enumerate(values))
    (only,) = selection.front.front
    assert only[1]["accuracy"] == max(values)


def test_a_trial_that_was_stopped_early_is_neither_best_nor_failed() -> None:
    selection = RowSelection(SWEEP)
    selection.add([row(0, 0.5, state="finished"), row(1, 0.9, 0.1, state="stopped")])
    selection.add([row(2, math.nan, state="pruned")])
    assert (selection.good, selection.failed, selection.stopped) == (2, 0, 2)
    assert [one.row["trial"] for one in selection.top] == [0]
    assert [step.row["trial"] for step in selection.steps] == [0]
    assert [record["trial"] for _, record in selection.front.front] == [0]
    assert [record["trial"] for _, record in selection.sampled] == [0, 1]
