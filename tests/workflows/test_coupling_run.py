"""Modules that speak directly, in runs: what openDIEL has of it, and what goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import diel, journal, records_of, workflow

MODULES = """\
import time
import numpy as np
from diel.errors import AddressError, BoundaryError, CouplingTimeout, PayloadError, RunStopped
from diel.iel import IEL_move, IEL_recv, IEL_send

def near(ctx):
    r = ctx.comm.rank
    field = np.full(100_000, r + 1.0)
    IEL_send(field, to=("far", 0, r))
    field[:] = -1  # it was copied
    IEL_send({"small": r}, ("far", 0, r), "parameters")
    IEL_move(np.arange(6).reshape(2, 3), ("far", 0, r))
    assert IEL_recv(("far", 0, r)) == "thanks"
    wall = ctx.boundary("wall")
    for step in range(3):
        wall.owned[0][...] = 10 * step + r
        IEL_send(wall)
        IEL_recv(wall)
        assert (wall.read[0] == -step).all()
    wall.owned[0][...] = 99
    IEL_move(wall)

def far(ctx):
    r = ctx.comm.rank
    out = np.empty(100_000)
    assert IEL_recv(("near", 0, r), out=out) is out
    assert (out == r + 1).all()
    assert IEL_recv(tag="parameters") == {"small": r}
    assert IEL_recv(("near", 0, r)).tolist() == [[0, 1, 2], [3, 4, 5]]
    IEL_send("thanks", ("near", 0, r))
    wall = ctx.boundary("wall")
    for step in range(3):
        wall.owned[0][...] = -step
        IEL_send(wall)
        array = IEL_recv(wall)
        assert (array[:5000, 0] == 10 * step).all()
        assert (array[5000:, 0] == 10 * step + 1).all()
    assert (IEL_recv(wall)[:, 0] == 99).all()

def sends_and_leaves(ctx):
    ctx.send("small", to="forgetful", tag="unread")
    ctx.send("small too", to="forgetful", tag="unread")
    ctx.send(np.ones(500_000), to="forgetful")
    ctx.move(b"moved", to="forgetful", tag=("to", 1))

def forgetful(ctx):
    time.sleep(ctx.options.get("seconds", 0))

def hears_nothing(ctx):
    try:
        return ctx.recv(timeout=1)
    except CouplingTimeout as error:
        return str(error)

def waits_for_failing(ctx):
    try:
        ctx.recv("failing")
    except RunStopped:
        (ctx.run_dir / "stopped").write_text("")
        raise

def failing(ctx):
    ctx.send(np.ones(500_000), to="waits_for_failing", tag="a consequence of the stop")
    time.sleep(0.3)
    raise ValueError("the flow diverged")

def addresses(ctx):
    for to in ("prog", "strnger", ("stranger", 1), ("stranger", 0, 2), ("elsewhere",), 7):
        try:
            ctx.send(1, to)
        except AddressError as error:
            print(error)
    try:
        ctx.boundary("wal")
    except BoundaryError as error:
        print(error)

def in_a_ring(ctx):
    names = ["one", "two", "three"]
    after = names[(names.index(ctx.module) + 1) % 3]
    ctx.send("here", to=after)
    ctx.recv(after, tag="never")

def moves_first(ctx):
    ctx.move(1, to="waits")

def waits(ctx):
    ctx.tuples.tget("a tuple that never comes")

def exchanges_late(ctx):
    ctx.send(0, to="early")
    time.sleep(4)
    ctx.send(1, to="early")

def early(ctx):
    ctx.recv("late")
    return ctx.recv("late")
"""

WALL = """
[[boundary]]
name = "wall"
dtype = "float32"
shape = [10000, 2]
owners = [{ module = "near", split = 0, section = [[0, 10000], [0, 1]] },
          { module = "far", split = 0, section = [[0, 10000], [1, 2]] }]
readers = [{ module = "far", section = [[0, 10000], [0, 1]] },
           { module = "near", split = 0, section = [[0, 10000], [1, 2]] }]
"""


def module(name: str, function: str = "", **keys: object) -> str:
    lines = [f'[[module]]\nname = "{name}"\nfunction = "./m.py:{function or name}"']
    return "\n".join([*lines, *(f"{key} = {value}" for key, value in keys.items())]) + "\n"


def group(name: str, *entries: str, more: str = "") -> str:
    names = ", ".join(f'"{text.split(chr(34))[1]}"' for text in entries)
    return "".join(entries) + f'[[group]]\nname = "{name}"\nmodules = [{names}]\n{more}\n'


def warnings(folder: Path) -> list[str]:
    return [
        f"{record['module']}: {record['text']}" for record in records_of(folder, "MessageLogged")
    ]


@pytest.mark.thorough
def test_openDIELs_direct_communication_over_shared_boundary_conditions(tmp_path: Path) -> None:
    """`IEL_send` (non-blocking), `IEL_recv` and `IEL_move` (blocking), and a declared array."""
    toml = group("g", module("near", processes=2), module("far", processes=2)) + WALL
    finished = diel("run", workflow(tmp_path, toml, m=MODULES), cwd=tmp_path)
    assert finished.status == 0, finished.output
    assert warnings(tmp_path) == []


def test_messages_that_nobody_receives_are_warnings_and_reach_no_later_copy(
    tmp_path: Path,
) -> None:
    seconds = module("forgetful", options="{ seconds = 0.5 }")
    toml = group("g", module("sends_and_leaves"), seconds)
    # On the same two ranks, the other way round.
    toml += group("h", module("hears_nothing", copies=2), more='depends = ["g"]')
    finished = diel("run", workflow(tmp_path, toml, m=MODULES), cwd=tmp_path)
    assert finished.status == 0, finished.output
    sender = "from sends_and_leaves.0 rank 0 to rank 0"
    assert sorted(warnings(tmp_path)) == [
        f"forgetful: 2 messages {sender} (tag 'unread') were never received",
        f"forgetful: a message {sender} (no tag) was never received",
        f"forgetful: a message {sender} (tag ('to', 1)) was never received",
    ]
    returned = [r["returned"] for r in journal(tmp_path) if r.get("module") == "hears_nothing"]
    assert returned == ["recv(from anybody): nothing happened within 1 s"] * 2


@pytest.mark.thorough
def test_messages_to_a_copy_that_has_ended_hold_nobody_up(tmp_path: Path) -> None:
    late = module("sends_and_leaves")
    toml = group("g", module("forgetful"), late)
    text = MODULES.replace(
        "def sends_and_leaves(ctx):", "def sends_and_leaves(ctx):\n    time.sleep(1)"
    )
    finished = diel("run", workflow(tmp_path, toml, m=text), cwd=tmp_path)
    assert finished.status == 0, finished.output
    found = warnings(tmp_path)
    assert all(one.startswith("forgetful: ") and "never received" in one for one in found)
    assert any("(no tag)" in one for one in found)


def test_a_wait_ends_when_the_other_module_fails(tmp_path: Path) -> None:
    toml = group("g", module("waits_for_failing"), module("failing"))
    finished = diel("run", workflow(tmp_path, toml, m=MODULES), cwd=tmp_path)
    assert finished.status == 1
    assert "module 'failing' failed: ValueError: the flow diverged" in finished.stderr
    assert "waits_for_failing" not in finished.stderr
    assert len(list(tmp_path.glob("runs/*/stopped"))) == 1
    assert warnings(tmp_path) == []


def test_a_wrong_address_is_told_who_is_there(tmp_path: Path) -> None:
    program = '[[module]]\nname = "prog"\nexecutable = ["true"]\n'
    toml = group("g", module("addresses"), module("stranger", "forgetful", processes=2), program)
    toml += group("other", module("elsewhere", "forgetful"))
    finished = diel("run", workflow(tmp_path, toml, m=MODULES), cwd=tmp_path)
    assert finished.status == 0, finished.output
    (log,) = tmp_path.glob("runs/*/logs/addresses.0.0.log")
    there = "addresses (1 copy of 1 rank), stranger (1 copy of 2 ranks)"
    assert log.read_text().splitlines() == [
        "prog is an executable, which receives no messages: use files, or the tuple space",
        f'there is no module "strnger" in group "g", which has {there}; did you mean "stranger"?',
        "there is no copy 1 of stranger: it has 1 copy, from 0",
        "there is no rank 2 of stranger.0: it has 2 ranks, from 0",
        f'there is no module "elsewhere" in group "g", which has {there}',
        '7 is no address: write "module", ("module", copy) or ("module", copy, rank)',
        'the workflow file has no [[boundary]] "wal"; it has none',
    ]


def test_a_ring_of_receivers_is_a_deadlock(tmp_path: Path) -> None:
    toml = group("g", *(module(name, "in_a_ring") for name in ("one", "two", "three")))
    finished = diel("run", workflow(tmp_path, toml, m=MODULES), cwd=tmp_path)
    assert finished.status == 1, finished.output
    assert "deadlock" in finished.stderr
    for name, after in (("one", "two"), ("two", "three"), ("three", "one")):
        assert f"{name}.0 has waited" in finished.stderr
        assert f"in recv(from {after}.0 rank 0, tag='never')" in finished.stderr


@pytest.mark.thorough
def test_a_move_to_a_rank_that_waits_for_something_else_is_a_deadlock(tmp_path: Path) -> None:
    toml = group("g", module("moves_first"), module("waits"))
    finished = diel("run", workflow(tmp_path, toml, m=MODULES), cwd=tmp_path)
    assert finished.status == 1, finished.output
    assert "in receipt(by waits.0 rank 0)" in finished.stderr
    assert "tget('a tuple that never comes')" in finished.stderr


@pytest.mark.thorough
def test_a_sender_that_computes_is_no_deadlock(tmp_path: Path) -> None:
    toml = group("g", module("late", "exchanges_late"), module("early"))
    finished = diel("run", workflow(tmp_path, toml, m=MODULES), cwd=tmp_path)
    assert finished.status == 0, finished.output


@pytest.mark.sample
@pytest.mark.parametrize("ranks", [2, 3])
def test_what_a_boundary_refuses(ranks: int, tmp_path: Path) -> None:
    """Found before anything runs: all of it at once."""
    toml = group("g", module("near", processes=ranks), module("far")) + WALL.replace(
        "shape = [10000, 2]", "shape = [9000, 2]"
    )
    finished = diel("check", workflow(tmp_path, toml, m=MODULES), cwd=tmp_path)
    assert finished.status == 2
    assert finished.stderr.count("goes beyond axis 0, whose length is 9000") == 4


AHEAD = """\
import re
import numpy as np

def anonymous_mib():
    status = open("/proc/self/status").read()
    return int(re.search(r"RssAnon:\\s+(\\d+) kB", status)[1]) / 1024

def ahead(ctx):
    unbounded, latest, paced = map(ctx.boundary, ("unbounded", "latest", "paced"))
    before_mib = anonymous_mib()
    for step in range(640):
        unbounded.push(np.full(512, float(step)))
        latest.push(np.full(512, float(step)))
    ctx.tuples.tput("pushed", None)
    for step in range(4):
        paced.push(np.full(512, float(step)))  # waits for the reader, which waits for messages
        ctx.send(step, to="behind", ahead=1, policy="drop oldest")
    return anonymous_mib() - before_mib

def behind(ctx):
    unbounded, latest, paced = map(ctx.boundary, ("unbounded", "latest", "paced"))
    ctx.tuples.tget("pushed")
    for step in range(640):
        unbounded.pull()
        assert (unbounded.array == step).all()
    for step in (638, 639):
        latest.pull()
        assert (latest.array == step).all()
        assert latest.step == step
    for step in range(4):
        paced.pull()
        assert (paced.array == step).all()
    while ctx.recv("ahead") < 3:
        pass
"""


def boundary(name: str, *keys: str) -> str:
    lines = [
        "[[boundary]]", f'name = "{name}"', "shape = [512]", *keys,
        'owners = [{ module = "ahead" }]', 'readers = [{ module = "behind" }]', "",
    ]  # fmt: skip
    return "\n".join(lines)


@pytest.mark.thorough
def test_a_sender_that_is_far_ahead_keeps_what_it_has_sent_and_no_more(tmp_path: Path) -> None:
    text = "".join(
        f'[[module]]\nname = "{name}"\nfunction = "./m.py:{name}"\n' for name in ("ahead", "behind")
    )
    text += boundary("unbounded") + boundary("paced", "ahead = 1")
    text += boundary("latest", "ahead = 2", 'policy = "drop oldest"')
    workflow(tmp_path, f'{text}[[group]]\nname = "g"\nmodules = ["ahead", "behind"]\n', m=AHEAD)
    finished = diel("run", "w.toml", cwd=tmp_path)
    assert finished.status == 0, finished.output
    (grown_mib,) = (
        record["returned"] for record in records_of(tmp_path, "CopyFinished", module="ahead")
    )
    # 640 pushes of 4 KiB. If MPI had all of them it would take half a GiB.
    assert grown_mib < 64
