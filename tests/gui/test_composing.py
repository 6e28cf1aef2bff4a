"""Composing, mending and starting a workflow on the page, in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nicegui", reason="the extra gui is not installed")

from support import ROOT

from diel.run.directory import RunDirectory
from diel.run.part import Part

WORK = """\
import time
from pathlib import Path

def train(parameters, report):
    end_s = time.monotonic() + 100
    while not Path(__file__).with_name("go").exists() and time.monotonic() < end_s:
        time.sleep(0.02)  # until the page has asked for a point
    return {"accuracy": parameters["x"]}
"""
SBATCH = """\
#!/bin/sh
cat > submitted.sh
echo "Submitted batch job 4711 <b>"
"""


@pytest.fixture
def served(serve: Callable[..., Any], tmp_path: Path) -> Iterator[Any]:
    """Return a server of an empty folder, which no other test of this file has filled.

    Tests ask for it before they ask for a page: a page complains of a server that ends.
    """
    folder = tmp_path / "project"
    folder.mkdir()
    server = serve(folder)
    yield server
    server.end()


def sign_in(page: Any, served: Any) -> None:
    page.goto(served.address)


def text_of(page: Any) -> str:
    lines = page.locator(".cm-line").all_inner_texts()
    return "\n".join(line.replace("\u200b", "").strip("\n") for line in lines)


def field(page: Any, label: str) -> Any:
    return page.get_by_role("region", name="Form").get_by_label(label, exact=True).first


def fill(page: Any, label: str, text: str) -> None:
    field(page, label).fill(text)
    field(page, label).press("Enter")


def wait_for_text(page: Any, text: str) -> None:
    page.locator(".cm-line", has_text=text).first.wait_for()


def choose_from(page: Any, menu: str, entry: str) -> None:
    page.get_by_role("button", name=menu, exact=True).click()
    page.get_by_role("menuitem").get_by_text(entry, exact=True).click()


@pytest.mark.slow
def test_the_first_sweep_of_the_readme(served: Any, page: Any) -> None:
    """Each step is walked as it stands there: its bold names are what is clicked, in that order."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    steps = re.findall(
        r"^\d+\. (.*(?:\n   .*)*)", text.partition("To make a first sweep:")[2], re.M
    )
    compose, dataset, space, start, trials = steps[:5]
    sign_in(page, served)
    assert re.findall(r"\*\*(.+?)\*\*", compose) == ["Compose", "New", "a sweep"]
    page.get_by_role("link", name="Compose", exact=True).first.click()
    choose_from(page, "New", "a sweep")
    wait_for_text(page, "[module.options.space]")
    assert re.findall(r"`(.+?)`", dataset) == ["dataset", "digits"]
    field(page, "dataset").click()
    page.get_by_role("option", name="digits", exact=True).click()
    wait_for_text(page, 'dataset = "digits"')
    assert re.findall(r"`(.+?)`", space) == ["master"]
    page.locator('.module[data-module="master"]').press("Enter")
    fill(page, "trials", "2")
    page.locator(".cm-line", has_text=re.compile(r"^trials = 2$")).wait_for()  # it was 20
    page.get_by_text("No problem found.").wait_for()
    assert re.findall(r"\*\*(.+?)\*\*", start) == ["Start here", "Save"]
    page.get_by_role("button", name="Start here").click()
    page.get_by_role("dialog").get_by_role("button", name="Save", exact=True).click()
    page.wait_for_url("**/run?path=**")
    assert re.findall(r"\*\*(.+?)\*\*", trials) == ["sweep"]
    page.get_by_role("link", name="sweep", exact=True).click()
    page.wait_for_url("**/sweep?path=**")
    page.get_by_text("Go on with more trials").wait_for()
    page.get_by_text("of 2", exact=True).wait_for()


@pytest.mark.slow
def test_values_of_parameters_and_a_part_are_given_to_a_run(served: Any, page: Any) -> None:
    file = served.folder / "given.toml"
    file.write_text(
        '[parameters]\ndt = 0.1\ncase = { choices = ["dam", "tank"] }\n'
        '[[module]]\nname = "say"\nexecutable = ["echo", "${case} by ${dt}"]\n'
        '[[group]]\nname = "all"\nmodules = ["say"]\n'
        '[[group]]\nname = "more"\nmodules = ["say"]\n'
    )
    before = file.read_text()
    sign_in(page, served)
    page.goto(served.url("/compose?file=given.toml"))
    page.get_by_text("parameters.case: has no value").wait_for()
    launch = page.get_by_label("Launch")
    launch.get_by_label("case").click()
    page.get_by_role("option", name="tank", exact=True).click()
    launch.get_by_label("dt", exact=True).fill("x")
    page.get_by_text("--set dt=x: expected a number").wait_for()
    launch.get_by_label("dt", exact=True).fill("0.05")
    page.get_by_text("No problem found.").wait_for()
    launch.get_by_text("A part of it").click()
    launch.get_by_label("only these groups").click()
    page.get_by_role("option", name="more", exact=True).click()
    page.keyboard.press("Escape")
    launch.get_by_text("also what is up to date").click()
    page.get_by_role("button", name="Start here").click()
    page.wait_for_url("**/run?path=**")
    page.get_by_text("finished", exact=True).first.wait_for()
    (run,) = (served.folder / "runs").glob("given-*")
    assert RunDirectory(run).chosen_part() == Part(only=("more",))
    page.goto(served.url("/"))
    page.get_by_text("dt=0.05 case=tank").wait_for()
    assert file.read_text() == before


@pytest.mark.thorough
@pytest.mark.slow
def test_a_sweep_is_composed_mended_started_steered_and_its_best_trial_read(
    served: Any, page: Any
) -> None:
    (served.folder / "work.py").write_text(WORK)
    sign_in(page, served)
    page.get_by_role("link", name="or an empty workflow").click()
    choose_from(page, "New", "a sweep")
    # The trainer is chosen, and what it lacks stands at the field that it is about.
    wait_for_text(page, "[module.options.space]")
    fields = page.locator(".compose-field", has=page.get_by_label("dataset", exact=True))
    fields.locator(".q-field__bottom").get_by_text("what to train").wait_for()
    page.locator('.module.problem[data-module="trainer"]').wait_for()
    fill(page, "train", "./work.py:trian")  # the planted mistake
    fields = page.locator(".compose-field", has=page.get_by_label("train", exact=True))
    fields.locator(".q-field__bottom").get_by_text('did you mean "train"?').wait_for()
    page.locator(".cm-line.compose-wrong").first.wait_for()
    fill(page, "train", "./work.py:train")
    fields.locator(".q-field__bottom").wait_for(state="detached")
    # What is typed into the text shows in the form and the graph, and comments stay.
    page.locator(".cm-line", has_text='copies = "fill"').click()
    page.keyboard.press("End")
    page.keyboard.type("  # a comment")
    page.wait_for_timeout(2000)  # the form is shown anew once no more is typed
    fill(page, "copies", "1")
    wait_for_text(page, "copies = 1  # a comment")
    fill(page, "name", "worker")
    wait_for_text(page, 'trainer = "worker"')
    # A space of its own: what the trainer that comes with diel takes is offered.
    page.locator('.module[data-module="master"]').press("Enter")
    field(page, "Add a parameter").click()
    page.get_by_role("option", name="momentum", exact=True).click()
    wait_for_text(page, "momentum = 0.9")
    for name in ("learning_rate", "momentum"):
        field(page, f"remove {name}").click()
        page.locator(".cm-line", has_text=name).wait_for(state="detached")
    fill(page, "Add a parameter", "x")
    wait_for_text(page, "x = []")
    field(page, "kind of x").click()
    page.get_by_role("option", name="range", exact=True).click()
    fill(page, "from of x", "0.0")
    fill(page, "to of x", "1.0")
    wait_for_text(page, "x = { from = 0.0, to = 1.0 }")
    page.get_by_text("20 trials, random, tried by worker").wait_for()
    # A program that runs afterwards; a group is added, removed and brought back by keys.
    choose_from(page, "Add module", "program")
    fill(page, "executable", "true")
    wait_for_text(page, 'executable = ["true"]')
    add_group = page.get_by_role("button", name="Add group")
    add_group.focus()
    page.keyboard.press("Enter")
    wait_for_text(page, 'modules = ["program"]')
    page.locator('.group[data-group="group"]').focus()
    page.keyboard.press("Delete")
    page.locator(".cm-line", has_text='modules = ["program"]').wait_for(state="detached")
    page.keyboard.press("Control+z")
    wait_for_text(page, 'modules = ["program"]')
    page.locator('.group[data-group="search"]').press("Enter")
    choose_from(page, "Runs before", "group")
    wait_for_text(page, 'depends = ["search"]')
    page.get_by_role("menu").wait_for(state="hidden")
    page.get_by_text("No problem found.").wait_for()
    page.get_by_text("4 at the largest moment").wait_for()
    page.keyboard.press("Control+s")
    page.get_by_label("File name").fill("composed")
    page.get_by_label("File name").press("Enter")
    page.get_by_text("saved composed.toml").wait_for()
    page.get_by_role("button", name="Start here").click()
    page.wait_for_url("**/run?path=**")
    run_page = page.url
    assert "copies = 1  # a comment" in (served.folder / "composed.toml").read_text()
    # On the live run: a point that is none, then one that is tried, and counted.
    page.get_by_role("link", name="sweep", exact=True).click()
    page.get_by_text("No trial has ended yet").wait_for()
    page.get_by_role("button", name="Try a point").click()
    x = page.get_by_role("dialog").get_by_label("x", exact=True)
    x.fill("5")
    page.get_by_role("button", name="Try it").click()
    page.get_by_role("alert").get_by_text("x: 5 is not between 0.0 and 1.0").first.wait_for()
    x.fill("1.0")
    page.get_by_role("button", name="Try it").click()
    page.get_by_text("enqueue: it is trial 20").wait_for()
    page.get_by_text("of 21", exact=True).wait_for()
    (served.folder / "go").touch()
    page.get_by_text("Go on with more trials").wait_for()
    page.get_by_role("link", name="trial 20", exact=True).click()
    page.get_by_text("How to repeat it").wait_for()
    page.get_by_role("button", name="Copy").click()
    page.get_by_text("Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("diel sweep ")
    assert copied.endswith(" --repeat 20")
    page.goto(run_page)
    page.locator(".diel-badge.diel-finished").wait_for()
    page.locator("[data-part=bars]").get_by_text("21 of 21, best accuracy 1").wait_for()
    page.get_by_role("link", name="sweep", exact=True).click()
    # The report, whose scripts are not those of the page.
    page.get_by_role("link", name="report", exact=True).click()
    dots = page.locator("section#history path.dots.best")
    dots.scroll_into_view_if_needed()
    place = dots.bounding_box()  # the best trial is the last one: its dot is the upper right end
    page.mouse.move(place["x"] + place["width"] - 4, place["y"] + 4)
    page.locator("#tip").wait_for()
    assert page.evaluate("window.origin") == "null"
    (run,) = (served.folder / "runs").glob("sweep-*")
    journal = [json.loads(line) for line in RunDirectory(run).journal.read_text().splitlines()]
    assert journal[-1]["exit_code"] == 0


@pytest.mark.thorough
def test_two_browsers_on_one_file_and_a_script_that_is_submitted(
    browser: Any, served: Any, page: Any
) -> None:
    sbatch = served.commands / "sbatch"
    sbatch.write_text(SBATCH)
    sbatch.chmod(0o755)
    file: Path = served.folder / "shared.toml"
    file.write_text('# Kept.\n[[module]]\nname = "<img src=x>"\nexecutable = ["true"]\n')
    sign_in(page, served)
    page.goto(served.url("/compose?file=shared.toml"))
    page.get_by_text("<img src=x>").first.wait_for()
    assert page.locator("img").count() == 0
    page.get_by_role("button", name="Add group").click()
    wait_for_text(page, 'name = "group"')
    # As a page does that has lost its connection: what was not saved is offered.
    page.on("dialog", lambda dialog: dialog.accept())
    page.reload()
    page.get_by_role("button", name="Take the edits back").click()
    wait_for_text(page, 'name = "group"')
    # Meanwhile another browser saves an edit of its own.
    with closing(browser.new_context()) as context:
        other = context.new_page()
        sign_in(other, served)
        other.goto(served.url("/compose?file=shared.toml"))
        other.get_by_text("This is edited on another page too").wait_for()
        other.get_by_role("button", name="Leave them").click()
        other.get_by_role("button", name="Leave them").wait_for(state="hidden")
        choose_from(other, "Add module", "program")
        wait_for_text(other, 'name = "program"')
        other.get_by_role("button", name="Save", exact=True).click()
        other.get_by_text("saved shared.toml").wait_for()
    theirs = file.read_text()
    assert 'name = "program"' in theirs
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_text("changed by somebody else").wait_for()
    page.get_by_role("button", name="Cancel").click()
    assert file.read_text() == theirs
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("button", name="Overwrite").click()
    page.get_by_text("saved shared.toml").wait_for()
    assert file.read_text().startswith("# Kept.\n[[module]]\n")
    choose_from(page, "New", "hello")
    page.wait_for_url("**/compose?file=hello.toml")
    wait_for_text(page, 'name = "greeter"')
    assert (served.folder / "hello.py").is_file()
    page.get_by_text("No problem found.").wait_for()
    page.get_by_text("Batch script", exact=True).click()
    page.get_by_label("queue or partition").fill("long")
    page.get_by_label("account").fill("physics")
    page.get_by_label("batch scheduler").click()
    page.get_by_role("option", name="PBS").click()
    script = page.locator(".compose-script")
    page.get_by_role("button", name="Write script").click()
    script.get_by_text("#PBS -q long").wait_for()
    submit = page.get_by_role("button", name="Submit")
    submit.wait_for(state="hidden")  # there is no qsub
    page.get_by_label("batch scheduler").click()
    page.get_by_role("option", name="Slurm").click()
    page.get_by_role("button", name="Write script").click()
    script.get_by_text("--partition=long").wait_for()
    script.get_by_text("--account=physics").wait_for()
    submit.click()
    page.get_by_role("dialog").get_by_role("button", name="Submit").click()
    page.get_by_text("Submitted batch job 4711 <b>").wait_for()
    submitted = (served.folder / "submitted.sh").read_text()
    assert submitted.startswith("#!")
    assert "#SBATCH --partition=long" in submitted
    assert "hello.toml" in submitted
    # What hangs at import holds up a process of its own; what was mended is seen by itself.
    code = served.folder / "hello.py"
    mended = code.read_text()
    code.write_text(f"class Options: pass\nimport time; time.sleep(600)\n{mended}")
    page.get_by_text("Checking ...").first.wait_for(state="detached")
    page.get_by_role("button", name="Check again").click()
    page.get_by_text("Checking ...").first.wait_for()
    assert page.request.get(served.url("/")).ok
    code.write_text(mended)
    page.get_by_text("No problem found.").wait_for()
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
