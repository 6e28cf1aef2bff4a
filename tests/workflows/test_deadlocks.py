"""Every kind of wait that nobody can end: one run whose modules all wait, which names each of them.

Its groups run side by side, so that each kind is explained beside the others, and the tuple space
has several servers, of which each may have what is waited for.
"""

from __future__ import annotations

import re

import pytest
from support import diel, records_of, workflow

MODULES = """\
def puts_a_wrong_tag(ctx):
    ctx.tuples.tput(("trail", 3), 1)
    ctx.tuples.tget(("trial", 3))

def reads(ctx):
    ctx.tuples.tread("never")

def waits_on_one_rank(ctx):
    if ctx.comm.rank == 0:
        ctx.tuples.tget("x")

def ends(ctx):
    pass

def in_a_ring(ctx):
    names = ["one", "two", "three"]
    after = names[(names.index(ctx.module) + 1) % 3]
    ctx.send("here", to=after)
    ctx.recv(after, tag="never")

def moves_first(ctx):
    ctx.move(1, to="waits")

def asks_for_a_time(ctx):
    both = ctx.boundary("both")
    both.push(time=0.0)
    both.pull_at(0.5)

def waits(ctx):
    ctx.tuples.tget("a tuple that never comes")

def only_the_first_shares(ctx):
    if ctx.copy_index == 0:
        ctx.module_comm

def first_only(ctx):
    if ctx.iteration[-1] > 0:
        ctx.tuples.tget("from the next group")
"""
MODULE_KEYS = {
    "typo": ("puts_a_wrong_tag", ""),
    "reader": ("reads", "copies = 2"),
    "pair": ("waits_on_one_rank", "processes = 2"),
    "done": ("ends", ""),
    **dict.fromkeys(("one", "two", "three"), ("in_a_ring", "")),
    "mover": ("moves_first", ""),
    "waits": ("waits", ""),
    **dict.fromkeys(("left", "right"), ("asks_for_a_time", "")),
    "shares": ("only_the_first_shares", "copies = 2"),
    "loop": ("first_only", ""),
    "other": ("ends", ""),
}
GROUPS = """
[[boundary]]
name = "both"
shape = [2]
owners = [{ module = "left", section = [[0, 1]] }, { module = "right", section = [[1, 2]] }]
readers = [{ module = "right", section = [[0, 1]] }, { module = "left", section = [[1, 2]] }]
[[group]]
name = "times"
modules = ["left", "right"]
[[group]]
name = "tuples"
modules = ["typo", "reader", "pair", "done"]
[[group]]
name = "later"
modules = ["done"]
depends = ["tuples"]
[[group]]
name = "ring"
modules = ["one", "two", "three"]
[[group]]
name = "moving"
modules = ["mover", "waits"]
[[group]]
name = "sharing"
modules = ["shares"]
[[group]]
name = "looping"
modules = ["loop"]
until = "done"
[[group]]
name = "next"
modules = ["other"]
depends = ["looping"]
"""
# What is said of each.
WORDS = {
    "a tag that nearly matches": (
        "typo.0 has waited",
        "tget(('trial', 3))",
        "nearly match: ('trail', 3) x 1",
    ),
    "several copies": ("reader.0 has waited", "reader.1 has waited", "tread('never')"),
    "one of several ranks": ("pair.0 has waited", "tget('x')"),
    "a ring of receivers": tuple(f"{name}.0 has waited" for name in ("one", "two", "three"))
    + tuple(f"in recv(from {after}.0 rank 0, tag='never')" for after in ("one", "two", "three")),
    "a move to a rank that waits": (
        "in receipt(by waits.0 rank 0)",
        "tget('a tuple that never comes')",
    ),
    "a time that nobody pushes": tuple(
        f'in pull_at(time 0.5 of {owner}.0 rank 0 of boundary "both", which has pushed until 0.0)'
        for owner in ("left", "right")
    ),
    "a communicator that not all ask for": (
        "shares.0 has waited",
        "in ctx.module_comm for the module's other ranks",
    ),
    "a later iteration": ("loop.0 has waited", "tget('from the next group')"),
    "what is to come": ("cannot: group later, looping (further iterations), next\n",),
}


@pytest.fixture(scope="module")
def explanation(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what the run prints, which none of its modules has made fail."""
    folder = tmp_path_factory.mktemp("deadlocks")
    toml = "[tuple_space]\nservers = 3\n" + "".join(
        f'[[module]]\nname = "{name}"\nfunction = "./m.py:{function}"\n{keys}\n'
        for name, (function, keys) in MODULE_KEYS.items()
    )
    finished = diel("run", workflow(folder, toml + GROUPS, m=MODULES), cwd=folder)
    assert finished.status == 1, finished.output
    assert "deadlock" in finished.stderr
    assert records_of(folder, "ModuleFailed") == []
    return finished.stderr


@pytest.mark.parametrize("kind", WORDS)
def test_it_is_explained(explanation: str, kind: str) -> None:
    for words in WORDS[kind]:
        assert words in explanation


def test_who_has_ended_could_have_put_it(explanation: str) -> None:
    """Not loop.0, which has ended once and waits in its next iteration."""
    (names,) = re.findall(r"^  ended, and could have put it: (.*)$", explanation, re.MULTILINE)
    assert sorted(names.split(", ")) == ["done.0", "shares.1"]
