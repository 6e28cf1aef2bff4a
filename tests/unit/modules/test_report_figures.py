"""Figures of a sweep: plain, bounded, and what they show of its rows."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

import pytest

from modules.report import Moment, Sweep
from modules.report.comparison import comparison_figures
from modules.report.data import RowSelection, SweepView
from modules.report.figures import figures_of, trial_curves
from modules.report.page import analyse
from modules.report.panels import spread
from modules.report.plotly import THEMES

SWEEP = Sweep("study", "accuracy", True, ("rate", "hidden", "kind"), expected=60)
ALL = {"history", "cost", "curves", "parallel", "importance", "contour", "timeline"}


def rows(count: int) -> list[dict[str, Any]]:
    random = Random(4)
    made = []
    for trial in range(count):
        rate = 10 ** random.uniform(-4, 0)
        hidden = random.choice([16, 32, 64])
        accuracy = 0.9 - 0.05 * (math.log10(rate) + 2) ** 2 - hidden / 1000
        made.append(
            {
                "trial": trial,
                "rate": rate,
                "hidden": hidden,
                "kind": random.choice(["relu", "<b>tanh</b>"]),
                "accuracy": accuracy,
                "training_time_s": hidden * random.uniform(1, 2),
                "trainer": trial % 3,
                "state": "stopped" if trial % 10 == 9 else "finished",
                "started_s": 1e9 + trial,
                "seconds": 1.5,
                "learning curve": [(step, accuracy - 1 / step) for step in range(1, 9)],
            }
        )
    return made


def view_of(made: list[dict[str, Any]], sweep: Sweep = SWEEP) -> SweepView:
    selection = RowSelection(sweep)
    selection.add(made)
    return SweepView.of(selection, Moment())


def for_plotly(
    view: SweepView, theme: str = "light", running: Any = None, *, with_importance: bool = True
) -> dict[str, Any]:
    found = analyse(view) if with_importance else None
    figures = figures_of(view, found, running)
    return {name: figure.plotly(theme) for name, figure in figures.items()}


def test_figures_say_what_the_rows_say() -> None:
    made = rows(60)
    view = view_of(made)
    running = {77: [(1, 0.2), (2, 0.4)]}
    figures = for_plotly(view, running=running)
    assert set(figures) == ALL
    finished = [row["accuracy"] for row in made if row["state"] == "finished"]
    cloud, line, steps = figures["history"]["data"]
    assert line["y"][-1] == max(finished)
    assert line["y"] == sorted(line["y"])
    assert len(cloud["x"]) + len(steps["x"]) == 60
    assert figures["cost"]["layout"]["xaxis"]["title"]["text"] == "training time, seconds"
    front = figures["cost"]["data"][2]
    assert list(front["x"]) == sorted(front["x"], reverse=front["x"][0] > front["x"][-1])
    curves = {curve["name"]: curve for curve in figures["curves"]["data"]}
    assert set(curves) == {"the best", "others among the best", "stopped early", "running"}
    assert curves["running"]["y"] == [0.2, 0.4]
    dimensions = figures["parallel"]["data"][0]["dimensions"]
    assert [axis["label"] for axis in dimensions] == ["rate", "hidden", "kind", "accuracy"]
    assert dimensions[1]["ticktext"] == ["16", "32", "64"]
    assert figures["importance"]["data"][0]["y"][-1] == "rate"  # the last bar is drawn on top
    surface, dots = figures["contour"]["data"][:2]
    assert len(surface["z"]) == len(surface["y"])
    assert sum(int(text.split()[0]) for text in dots["text"]) == 60
    assert sum(len(bars["x"]) for bars in figures["timeline"]["data"]) == 60


def test_they_are_plain_and_html_in_values_stays_text() -> None:
    view = view_of(rows(60))
    for theme in THEMES:
        figures = for_plotly(view, theme)
        text = json.dumps(figures, allow_nan=False)
        parallel = json.dumps(figures["parallel"])  # whose labels Plotly takes as they are
        assert "&lt;b&gt;tanh" in text
        assert "<b>" not in text.replace(parallel, "")
        assert figures["history"]["layout"]["yaxis"]["gridcolor"] == THEMES[theme].rule
    go = pytest.importorskip("plotly.graph_objects", reason="Plotly is not installed")
    for figure in figures.values():
        go.Figure(figure)  # raises a ValueError if a property is unknown


def test_what_has_nothing_to_show_is_left_out() -> None:
    assert figures_of(view_of([]), None) == {}
    failed = {"trial": 0, "rate": 1.0, "state": "out of memory"}
    assert figures_of(view_of([failed]), None) == {}
    broken = [
        {"trial": n, "accuracy": n / 9, "training_time_s": 2 + n, "state": "infeasible: breaks a"}
        for n in range(3)
    ]
    note = figures_of(view_of(broken), None)["cost"].note
    assert note == "Squares are trials that break a constraint, which do not count."
    few = [{"trial": n, "rate": 0.1, "accuracy": 0.5 + n / 9, "state": "finished"} for n in (0, 1)]
    view = view_of(few)
    assert set(figures_of(view, analyse(view))) == {"history"}


def test_their_size_is_bounded_and_nothing_needs_a_graphics_card() -> None:
    some = rows(60)
    many = [{**some[trial % 60], "trial": trial} for trial in range(4000)]
    view = view_of(many)
    figures = for_plotly(view)
    cloud = figures["history"]["data"][0]
    assert {trace["type"] for name in ("history", "cost") for trace in figures[name]["data"]} == {
        "scatter"
    }
    assert len(cloud["x"]) == len(cloud["y"]) == len(cloud["customdata"]) <= 500
    (lines,) = figures["parallel"]["data"]
    best = max(row["accuracy"] for row in many if row["state"] == "finished")
    last = lines["dimensions"][-1]["values"][-1]
    assert last == view.axis.place(best) == max(lines["line"]["color"])
    assert {len(axis["values"]) for axis in lines["dimensions"]} <= set(range(100, 301))
    assert sum(len(bars["x"]) for bars in figures["timeline"]["data"]) <= 400
    assert len(json.dumps(figures)) < 500_000


def test_names_stand_as_the_user_wrote_them() -> None:
    sweep = Sweep("study", "val_loss", False, ("hidden_units", "warm_up_s"))
    made = [
        {"trial": n, "hidden_units": n % 7, "warm_up_s": n / 3, "val_loss": n % 5, "state": "done"}
        for n in range(60)
    ]
    view = view_of(made, sweep)
    figures = for_plotly(view)
    labels = [axis["label"] for axis in figures["parallel"]["data"][0]["dimensions"]]
    assert labels == ["hidden_units", "warm_up_s", "val_loss"]
    assert figures["history"]["layout"]["yaxis"]["title"]["text"] == "val_loss"
    assert set(figures["importance"]["data"][0]["y"]) == {"hidden_units", "warm_up_s"}
    axes = [figures["contour"]["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis")]
    assert set(axes) == {"hidden_units", "warm_up_s"}


def test_all_that_a_trial_reported_is_in_its_curve() -> None:
    reports = [(1, {"loss": 2.0, "accuracy": 0.5}), (5, {"loss": math.nan, "accuracy": 0.75})]
    figure = trial_curves(SWEEP, reports)
    assert figure is not None
    assert {curve["name"]: curve["y"] for curve in figure.plotly()["data"]} == {
        "loss": [2.0],
        "accuracy": [0.5, 0.75],
    }
    assert trial_curves(SWEEP, []) is None


@pytest.mark.parametrize("maximise", [True, False])
def test_trials_that_are_far_worse_stand_at_the_edge_under_a_name_that_says_so(
    maximise: bool,
) -> None:
    sign = 1 if maximise else -1
    sweep = Sweep("study", "accuracy", maximise, ("rate", "hidden", "kind"), expected=60)
    made = [{**row, "accuracy": sign * row["accuracy"]} for row in rows(60)]
    # The first is better than all before it, so it begins the line; the last is the cheapest.
    far = {0: -1e6 * sign, 20: -1e9 * sign, 59: -1e3 * sign}
    for trial, value in far.items():
        made[trial] |= {"accuracy": value, "training_time_s": 1.0 + 0.01 * trial}
    made[5]["learning curve"] = [(1, -1e8 * sign), (2, sign * 0.9), (3, sign * 0.9)]
    figures = for_plotly(view_of(made, sweep), with_importance=False)
    for name in ("history", "cost", "curves"):
        low, high = figures[name]["layout"]["yaxis"]["range"]
        for trace in figures[name]["data"]:
            assert all(low < y < high for y in trace["y"]), (name, trace["name"])
    for name in ("history", "cost"):
        shown = [trial for trace in figures[name]["data"] for trial in trace.get("customdata", ())]
        assert sorted(shown) == list(range(60)), name
        by_name = {trace["name"]: trace for trace in figures[name]["data"]}
        beyond = by_name["far worse, at the edge"]
        assert {20, 59} <= set(beyond["customdata"]) <= set(far)
        assert len(set(beyond["y"])) == 1
        told = dict(zip(beyond["customdata"], beyond["text"], strict=True))
        assert f"accuracy {'-' if maximise else ''}1e9<br>" in told[20]
        assert not set(by_name["trials"]["customdata"]) & {20, 59}


def test_a_sweep_far_worse_than_those_beside_it_stands_at_the_edge() -> None:
    bad = [{**row, "accuracy": row["accuracy"] - 1e7} for row in rows(20)]
    views = {"good": view_of(rows(40)), "bad": view_of(bad)}
    figure = comparison_figures(views)["history"].plotly()
    low, high = figure["layout"]["yaxis"]["range"]
    assert all(low < y < high for trace in figure["data"] for y in trace["y"])


def test_steps_and_trials_are_whole_numbers() -> None:
    assert [label for _, label in spread([1, 2, 3]).ticks(6)] == ["1", "2", "3"]
    assert [label for _, label in spread([1, 1.5, 2]).ticks(3)] == ["1.0", "1.5", "2.0"]
