"""The pages of sweeps in a real browser: a finished one, one that grows, trials and comparisons."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from diel.run.directory import RunDirectory

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect

BAD = "<img src=x onerror=alert(1)>"


def record(trial: int) -> str:
    rate = 10 ** (-3 * ((trial * 7) % 40) / 40)
    accuracy = 0.9 - 0.05 * (math.log10(rate) + 1) ** 2
    made = {
        "trial": trial,
        "state": "finished",
        "parameters": {"rate": rate, "kind": BAD if trial % 2 else "relu", "size": trial % 3},
        "metrics": {"accuracy": accuracy, "training_time_s": 100.0 + trial % 5},
        "seed": 100 + trial,
        "trainer": trial % 2,
        "started_s": 1.7e9 + trial,
        "seconds": 0.5,
        "reports": [[step, {"accuracy": accuracy - 1 / step}] for step in (1, 2, 4, 8)],
    }
    return json.dumps(made) + "\n"


def make_run(
    folder: Path,
    name: str,
    trials: int,
    objective: str = "accuracy",
    sweep: str = "search.master",
    table: str = "results.csv",
) -> Path:
    """Make up the directory of a run with a sweep; return its ledger."""
    workflow = folder / "study.toml"
    workflow.write_text('[workflow]\nname = "study"\n')
    directory = RunDirectory.create(folder, name, workflow)
    ledger = directory.path / "sweeps" / sweep / "trials.jsonl"
    ledger.parent.mkdir(parents=True)
    about = {
        "space": {"rate": {"from": 0.001, "to": 1.0}, "kind": ["relu", BAD], "size": [0, 1, 2]},
        "objective": [objective],
        "maximise": [objective != "training_time_s"],
        "trials": 50,
        "trainer": "trainer",
        "table": table,
        "seed": 1,
    }
    head = json.dumps({"format": 1, "sweep": about}) + "\n"
    ledger.write_text(head + "".join(map(record, range(trials))))
    return ledger


def path_of(served: Any, ledger: Path) -> str:
    return ledger.parents[2].relative_to(served.folder).as_posix()


@pytest.fixture
def window(browser: Any, served: Any) -> Iterator[Any]:
    """Return a page that has the cookie; drivers of graphics may complain of their slowness."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(served.address)
    yield page
    context.close()
    assert [
        complaint
        for complaint in complaints
        if "GL Driver" not in complaint and "WebGL" not in complaint
    ] == []


ROOM_AT_RIGHT = """card => {
    const dots = card.querySelectorAll("path.dots");
    const right = card.querySelector("svg[data-chart]").viewBox.baseVal.width;
    const places = [...dots].flatMap((path) => [...path.getAttribute("d").matchAll(/M([^,]+)/g)]);
    return right - Math.max(...places.map(([, x]) => Number(x)));
}"""


def test_a_finished_sweep_is_sorted_filtered_and_opened(window: Any, served: Any) -> None:
    path = path_of(served, make_run(served.folder, "done", 50))
    window.goto(served.url(f"/sweep?path={path}"))
    window.get_by_text("of 50").wait_for()
    best = max(
        map(json.loads, map(record, range(50))), key=lambda trial: trial["metrics"]["accuracy"]
    )
    window.get_by_role("link", name=f"trial {best['trial']}").wait_for()
    for title in ("History", "Accuracy against training time", "Learning curves", "Parameters",
                  "What decides", "Two parameters together", "When trials ran"):  # fmt: skip
        window.get_by_role("heading", name=title, exact=True).wait_for()
    window.locator(".drawn path.dots").first.wait_for()
    cost = window.locator("[data-figure=cost]")
    cost.locator("path.dots").first.wait_for()
    assert cost.evaluate(ROOM_AT_RIGHT) > 20  # pixels with the margin: no dot is cut off
    table = window.get_by_role("table", name="trials")
    first = table.locator('[aria-rowindex="2"] a')
    header = table.get_by_role("columnheader", name="accuracy")
    for _ in range(20):
        if header.get_attribute("aria-sort") == "descending":  # the largest first
            break
        header.click()
        window.wait_for_timeout(200)  # it is drawn in the next frame
    window.wait_for_function(
        "best => document.querySelector('.sweep-table [aria-rowindex=\"2\"]').textContent"
        ".startsWith(best)",
        arg=str(best["trial"]),
    )
    table.get_by_role("cell", name=BAD, exact=True).first.wait_for()
    assert window.locator("img[src=x]").count() == 0
    window.get_by_text("Each line is a trial").scroll_into_view_if_needed()
    axis = window.get_by_role("slider", name="range of accuracy", exact=True)
    axis.press("ArrowUp")  # the upper part of the axis: the table follows
    window.get_by_text("trials in the chosen ranges").wait_for()
    kept = int(window.get_by_text("trials in the chosen ranges").inner_text().split()[0])
    assert 0 < kept < 50
    count = window.locator(".sweep-table .diel-count")
    count.get_by_text(f"{kept} of 50").wait_for()
    axis.press("Escape")
    window.get_by_text("trials in the chosen ranges").wait_for(state="detached")
    filtered = window.get_by_role("searchbox", name="filter trials")
    filtered.fill(f"trial>6 trial<=8 {BAD.split()[1]}")  # words and comparisons; 7 alone has it
    count.get_by_text("1 of 50").wait_for()
    expect(first).to_have_text("7")
    # A figure says what is pointed at; its keys hide and show.
    history = window.get_by_role("figure", name="History")
    history.get_by_role("button", name="trials", exact=True).click()
    history.get_by_role("button", name="far worse, at the edge").click()
    window.wait_for_function(
        "() => [...document.querySelectorAll('[data-figure=history] path.dots')]"
        ".filter((path) => path.style.display !== 'none').length === 1"
    )
    line = history.locator("path.dots.best").bounding_box()
    window.mouse.move(line["x"] + line["width"] - 4, line["y"] + 4)
    window.locator("#tip").get_by_text("trial", exact=True).wait_for()
    first.click()
    window.get_by_text("diel sweep").wait_for()
    expect(window.locator(".sweep-command")).to_contain_text(f"{path} --repeat 7")
    expect(window.get_by_text(BAD, exact=True)).to_have_count(1)
    expect(window.get_by_text("107", exact=True)).to_have_count(1)
    assert window.locator("img[src=x]").count() == 0


def test_trials_that_are_far_worse_are_seen_at_the_edge(window: Any, served: Any) -> None:
    ledger = make_run(served.folder, "far", 30)
    lost = json.loads(record(30))
    lost["metrics"]["accuracy"] = -1e7
    with ledger.open("a") as file:
        file.write(json.dumps(lost) + "\n")
    window.goto(served.url(f"/sweep?path={path_of(served, ledger)}"))
    for name in ("history", "cost"):
        card = window.locator(f"[data-figure={name}]")
        card.scroll_into_view_if_needed()
        card.get_by_role("button", name="far worse, at the edge").wait_for()
        dots = card.locator("path.dots.far")
        box, frame = dots.bounding_box(), card.locator("svg").bounding_box()
        assert box["y"] + box["height"] < frame["y"] + frame["height"]  # above the axis
        if name == "history":  # where the last trial stands at the right
            window.mouse.move(box["x"] + box["width"] - 3, box["y"] + box["height"] / 2)
            expect(window.locator("#tip")).to_contain_text("-1e7")


def test_how_far_to_believe_the_best_is_told_of_each_iteration_of_a_group(
    window: Any, served: Any
) -> None:
    ledger = make_run(served.folder, "again", 5, sweep="search.master-2", table="results-1.csv")
    journal = RunDirectory(ledger.parents[2]).journal
    told = {"event": "ResultsDeclared", "module": "master", "objective": "accuracy"}
    told |= {"columns": ["trial", "accuracy"], "maximise": True, "expected": None}
    begun = {"event": "RunStarted", "workflow": "study", "ranks": 3, "groups": ["search"]}
    with journal.open("a") as file:
        file.write(json.dumps({"time_s": 1.7e9, **begun}) + "\n")
        for name, words in (("results.csv", "of the first"), ("results-1.csv", f"luck {BAD}")):
            shown = {"event": "ResultsShown", "module": "master", "count": 5, "notes": [words]}
            for one in (told, shown):
                file.write(json.dumps({"time_s": 1.7e9, "file": name, **one}) + "\n")
    window.goto(served.url(f"/sweep?path={path_of(served, ledger)}"))
    expect(window.get_by_role("note")).to_have_text(f"luck {BAD}")


def test_a_growing_ledger_is_followed_and_a_damaged_one_shown_as_far_as_it_goes(
    window: Any, served: Any
) -> None:
    ledger = make_run(served.folder, "growing", 3)
    path = path_of(served, ledger)
    window.goto(served.url(f"/sweep?path={path}"))
    window.get_by_text("3", exact=True).first.wait_for()
    with ledger.open("a") as file:
        file.write("".join(map(record, range(3, 12))) + record(12)[:30])
    fact = window.locator(".sweep-fact").filter(has_text="trials")
    fact.get_by_text("12", exact=True).wait_for()
    window.wait_for_function("() => document.querySelectorAll('.sweep-table a').length >= 9")
    with ledger.open("a") as file:
        file.write("\n")
    window.get_by_text("no record of a trial, left out").wait_for()
    for page, status in (
        (f"/trial?path={path}&trial=3", 200),
        (f"/trial?path={path}&trial=99", 404),
        (f"/trial?path={path}&trial=../../x", 404),
        (f"/trial?path={path}&trial=3&name=none", 404),
        ("/trial?path=..&trial=3", 404),
        ("/sweep?path=../..", 404),
        (f"/report?path={path}", 404),
        (f"/report?path={path}&file=journal.jsonl", 404),
        ("/report?path=..", 404),
    ):
        assert window.request.get(served.url(page)).status == status, page
    # A report may come from anywhere: in the page's own origin its scripts could start programs.
    (ledger.parents[2] / "report.html").write_text("<p>made up")
    shown = window.request.get(served.url(f"/report?path={path}"))
    assert shown.text() == "<p>made up"
    policies = [each["value"] for each in shown.headers_array if "security-policy" in each["name"]]
    assert policies[0].startswith("sandbox; default-src 'none'")
    assert len(policies) == 2


def test_a_sweep_is_asked_for_a_point_and_what_is_refused_is_said(window: Any, served: Any) -> None:
    ledger = make_run(served.folder, "asked", 10)
    window.goto(served.url(f"/sweep?path={path_of(served, ledger)}"))
    window.get_by_text("of 50").wait_for()
    window.get_by_role("button", name="Try a point").click()
    rate = window.get_by_label("rate", exact=True)
    rate.wait_for()
    rate.fill("5")
    window.get_by_role("button", name="Try it").click()
    window.get_by_role("alert").get_by_text("rate: 5 is not between").wait_for()
    assert not ledger.with_name("requests.jsonl").exists()
    rate.fill("0.5")
    window.get_by_label("size", exact=True).click()
    window.get_by_role("option", name="2", exact=True).click()
    window.get_by_role("button", name="Try it").click()
    window.get_by_role("status").get_by_text("kept: the button Resume").wait_for()
    (asked,) = map(json.loads, ledger.with_name("requests.jsonl").read_text().split("\n")[1:-1])
    assert asked["kind"] == "enqueue"
    assert {name: asked["parameters"][name] for name in ("rate", "size")} == {
        "rate": 0.5,
        "size": 2,
    }
    window.get_by_role("button", name="Stop a trial").click()
    window.get_by_label("its number").fill("x")
    window.get_by_role("dialog").get_by_role("button", name="Stop a trial").click()
    window.get_by_text("'x' is no number").wait_for()


def test_sweeps_are_compared_and_different_objectives_refused(window: Any, served: Any) -> None:
    paths = [path_of(served, make_run(served.folder, f"side-{n}", n)) for n in (20, 40)]
    window.goto(served.url("/compare?" + "&".join(f"path={path}" for path in paths)))
    for path in paths:
        window.get_by_role("cell", name=path, exact=True).wait_for()
    window.get_by_role("heading", name="History", exact=True).wait_for()
    window.locator(".drawn polyline.line").first.wait_for()
    window.wait_for_function("() => document.querySelectorAll('button.key').length === 4")
    assert window.locator("img[src=x]").count() == 0
    other = path_of(served, make_run(served.folder, "other", 5, "training_time_s"))
    window.goto(served.url(f"/compare?path={paths[0]}&path={other}"))
    window.get_by_text("minimises training_time_s").wait_for()


SCRIPT = "<script>alert(1)</script>"
METRIC = "<b>score</b>"


def rude_record(trial: int) -> str:
    score = 0.5 + trial / 100
    made = {
        "trial": trial,
        "state": "finished" if trial % 5 else "failed",
        "parameters": {SCRIPT: 0.1 * (trial + 1), f"{BAD} kind": SCRIPT if trial % 2 else "&lt;i>"},
        "metrics": {"accuracy": score, METRIC: score, "training_time_s": 1.0 + trial % 5},
        "seed": trial,
        "trainer": trial % 2,
        "reason": SCRIPT,
        "started_s": 1.7e9 + trial,
        "seconds": 0.5,
        "reports": [[step, {"accuracy": score - 1 / step}] for step in (1, 2, 4)],
    }
    return json.dumps(made) + "\n"


@pytest.mark.thorough
def test_markup_in_names_and_values_is_shown_as_text_in_each_figure(
    window: Any, served: Any
) -> None:
    # A folder whose name, in a page's text, would end a script.
    (served.folder / "of<").mkdir()
    ledger = make_run(served.folder / "of<", "script><img src=x>", 0)
    about = json.loads(ledger.read_text())
    about["sweep"]["space"] = {
        SCRIPT: {"from": 0.1, "to": 9.0},
        f"{BAD} kind": [SCRIPT, "&lt;i>"],
    }
    ledger.write_text(json.dumps(about) + "\n" + "".join(map(rude_record, range(40))))
    path = path_of(served, ledger)
    window.goto(served.url(f"/sweep?{urlencode({'path': path})}"))
    figures = ("history", "cost", "curves", "importance", "contour", "timeline")
    for name in figures:
        card = window.locator(f"[data-figure={name}]")
        card.scroll_into_view_if_needed()
        card.locator(".drawn svg").first.wait_for()
    window.locator("[data-figure=parallel] svg").wait_for()
    assert SCRIPT[:20] in window.locator("[data-figure=importance]").inner_text()
    parallel = window.locator("[data-figure=parallel]").text_content()
    assert all(text in parallel for text in (SCRIPT, f"{BAD} kind"))
    dots = window.locator("[data-figure=history] path.dots.best")
    dots.scroll_into_view_if_needed()
    box = dots.bounding_box()
    window.mouse.move(box["x"] + box["width"] - 4, box["y"] + 4)
    expect(window.locator("#tip")).to_contain_text(SCRIPT)
    table = window.get_by_role("table", name="trials")
    table.get_by_role("columnheader", name=SCRIPT, exact=True).wait_for()
    table.get_by_role("columnheader", name=METRIC, exact=True).wait_for()
    table.get_by_role("cell", name=SCRIPT, exact=True).first.wait_for()
    assert window.locator(".diel-main script, .diel-main b, .diel-main img").count() == 0
    assert "&lt;i>" in parallel
    assert "&amp;" not in (text := window.locator(".diel-main").text_content())
    assert "&lt;s" not in text
    window.goto(served.url(f"/trial?{urlencode({'path': path, 'trial': 11})}"))
    window.locator(".drawn svg").first.wait_for()
    window.get_by_role("button", name="Copy").wait_for()
    expect(window.get_by_text(SCRIPT, exact=True).first).to_be_visible()
    assert window.locator(".diel-main script, .diel-main b, .diel-main img").count() == 0
    window.goto(served.url(f"/compare?{urlencode({'path': path})}"))
    window.get_by_role("cell", name=ledger.parents[2].name, exact=True).wait_for()
    assert window.locator(".diel-main script, .diel-main b, .diel-main img").count() == 0


OTHER_SWEEP = """
class Sweep:
    name, space, complaint = "search.other", {}, ""

    def refresh(self):
        return False

    def catch_up(self):
        pass

    def summary(self):
        known = {"objective": "score", "maximise": True, "parameters": [], "trials": 1}
        known |= {"best": {"trial": 3, "score": 0.5}, "expected": 1, "running": [], "model": {}}
        return known | {"failed": 0, "diverged": 0, "stopped": 0, "table": "results.csv"}

    def columns(self):
        return ["trial", "score"]

    def rows(self, start=0):
        return [{"trial": 3, "score": 0.5}][start:]

    def figures(self, theme="light"):
        dots = {"type": "scatter", "mode": "markers", "x": [1, 2], "y": [1, 2]}
        return {"scores": {"data": [dots], "layout": {"title": {"text": f"on {theme}"}}}}

    def trial(self, number, theme="light"):
        return None


def watch_sweeps(run_dir):
    return [Sweep()]
"""


def test_figures_that_another_reporter_gives_for_plotly_are_shown(
    browser: Any, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("plotly", reason="Plotly is not installed")
    installed = tmp_path / "installed"
    about = installed / "other-1.dist-info"
    about.mkdir(parents=True)
    (installed / "other_sweeps.py").write_text(OTHER_SWEEP)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[diel.reporters]\nother = other_sweeps\n")
    monkeypatch.setenv("PYTHONPATH", str(installed))
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "study.toml").write_text('[workflow]\nname = "study"\n')
    run = RunDirectory.create(folder, "other", folder / "study.toml")
    served = serve(folder)
    try:
        page = browser.new_page()
        page.goto(served.address)
        page.goto(served.url(f"/sweep?path={run.path.name}"))
        page.get_by_role("heading", name="Scores", exact=True).wait_for()
        page.get_by_text("on light").wait_for()
        expect(page.locator("[data-figure=scores] .scatterlayer .point")).to_have_count(2)
        page.close()
    finally:
        served.end()
