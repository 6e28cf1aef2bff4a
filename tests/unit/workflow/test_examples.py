"""Examples that come with diel: listed, copied with what they need, never over something else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import ROOT, status_of

from diel.workflow.examples import list_examples
from diel.workflow.load import load_workflow


def test_all_files_in_workflows_are_listed_with_a_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {example.name: example for example in list_examples()}
    assert found.keys() == {path.stem for path in (ROOT / "workflows").glob("*.toml")}
    for example in found.values():
        assert re.fullmatch(r"[A-Z].*[.?]", example.text), example.name
        assert "diel run" not in example.text
    assert found["hello"].text == "Two modules exchange tuples."
    assert [path.name for path in found["ensemble"].needs] == ["ensemble.c", "ensemble.py"]
    assert found["digits_grid"].needs == ()
    needed = {
        path.relative_to(example.file.parent).parts[0]
        for example in found.values()
        for path in example.needs
    }
    beside = {path.name for path in (ROOT / "workflows").iterdir() if path.suffix != ".toml"}
    # A folder of what has to be built first, and that of whatever imported a file there.
    assert needed == beside - {"compiled", "__pycache__"}
    assert status_of("examples") == 0
    assert "Two modules exchange tuples." in capsys.readouterr().out


@pytest.mark.parametrize("name", [example.name for example in list_examples()])
def test_a_copy_is_complete(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIEL_DATA", str(tmp_path))
    assert status_of("examples", f"{name}.toml", "--to", tmp_path / "new") == 0
    copy = tmp_path / "new" / f"{name}.toml"
    assert load_workflow(str(copy)).modules
    assert "workflows/" not in copy.read_text()


def test_nothing_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("examples", "hello", "--to", tmp_path) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"diel run {tmp_path}/hello.toml"
    assert status_of("examples", "hello", "--to", tmp_path) == 0
    assert status_of("examples", "hello", "--to", tmp_path / "a b") == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"diel run '{tmp_path}/a b/hello.toml'"
    (tmp_path / "hello.toml").unlink()
    (tmp_path / "hello.py").write_text("mine")
    assert status_of("examples", "hello", "--to", tmp_path) == 2
    assert "hello.py is there already" in capsys.readouterr().err
    assert (tmp_path / "hello.py").read_text() == "mine"
    assert not (tmp_path / "hello.toml").exists()


def test_one_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert status_of("examples", "helo", "--to", tmp_path) == 2
    assert 'did you mean "hello"?' in capsys.readouterr().err
    assert status_of("examples", "../secret", "--to", tmp_path) == 2
