"""What entries say about each other: names, references, cycles."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.workflow.samples import GROUP, MODULE, OneProblem, assert_only_problem, problems_of

ONE_PROBLEM: dict[str, OneProblem] = {
    "no module at all": (
        GROUP,
        "module",
        "the file has no module",
        'add [[module]] with a name and a function = "package.module:function"',
    ),
    "no group at all": (
        MODULE,
        "group",
        "the file has no group",
        "add [[group]] with a name and the modules that run together",
    ),
    "two modules of one name": (
        MODULE + MODULE + GROUP,
        "module[1].name",
        'module[0] is called "a" too',
        "give each its own name",
    ),
    "two groups of one name": (
        MODULE + GROUP + GROUP,
        "group[1].name",
        'group[0] is called "g" too',
        "give each its own name",
    ),
    "misspelt module in a group": (
        MODULE.replace('"a"', '"trainer"') + '[[group]]\nname = "g"\nmodules = ["trianer"]',
        "group[0].modules[0]",
        'there is no module "trianer"',
        'did you mean "trainer"?',
    ),
    "unknown module in a group": (
        MODULE + '[[group]]\nname = "g"\nmodules = ["a", "zzz"]',
        "group[0].modules[1]",
        'there is no module "zzz"',
        "the file has a",
    ),
    "misspelt group in depends": (
        MODULE
        + GROUP.replace('"g"', '"search"')
        + '[[group]]\nname = "h"\nmodules = ["a"]\ndepends = ["serach"]',
        "group[1].depends[0]",
        'there is no group "serach"',
        'did you mean "search"?',
    ),
    "group depends on itself": (
        MODULE + GROUP + 'depends = ["g"]',
        "group[0].depends[0]",
        'group "g" depends on itself',
        "remove it",
    ),
    "cycle": (
        MODULE
        + '[[group]]\nname = "first"\nmodules = ["a"]\n'
        + '[[group]]\nname = "x"\nmodules = ["a"]\ndepends = ["first", "z"]\n'
        + '[[group]]\nname = "y"\nmodules = ["a"]\ndepends = ["x"]\n'
        + '[[group]]\nname = "z"\nmodules = ["a"]\ndepends = ["y"]\n',
        "group[1].depends",
        "groups wait for each other: x -> z -> y -> x",
        "remove one of these dependencies",
    ),
    "module in no group": (
        MODULE + MODULE.replace('"a"', '"b"') + GROUP,
        "module[1]",
        'module "b" is in no group, so it would never run',
        "add it to the modules of a [[group]], or remove it",
    ),
}


@pytest.mark.parametrize("case", ONE_PROBLEM)
def test_one_wrong_thing_gives_one_problem(folder: Path, case: str) -> None:
    assert_only_problem(folder, *ONE_PROBLEM[case])


def test_two_cycles_are_two_problems(folder: Path) -> None:
    text = MODULE + "".join(
        f'[[group]]\nname = "{name}"\nmodules = ["a"]\ndepends = ["{other}"]\n'
        for name, other in [("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")]
    )
    assert [problem.message for problem in problems_of(folder, text)] == [
        "groups wait for each other: a -> b -> a",
        "groups wait for each other: c -> d -> c",
    ]
