from __future__ import annotations

from pathlib import Path

import pytest

from diel.run.part import Part
from diel.workflow.load import draft_of_text

FILE = """\
module = [
  { name = "a", executable = ["true"], copies = 2, inputs = ["raw.*"], outputs = ["out/{copy}.x"] },
  { name = "b", executable = ["true"], inputs = ["out/*.x"], outputs = ["b"] },
]
group = [
    { name = "first", modules = ["a"] },
    { name = "then", modules = ["b"], depends = ["first"] },
]
"""


def problems(folder: Path, text: str, part: Part | None = None) -> list[str]:
    draft = draft_of_text(text, folder / "w.toml")
    missing = draft.missing_inputs(draft.finish().limited_to(part or Part())) if part else []
    return [f"{each.path}: {each.message} ({each.remedy})" for each in draft.in_order(missing)]


def test_an_input_is_there_or_made_by_another_module(tmp_path: Path) -> None:
    text = FILE
    assert problems(tmp_path, text) == []
    draft = draft_of_text(text, tmp_path / "w.toml")
    (missing,) = draft.missing_inputs(draft.finish())
    assert missing.path == "module[0].inputs[0]"
    assert 'input "raw.*" of module "a" is missing' in missing.message
    (tmp_path / "raw.csv").touch()
    assert draft.missing_inputs(draft.finish()) == []
    alone = draft.finish().limited_to(Part(only=["then"]))
    (missing,) = draft.missing_inputs(alone)
    assert missing.path == "module[1].inputs[0]"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "0.x").touch()
    assert draft.missing_inputs(alone) == []


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (', depends = ["first"]', "", 'module[1].inputs[0]: module "a" makes "out/*.x", and '
         'group "then" does not depend on "first" (add depends = ["first"] to group "then"'),
        ('["a"]', '["a", "b"]', "and runs at the same time (put them into groups"),
        ("out/{copy}.x", "out/0.x", "all copies would make"),
        ('outputs = ["b"]', 'outputs = ["out/1.x"]', 'is an output of module "a" too'),
        ('outputs = ["b"]', 'outputs = ["../b"]', "is outside of the workflow file's folder"),
        ('outputs = ["b"]', 'outputs = ["/b"]', "is outside of the workflow file's folder"),
        ('outputs = ["b"]', 'outputs = ["{folder}/."]', "is outside of the workflow file's folder"),
        ('outputs = ["b"]', 'outputs = ["b*"]', "an output is named, not searched for"),
        ('outputs = ["b"]', 'outputs = ["{cop}"]', "there is no placeholder {cop}"),
        ('outputs = ["b"]', 'outputs = ["b"], tasks = 3', "a module with tasks has neither"),
    ],
)  # fmt: skip
def test_what_cannot_be(tmp_path: Path, before: str, after: str, problem: str) -> None:
    assert before in FILE
    found = problems(tmp_path, FILE.replace(before, after))
    assert any(problem in each for each in found), found


def test_groups_in_groups_are_in_order_too(tmp_path: Path) -> None:
    nested = FILE.replace(', depends = ["first"]', "").replace(
        "group = [",
        'group = [\n{ name = "p", groups = ["first"] },\n'
        '{ name = "q", groups = ["then"], depends = ["p"] },',
    )
    assert problems(tmp_path, nested) == []
    assert problems(tmp_path, nested.replace(', depends = ["p"]', ""))
