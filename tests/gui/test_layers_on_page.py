"""Layers of a network in their form, in a real browser."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("nicegui", reason="the extra gui is not installed")
pytest.importorskip("sklearn", reason="the extra data is not installed")
expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect

FLOW = """\
[[module]]
name = "master"
function = "modules.master:run"
[module.options]
strategy = "cross_entropy"
trials = 20
space = { units = [16, 32] }

[[module]]
name = "trainer"
function = "modules.trainer:run"
[module.options]
dataset = "digits"
layers = [
    { type = "flatten" },  # of 8 x 8
    { type = "fully_connected", units = "$units" },
]

[[group]]
name = "search"
modules = ["master", "trainer"]
"""


@pytest.mark.thorough
def test_layers_are_edited_in_a_form(page: Any, served: Any) -> None:
    file = served.folder / "layers.toml"
    file.write_text(FLOW)
    page.goto(served.address)
    page.goto(served.url("/compose?file=layers.toml"))
    line = page.locator(".cm-line")
    form = page.get_by_role("region", name="Form")
    # Ctrl-S is heard as soon as the page can be seen.
    page.locator('.module[data-module="trainer"]').press("Control+s")
    page.get_by_text("saved layers.toml").wait_for()
    page.locator('.module[data-module="trainer"]').click()
    second = form.locator(".compose-table").nth(1)
    second.get_by_text("→ [32], 2,080 parameters").wait_for()
    units = form.get_by_label("units of layer 2", exact=True)
    expect(units).to_have_value("$units")
    units.fill("many")
    units.press("Enter")
    second.get_by_text("units must be an integer, not 'many'").first.wait_for()
    units.fill("8")
    units.press("Enter")
    line.filter(has_text='"fully_connected", units = 8').wait_for()
    form.locator(".compose-new .q-select").click()
    page.get_by_role("option", name="dropout", exact=True).click()
    line.filter(has_text='{ type = "dropout" }').wait_for()
    form.get_by_label("move layer 3 up").click()
    third = form.locator(".compose-table").nth(2)
    expect(third.get_by_label("units of layer 3", exact=True)).to_have_value("8")
    form.get_by_label("remove layer 2").click()
    line.filter(has_text="dropout").wait_for(state="detached")
    expect(form.locator(".compose-table")).to_have_count(2)
