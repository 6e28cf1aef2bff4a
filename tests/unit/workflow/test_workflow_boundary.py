"""What a [[boundary]] says, and every way in which it can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diel.errors import WorkflowError
from diel.workflow.boundary import Boundary, Part, outside, whole
from diel.workflow.load import load_workflow

MODULES = """
[[module]]
name = "fluid"
function = "./m.py:run"
processes = 2
[[module]]
name = "solid"
function = "./m.py:run"
copies = 3
[[module]]
name = "many"
function = "./m.py:run"
copies = "fill"
[[module]]
name = "program"
executable = ["true"]
[[module]]
name = "elsewhere"
function = "./m.py:run"
[[group]]
name = "g"
modules = ["fluid", "solid", "program", "many"]
[[group]]
name = "h"
modules = ["elsewhere"]
"""


def load(folder: Path, *boundaries: str, head: str = MODULES) -> tuple[Boundary, ...]:
    (folder / "m.py").write_text("def run(ctx): pass\n")
    file = folder / "w.toml"
    file.write_text(head + "".join(f"[[boundary]]\n{boundary}\n" for boundary in boundaries))
    return load_workflow(file).boundaries


def wall(owners: str, readers: str, shape: str = "[8, 2]", more: str = "") -> str:
    return f'name = "wall"\nshape = {shape}\nowners = [{owners}]\nreaders = [{readers}]\n{more}'


FLUID = '{ module = "fluid", split = 0 }'
SOLID = '{ module = "solid" }'


def test_a_boundary(tmp_path: Path) -> None:
    (boundary,) = load(
        tmp_path, wall(FLUID, '{ module = "solid", copy = 2, section = [[1, 3], [0, 1]] }')
    )
    assert (boundary.name, boundary.dtype, boundary.shape) == ("wall", "float64", (8, 2))
    assert boundary.modules == ("fluid", "solid")
    assert boundary.owners[0].shares(boundary.shape, [2]) == [
        (0, 0, ((0, 4), (0, 2))),
        (0, 1, ((4, 8), (0, 2))),
    ]
    assert boundary.readers[0].shares(boundary.shape, [1, 1, 1]) == [(2, 0, ((1, 3), (0, 1)))]
    assert load(tmp_path) == ()


# Who owns, who reads, the path of the only problem, words in it.
PROBLEMS = [
    ("", SOLID, "owners", "the list is empty"),
    (FLUID, "", "readers", "the list is empty"),
    ('{ module = "flud" }', SOLID, "owners[0].module", 'did you mean "fluid"?'),
    ('{ module = "gas" }', SOLID, "owners[0].module", "the file has fluid, solid"),
    (FLUID, '{ module = "program" }', "readers[0].module", "is an executable"),
    (FLUID, '{ module = "solid", copy = 3 }', "readers[0].copy", "has copies = 3, from 0"),
    (FLUID, '{ module = "solid", copy = -1 }', "readers[0].copy", "at least 0"),
    (FLUID, '{ module = "fluid", rank = 2 }', "readers[0].rank", "has processes = 2, from 0"),
    ('{ module = "fluid", split = 2 }', SOLID, "owners[0].split", "has 2 axes, from 0"),
    (FLUID, '{ module = "solid", section = [[0, 8]] }', "readers[0].section", "has 1 range, and"),
    (
        FLUID,
        '{ module = "solid", section = [[0, 8], [0, 3]] }',
        "readers[0].section[1]",
        "[0, 3] goes beyond axis 1, whose length is 2",
    ),
    (
        FLUID,
        '{ module = "solid", section = [[3, 3], [0, 2]] }',
        "readers[0].section",
        "the range [3, 3] is empty",
    ),
    (
        FLUID,
        '{ module = "solid", section = [[0], [0, 2]] }',
        "readers[0].section[0][1]",
        "is missing",
    ),
    ('{ module = "fluid" }', SOLID, "owners[0]", "2 ranks of module"),
    (SOLID, FLUID, "owners[0]", "3 ranks of module"),
    ('{ module = "many" }', SOLID, "owners[0]", 'the copies (copies = "fill")'),
    (
        FLUID + ', { module = "solid", copy = 0, section = [[7, 8], [0, 1]] }',
        SOLID,
        "owners[1]",
        "[[7, 8], [0, 1]] has an owner already: owners[0]",
    ),
    (
        '{ module = "fluid", split = 0, section = [[0, 6], [0, 2]] }',
        SOLID,
        "readers[0]",
        "nobody owns [[6, 8], [0, 2]]",
    ),
    (
        FLUID,
        '{ module = "elsewhere" }',
        "",
        'no group has all of its modules: "fluid", "elsewhere"',
    ),
    (FLUID, '{ module = "solid", sections = [] }', "readers[0].sections", "unknown key"),
]


@pytest.mark.parametrize(
    ("owners", "readers", "path", "words"), PROBLEMS, ids=[words for *_, words in PROBLEMS]
)
def test_one_wrong_thing_gives_one_problem_at_its_place(
    owners: str, readers: str, path: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(WorkflowError) as caught:
        load(tmp_path, wall(owners, readers))
    (problem,) = caught.value.problems
    assert problem.path == (f"boundary[0].{path}" if path else "boundary[0]")
    assert words in str(problem)
    assert problem.remedy


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        (wall(FLUID, SOLID, shape="[]"), "shape", "non-empty list"),
        (wall(FLUID, SOLID, shape="[0]"), "shape[0]", "at least 1"),
        (wall(FLUID, SOLID, shape="8"), "shape", "expected a non-empty list"),
        (wall(FLUID, SOLID, shape="[16777216, 16777216]"), "shape", "more than any machine"),
        (wall(FLUID, SOLID, more='dtype = "object"'), "dtype", '"float64" or'),
        (wall(FLUID, SOLID, more="dtype = 8"), "dtype", '"float64" or'),
        (wall(FLUID, SOLID, more="ahead = 0"), "ahead", "at least 1"),
        (wall(FLUID, SOLID, more='ahead = 1\npolicy = "drop"'), "policy", '"drop oldest"'),
        (wall(FLUID, SOLID, more='policy = "wait"'), "policy", "add ahead = N"),
        (f"shape = [2]\nowners = [{FLUID}]", "name", "is missing"),
    ],
)
def test_a_table_that_is_wrong_by_itself(text: str, path: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(WorkflowError) as caught:
        load(tmp_path, text)
    found = {problem.path: str(problem) for problem in caught.value.problems}
    assert words in found[f"boundary[0].{path}"]


def test_two_of_the_same_name_and_everything_at_once(tmp_path: Path) -> None:
    with pytest.raises(WorkflowError) as caught:
        load(tmp_path, wall(FLUID, SOLID), wall(FLUID, '{ module = "solid", copy = 7, rank = 1 }'))
    assert [problem.path for problem in caught.value.problems] == [
        "boundary[1].name",
        "boundary[1].readers[0].copy",
        "boundary[1].readers[0].rank",
    ]


def test_what_only_follows_from_another_mistake_is_not_reported(tmp_path: Path) -> None:
    for damage in (('name = "fluid"', "name = 3"), ("[[module]]", "[[modul]]")):
        with pytest.raises(WorkflowError) as caught:
            load(tmp_path, wall(FLUID, SOLID), head=MODULES.replace(*damage, 1))
        assert not [
            problem for problem in caught.value.problems if problem.path.startswith("boundary")
        ]


def test_a_single_table_is_told_to_be_a_list(tmp_path: Path) -> None:
    with pytest.raises(WorkflowError, match=r"write \[\[boundary\]\] instead of \[boundary\]"):
        load(tmp_path, head=MODULES + "[boundary]\n" + wall(FLUID, SOLID))


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.integers(1, 20),
    st.booleans(),
    st.data(),
)
def test_shares_divide_a_section_among_who_is_meant(
    ranks_of: list[int], length: int, by_copy: bool, data: st.DataObject
) -> None:
    copy = data.draw(st.integers(0, len(ranks_of) - 1)) if by_copy else None
    part = Part.model_validate({"module": "m", "split": 0, "copy": copy})
    shares = part.shares((length,), ranks_of)
    meant = [
        (index, rank)
        for index, ranks in enumerate(ranks_of)
        for rank in range(ranks)
        if copy in (None, index)
    ]
    assert [(index, rank) for index, rank, _ in shares] == meant
    assert outside(whole((length,)), [box for _, _, box in shares]) == []
    assert sum(stop - start for _, _, ((start, stop),) in shares) == length
    everywhere = part.model_copy(update={"split": None}).shares((length,), ranks_of)
    assert {box for _, _, box in everywhere} == {((0, length),)}
