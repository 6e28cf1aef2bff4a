from __future__ import annotations

from pathlib import Path

import pytest

from diel.errors import LaunchError
from diel.run.directory import RunDirectory, repeat_command
from diel.run.part import GroupLinks, Part, groups_of, words_of_choices
from diel.workflow.load import load_workflow

LINKS = GroupLinks(
    names=["mesh", "solve", "first", "second", "plot", "loop", "step"],
    depends={"solve": ["mesh"], "plot": ["solve"], "second": ["first"]},
    inside={"first": "solve", "second": "solve", "step": "loop"},
    repeating=["loop"],
)


@pytest.mark.parametrize(
    ("part", "chosen", "around"),
    [
        (Part(only=["mesh"]), "mesh", ""),
        (Part(only=["mesh", "plot"]), "mesh plot", ""),
        (Part(only=["solve"]), "solve first second", ""),
        (Part(only=["second"]), "second", "solve"),
        (Part(only=["loop"]), "loop step", ""),
        (Part(from_groups=["mesh"]), "mesh solve first second plot", ""),
        (Part(from_groups=["first"]), "first second plot", "solve"),
        (Part(from_groups=["second", "loop"]), "second plot loop step", "solve"),
    ],
)
def test_the_groups_of_a_part(part: Part, chosen: str, around: str) -> None:
    assert groups_of(part, LINKS) == (set(chosen.split()), set(around.split()))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Part(only=["solv"]), "--only solv: there is no such group; did you mean solve?"),
        (Part(from_groups=["x"]), "--from x: there is no such group; groups: mesh, solve, "),
        (Part(only=["step"]), "group step is inside loop, which runs it again and again: name "),
        (Part(["mesh"], ["plot"]), "--only mesh --from plot: --only runs groups alone"),
    ],
)
def test_what_is_no_part(part: Part, message: str) -> None:
    with pytest.raises(LaunchError) as caught:
        groups_of(part, LINKS)
    assert str(caught.value).startswith(message)


def test_the_words_that_choose_what_is_run() -> None:
    words = words_of_choices(["a=b c"], Part(only=["x", "y"]), force=True)
    assert words == ["--set", "a=b c", "--only", "x", "--only", "y", "--force"]
    assert words_of_choices(part=Part(from_groups=["x"])) == ["--from", "x"]
    assert words_of_choices() == []


FILE = """\
module = [{ name = "m", function = "math:sqrt" }, { name = "n", function = "math:sin" }]
group = [
    { name = "a", modules = ["m"] },
    { name = "b", modules = ["n"] },
    { name = "both", groups = ["a", "b"], depends = [] },
    { name = "c", modules = ["n"], depends = ["both"] },
    { name = "pair", modules = ["m", "n"] },
]
[[boundary]]
name = "wall"
shape = [4]
owners = [{ module = "m" }]
readers = [{ module = "n" }]
"""


def test_a_workflow_without_the_groups_that_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text(FILE)
    whole = load_workflow(tmp_path / "w.toml")
    assert whole.limited_to(Part()) is whole
    part = whole.limited_to(Part(from_groups=["b"]))
    assert [(group.name, group.groups, group.depends) for group in part.groups] == [
        ("b", (), ()),
        ("both", ("b",), ()),
        ("c", (), ("both",)),
    ]
    assert [module.name for module in part.modules] == ["n"]
    assert part.boundaries == ()
    assert whole.limited_to(Part(from_groups=["a", "b"])).boundaries == whole.boundaries
    assert whole.limited_to(Part(only=["c"])).group("c").depends == ()


def test_a_run_keeps_its_part(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text(FILE)
    run = RunDirectory.create(tmp_path, "w", tmp_path / "w.toml", part=Part(from_groups=("b",)))
    assert run.chosen_part() == Part(from_groups=("b",))
    assert repeat_command(run.path) == "diel run workflow.toml --from b"
    whole = RunDirectory.create(tmp_path, "w", tmp_path / "w.toml")
    assert not whole.chosen_part()
    assert repeat_command(whole.path) == "diel run workflow.toml"
