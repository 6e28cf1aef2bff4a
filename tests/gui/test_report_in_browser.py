"""The report of a sweep in a real browser, from a file, without a network."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import pytest

from modules.evaluation import BiasReport
from modules.report import (
    LiveReport,
    Moment,
    RankAccount,
    Sweep,
    conclude_report,
    write_report,
)

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect

SWEEP = Sweep(
    "a <study>",
    "accuracy",
    True,
    ("learning_rate", "hidden", "dropout", "momentum"),
    ("accuracy", "loss", "training_time_s"),
    expected=60,
    workflow='[workflow]\nname = "study"\n',
    command="diel run workflow.toml",
    facts={"NumPy": "2"},
)
ACCOUNTS = [
    RankAccount(1, "node17", ["tuple server"], 1.0, 98.0, 1.0),
    RankAccount(2, "node17", ["trainer.0"], 90.0, 10.0, 0.0),
]
SECTIONS = {
    "history": 1,
    "cost": 1,
    "curves": 1,
    "parallel": 1,
    "importance": 3,
    "contour": 3,
    "bias": 0,
    "trials": 0,
    "failures": 0,
    "ranks": 0,
    "again": 0,
}
"""How many drawings each has."""


def rows(count: int = 60) -> list[dict[str, Any]]:
    random = Random(1)
    found = []
    for trial in range(count):
        rate, hidden = 10 ** random.uniform(-3, 0), random.choice([[32], [64], [64, 32]])
        accuracy = 0.95 - 0.1 * (math.log10(rate) + 1) ** 2 - random.random() / 50
        found.append(
            {
                "trial": trial,
                "learning_rate": rate,
                "hidden": hidden,
                "dropout": random.random() if trial % 3 else None,
                "momentum": 0.9,
                "accuracy": accuracy if trial != 7 else math.nan,
                "loss": -math.log(accuracy),
                "training_time_s": len(hidden) * random.uniform(1, 2),
                "trainer": trial % 2,
                "seed": trial,
                "state": "finished" if trial != 7 else "out of memory <b>, 4,096 MiB in all, " * 3,
                "learning curve": [(step, accuracy - 0.5 / step) for step in range(1, 20)],
            }
        )
    return found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("a folder with spaces") / "report.html"
    told = BiasReport("accuracy", True, 0.95, 0.92, 0.01, 60, "nested, 5 folds")
    moment = Moment("finished", 12.0, "today", ACCOUNTS, told)
    write_report(path, SWEEP, rows(), moment)
    return path


@pytest.mark.sample
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_section_is_drawn(page: Any, file: Path, theme: str) -> None:
    page.emulate_media(color_scheme=theme)
    page.goto(file.as_uri())
    assert page.title() == "a <study>: report"
    assert page.locator("html").get_attribute("data-theme") == theme
    for name, drawings in SECTIONS.items():
        section = page.locator(f"section#{name}")
        assert section.locator("h2").is_visible(), name
        assert section.locator("svg").count() == drawings, name
        for drawing in section.locator("svg").all():
            box = drawing.bounding_box()
            assert box["width"] > 150, name
            assert box["height"] > 80, name
    dots = page.locator("section#history path.dots")
    assert sum(len(one.get_attribute("data-rows").split()) for one in dots.all()) == 59
    expect(page.locator("section#parallel polyline")).to_have_count(59)
    expect(page.locator("section#trials tbody tr")).to_have_count(59)
    expect(page.locator("section#ranks .row")).to_have_count(2)
    expect(page.locator("section#bias")).to_contain_text("nested, 5 folds")
    assert page.locator("section#failures").get_by_text("out of memory <b>").count() >= 1
    colour = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(colour) == (
        "rgb(246, 247, 249)" if theme == "light" else "rgb(14, 18, 23)"
    )
    page.get_by_role("button", name="light" if theme == "dark" else "dark").click()
    assert page.locator("html").get_attribute("data-theme") != theme


def test_nothing_is_wider_than_a_small_window(page: Any, file: Path) -> None:
    page.set_viewport_size({"width": 380, "height": 700})
    page.goto(file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    for bar in page.locator("#importance .track, #ranks .track").all():
        assert bar.bounding_box()["width"] > 60


LAST_DOT = """path => {
    const [x, y] = path.getAttribute("d").split("M").pop().split(/[,h]/).map(Number);
    const at = new DOMPoint(x, y).matrixTransform(path.ownerSVGElement.getScreenCTM());
    return [at.x, at.y];
}"""


ON_THE_LINE = """line => {
    line.scrollIntoView();
    const [from, to] = line.getAttribute("points").split(" ").slice(8, 10)
        .map(point => point.split(",").map(Number));
    const middle = new DOMPoint((from[0] + to[0]) / 2, (from[1] + to[1]) / 2);
    const at = middle.matrixTransform(line.ownerSVGElement.getScreenCTM());
    return [at.x, at.y];
}"""


def best_trial() -> dict[str, Any]:
    return max((row for row in rows() if row["trial"] != 7), key=lambda row: row["accuracy"])


def test_pointing_at_a_trial_shows_it_everywhere(page: Any, file: Path) -> None:
    page.goto(file.as_uri())
    page.locator("#tip").wait_for(state="hidden")
    page.mouse.move(*page.locator("section#history path.dots.best").evaluate(LAST_DOT))
    page.locator("#tip").wait_for()
    expect(page.locator("#tip")).to_contain_text(f"{best_trial()['accuracy']:.4g}")
    expect(page.locator("circle.ring")).to_have_count(3)
    expect(page.locator("section#curves polyline.lit.best")).to_have_count(1)
    expect(page.locator("section#parallel .over polyline")).to_have_count(1)
    expect(page.locator("tr.lit td").nth(1)).to_have_text(str(best_trial()["trial"]))
    page.mouse.move(2, 2)
    page.locator("#tip").wait_for(state="hidden")
    expect(page.locator("circle.ring, tr.lit, .over polyline, polyline.lit")).to_have_count(0)
    page.locator("section#trials tbody tr").nth(3).hover()
    expect(page.locator("circle.ring")).to_have_count(3)
    expect(page.locator("section#curves polyline.lit.cloud")).to_have_count(1)
    page.mouse.move(*page.locator("section#curves polyline.best").evaluate(ON_THE_LINE))
    page.locator("tr.lit").wait_for()
    expect(page.locator("tr.lit td").nth(1)).to_have_text(str(best_trial()["trial"]))


def test_choosing_a_range_filters_lines_and_table(page: Any, file: Path) -> None:
    page.goto(file.as_uri())
    axis = page.locator('.dimension[data-name="accuracy"] .grip')
    axis.scroll_into_view_if_needed()
    box = axis.bounding_box()
    x = box["x"] + box["width"] / 2
    page.mouse.move(x, box["y"] + 1)
    page.mouse.down()
    page.mouse.move(x, box["y"] + 20)
    page.mouse.move(x, box["y"] + box["height"] / 4)
    page.mouse.up()
    kept = page.locator("section#parallel polyline:not(.out)").count()
    assert 0 < kept < 59
    expect(page.locator("section#trials tbody tr:visible")).to_have_count(kept)
    expect(page.locator(".chosen-count")).to_have_text(f"{kept} of 59 trials")
    shown = page.locator("section#trials tbody tr:visible td:nth-child(2)").all_inner_texts()
    ranked = sorted((row for row in rows() if row["trial"] != 7), key=lambda row: -row["accuracy"])
    assert shown == [str(row["trial"]) for row in ranked[:kept]]
    page.get_by_role("button", name="clear").click()
    expect(page.locator("section#parallel polyline.out")).to_have_count(0)
    expect(page.locator("section#trials tbody tr:visible")).to_have_count(59)


def test_the_table_is_filtered_and_pairs_of_parameters_say_what_to_expect(
    page: Any, file: Path
) -> None:
    page.goto(file.as_uri())
    field = page.get_by_role("searchbox", name="filter of the table")
    good = [row for row in rows() if row["trial"] != 7]
    for text, fits in (
        ("accuracy>0.9 64x32", lambda row: row["accuracy"] > 0.9 and row["hidden"] == [64, 32]),
        ("trial=12", lambda row: row["trial"] == 12),
        ("Loss<=0.1", lambda row: row["loss"] <= 0.1),
        ("accuracy>many", lambda row: False),
        ("", lambda row: True),
    ):
        field.fill(text)
        shown = page.locator("section#trials tbody tr:visible td:nth-child(2)").all_inner_texts()
        assert sorted(map(int, shown)) == [row["trial"] for row in good if fits(row)], text
    plane = page.locator("section#contour svg").first
    plane.scroll_into_view_if_needed()
    plane.hover()
    page.locator("#tip").get_by_text("expected").wait_for()
    names = page.locator("section#contour figcaption").first.inner_text().split(" and ")
    told = page.locator("#tip span").all_inner_texts()
    assert told == [*names, "expected", "trials"]
    page.mouse.move(2, 2)
    page.locator("#tip").wait_for(state="hidden")


def test_the_table_is_sorted_by_a_click(page: Any, file: Path) -> None:
    page.goto(file.as_uri())
    for head, key in (("loss", "loss"), ("trial", "trial")):
        column = page.locator("section#trials th").get_by_text(head, exact=True)
        for reverse in (False, True):
            column.click()
            trials = page.locator("section#trials tbody td:nth-child(2)").all_inner_texts()
            expected = sorted(
                (row for row in rows() if row["trial"] != 7),
                key=lambda row: row[key],
                reverse=reverse,
            )
            assert trials == [str(row["trial"]) for row in expected]
    assert column.get_attribute("aria-sort") == "descending"


def test_a_live_report_is_read_again_until_the_sweep_is_over(page: Any, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    report = LiveReport(file, SWEEP, every_s=0.0)
    report.add(rows(20))
    page.clock.install()
    page.goto(file.as_uri())
    expect(page.locator(".state")).to_have_text("running")
    expect(page.get_by_text("of 60")).to_have_count(1)
    report.add(rows(60)[20:])
    report.close()
    conclude_report(file, "finished", [])
    page.locator("#reload").uncheck()
    page.clock.run_for(20_000)
    expect(page.locator(".state")).to_have_text("running")  # as somebody has asked for
    page.locator("#reload").check()
    page.clock.run_for(6_000)
    page.locator(".state.finished").wait_for()
    expect(page.locator("#reload")).to_have_count(0)
    expect(page.locator("section#trials tbody tr")).to_have_count(59)


@pytest.mark.sample
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_report_of_few_trials_opens_too(page: Any, tmp_path: Path, count: int) -> None:
    write_report(tmp_path / "report.html", SWEEP, rows(count), Moment())
    page.goto((tmp_path / "report.html").as_uri())
    sections = {0: 1, 1: 6, 3: 7}  # what is empty is left out
    expect(page.locator("section")).to_have_count(sections[count])


@pytest.mark.thorough
def test_a_very_large_sweep_opens(page: Any, tmp_path: Path) -> None:
    some = rows(60)
    of = [{**some[trial % 60], "trial": trial} for trial in range(5000)]
    write_report(tmp_path / "report.html", SWEEP, of, Moment())
    page.goto((tmp_path / "report.html").as_uri())
    page.mouse.move(*page.locator("section#history path.cloud").evaluate(LAST_DOT))
    page.locator("#tip").wait_for()
