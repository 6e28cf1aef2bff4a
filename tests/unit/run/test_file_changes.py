"""Which changes of a workflow file would change results of a run that goes on with it."""

from __future__ import annotations

import pytest

from diel.run.file_changes import changes_of_results, differing_keys

FILE = """
[workflow]
name = "study"
[parameters]
dt = { default = 0.1, text = "step" }
[tuple_space]
servers = 1
[[module]]
name = "a"
function = "./m.py:a"
copies = 2
options = { deep = { cells = 8 }, sizes = [1, 2] }
[[module]]
name = "b"
executable = ["echo"]
[[group]]
name = "g"
modules = ["a", "b"]
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[workflow]", "# a comment\n[workflow]\nrestarts = 2\nlog_size = '1 MiB'"),
        ("copies = 2", 'copies = 2\ntime_limit = "2 h"\nretries = 3\non_failure = "continue"'),
        ('text = "step"', 'text = "length of a step"'),
        ("servers = 1", 'servers = 1\nmemory = "1 GiB"\nspill = true'),
        ("{ deep = { cells = 8 }, sizes = [1, 2] }", "{ sizes = [1, 2], deep.cells = 8 }"),
    ],
)
def test_what_may_change(old: str, new: str) -> None:
    assert old in FILE
    assert changes_of_results(FILE, FILE.replace(old, new, 1)) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("copies = 2", "copies = 3", ["module.a.copies is 3, and was 2"]),
        ("copies = 2", "copies = 2.0", ["module.a.copies is 2.0, and was 2"]),
        ("cells = 8", "cells = 9", ["module.a.options.deep.cells is 9, and was 8"]),
        ("[1, 2]", "[1, 2, 3]", ["module.a.options.sizes is [1, 2, 3], and was [1, 2]"]),
        ("servers = 1", "servers = 2", ["tuple_space.servers is 2, and was 1"]),
        ("0.1", "0.2", ["parameters.dt.default is 0.2, and was 0.1"]),
        ('name = "study"', 'name = "other"', ['workflow.name is "other", and was "study"']),
        ("copies = 2", "threads = 2", [
            "module.a.threads is 2, and was not there", "module.a.copies is gone, and was 2",
        ]),
        ('name = "b"', 'name = "c"', [
            'module.c is { name = "c", executable = ["echo"] }, and was not there',
            'module.b is gone, and was { name = "b", executable = ["echo"] }',
        ]),
    ],
)  # fmt: skip
def test_what_may_not_change(old: str, new: str, said: list[str]) -> None:
    assert old in FILE
    assert changes_of_results(FILE, FILE.replace(old, new, 1)) == said


def test_entries_may_stand_in_any_order() -> None:
    first, b, rest = FILE.partition('[[module]]\nname = "b"\nexecutable = ["echo"]\n')
    start, a, entry = first.partition("[[module]]")
    assert changes_of_results(FILE, start + b + a + entry + rest) == []


def test_all_keys_that_differ_are_named_with_both_values() -> None:
    other = FILE.replace("copies = 2", 'time_limit = "2 h"').replace("cells = 8", "cells = 9")
    other = f"# a comment\n{other}".replace("servers = 1\n", "")
    assert [*differing_keys(FILE, other)] == [
        ("tuple_space.servers", 1, None),
        ("module.a.time_limit", None, "2 h"),
        ("module.a.options.deep.cells", 8, 9),
        ("module.a.copies", 2, None),
    ]
    assert [*differing_keys(FILE, FILE)] == []
    with pytest.raises(ValueError, match="Expected"):
        list(differing_keys(FILE, "[no"))
