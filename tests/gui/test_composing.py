"""Composing, mending and starting a workflow on the page, in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nicegui", reason="the extra gui is not installed")

from diel.run.directory import RunDirectory

WORK = """\
def run(ctx):
    return "done <b>"
"""


def sign_in(page: Any, served: Any) -> None:
    page.set_default_timeout(20_000)
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


@pytest.mark.slow
def test_a_workflow_is_composed_mended_started_and_watched(page: Any, served: Any) -> None:
    (served.folder / "work.py").write_text(WORK)
    sign_in(page, served)
    page.goto(served.url("/compose"))
    button = page.get_by_role("button", name="Add module")
    button.click()
    # The chosen module is shown in its form, with what is wrong at the field that it is about.
    page.get_by_text("there is no file").first.wait_for()
    fields = page.locator(".compose-field", has=page.get_by_label("function", exact=True))
    problem = fields.locator(".q-field__bottom")
    problem.get_by_text("there is no file").wait_for()
    assert page.locator('.module.problem[data-module="module"]').count() == 1
    fill(page, "name", "worker")
    fill(page, "function", "./work.py:rum")  # the planted mistake
    problem.get_by_text('did you mean "run"?').wait_for()
    page.locator(".cm-line.compose-wrong").first.wait_for()
    fill(page, "function", "./work.py:run")
    page.get_by_text("the file has no group").first.wait_for()
    # The keyboard alone: a group that has the module, then a second one behind it.
    add_group = page.get_by_role("button", name="Add group")
    add_group.focus()
    page.keyboard.press("Enter")
    wait_for_text(page, 'modules = ["worker"]')
    page.get_by_text("No problem found.").wait_for()
    add_group.focus()
    page.keyboard.press("Enter")
    wait_for_text(page, 'name = "group2"')
    box = page.locator('.group[data-group="group2"]')
    box.focus()
    page.keyboard.press("Delete")
    page.locator(".cm-line", has_text="group2").wait_for(state="detached")
    page.keyboard.press("Control+z")
    wait_for_text(page, 'name = "group2"')
    page.keyboard.press("Control+Shift+z")
    page.locator(".cm-line", has_text="group2").wait_for(state="detached")
    # What is typed into the text shows in the form and the graph.
    page.locator('.module[data-module="worker"]').press("Enter")
    assert field(page, "copies").input_value() == ""
    line = page.locator(".cm-line", has_text="./work.py:run")
    line.click()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.keyboard.type("copies = 2  # a comment")
    page.locator("svg .needs", has_text="2 copies").wait_for()
    assert field(page, "copies").input_value() == "2"
    fill(page, "copies", "3")
    wait_for_text(page, "copies = 3  # a comment")
    page.get_by_text("No problem found.").wait_for()
    page.get_by_text("5 at the largest moment").wait_for()
    page.keyboard.press("Control+s")
    page.get_by_label("File name").fill("composed")
    page.get_by_label("File name").press("Enter")
    page.get_by_text("saved composed.toml").wait_for()
    page.get_by_role("button", name="Start here").click()
    page.wait_for_url("**/run?path=**", timeout=60_000)
    (run,) = (served.folder / "runs").glob("composed-*")
    file = served.folder / "composed.toml"
    assert "copies = 3  # a comment" in file.read_text()
    page.get_by_text("finished").first.wait_for(timeout=60_000)
    journal = [json.loads(line) for line in RunDirectory(run).journal.read_text().splitlines()]
    assert journal[-1]["exit_code"] == 0


def test_a_file_that_somebody_else_changed_is_not_overwritten_unasked(
    page: Any, served: Any
) -> None:
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
    file.write_text("# Another's.\n")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_text("changed by somebody else").wait_for()
    page.get_by_role("button", name="Cancel").click()
    assert file.read_text() == "# Another's.\n"
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("button", name="Overwrite").click()
    page.get_by_text("saved shared.toml").wait_for()
    assert file.read_text().startswith("# Kept.\n[[module]]\n")
    page.get_by_role("button", name="New").click()
    page.get_by_text("hello", exact=True).click()
    page.wait_for_url("**/compose?file=hello.toml")
    wait_for_text(page, 'name = "greeter"')
    assert (served.folder / "hello.py").is_file()
    page.get_by_text("No problem found.").wait_for()
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
