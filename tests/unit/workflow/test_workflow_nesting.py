"""Groups in groups, iterations, policies and durations in a workflow file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diel.errors import Problem, WorkflowError
from diel.executive.placement.planning import RankNeeds, needs
from diel.text import duration_s, format_duration
from diel.workflow.load import load_workflow
from diel.workflow.model import Group, Workflow
from diel.workflow.references import DEEPEST

MODULE = '[[module]]\nname = "a"\nfunction = "./work.py:run"\n'


def leaf(name: str, **keys: object) -> str:
    return f'[[group]]\nname = "{name}"\nmodules = ["a"]\n' + _keys(keys)


def nest(name: str, *groups: str, **keys: object) -> str:
    inside = ", ".join(f'"{group}"' for group in groups)
    return f'[[group]]\nname = "{name}"\ngroups = [{inside}]\n' + _keys(keys)


def _keys(keys: dict[str, object]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work.py").write_text("def run(ctx): ...\n")
    return tmp_path


def load(folder: Path, text: str) -> Workflow:
    (folder / "w.toml").write_text(text)
    return load_workflow(folder / "w.toml")


def problems_of(folder: Path, text: str) -> list[Problem]:
    with pytest.raises(WorkflowError) as caught:
        load(folder, text)
    return list(caught.value.problems)


def test_a_nest_is_read(folder: Path) -> None:
    keys = 'on_failure = "continue"\nretries = 2\ntime_limit = "10 min"\n'
    workflow = load(
        folder,
        MODULE
        + keys
        + leaf("x", iterations=5)
        + leaf("y", depends=["x"], until="done")
        + nest("xy", "x", "y", iterations=3, until=["done", 2])
        + leaf("end", depends=["xy"]),
    )
    module = workflow.module("a")
    assert (module.on_failure, module.retries, module.time_limit_s) == ("continue", 2, 600.0)
    assert workflow.group("xy").groups == ("x", "y")
    assert workflow.group("xy").until == ("done", 2)
    limits = {group.name: group.most_iterations for group in workflow.groups}
    assert limits == {"x": 5, "y": None, "xy": 3, "end": 1}


TAG = "a tag: a string, or a list of strings and whole numbers"

ONE_PROBLEM: dict[str, tuple[str, str, str, str]] = {
    "both contents": (
        '[[group]]\nname = "g"\nmodules = ["a"]\ngroups = ["h"]\n' + leaf("h"),
        "group[0].groups",
        "a group has either modules or groups inside, and both are given",
        "put the modules into a [[group]] of their own, and name that here",
    ),
    "no content": (
        leaf("h") + '[[group]]\nname = "g"\n',
        "group[1]",
        "says nothing to run: it has neither modules nor groups",
        'add modules = ["master", "trainer"], or groups = [...] with names of other groups',
    ),
    "empty groups": (
        leaf("h") + '[[group]]\nname = "g"\ngroups = []\n',
        "group[1].groups",
        "expected a non-empty list of strings, got the list []",
        'for example groups = ["search", "report"]',
    ),
    "unknown child": (
        leaf("search") + nest("g", "serach"),
        "group[1].groups[0]",
        'there is no group "serach"',
        'did you mean "search"?',
    ),
    "inside itself": (
        leaf("h") + nest("g", "h", "g"),
        "group[1].groups[1]",
        'group "g" is inside itself',
        "remove it",
    ),
    "two parents": (
        leaf("h") + nest("g", "h") + nest("k", "h"),
        "group[2].groups[0]",
        'group "h" is in group "g" already',
        "a group stands in one place: add another group of the same modules",
    ),
    "inside each other": (
        leaf("h") + nest("x", "y") + nest("y", "z", "h") + nest("z", "x"),
        "group[1].groups",
        "groups are inside each other: x -> y -> z -> x",
        "remove one of them",
    ),
    "depends on a child of another": (
        leaf("in") + nest("g", "in") + leaf("end", depends=["in"]),
        "group[2].depends[0]",
        'group "in" does not stand beside group "end": "in" is in group "g", "end" is in none',
        'let group "end" depend on "g"',
    ),
    "depends on an outer one": (
        leaf("early") + leaf("in", depends=["early"]) + nest("g", "in"),
        "group[1].depends[0]",
        'group "early" does not stand beside group "in": "early" is in none, "in" is in group "g"',
        'let group "g" depend on "early"',
    ),
    "depends on its parent": (
        leaf("in", depends=["g"]) + nest("g", "in"),
        "group[0].depends[0]",
        'group "g" does not stand beside group "in": "g" is in none, "in" is in group "g"',
        "a group starts only when the one around it does: remove it",
    ),
    "depends on its child": (
        leaf("in") + nest("g", "in", depends=["in"]),
        "group[1].depends[0]",
        'group "in" does not stand beside group "g": "in" is in group "g", "g" is in none',
        "a group has finished only when those inside have: remove it",
    ),
    "no iterations": (
        leaf("g", iterations=0),
        "group[0].iterations",
        "expected a whole number of at least 1, got 0",
        "for example iterations = 3",
    ),
    "until is a number": (
        leaf("g", until=3),
        "group[0].until",
        f"expected {TAG}, got 3",
        "for example until = [3]",
    ),
    "until is empty": (
        leaf("g", until=""),
        "group[0].until",
        f'expected {TAG}, got the string ""',
        'for example until = "converged"',
    ),
    "a very long tag": (
        leaf("g", until="x" * 5000),
        "group[0].until",
        "a tag has 4,096 bytes at the most",
        "",
    ),
    "unknown policy": (
        MODULE.replace('"a"', '"b"') + 'on_failure = "ignore"\n' + leaf("g").replace('"a"', '"b"'),
        "module[1].on_failure",
        'expected "stop" or "continue", got the string "ignore"',
        'for example on_failure = "stop"',
    ),
    "negative retries": (
        MODULE.replace('"a"', '"b"') + "retries = -1\n" + leaf("g").replace('"a"', '"b"'),
        "module[1].retries",
        "expected a whole number of at least 0, got -1",
        "for example retries = 2",
    ),
    "a unit that is none": (
        MODULE.replace('"a"', '"b"') + 'time_limit = "5 m"\n' + leaf("g").replace('"a"', '"b"'),
        "module[1].time_limit",
        '"5 m" is no duration; write a number and one of ms, s, min, h, d',
        "",
    ),
    "no time at all": (
        MODULE.replace('"a"', '"b"') + "time_limit = 0\n" + leaf("g").replace('"a"', '"b"'),
        "module[1].time_limit",
        "a duration is longer than 0 s, and no longer than 100 years",
        "",
    ),
}


@pytest.mark.parametrize("case", ONE_PROBLEM)
def test_one_wrong_thing_gives_one_problem(folder: Path, case: str) -> None:
    text, *problem = ONE_PROBLEM[case]
    # A group of the module "a", so that nothing else is wrong.
    assert problems_of(folder, MODULE + text + leaf("other")) == [Problem(*problem)]


def test_a_nest_is_not_endless(folder: Path) -> None:
    text = MODULE + leaf("g0")
    text += "".join(nest(f"g{depth}", f"g{depth - 1}") for depth in range(1, DEEPEST))
    assert load(folder, text).group("g31").groups == ("g30",)
    (problem,) = problems_of(folder, text + nest("out", "g31"))
    assert problem.path == "group[0]"
    assert problem.message == 'group "g0" is inside more than 31 others'


# -- ranks ----------------------------------------------------------------------------------------


def test_the_largest_moment_of_a_nest(folder: Path) -> None:
    """Groups inside count when they may run at the same time, as their parents do."""
    modules = "".join(
        f'[[module]]\nname = "{name}"\nfunction = "./work.py:run"\nprocesses = {size}\n'
        for name, size in (("one", 1), ("three", 3), ("five", 5), ("seven", 7))
    )
    text = (
        modules
        + leaf("x").replace('"a"', '"three"')
        + leaf("y").replace('"a"', '"five"')
        + leaf("z", depends=["y"]).replace('"a"', '"seven"')
        + nest("beside", "x", "y", iterations=3)
        + nest("all", "beside", "w")
        + leaf("w").replace('"a"', '"one"')
        + leaf("last", depends=["all"]).replace('"a"', '"seven"')
    ).replace('depends = ["y"]\n', "")
    needed = needs(load(folder, text), cores=1)
    # x and y together, w beside their nest, and z beside all of them.
    assert needed == RankNeeds(minimum=2 + 7, moment=2 + 3 + 5 + 1 + 7, total=2 + 23)
    in_turn = text.replace('name = "x"\n', 'name = "x"\ndepends = ["y"]\n')
    needed = needs(load(folder, in_turn), cores=1)
    assert needed.moment == 2 + 7 + 7  # z and last


# -- durations ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "seconds", "shown"),
    [
        (90, 90.0, "1 min 30 s"),
        (0.5, 0.5, "0.5 s"),
        ("10 min", 600.0, "10 min"),
        ("90s", 90.0, "1 min 30 s"),
        ("1.5 h", 5400.0, "1 h 30 min"),
        ("2 d", 172800.0, "2 d"),
        ("25 ms", 0.025, "25 ms"),
    ],
)
def test_durations(written: float | str, seconds: float, shown: str) -> None:
    assert duration_s(written) == seconds
    assert format_duration(seconds) == shown


@pytest.mark.parametrize("wrong", ["10", "ten s", "5 m", "-5 s", "", "0 s", 0, -1.0, float("inf")])
def test_what_is_no_duration(wrong: float | str) -> None:
    with pytest.raises(ValueError, match="duration"):
        duration_s(wrong)


def test_iterations_by_default() -> None:
    assert Group(name="g", modules=("a",)).most_iterations == 1
    assert Group(name="g", modules=("a",), until="t").most_iterations is None
    assert Group(name="g", modules=("a",), until="t", iterations=7).most_iterations == 7
