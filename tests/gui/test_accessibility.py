"""Every page is read by axe, light and dark, and is no wider than a phone."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made_up_run import MadeUpRun
from support import ROOT

from modules.evaluation import BiasReport
from modules.report import Moment, RankAccount, Sweep, write_report

pytest.importorskip("nicegui", reason="the extra gui is not installed")
api = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
expect = playwright.expect

PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}

LONG = "a_word_without_an_end_" * 8
FLOW = """\
[workflow]
name = "study"

[[module]]
name = "master"
function = "modules.master:run"
[module.options]
strategy = "random"
trials = 20
space = { units = [16, 32], learning_rate = { from = 0.001, to = 0.1, scale = "log" } }

[[module]]
name = "trainer"
function = "modules.trainer:run"
copies = "fill"
[module.options]
dataset = "digits"
layers = [{ type = "flatten" }, { type = "fully_connected", units = "$units" }]

[[module]]
name = "program"
executable = ["true"]

[[boundary]]
name = "wall"
shape = [4]
owners = [{ module = "trainer", split = 0 }]
readers = [{ module = "master", split = 0 }]

[[group]]
name = "search"
modules = ["master", "trainer"]

[[group]]
name = "after"
modules = ["program"]
depends = ["search"]
"""
TABLE = """\
[[module]]
name = "trainer"
function = "modules.trainer:run"
[module.options]
dataset = "csv"
path = "mine.csv"
patience = 3
[module.options.reading]
label = "b"
drop = ["c"]

[[group]]
name = "search"
modules = ["trainer"]
"""
WRONG = """\
[workflow]
name = "study"
nmae = 3

[[module]]
name = "worker"
function = "./none.py:run"

[[group]]
name = "search"
modules = ["worker", "other"]
iterations = -1
"""


@pytest.fixture(scope="module")
def folder(served: Any) -> Iterator[Path]:
    """Return a folder with a run in each state, sweeps, a report and workflow files."""
    place: Path = served.folder
    (place / "study.toml").write_text(FLOW)
    (place / "wrong.toml").write_text(WRONG)
    (place / "table.toml").write_text(TABLE)
    (place / "mine.csv").write_text("a,b\n" + "".join(f"{n},{n % 2}\n" for n in range(20)))
    written = ROOT / "tests" / "fixtures" / "run_directories"
    for name, source in (
        ("finished", "finished"), ("killed", "killed"), ("failed", "killed"), ("lost", "killed"),
    ):  # fmt: skip
        shutil.copytree(written / source, place / "runs" / name)
    failed = place / "runs" / "failed"
    with (failed / "journal.jsonl").open("a") as journal:
        for record in (
            {"event": "ModuleFailed", "group": "search", "module": "trainer", "copy": 0, "rank": 3,
             "host": "node1", "error": f"ValueError: {LONG}"},
            {"event": "MessageLogged", "module": LONG, "copy": 0, "level": "WARNING", "text": LONG},
            {"event": "RunEnded", "exit_code": 1},
        ):  # fmt: skip
            journal.write(json.dumps({"time_s": 1.9e9, **record}) + "\n")
    (failed / "logs" / f"{LONG}.0.0.log").write_text(f"{LONG}\n")
    live = MadeUpRun(place / "live", ranks=40, trials=100)
    live.write_ledger()
    live.directory.path.rename(place / "live" / "run")
    other = MadeUpRun(place / "other", ranks=6, trials=30)
    other.write_ledger()
    other.end()
    other.directory.path.rename(place / "other" / "run")
    write_a_report(place / "other" / "run" / "report.html", live)
    begun = MadeUpRun(place / "begun", ranks=6, trials=30)
    begun.write_ledger()
    begun.end()
    begun.directory.path.rename(place / "begun" / "run")
    (ledger,) = (place / "begun" / "run" / "sweeps").glob("*/trials.jsonl")
    ledger.write_text(ledger.read_text().partition("\n")[0] + "\n")  # no trial has ended yet
    yield place
    live.end()


def write_a_report(file: Path, run: MadeUpRun) -> None:
    names = ("learning_rate", "width", "depth", "dropout")
    sweep = Sweep("study", "accuracy", True, names, ("accuracy", "training_time_s"), expected=60,
                  workflow=FLOW, command="diel run study.toml", facts={"NumPy": "2"})  # fmt: skip
    rows = []
    for number in range(60):
        trial, is_lost = json.loads(run.record(number)), number % 20 == 3
        row = {"trial": number, **trial["parameters"], **trial["metrics"], "seed": number,
               "trainer": number % 2, "state": "failed" if is_lost else "finished"}  # fmt: skip
        row["learning curve"] = [(step, each["accuracy"]) for step, each in trial["reports"]]
        rows.append({**row, "accuracy": float("nan"), "reason": "no memory"} if is_lost else row)
    accounts = [RankAccount(1, "node1", ["tuple server"], 1.0, 98.0, 1.0),
                RankAccount(2, "node1", ["trainer.0"], 90.0, 10.0, 0.0)]  # fmt: skip
    told = BiasReport("accuracy", True, 0.95, 0.92, 0.01, 60, "nested, 5 folds")
    write_report(file, sweep, rows, Moment("finished", 12.0, "today", accounts, told))


# -- what is shown of each page --------------------------------------------------------------------


def press(name: str) -> Callable[[Any], None]:
    return lambda page: page.get_by_role("button", name=name, exact=True).click()


def open_dialog(name: str) -> Callable[[Any], None]:
    def act(page: Any) -> None:
        press(name)(page)
        page.get_by_role("dialog").wait_for()

    return act


def open_menu(name: str) -> Callable[[Any], None]:
    def act(page: Any) -> None:
        item = page.locator(".q-menu .q-item:visible").first
        # What the page gets just then, such as the files that there are, can close a menu.
        for _ in range(3):
            press(name)(page)
            with contextlib.suppress(playwright.TimeoutError):
                item.wait_for(timeout=10_000)
                return
        item.wait_for()

    return act


def choose(selector: str) -> Callable[[Any], None]:
    def act(page: Any) -> None:
        page.get_by_text("No problem found.").wait_for()
        page.locator(selector).press("Enter")
        page.locator(".compose-heading", has_text="is chosen").or_(
            page.locator(".compose-hint", has_text="is chosen")
        ).first.wait_for()

    return act


def text(words: str) -> Callable[[Any], None]:
    return lambda page: page.get_by_text(words).first.wait_for()


def unfold(*names: str) -> Callable[[Any], None]:
    def act(page: Any) -> None:
        page.get_by_text("No problem found.").wait_for()
        for name in names:
            page.get_by_text(name, exact=True).click()
        page.wait_for_timeout(500)

    return act


def unfold_keys(page: Any) -> None:
    """Show the keys of the whole workflow that are folded."""
    page.get_by_text("No problem found.").wait_for()
    folds = page.get_by_text(re.compile(r"^\d+ more keys$")).all()
    assert folds
    for fold in folds:
        fold.click()
    page.wait_for_timeout(500)


def open_choices(page: Any) -> None:
    choose('.module[data-module="trainer"]')(page)
    page.get_by_label("dataset", exact=True).first.click()
    page.get_by_role("option").first.wait_for()


def see_options_of_a_table(page: Any) -> None:
    """Unfold all groups of options; what the data have not stands at its option."""
    page.locator('.module[data-module="trainer"]').press("Enter")
    drop = page.locator(".compose-field", has=page.get_by_label("reading.drop", exact=True))
    drop.locator(".q-field__bottom").get_by_text("there is no column 'c'").wait_for()
    expect(page.get_by_text("No problem found.")).to_have_count(0)
    groups = page.locator("#compose-form .compose-more")
    expect(groups.get_by_text("Patience, seeds, checkpoints")).to_be_visible()
    for group in groups.all():
        group.locator(".q-item").first.click()
    page.wait_for_timeout(500)


def fail_to_start(page: Any) -> None:
    page.get_by_text("4 at least").wait_for()
    page.get_by_label("MPI ranks").fill("1")
    press("Start here")(page)
    failure = page.locator(".diel-failure:visible")
    failure.get_by_text('write 4 or more into "MPI ranks"').wait_for()
    expect(failure).not_to_contain_text("-n 4")
    expect(failure.get_by_role("button", name="Start as root")).to_be_hidden()


def refuse(page: Any) -> None:
    choose('.module[data-module="trainer"]')(page)
    name = page.get_by_role("region", name="Form").get_by_label("name", exact=True)
    name.fill("master")
    name.press("Enter")
    page.get_by_role("alert").get_by_text("master").wait_for()


def fail_to_resume(page: Any) -> None:
    press("Resume")(page)
    failure = page.locator(".diel-failure:visible")
    failure.get_by_text("The run has not been resumed").wait_for()
    expect(failure).to_contain_text("study.toml")
    expect(page.locator(".q-notification")).to_have_count(0)  # it fades while axe reads


def give_no_number(page: Any) -> None:
    open_dialog("Number of trials")(page)
    page.get_by_label("how many there are to be").fill("many")
    page.get_by_role("dialog").get_by_role("button", name="Number of trials").click()
    page.get_by_text("is no number").wait_for()


def give_no_condition(page: Any) -> None:
    page.get_by_label("only runs of which this is true").fill("nothing > 1")
    page.get_by_text("no run has nothing").wait_for()


def choose_box(page: Any) -> None:
    page.locator('.diel-graph .module[data-module="master"]').first.press("Enter")
    page.get_by_text("master in group").wait_for()


def see_all(page: Any) -> None:
    """Scroll past each card of figures, so that all are drawn."""
    page.locator("[data-figure]").first.wait_for()
    page.wait_for_timeout(500)
    for card in page.locator("[data-figure]").all():
        card.scroll_into_view_if_needed()
        card.locator("svg").first.wait_for()


SCENES: dict[str, tuple[str, Callable[[Any], None]]] = {
    "home": ("/", text("study.toml")),
    "home, wrong condition": ("/", give_no_condition),
    "differences": ("/differences?path=runs/finished&path=live/run", text("What differs")),
    "compose, new": ("/compose", text("the file has no module")),
    "compose, new sweep": ("/compose?new=sweep", text("what to train")),
    "compose, file": ("/compose?file=study.toml", text("No problem found.")),
    "compose, problems": ("/compose?file=wrong.toml", text("did you mean")),
    "compose, module": ("/compose?file=study.toml", choose('.module[data-module="master"]')),
    "compose, layers": ("/compose?file=study.toml", choose('.module[data-module="trainer"]')),
    "compose, options": ("/compose?file=table.toml", see_options_of_a_table),
    "compose, program": ("/compose?file=study.toml", choose('.module[data-module="program"]')),
    "compose, group": ("/compose?file=study.toml", choose('.group[data-group="after"]')),
    "compose, launch": ("/compose?file=study.toml", unfold("Where ranks would be", "Batch script")),
    "compose, menu": ("/compose?file=study.toml", open_menu("Add module")),
    "compose, new menu": ("/compose", open_menu("New")),
    "compose, open menu": ("/compose", open_menu("Open")),
    "compose, save as": ("/compose", open_dialog("Save as")),
    "compose, keys": ("/compose?file=study.toml", unfold_keys),
    "compose, choices": ("/compose?file=study.toml", open_choices),
    "compose, failed start": ("/compose?file=study.toml", fail_to_start),
    "compose, refused": ("/compose?file=study.toml", refuse),
    "run, live": ("/run?path=live/run", text("executive")),
    "run, stop": ("/run?path=live/run", open_dialog("Stop")),
    "run, ended": ("/run?path=runs/finished", text("Where the time went")),
    "run, box": ("/run?path=live/run", choose_box),
    "run, failed": ("/run?path=runs/failed", text("failed on rank")),
    "run, killed": ("/run?path=runs/killed", text("Ranks")),
    "run, not resumed": ("/run?path=runs/lost", fail_to_resume),
    "sweep": ("/sweep?path=live/run", see_all),
    "sweep, point": ("/sweep?path=live/run", open_dialog("Try a point")),
    "sweep, number": ("/sweep?path=live/run", open_dialog("Number of trials")),
    "sweep, no number": ("/sweep?path=live/run", give_no_number),
    "sweep, no trial": ("/sweep?path=begun/run", text("No trial has ended yet")),
    "trial": (
        "/trial?path=live/run&trial=7",
        lambda page: page.locator(".drawn svg").first.wait_for(),
    ),
    "compare": ("/compare?path=live/run&path=other/run", see_all),
    "report": (
        "/report?path=other/run",
        lambda page: page.locator("button.key").first.wait_for(),
    ),
    "no such page": ("/run?path=none", text("no run")),
    "no address": ("/none", text("")),
    "denied": ("/?token=wrong", text("token is wrong")),
}


OF_COLOUR = ["color-contrast", "link-in-text-block"]
"""Rules of axe that a theme can break."""


def settle(page: Any) -> None:
    """Wait until nothing fades or moves any more: half faded, a text has less contrast."""
    page.wait_for_timeout(100)
    page.wait_for_function(
        "() => document.getAnimations().every((each) => each.playState !== 'running')"
    )


def violations(page: Any, **options: Any) -> list[str]:
    """Return what axe finds, with all of its rules unless told otherwise, a line an element."""
    options = {"resultTypes": ["violations"], **options}
    found = api.Axe().run(page, options=options).response["violations"]
    return [
        f"{each['id']}: {node['html'][:160]}: {check['message']}"
        for each in found
        for node in each["nodes"]
        for check in (node["any"] or node["all"] or node["none"])[:1]
    ]


@pytest.fixture(scope="module")
def context(browser: Any, served: Any, folder: Path) -> Iterator[Any]:
    """Return a browser's context that is signed in, and keeps the scripts of the pages."""
    context = browser.new_context(viewport=DESK, reduced_motion="reduce", color_scheme="light")
    page = context.new_page()
    page.goto(served.address)
    page.close()
    yield context
    context.close()


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", SCENES)
def test_axe_finds_nothing_and_a_phone_shows_all(context: Any, served: Any, name: str) -> None:
    place, act = SCENES[name]
    page = context.new_page()
    try:
        page.goto(served.url(place))
        act(page)
        found = {}
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            if name == "report":  # which asks for the theme once
                page.reload()
                act(page)
                assert page.locator("html").get_attribute("data-theme") == theme
            elif page.locator("body.desktop").count():
                page.locator(f"body.body--{theme}").wait_for(state="attached")
            settle(page)
            # It is the same page, in other colours.
            found[theme] = violations(page, **({} if theme == "light" else {"runOnly": OF_COLOUR}))
        page.set_viewport_size(PHONE)
        settle(page)
        found["phone"] = violations(page)
        width = page.evaluate("document.scrollingElement.scrollWidth")
    finally:
        page.close()
    assert found == {"light": [], "dark": [], "phone": []}
    assert width <= PHONE["width"]
