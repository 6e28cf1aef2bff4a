"""The list of runs in a browser: scores, a filter, what differs; and a run's logs and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diel.run.directory import RunDirectory

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect

WORKFLOW = """\
[workflow]
name = "study"

[parameters]
dt = 0.1

[[module]]
name = "solver"
executable = ["./solve", "--dt=${dt}"]
directory = "{run_dir}/work.{copy}"

[[group]]
name = "solve"
modules = ["solver"]
"""


def make_run(folder: Path, dt: float, loss: float) -> RunDirectory:
    """Make up the directory of a run that has ended, with a table of results, a log and a file."""
    file = folder / "study.toml"
    file.write_text(WORKFLOW)
    run = RunDirectory.create(folder / "runs", f"dt{dt}", file, given=[f"dt={dt}"])
    groups = {"groups": ["solve"], "copies": {"solve": {"solver": 1}}}
    of_group = {"group": "solve", "iteration": [0]}
    table = {"columns": ["x", "loss"], "objective": "loss", "maximise": False, "expected": None}
    records = [
        {"event": "RunStarted", "workflow": "study", "ranks": 2, "file": str(file),
         "parameters": {"dt": dt}, **groups},
        {"event": "GroupStarted", **of_group, "copies": {"solver": 1},
         "placement": {"solver.0": [1]}},
        {"event": "ResultsDeclared", "module": "solver", **table},
        {"event": "ResultAdded", "module": "solver", "row": {"x": 1, "loss": loss}},
        {"event": "CopyFinished", **of_group, "module": "solver", "copy": 0},
        {"event": "GroupFinished", **of_group},
        {"event": "RunEnded", "exit_code": 0},
    ]  # fmt: skip
    with run.journal.open("a") as journal:
        for number, record in enumerate(records):
            journal.write(json.dumps({"time_s": 1.7e9 + dt + number, **record}) + "\n")
    run.module_log("solver", 0, 0).write_text(f"solved with {dt}\n")
    (run.path / "work.0").mkdir()
    (run.path / "work.0" / "field.txt").write_text(f"<b>field</b> of {dt}")
    return run


def test_runs_are_sorted_filtered_and_compared(served: Any, page: Any) -> None:
    for dt, loss in ((0.25, 10.0), (0.5, 9.0), (1.0, 0.75)):
        make_run(served.folder, dt, loss)
    page.goto(served.address)
    rows = page.get_by_role("table").first.locator("tbody tr")
    expect(rows).to_have_count(3)
    page.get_by_role("columnheader", name="best loss").click()  # by value: "10" is before "9"
    expect(rows.first).to_contain_text("0.75")
    expect(rows.last).to_contain_text("10")
    page.get_by_role("columnheader", name="dt", exact=True).click()
    expect(rows.first).to_contain_text("0.25")
    field = page.get_by_label("only runs of which this is true")
    field.fill("dtt < 0.7")
    page.get_by_text('did you mean "dt"').wait_for()
    expect(rows).to_have_count(3)
    field.fill("dt < 0.7 and state == 'finished'")
    page.get_by_text("2 of 3").wait_for()
    expect(rows).to_have_count(2)
    differ = page.get_by_role("button", name="What differs")
    expect(differ).to_be_disabled()
    for row in range(2):
        rows.nth(row).get_by_role("checkbox").click()
    differ.click()
    table = page.get_by_role("table", name="What differs")
    expect(table.locator("tr")).to_have_count(3)
    shown = [text.split() for text in table.locator("tr").all_inner_texts()]
    assert ["parameters", "dt", "0.25", "0.5"] in shown
    assert ["outcome", "best", "loss", "10", "9"] in shown


def test_a_box_leads_to_logs_and_files(served: Any, page: Any) -> None:
    run = make_run(served.folder, 0.125, 1.0)
    path = f"runs/{run.path.name}"
    page.goto(served.address)
    page.goto(served.url(f"/run?path={path}"))
    page.locator('.diel-graph .module[data-module="solver"]').click()
    box = page.get_by_role("region", name="The chosen box")
    box.get_by_text("solver in group solve").wait_for()
    command = box.get_by_text("--only solve")
    expect(command).to_contain_text("study.toml --set dt=0.125 --only solve --force")
    box.get_by_role("button", name="solver.0.0.log").click()
    page.locator("[data-part=log]").get_by_text("solved with 0.125").wait_for()
    link = box.get_by_role("link", name="work.0/field.txt")
    answer = page.request.get(served.url(link.get_attribute("href")))
    assert answer.text() == "<b>field</b> of 0.125"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "sandbox" in answer.headers["content-security-policy"]
    (run.path / "data.bin").write_bytes(b"\0\1")
    answer = page.request.get(served.url(f"/file?path={path}&name=data.bin"))
    assert answer.body() == b"\0\1"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''data.bin"
    for name in ("../../study.toml", "/etc/passwd", "tuples.json", "gone", ""):
        answer = page.request.get(served.url(f"/file?path={path}&name={name}"))
        assert answer.status == 404, name
    page.locator('.diel-graph .module[data-module="solver"]').click()
    expect(box).to_be_hidden()


def test_files_need_the_token(served: Any, browser: Any) -> None:
    run = make_run(served.folder, 0.0625, 1.0)
    context = browser.new_context()
    path = f"runs/{run.path.name}"
    for place in (f"/file?path={path}&name=workflow.toml", f"/differences?path={path}&path={path}"):
        assert context.request.get(served.url(place)).status == 403
    context.close()
