"""``diel tuple`` without a run around it: how tags are written, and what is said of mistakes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import status_of

from diel.errors import TagError
from diel.tag_text import Fields, parse_tag, spell_tag


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("name", ["name"]),
        ("job/3/fine", ["job", 3, "fine"]),
        ("job/-3/0", ["job", -3, 0]),
        ("job/*", ["job", None]),
        ("*", [None]),
        ("3", [3]),
        # Written otherwise than Python writes it, a number is a string.
        ("run/007/-0/+1/1.5/1e3", ["run", "007", "-0", "+1", "1.5", "1e3"]),
        ("a b/\u00fc/**", ["a b", "\u00fc", "**"]),
        ('["a/b", "3", 3, null, "*"]', ["a/b", "3", 3, None, "*"]),
        ('["x"]', ["x"]),
    ],
)
def test_a_tag_is_read(text: str, fields: Fields) -> None:
    assert parse_tag(text) == fields


@pytest.mark.parametrize(
    "text", ["", "/", "a/", "/a", "a//b", "[", "[a]", "[]", "[1.5]", "[true]", '[["a"]]', "[{}]"]
)
def test_what_is_no_tag(text: str) -> None:
    with pytest.raises(TagError):
        parse_tag(text)


FIELD = st.none() | st.integers() | st.text(min_size=1)


@given(st.lists(FIELD, min_size=1))
def test_a_tag_that_is_written_reads_the_same(fields: Fields) -> None:
    text = spell_tag(fields)
    assert parse_tag(text) == fields
    assert "\n" not in text


def test_a_plain_tag_is_written_plainly() -> None:
    assert spell_tag(["job", 3, None]) == "job/3/*"
    assert spell_tag(["a/b", "3"]) == '["a/b", "3"]'


def status(*arguments: str) -> object:
    return status_of("tuple", *arguments)


@pytest.mark.parametrize("address", ["", "/nowhere/socket"])
def test_outside_of_a_run(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIEL_TUPLE_SOCKET", address)
    assert status("get", "a") == 2
    said = capsys.readouterr().err
    if address:
        assert said.startswith(
            "diel: /nowhere/socket cannot be reached (No such file or directory)"
        )
    else:
        assert said.startswith(
            "diel: DIEL_TUPLE_SOCKET is not set: diel tuple works in what a run's"
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "OPERATION"),
        (["take", "a"], "invalid choice: 'take'"),
        (["get"], "TAG"),
        (["put", "a"], "VALUE"),
        (["get", "a", "b"], "unrecognized arguments: b"),
        (["get", "a", "--timeout", "soon"], "invalid number of seconds value: 'soon'"),
        (["get", "a", "--timeout", "-1"], "cannot be negative"),
        (["get", "a", "--timeout", "nan"], "cannot be negative"),
        (["get", "a", "--timeout", "1", "--nowait"], "not allowed with"),
        (["get", "a", "--json", "--npy"], "not allowed with"),
        (["get", "a//b"], '"a//b": a field of a tag cannot be empty'),
        (["get", "[1"], "begins as a JSON list and is not one"),
    ],
)
def test_a_mistake_is_told(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(*arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("operation", ["put", "get", "read"])
def test_the_help_says_how_a_tag_is_written(
    operation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(operation, "--help") == 0
    said = capsys.readouterr().out
    assert "job/3/fine" in said
    assert "exit codes: 0 fine, 1 not in time" in said
