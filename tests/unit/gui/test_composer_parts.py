"""Starting a run from the page, and texts that it has not saved: what is kept of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("nicegui", reason="the extra gui is not installed")

from diel.errors import PageError
from diel.gui import compose_launch
from diel.gui.compose_files import Unsaved


def test_a_start_that_takes_long_goes_on_and_keeps_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(arguments: list[str], folder: Path, log: Path) -> int:
        log.write_text("waiting for nodes\n")
        return 4711

    monkeypatch.setattr(compose_launch, "start_command", start)
    monkeypatch.setattr(compose_launch, "_START_S", 0.0)
    with pytest.raises(PageError, match="goes on, as process 4711") as caught:
        compose_launch.start_run(["run", "a.toml"], tmp_path, tmp_path / "a.toml")
    told = re.search(r"written to (\S+\.log)\. waiting for nodes$", str(caught.value))
    assert told is not None
    assert Path(told[1]).read_text() == "waiting for nodes\n"
    # One that has ended has said all: nothing of it is left behind.
    monkeypatch.setattr(compose_launch, "_START_S", 5.0)
    monkeypatch.setattr(compose_launch, "exit_code_of", lambda process: 2)
    with pytest.raises(PageError, match=r"^waiting for nodes$"):
        compose_launch.start_run(["run", "a.toml"], tmp_path, tmp_path / "a.toml")
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_texts_that_were_not_saved_are_kept_as_far_as_there_is_room() -> None:
    unsaved = Unsaved(most=2)
    for name in ("a", "b", "a", "c"):
        unsaved.keep(Path(name), f"text of {name}")
    assert [unsaved.of(Path(name)) for name in "abc"] == ["text of a", None, "text of c"]
    unsaved.drop(Path("a"))
    assert unsaved.of(Path("a")) is None
