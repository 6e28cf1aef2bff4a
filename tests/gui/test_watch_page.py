"""The page of a run: live, over the end of its server, of damaged and of very large runs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from made_up_run import MadeUpRun, longest_task_ms, seconds_until_shown
from support import wait_until

from diel.gui.processes import start_command
from diel.run.directory import RunDirectory
from diel.run.history import list_runs, summarize

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect

RUDE = "<img src=x onerror=alert(1)>"
_MODULES = """\
from pathlib import Path

from diel.errors import TupleTimeout

def first(ctx):
    print("a line of <b>text</b>", flush=True)

def second(ctx):
    while not Path("go").exists():
        try:
            ctx.tuples.tget(("never",), timeout=0.1 if Path("quick").exists() else 1.5)
        except TupleTimeout:
            pass
"""
_WORKFLOW = """\
[workflow]
name = "slow"

[[module]]
name = "begin"
function = "slow:first"

[[module]]
name = "wait"
function = "slow:second"

[[group]]
name = "one"
modules = ["begin"]

[[group]]
name = "two"
modules = ["wait"]
depends = ["one"]
"""


def test_a_run_is_watched_stopped_and_resumed_while_servers_come_and_go(
    browser: Any, serve: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "slow.py").write_text(_MODULES)
    (folder / "slow.toml").write_text(_WORKFLOW)
    (folder / "quick").touch()
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    server = serve(folder)
    try:
        start_command(["run", "slow.toml"], folder)  # as on a terminal
        wait_until(
            lambda: len(list_runs(folder / "runs")) == 1 if (folder / "runs").exists() else False
        )
        (run,) = list_runs(folder / "runs")
        place = f"/run?path=runs/{run.path.name}"

        def state() -> str:
            return summarize(run.path, time.time()).state

        page, other = context.new_page(), context.new_page()
        page.goto(server.address)
        for each in (page, other):
            each.goto(server.url(place))
            each.locator('[data-group="two"].running').wait_for()
            each.locator('[data-group="one"].finished').wait_for()
        page.locator("[data-part=log]").get_by_text("a line of <b>text</b>").wait_for()
        page.locator("[data-part=ranks]").get_by_text("wait.0").wait_for()
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name="Stop the run").click()
        for each in (page, other):
            each.locator("[data-part=state]").get_by_text("stopped").wait_for()
        assert state() == "stopped"
        # Resumed by the server, which is then killed with the page open: the run goes on.
        (folder / "quick").unlink()
        page.get_by_role("button", name="Resume").click()
        other.locator('[data-group="two"].running').wait_for()
        waits = other.locator("[data-part=copies]").get_by_text("never")
        waits.wait_for()
        server.process.kill()
        server.end()
        assert state() == "running"
        server = serve(folder)
        page.goto(server.address)
        page.goto(server.url(place))
        page.reload()
        page.locator('[data-group="two"].running').wait_for()
        assert state() == "running"
        (folder / "go").touch()
        page.locator("[data-part=state]").get_by_text("finished").wait_for()
        page.locator("[data-part=times]").get_by_text("working").wait_for()
        page.get_by_role("button", name="Resume").wait_for(state="hidden")
    finally:
        (folder / "go").touch()
        server.end()
        context.close()
        wait_until(lambda: all(run.state != "running" for run in list_runs(folder / "runs")))


@pytest.mark.thorough
def test_damaged_and_growing_runs_are_shown_as_far_as_they_go(served: Any, page: Any) -> None:
    file = served.folder / "rude.toml"
    file.write_text("[workflow]\nname = 3\n[[group]]\n")  # no graph of it can be drawn
    run = RunDirectory.create(served.folder, "rude", file)
    name = run.path.name
    begun = {"event": "RunStarted", "workflow": RUDE, "ranks": 4, "groups": [RUDE]}
    started = {"event": "GroupStarted", "group": RUDE, "copies": {RUDE: 1}}
    started["placement"] = {f"{RUDE}.0": [2]}

    def add(*records: dict[str, Any], rest: str = "") -> None:
        with run.journal.open("a") as journal:
            journal.writelines(
                json.dumps({"time_s": time.time(), **record}) + "\n" for record in records
            )
            journal.write(rest)

    add(begun, started, rest='{"time_s": 1.0, "event": "Gro')
    with (run.logs / f"{RUDE.replace('/', '')}.0.0.log").open("wb") as log:
        log.truncate(2**33)  # a hole
        log.seek(0, os.SEEK_END)
        log.write(f"\n{RUDE} in a log\n".encode())
    (run.logs / "secret.log").symlink_to("/etc/passwd")
    os.mkfifo(run.logs / "pipe.log")
    before = sorted(served.folder.rglob("*"))
    page.goto(served.address)
    page.goto(served.url(f"/run?path={name}"))
    page.locator("[data-part=groups]").get_by_text(RUDE).wait_for()
    page.locator("[data-part=log]").get_by_text("in a log").wait_for()
    assert len(page.locator("[data-part=log]").text_content()) < 2**17
    assert page.locator("img[src=x]").count() == 0
    # The rest of the line, one that is none, and what was wrong with it.
    add(rest='upFinished", "group": 3}\nno record\n')
    add({"event": "MessageLogged", "module": RUDE, "copy": 0, "level": "WARNING", "text": RUDE})
    page.locator("[data-part=messages]").get_by_text(f"warning from {RUDE}.0: {RUDE}").wait_for()
    page.locator("[data-part=alerts]").get_by_text("left out").wait_for()
    run.journal.write_text("")  # somebody cuts it short, and another writes on
    add({"event": "MessageLogged", "module": "m", "copy": 0, "level": "WARNING", "text": "again"})
    page.locator("[data-part=messages]").get_by_text("again").wait_for()
    for place in sorted(run.path.rglob("*"), reverse=True):
        place.rmdir() if place.is_dir() else place.unlink()
    assert sorted(served.folder.rglob("*")) != before
    run.path.rmdir()
    page.locator("[data-part=alerts]").get_by_text("cannot be read").wait_for()
    page.goto(served.url("/"))
    page.get_by_text("rude.toml").wait_for()


@pytest.mark.thorough
@pytest.mark.slow
def test_a_run_of_1000_ranks_and_10000_trials_stays_fluid(
    browser: Any, served: Any, page: Any
) -> None:
    run = MadeUpRun(served.folder / "large")
    try:
        page.goto(served.address)
        page.goto(served.url(f"/run?path=large/{run.directory.path.name}"))
        page.locator("[data-part=bars] progress").first.wait_for()
        ranks = page.locator("[data-part=ranks]")
        ranks.get_by_text("executive").wait_for()
        assert ranks.locator(".diel-space .diel-row").count() < 40
        for _ in range(3):
            seconds_until_shown(page, run)  # the benchmark page.py compares them

        def watch() -> None:
            for _ in range(8):
                run.step(1)
                ranks.locator(".diel-scroller").evaluate("place => place.scrollBy(0, 500)")
                page.wait_for_timeout(250)

        assert longest_task_ms(browser, page, watch) < 200
        ranks.get_by_role("searchbox").fill("trainer.777")
        ranks.get_by_text("trainer.777").wait_for()
        expect(ranks.locator(".diel-space .diel-row")).to_have_count(1)
        run.end()
        page.locator("[data-part=state]").get_by_text("finished").wait_for()
        assert summarize(run.directory.path, time.time()).state == "finished"
    finally:
        run.end()
