"""Learning curves of a sweep's trials: kept, bounded, drawn, and what is stopped early by them."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from unit.modules.sweeping import Sweep

from modules.sweep import results as recording
from modules.trial import MOST_REPORTS, LearningCurve


def curves_of(file: Path) -> int:
    """Count the learning curves that a report draws."""
    _, _, section = file.read_text().partition('<section id="curves"')
    return section.partition("</section>")[0].count("<polyline")


def test_learning_curves_are_kept_drawn_and_survive_a_resume(sweep: Sweep) -> None:
    options = {"space": {"x": {"from": 1, "to": 12, "step": 1}}}
    sweep.run(options, train="steps")
    for record in sweep.records:
        x = record["parameters"]["x"]
        assert record["reports"] == [[step, {"score": x * step}] for step in range(1, 10)]
    report = sweep.run_dir / "report.html"
    assert curves_of(report) == 10  # those of the best
    assert "learning curve" not in (sweep.run_dir / "results.csv").read_text()
    sweep.cut_ledger(9)
    done = sweep.run(options, train="steps")
    assert all(len(record["reports"]) == 9 for record in sweep.records)
    assert curves_of(report) == 10
    assert all("learning curve" not in row for row in done.records[-1].get("best", ()))


def test_learning_curves_are_bounded_in_each_trial_and_in_all(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_CURVES", 30)
    options = {"space": {"x": {"from": 1, "to": 100, "step": 1}}, "order": "shuffled"}
    sweep.run(options, train="many_steps", options={"steps": 1000})
    kept = [record for record in sweep.records if "reports" in record]
    assert all("reports" in record for record in sweep.records[:30])
    best = {record["trial"] for record in sorted(sweep.records, key=_score)[-20:]}
    assert best <= {record["trial"] for record in kept}
    assert len(kept) < 90
    for record in kept:
        steps = [step for step, _ in record["reports"]]
        assert len(steps) <= MOST_REPORTS
        assert (steps[0], steps[-1]) == (1, 1000)
        assert len({later - step for step, later in pairwise(steps[:-1])}) == 1


def _score(record: dict[str, Any]) -> float:
    return float(record["metrics"]["score"])


@pytest.mark.parametrize("reports", [0, 1, 2, 63, 64, 65, 127, 128, 1000, 12345])
def test_a_learning_curve_keeps_some_points_and_the_last(reports: int) -> None:
    curve = LearningCurve()
    for step in range(reports):
        curve.add(step, {"score": step})
        curve.add(step, {"score": -step})  # said again: the later one counts
    points = curve.points
    assert curve.points == points
    assert len(points) == reports if reports < MOST_REPORTS else 32 <= len(points) <= MOST_REPORTS
    assert points == [(step, {"score": -step}) for step, _ in points]
    steps = [step for step, _ in points]
    assert steps == sorted(set(steps))
    if reports:
        assert (steps[0], steps[-1]) == (0, reports - 1)


def test_a_learning_curve_holds_numbers_and_nothing_that_they_come_from() -> None:
    class Tensor:
        size = 1

        def item(self) -> float:
            return 0.5

    given = [Tensor() for _ in range(1000)]
    alive = [weakref.ref(one) for one in given]
    curve = LearningCurve()
    for step, one in enumerate(given):
        curve.add(step, {"loss": one, "odd": object()})
    del given, one
    gc.collect()
    assert sum(one() is not None for one in alive) == 1  # the last one
    assert {str(metrics) for _, metrics in curve.points} == {"{'loss': 0.5}"}


def test_a_trial_that_dies_leaves_its_learning_curve(sweep: Sweep) -> None:
    options = {"space": {"x": [1, 2]}}
    sweep.run(options, trainers=1, train="dies", isolated=True)
    first, second = sorted(sweep.records, key=lambda record: record["trial"])
    assert (first["state"], second["state"]) == ("finished", "failed")
    assert first["reports"] == [[1, {"score": 0.5}]]
    assert second["reports"] == [[1, {"score": 0.5}], [2, {"score": 0.75}]]


def test_trials_are_stopped_early_by_what_they_report(sweep: Sweep) -> None:
    options = {
        "space": {"x": {"from": 1, "to": 40, "step": 1}},
        "order": "shuffled",
        "strategy": {"name": "grid"},
        "early_stopping": {"rule": "halving", "min_steps": 1, "reduction": 3},
    }
    done = sweep.run(options, train="steps")
    states = Counter(one["state"] for one in sweep.records)
    assert states["stopped"] > 10
    assert states["stopped"] + states["finished"] == 40
    for record in sweep.records:
        assert len(record["reports"]) == record["metrics"]["steps"]
        assert record["metrics"]["steps"] in ((1, 3, 9) if record["state"] == "stopped" else (9,))
    assert done.returned["x"] >= 35
