"""Parts of pages without a browser: starts, texts that were not saved, new sweeps, points."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("nicegui", reason="the extra gui is not installed")

from diel.errors import PageError
from diel.gui import compose_launch
from diel.gui.compose_files import Draft, Drafts
from diel.gui.forms import parameter_of
from diel.gui.inspection import inspect
from diel.gui.steering import choices_of, named_apart
from diel.text import as_tables
from diel.workflow.document import Document
from diel.workflow.load import draft_of_text
from modules.reporter import SweepReporter


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


def test_a_new_sweep_lacks_what_its_trainer_trains_on_and_nothing_else() -> None:
    pytest.importorskip("sklearn")
    text = as_tables(SweepReporter().new_sweep())
    (problem,) = inspect(draft_of_text(text, Path("/new.toml"))).problems
    assert problem.path == "module[1].options.dataset"
    assert "dataset or train" in problem.message
    document = Document(text, Path("/new.toml"))
    document.set(("module", 1, "options", "dataset"), "digits")
    found = inspect(document.draft)
    assert found.problems == []
    assert found.sweeps == {"master": "20 trials, random, tried by trainer"}
    # Each of its modules can be added to another file too, with all its options.
    document = Document("", Path("/new.toml"))
    for table in SweepReporter().new_sweep()["module"]:
        document.add_module(table["name"], {key: table[key] for key in table if key != "name"})
    assert document.get(("module",)) == SweepReporter().new_sweep()["module"]
    assert "[module.options.space]" in document.text


def test_what_a_point_has_is_chosen_from_or_typed() -> None:
    space = {"a": [[64], [64, 32]], "b": 3, "c": {"choices": [1, "1"], "if": {"b": 3}},
             "d": {"from": 0.0, "to": 1.0}}  # fmt: skip
    values = {name: choices_of(parameter_of(entry), entry) for name, entry in space.items()}
    assert values == {"a": [[64], [64, 32]], "b": [3], "c": [1, "1"], "d": []}
    assert [named_apart(each) for each in values.values()] == [
        *(["64", "64x32"], ["3"], ["1", '"1"'], []),
    ]


def test_texts_that_were_not_saved_are_kept_as_far_as_there_is_room() -> None:
    drafts = Drafts(most=2)
    for name in ("a", "b", "a", "c"):
        drafts.keep(Path(name), "one", f"{name} {len(name)}")
        drafts.keep(Path(name), "one", f"text of {name}")
    found = [drafts.of_others(Path(name), "two") for name in "abc"]
    assert found == [Draft("one", "text of a"), None, Draft("one", "text of c")]
    # Of two pages on one file each has its own.
    assert drafts.of_others(Path("a"), "one") is None
    drafts.drop(Path("a"), "two")
    assert drafts.of_others(Path("a"), "two") is not None
    drafts.drop(Path("a"), "one")
    assert drafts.of_others(Path("a"), "two") is None


def test_a_text_that_was_given_up_is_not_kept_again_by_the_page_that_was_left() -> None:
    drafts, file = Drafts(), Path("w.toml")
    drafts.keep(file, "left", "edited")
    drafts.give_up(file, "left")
    drafts.keep(file, "new", "edited")
    drafts.keep(file, "left", "edited")  # by a timer of it
    assert drafts.of_others(file, "third") == Draft("new", "edited")
    assert drafts.of_others(file, "new") is None
    drafts.keep(file, "left", "edited again")  # it has come back
    assert drafts.of_others(file, "new") == Draft("left", "edited again")
