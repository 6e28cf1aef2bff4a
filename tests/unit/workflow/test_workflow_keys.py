"""Every wrong table, key or value: where it is said to be, in which words, with which remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.workflow.samples import GROUP, MODULE, OneProblem, assert_only_problem

from diel.workflow.model import Group, Module

A_NAME = 'a name: a letter, then letters, digits, "_" or "-", 100 at most'
COPIES = 'a whole number of at least 1 or "fill"'
KEYS = ", ".join(Module.model_fields)
GROUP_KEYS = ", ".join(Group.model_fields)


ONE_PROBLEM: dict[str, OneProblem] = {
    "unknown table": (
        MODULE + GROUP + "[extras]\nservers = 2",
        "extras",
        "unknown table extras",
        "known tables: workflow, parameters, tuple_space, module, group, boundary",
    ),
    "no servers": (
        MODULE + GROUP + "[tuple_space]\nservers = 0",
        "tuple_space.servers",
        "expected a whole number of at least 1, got 0",
        "for example servers = 2",
    ),
    "too many replicas": (
        MODULE + GROUP + '[workflow]\non_rank_loss = "continue"\n'
        "[tuple_space]\nservers = 3\nreplicas = 2",
        "tuple_space.replicas",
        "expected 0 or 1, got 2",
        "for example replicas = 1",
    ),
    "a twin of one server": (
        MODULE + GROUP + '[workflow]\non_rank_loss = "continue"\n[tuple_space]\nreplicas = 1',
        "tuple_space.replicas",
        "a tuple server alone cannot have a twin",
        "let servers be 2 at least",
    ),
    "a twin of no use": (
        MODULE + GROUP + "[tuple_space]\nservers = 2\nreplicas = 1",
        "tuple_space.replicas",
        "a twin is of no use where the run ends when a rank dies",
        'let on_rank_loss be "continue" in [workflow]',
    ),
    "no size": (
        MODULE + GROUP + '[tuple_space]\nmemory = "2 GB"',
        "tuple_space.memory",
        "'2 GB' is no size; write a number and one of B, KiB, MiB, GiB, TiB",
        "",
    ),
    "too little memory": (
        MODULE + GROUP + "[tuple_space]\nmemory = 1000",
        "tuple_space.memory",
        "a server needs 64 KiB at least; got 1000",
        "",
    ),
    "absurdly many": (
        MODULE.replace("\n", "\ncopies = 99999999999\n", 1) + GROUP,
        "module[0].copies",
        "99,999,999,999 are more than any machine has",
        "",
    ),
    "misspelt table": (
        '[[modules]]\nname = "a"\nfunction = "./work.py:master"\n' + GROUP,
        "modules",
        "unknown table modules",
        'did you mean "module"?',
    ),
    "misspelt group table": (
        MODULE + '[[groups]]\nname = "g"\nmodules = ["a"]',
        "groups",
        "unknown table groups",
        'did you mean "group"?',
    ),
    "single module": (
        '[module]\nname = "a"\nfunction = "./work.py:master"\n' + GROUP,
        "module",
        "expected a list of tables, got a single table",
        "write [[module]] instead of [module]",
    ),
    "single group": (
        MODULE + '[group]\nname = "g"\nmodules = ["a"]',
        "group",
        "expected a list of tables, got a single table",
        "write [[group]] instead of [group]",
    ),
    "module under its name": (
        '[module.a]\nfunction = "./work.py:master"\n' + GROUP,
        "module",
        "expected a list of tables, got a single table",
        'write [[module]] with name = "a", instead of [module.a]',
    ),
    "module is a number": (
        "module = 3\n" + GROUP,
        "module",
        "expected a list of tables, got 3",
        "write [[module]], and the module's keys below it",
    ),
    "module in a list is a number": (
        'module = [3, { name = "a", function = "./work.py:master" }]\n' + GROUP,
        "module[0]",
        "expected a table, got 3",
        "",
    ),
    "several headers": (
        "[[workflow]]\n" + MODULE + GROUP,
        "workflow",
        "expected one table, got a list of them",
        "write [workflow], once",
    ),
    "header is text": (
        'workflow = "study"\n' + MODULE + GROUP,
        "workflow",
        'expected a table, got the string "study"',
        "",
    ),
    "too small logs": (
        "[workflow]\nlog_size = 1000\n" + MODULE + GROUP,
        "workflow.log_size",
        "a log file needs 64 KiB at least; got 1000",
        "",
    ),
    "too much for a journal": (
        "[workflow]\nreturned_size = '65 MiB'\n" + MODULE + GROUP,
        "workflow.returned_size",
        "what the journal holds is 64 MiB at most; got '65 MiB'",
        "",
    ),
    "less than no files": (
        "[workflow]\nreturned_total = -1\n" + MODULE + GROUP,
        "workflow.returned_total",
        "files cannot take less than nothing; got -1",
        "",
    ),
    "unknown key in the header": (
        "[workflow]\nnmae = 'x'\n" + MODULE + GROUP,
        "workflow.nmae",
        "unknown key nmae",
        'did you mean "name"?',
    ),
    "name with a slash": (
        "[workflow]\nname = '../x'\n" + MODULE + GROUP,
        "workflow.name",
        'expected a name for a folder: a letter or digit, then letters, digits, ".", "_" or "-", '
        '100 at most, got the string "../x"',
        'for example name = "study"',
    ),
    "misspelt key": (
        MODULE + "copeis = 2\n" + GROUP,
        "module[0].copeis",
        "unknown key copeis",
        'did you mean "copies"?',
    ),
    "unknown key": (
        MODULE + "colour = 2\n" + GROUP,
        "module[0].colour",
        "unknown key colour",
        f"known keys: {KEYS}",
    ),
    "misspelt required key": (
        '[[module]]\nnaem = "a"\nfunction = "./work.py:master"\n' + GROUP,
        "module[0].naem",
        "unknown key naem",
        'did you mean "name"?',
    ),
    "misspelt function key": (
        '[[module]]\nname = "a"\nfuncton = "./work.py:master"\n' + GROUP,
        "module[0].functon",
        "unknown key functon",
        'did you mean "function"?',
    ),
    "misspelt key of a group": (
        MODULE + '[[group]]\nname = "g"\nmodule = ["a"]',
        "group[0].module",
        "unknown key module",
        'did you mean "modules"?',
    ),
    "unknown key of a group": (
        MODULE + GROUP + "speed = 3",
        "group[0].speed",
        "unknown key speed",
        f"known keys: {GROUP_KEYS}",
    ),
    "no name": (
        '[[module]]\nfunction = "./work.py:master"\n' + GROUP,
        "module[0].name",
        "is missing",
        'add name = "trainer"',
    ),
    "name with a space": (
        '[[module]]\nname = "a b"\nfunction = "./work.py:master"\n'
        '[[group]]\nname = "g"\nmodules = ["a b"]',
        "module[0].name",
        f'expected {A_NAME}, got the string "a b"',
        'for example name = "trainer"',
    ),
    "name is a number": (
        '[[module]]\nname = 3\nfunction = "./work.py:master"\n' + GROUP,
        "module[0].name",
        f"expected {A_NAME}, got 3",
        'for example name = "trainer"',
    ),
    "copies as text": (
        MODULE + 'copies = "2"\n' + GROUP,
        "module[0].copies",
        f'expected {COPIES}, got the string "2"',
        "for example copies = 2",
    ),
    "copies misspelt": (
        MODULE + 'copies = "Fill"\n' + GROUP,
        "module[0].copies",
        f'expected {COPIES}, got the string "Fill"',
        'for example copies = "fill"',
    ),
    "no copies": (
        MODULE + "copies = 0\n" + GROUP,
        "module[0].copies",
        f"expected {COPIES}, got 0",
        "for example copies = 2",
    ),
    "threads is true": (
        MODULE + "threads = true\n" + GROUP,
        "module[0].threads",
        "expected a whole number of at least 1, got true",
        "for example threads = 2",
    ),
    "processes with a point": (
        MODULE + "processes = 4.0\n" + GROUP,
        "module[0].processes",
        "expected a whole number of at least 1, got 4.0",
        "for example processes = 4",
    ),
    "gpus that are no share": (
        MODULE + "gpus = 0.3\n" + GROUP,
        "module[0].gpus",
        "0.3 is no share of a GPU: write a whole number, or 0.5, 0.25, 0.2 ... for copies that "
        "share one",
        "",
    ),
    "gpus as text": (
        MODULE + 'gpus = "1"\n' + GROUP,
        "module[0].gpus",
        'expected a whole number from 0 to 64, or 0.5, 0.25, 0.2 ... of a GPU, got the string "1"',
        "for example gpus = 1",
    ),
    "gpus is true": (
        MODULE + "gpus = true\n" + GROUP,
        "module[0].gpus",
        "expected a whole number from 0 to 64, or 0.5, 0.25, 0.2 ... of a GPU, got true",
        "for example gpus = 1",
    ),
    "options is a list": (
        MODULE + "options = [1]\n" + GROUP,
        "module[0].options",
        "expected a table, got the list [1]",
        "",
    ),
    "module named twice in a group": (
        MODULE + '[[group]]\nname = "g"\nmodules = ["a", "a"]',
        "group[0].modules",
        '"a" is named more than once',
        "name each once",
    ),
    "empty group": (
        MODULE + GROUP + '[[group]]\nname = "h"\nmodules = []',
        "group[1].modules",
        "expected a non-empty list of strings, got the list []",
        'for example modules = ["master", "trainer"]',
    ),
    "depends as text": (
        MODULE + GROUP + '[[group]]\nname = "h"\nmodules = ["a"]\ndepends = "g"',
        "group[1].depends",
        'expected a list of strings, got the string "g"',
        'for example depends = ["g"]',
    ),
}


@pytest.mark.parametrize(
    ("given", "meant"), [(1, 1), (2.0, 2), (0.5, 1 / 2), (0.33, 1 / 3), (0.167, 1 / 6)]
)
def test_gpus_are_a_whole_number_or_a_share(given: float, meant: float) -> None:
    gpus = Module(name="m", function="a:b", gpus=given).gpus
    assert (gpus, type(gpus)) == (meant, type(meant))


@pytest.mark.parametrize("case", ONE_PROBLEM)
def test_one_wrong_thing_gives_one_problem(folder: Path, case: str) -> None:
    assert_only_problem(folder, *ONE_PROBLEM[case])
