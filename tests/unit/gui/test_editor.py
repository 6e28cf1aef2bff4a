"""What is typed into a text that is changed elsewhere meanwhile."""

from __future__ import annotations

import pytest

pytest.importorskip("nicegui", reason="the extra gui is not installed")

from diel.gui.editor import merged, with_changes


@pytest.mark.parametrize(
    ("base", "typed", "now", "both"),
    [
        ("a b", "xa b", "a bc", "xa bc"),
        ("a b", "a bx", "ca b", "ca bx"),
        ("one two", "one", "zero one two", "zero one"),
        ("a", "ax", "ay", "axy"),  # at one place: both
        ("abc", "axc", "ayc", "ayc"),  # of one place: what has changed since
        ("", "x", "", "x"),
        ("aa", "aaa", "aa", "aaa"),
    ],
)
def test_both_changes_are_made_unless_they_are_of_one_place(
    base: str, typed: str, now: str, both: str
) -> None:
    assert merged(base, typed, now) == both


def test_changes_are_counted_in_units_of_browsers() -> None:
    # "\U0001f600" is two units: one line becomes two behind it.
    assert with_changes("a\U0001f600bc", [3, -1, 1, 3, 1, -1], [[], ["x", "y"]]) == (
        "a\U0001f600x\nyc"
    )
    assert with_changes("abc", [1, 0, 2, -1], []) == "bc"
