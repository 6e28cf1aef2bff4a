"""Texts of a size that nobody meant to edit: the page says so, and goes on."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("nicegui", reason="the extra gui is not installed")
expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect

GOOD = '[[module]]\nname = "a"\nexecutable = ["true"]\n[[group]]\nname = "g"\nmodules = ["a"]\n'


def paste(page: Any, letters: int) -> None:
    page.evaluate("letters => navigator.clipboard.writeText('# ' + 'a'.repeat(letters))", letters)
    page.locator(".cm-content").focus()
    page.keyboard.press("Control+End")
    page.keyboard.press("Control+v")


@pytest.mark.thorough
def test_what_is_pasted_is_read_or_said_not_to_be(page: Any, served: Any) -> None:
    file = served.folder / "good.toml"
    file.write_text(GOOD)
    page.goto(served.address)
    page.goto(served.url("/compose?file=good.toml"))
    fine = page.get_by_text("No problem found.")
    fine.wait_for()
    paste(page, 7_000_000)
    page.get_by_role("alert").get_by_text("Nothing was pasted: the text has 7,000,002").wait_for()
    expect(page.locator(".cm-content")).not_to_contain_text("aaaa")
    # Two pieces that are short enough alone: the second makes the text too long.
    paste(page, 600_000)
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_text("saved good.toml").wait_for()
    fine.wait_for()
    paste(page, 600_000)
    page.get_by_text("It has not been read").wait_for()
    expect(fine).to_have_count(0)
    expect(page.get_by_role("button", name="Start here")).to_be_disabled()
    before = file.read_text()
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_text("was not saved: undo it").wait_for()
    assert file.read_text() == before
    page.get_by_role("button", name="Undo", exact=True).click()
    fine.wait_for()
    page.goto("about:blank")


@pytest.mark.thorough
def test_of_20000_wrong_keys_the_first_are_shown(page: Any, served: Any) -> None:
    text = "[workflow]\n" + "".join(f"key{number} = 1\n" for number in range(20_000))
    (served.folder / "keys.toml").write_text(text + GOOD)
    groups = "".join(f'[[group]]\nname = "g{n}"\nmodules = ["a"]\n' for n in range(2000))
    (served.folder / "groups.toml").write_text(GOOD + groups)
    page.goto(served.address)
    page.goto(served.url("/compose?file=keys.toml"))
    page.get_by_text("unknown key key99").first.wait_for()
    page.get_by_text("there may be more problems from here on").first.wait_for()
    assert page.locator(".compose-problem").count() <= 110
    page.goto(served.url("/compose?file=groups.toml"))
    page.get_by_text("2,002 modules and groups are too many").wait_for()
    page.get_by_text("No problem found.").wait_for()
