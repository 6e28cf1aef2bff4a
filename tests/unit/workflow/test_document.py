"""Edits of a workflow file: what changes, what stays, what is refused, and the way back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import ROOT

from diel.errors import EditRefused
from diel.workflow.source import headers

pytest.importorskip("tomlkit", reason="tomlkit is not installed: it comes with the extra gui")

from diel.workflow.document import Document

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path("/study.toml")
STUDY = '''\
# What this is.
[workflow]
name = "study"  # its name

# -- the search ---
[[module]]
name = "master"       # gives
function = "modules.master:run"
# Of the options.

[module.options]
trainer = "trainer"
text = """
[[module]]
# no comment"""
[module.options.space]
rate = { from = 0.1, to = 1.0 }  # wide
sizes = [
    16,  # small
    32,
]

# The trainer.
[[module]]
name = "trainer"
function = "modules.trainer:run"
options = { dataset = "digits", evaluation = { folds = 3 } }

# -- groups ---

[[group]]
name = "search"
modules = ["master", "trainer"]
[[group]]
name = "end"
modules = ["trainer"]
depends = ["search"]  # after it

[[boundary]]
name = "wall"
owners = [{ module = "trainer" }]
# The last line.
'''


def study() -> Document:
    return Document(STUDY, FILE)


def comments(text: str) -> list[str]:
    return [line.partition("#")[2] for line in text.splitlines() if "#" in line]


def test_headers_know_where_their_keys_end() -> None:
    lines = STUDY.splitlines()
    found = [(header.place, lines[header.last_line - 1]) for header in headers(STUDY)]
    assert found == [
        ((), "# The last line."),  # nothing stands above all headers: line 0
        (("workflow",), 'name = "study"  # its name'),
        (("module", 0), 'function = "modules.master:run"'),
        (("module", 0, "options"), '# no comment"""'),
        (("module", 0, "options", "space"), "]"),
        (("module", 1), 'options = { dataset = "digits", evaluation = { folds = 3 } }'),
        (("group", 0), 'modules = ["master", "trainer"]'),
        (("group", 1), 'depends = ["search"]  # after it'),
        (("boundary", 0), 'owners = [{ module = "trainer" }]'),
    ]


@pytest.mark.parametrize(
    ("place", "value", "line"),
    [
        (("workflow", "name"), "other", 'name = "other"  # its name'),
        (("workflow", "log_size"), "1 MiB", 'log_size = "1 MiB"'),
        (("tuple_space", "servers"), 2, "servers = 2"),
        (("module", 0, "copies"), "fill", 'copies = "fill"'),
        (("module", 0, "options", "seed"), 3, "seed = 3"),
        (("module", 0, "options", "space", "rate", "to"), 1e-05,
         "rate = { from = 0.1, to = 1e-05 }  # wide"),
        (("module", 0, "options", "space", "sizes", 1), 64, "    64,"),
        (("module", 0, "options", "space", "depth"), [1, 2], "depth = [1, 2]"),
        (("module", 1, "options", "evaluation", "folds"), 5,
         'options = { dataset = "digits", evaluation = { folds = 5 } }'),
        (("boundary", 0, "owners", 0, "module"), "master", 'owners = [{ module = "master" }]'),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_one_key_is_set_and_the_rest_stays(place: Any, value: Any, line: str) -> None:
    document = study()
    document.set(place, value)
    assert line in document.text.splitlines()
    assert document.get(place) == value
    assert comments(document.text) == comments(STUDY)
    gone = set(STUDY.splitlines()) - set(document.text.splitlines())
    assert len(gone) <= 1
    document.undo()
    assert document.text == STUDY
    document.redo()
    document.remove(place)
    assert document.get(place) is None or place[-1] == 1


NETWORK = """\
[[module]]
name = "trainer"
[module.options]
layers = [
    { type = "conv2d", filters = 8 },  # sees
    { type = "flatten" },
    # Decides.
    { type = "fully_connected", units = "$units" },
]
"""


def test_items_of_a_list_are_inserted_and_moved_with_comments_kept() -> None:
    document, layers = Document(NETWORK, FILE), ("module", 0, "options", "layers")
    document.insert((*layers, 1), {"type": "dropout", "rate": 0.5})
    assert [each["type"] for each in document.get(layers)] == [
        *("conv2d", "dropout", "flatten", "fully_connected"),
    ]
    assert comments(document.text) == comments(NETWORK)
    assert len(document.text.splitlines()) == len(NETWORK.splitlines()) + 1
    document.move((*layers, 3), 0)
    assert document.get((*layers, 0)) == {"type": "fully_connected", "units": "$units"}
    document.undo()
    document.undo()
    assert document.text == NETWORK
    document.insert((*layers, 3), {"type": "dropout"})
    assert document.get((*layers, 3, "type")) == "dropout"
    with pytest.raises(EditRefused, match="is no list"):
        document.insert(("module", 0, "name", 0), 1)


def test_renaming_follows_every_name() -> None:
    document = study()
    document.rename_module("trainer", "nets", [("module", 0, "options", "trainer")])
    found = tomllib.loads(document.text)
    assert [entry["name"] for entry in found["module"]] == ["master", "nets"]
    assert found["module"][0]["options"]["trainer"] == "nets"
    assert [group["modules"] for group in found["group"]] == [["master", "nets"], ["nets"]]
    assert found["boundary"][0]["owners"] == [{"module": "nets"}]
    document.rename_group("search", "look")
    assert document.get(("group", 1, "depends")) == ["look"]
    document.undo()
    document.undo()
    assert document.text == STUDY


def test_entries_are_added_and_removed_among_their_kind() -> None:
    document = study()
    document.add_module("plot", {"executable": ["./plot.sh"]}, group="end")
    document.add_group("last", ["plot"])
    names = [line for line in document.text.splitlines() if line.startswith("name")]
    assert [name.split('"')[1] for name in names] == [
        *("study", "master", "trainer", "plot", "search", "end", "last", "wall"),
    ]
    document.remove_module("master")
    document.remove_group("search")
    found = tomllib.loads(document.text)
    assert [group["name"] for group in found["group"]] == ["end", "last"]
    assert "depends" not in found["group"][0]
    assert {"# -- the search ---", "# The trainer.", "# -- groups ---"} < set(
        document.text.splitlines()
    )


def test_a_file_from_nothing() -> None:
    document = Document("", FILE)
    document.add_group("g")
    document.add_module("a", {"function": "./a.py:run"}, group="g")
    document.set(("workflow", "name"), "new")
    document.set(("module", 0, "options", "space", "rate"), {"from": 0.1, "to": 1.0})
    assert (
        document.text
        == (
            '[workflow]\nname = "new"\n\n[[module]]\nname = "a"\nfunction = "./a.py:run"\n\n'
            "[module.options.space]\nrate = { from = 0.1, to = 1.0 }\n\n"
            '[[group]]\nname = "g"\nmodules = ["a"]\n'
        )
        or document.text == ""
    )
    assert [problem.path for problem in document.problems()] == ["module[0].function"]
    assert document.problems()[0].line == 6


def refused(edit: Any, *arguments: Any) -> str:
    document = study()
    document.add_group("outer")
    document.put_inside("end", "outer")
    before = document.text
    with pytest.raises(EditRefused) as caught:
        getattr(document, edit)(*arguments)
    assert document.text == before
    return str(caught.value)


def test_what_no_edit_may_bring_is_refused_in_the_words_of_the_check() -> None:
    assert "groups wait for each other: search -> outer -> search (remove one" in refused(
        "connect", "outer", "search"
    )
    assert refused("connect", "search", "search") == 'group "search" depends on itself (remove it)'
    assert refused("put_inside", "outer", "outer") == 'group "outer" is inside itself (remove it)'
    assert "does not stand beside" in refused("connect", "end", "search")
    assert 'group "search" has modules inside' in refused("put_inside", "end", "search")
    assert (
        refused("rename_module", "trainer", "master")
        == 'module[0] is called "master" too (give each its own name)'
    )
    assert 'group[0] is called "search" too' in refused("add_group", "search")
    assert 'there is no group "nowhere"' in refused("connect", "nowhere", "search")
    assert "cannot be edited by itself" in refused("set", ("module", 0, "name", "x"), 1)
    wrong = Document('[workflow\nname = "a"\n', FILE)
    with pytest.raises(EditRefused, match="line 1: not valid TOML"):
        wrong.set(("workflow", "name"), "b")
    listed = Document('module = [{ name = "a", executable = ["true"] }]\n', FILE)
    with pytest.raises(EditRefused, match=r"write \[\[module\]\] for each"):
        listed.set(("module", 0, "copies"), 2)


def test_groups_that_move_take_their_dependencies_along() -> None:
    document = study()
    document.add_group("after", ["trainer"])
    document.connect("end", "after")
    document.put_in_new_group(["search", "end"], "both")
    found = {group["name"]: group for group in tomllib.loads(document.text)["group"]}
    assert found["both"]["groups"] == ["search", "end"]
    assert found["end"]["depends"] == ["search"]
    assert found["after"]["depends"] == ["both"]
    assert "depends" not in found["both"]
    document.take_out("end")
    found = {group["name"]: group for group in tomllib.loads(document.text)["group"]}
    assert found["end"]["depends"] == ["both"]
    document.remove_group("both")
    assert not any(path.path.startswith("group") for path in document.problems())


def ordered(names: str, *order: str, inside: str = "") -> Document:
    """Groups of a module each; ``"a b"``: a before b; the first one has `inside`."""
    document = Document("", FILE)
    for name in names.split():
        document.add_module(f"m{name}", {"executable": ["true"]})
        document.add_group(name, [] if inside and name == names[0] else [f"m{name}"])
    for child in inside.split():
        document.put_inside(child, names[0])
    for pair in order:
        document.connect(*pair.split())
    return document


def order_of(document: Document) -> dict[str, list[str]]:
    groups = tomllib.loads(document.text)["group"]
    return {group["name"]: group["depends"] for group in groups if "depends" in group}


def test_who_waits_for_whom_stays_when_a_group_between_them_is_removed() -> None:
    line = ordered("a b c", "a b", "b c")
    line.remove_group("b")
    assert order_of(line) == {"c": ["a"]}
    around = ordered("o p t u r", "p o", "o r", "t u", inside="t u")
    assert order_of(around) == {"o": ["p"], "r": ["o"], "u": ["t"]}
    around.remove_group("o")
    assert order_of(around) == {"t": ["p"], "u": ["t"], "r": ["u"]}
    around.undo()
    around.remove_group("t")
    assert order_of(around) == {"o": ["p"], "r": ["o"]}


def test_another_folder_is_looked_into_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def run(ctx): pass\n")
    document = Document("", tmp_path / "a.toml")
    document.add_module("a", {"function": "./a.py:run"})
    document.add_group("g", ["a"])
    assert not document.problems()
    document.file = tmp_path / "sub" / "a.toml"
    assert [problem.path for problem in document.problems()] == ["module[0].function"]


def test_steps_back_are_as_many_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diel.workflow.document._UNDO_STEPS", 3)
    document = Document("# 0", FILE)
    for number in range(1, 6):
        document.replace_text(f"# {number}")
    for keys in ("a", "ab", "abc"):  # one step, at the limit too
        document.replace_text(f"# {keys}", continues=True)
    document.undo()
    assert document.text == "# 4"
    document.redo()
    assert document.text == "# abc"
    monkeypatch.setattr("diel.workflow.document._UNDO_LETTERS", 24)
    for letter in "xyz":
        document.replace_text(letter * 10)
    document.undo()
    document.undo()
    assert document.text == "x" * 10
    assert not document.can_undo


NAMES = st.sampled_from(["master", "trainer", "search", "end", "wall", "a", "b", "ü", "x y"])
VALUES = st.sampled_from([0, 2.5, True, "text \x7f", [1, [2]], {"from": 1, "to": 2}, []])
PLACES = st.tuples(
    st.sampled_from(["workflow", "tuple_space"]), st.sampled_from(["name", "servers", "new"])
) | st.tuples(
    st.sampled_from(["module", "group"]),
    st.integers(0, 2),
    st.sampled_from(["name", "options", "copies", "depends"]),
    *[st.sampled_from(["space", "seed"])],
)
EDITS = st.one_of(
    st.tuples(st.just("set"), PLACES, VALUES),
    st.tuples(st.just("remove"), PLACES),
    st.tuples(
        st.sampled_from(
            ["rename_module", "rename_group", "connect", "put_inside", "add_to_group"]
        ),
        NAMES, NAMES,
    ),
    st.tuples(st.sampled_from(["remove_module", "remove_group", "take_out", "add_group"]), NAMES),
    st.tuples(st.just("add_module"), NAMES, st.just({"executable": ["true"]})),
    st.tuples(st.just("put_in_new_group"), st.lists(NAMES, max_size=2), NAMES),
)  # fmt: skip
FILES = [STUDY, "", *(f.read_text() for f in sorted((ROOT / "workflows").glob("h*.toml")))]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(FILES), st.lists(EDITS, max_size=8))
def test_any_edits_give_a_file_that_parses_and_can_be_taken_back(
    text: str, edits: list[tuple[Any, ...]]
) -> None:
    document = Document(text, FILE)
    steps = [text]
    for name, *arguments in edits:
        try:
            getattr(document, name)(*arguments)
        except EditRefused:
            assert document.text == steps[-1]
        if document.text != steps[-1]:
            steps.append(document.text)
        tomllib.loads(document.text)
        # Comments of lines by themselves never go, except inside of what was removed.
        if not name.startswith(("remove", "set")):
            alone = [line for line in steps[-2:][0].splitlines() if line.startswith("#")]
            assert [line for line in document.text.splitlines() if line.startswith("#")] == alone
    for step in reversed(steps):
        assert document.text == step
        document.undo()
    for step in steps:
        assert document.text == step
        document.redo()
