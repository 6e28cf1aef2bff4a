"""Placeholders: what is one, what is not, what stands in its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diel.workflow.programs import (
    PLACEHOLDERS,
    PlaceholderProblem,
    fill_placeholders,
    placeholders_in,
)

VALUES = {name: f"<{name}>" for name in PLACEHOLDERS}


@pytest.mark.parametrize(
    ("text", "filled", "names"),
    [
        ("", "", []),
        ("plain", "plain", []),
        ("{copy}", "<copy>", ["copy"]),
        ("a{copy}b{iteration}", "a<copy>b<iteration>", ["copy", "iteration"]),
        ("{{copy}}", "{copy}", []),
        ("{{{copy}}}", "{<copy>}", ["copy"]),
        ("{{}}", "{}", []),
        ("${{HOME}}/{copy}", "${HOME}/<copy>", ["copy"]),
    ],
)
def test_a_text_is_filled(text: str, filled: str, names: list[str]) -> None:
    assert placeholders_in(text) == names
    assert fill_placeholders(text, VALUES) == filled


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{cpoy}", "there is no placeholder {cpoy}"),
        ("{}", "there is no placeholder {}"),
        ("{ copy }", "there is no placeholder { copy }"),
        ("{copy!r}", "there is no placeholder {copy!r}"),
        ("{copy.__class__}", "there is no placeholder {copy.__class__}"),
        ("${HOME}", "there is no placeholder {HOME}"),
        ("{", '"{" opens or closes no placeholder'),
        ("a}", '"}" opens or closes no placeholder'),
        ("{copy", '"{" opens or closes no placeholder'),
        ("{{copy}", '"}" opens or closes no placeholder'),
    ],
)
def test_what_is_no_placeholder(text: str, words: str) -> None:
    with pytest.raises(PlaceholderProblem) as caught:
        placeholders_in(text)
    assert str(caught.value) == words
    assert "write it twice" in caught.value.remedy
    assert ("{copy}" in caught.value.remedy) == words.startswith("there is no")


@given(st.text())
def test_any_text_can_be_written_by_doubling_its_braces(text: str) -> None:
    written = text.replace("{", "{{").replace("}", "}}")
    assert placeholders_in(written) == []
    assert fill_placeholders(written, {}) == text


@given(st.text(alphabet="{}copyx "))
def test_what_is_accepted_can_be_filled(text: str) -> None:
    try:
        names = placeholders_in(text)
    except PlaceholderProblem:
        return
    assert fill_placeholders(text, VALUES).count("<") == len(names)
