"""How a run says where it can be watched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from diel.gui import addresses
from diel.gui.addresses import noted_server, watch_words
from diel.gui.server import _print_address


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "notes"))
    monkeypatch.setattr(addresses, "find_spec", lambda name: name)
    return tmp_path / "notes" / "diel-pages"


def test_a_server_that_shows_the_folder_is_named_on_a_terminal_alone(
    tmp_path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "project" / "runs" / "a b"
    with noted_server(tmp_path / "project", "http://127.0.0.1:1", "secret"):
        (note,) = notes.iterdir()
        assert note.stat().st_mode & 0o077 == 0
        assert watch_words(run, is_private=True) == (
            "http://127.0.0.1:1/run?path=runs%2Fa+b&token=secret"
        )
        assert watch_words(run, is_private=False) == "diel gui 'project/runs/a b'"
        assert watch_words(tmp_path / "projects", is_private=True) == "diel gui projects"
    assert list(notes.iterdir()) == []
    assert watch_words(run, is_private=True) == "diel gui 'project/runs/a b'"


def test_what_is_no_note_is_passed_over_and_what_was_left_is_removed(
    tmp_path: Path, notes: Path
) -> None:
    notes.mkdir(parents=True)
    (notes / "1.json").write_text('{"folder": "/"}')  # of a server that was killed
    os.mkfifo(notes / "2.json")
    (notes / "3.json").mkdir()
    assert "token" not in watch_words(tmp_path, is_private=True)
    assert [path.name for path in sorted(notes.iterdir())] == ["2.json", "3.json"]


def test_a_note_that_cannot_be_written_costs_nothing(tmp_path: Path, notes: Path) -> None:
    notes.parent.write_text("no folder")
    with noted_server(tmp_path, "http://127.0.0.1:1", "secret"):
        assert "token" not in watch_words(tmp_path, is_private=True)


def test_without_the_extra_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "find_spec", lambda name: None)
    assert watch_words(tmp_path, is_private=True) == ""


@pytest.mark.parametrize(("host", "inside"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_what_is_printed_has_a_line_for_a_login_node(
    host: str, inside: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _print_address(host, 8123, "http://here:8123", "/run?path=a", "secret")
    printed = capsys.readouterr().out
    assert printed.startswith("diel gui: http://here:8123/run?path=a&token=secret\n")
    assert f"    ssh -L 8123:{inside}:8123 " in printed


def test_an_address_that_others_can_reach_comes_with_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _print_address("0.0.0.0", 8123, "http://here:8123", "/", "secret")
    printed = capsys.readouterr()
    assert "diel gui: http://here:8123/?token=secret" in printed.out
    assert "ssh" not in printed.out
    assert "nothing is encrypted" in printed.err
