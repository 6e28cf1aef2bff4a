"""Modules that speak directly, in runs: what openDIEL has of it, and what goes wrong.

Receivers that wait for each other are among those of `test_deadlocks.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import diel, records_of, status_of, workflow

from diel.loading.environment import THREAD_VARIABLES

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
    to = ctx.options["to"]
    time.sleep(ctx.options.get("seconds", 0))
    ctx.send("small", to=to, tag="unread")
    ctx.send("small too", to=to, tag="unread")
    ctx.send(np.ones(500_000), to=to)
    ctx.move(b"moved", to=to, tag=("to", 1))

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

def exchanges_late(ctx):
    ctx.send(0, to="early")
    time.sleep(4)
    ctx.send(1, to="early")

def early(ctx):
    ctx.recv("late")
    return ctx.recv("late")
"""

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


def module(name: str, function: str = "", file: str = "m", **keys: object) -> str:
    lines = [f'[[module]]\nname = "{name}"\nfunction = "./{file}.py:{function or name}"']
    return "\n".join([*lines, *(f"{key} = {value}" for key, value in keys.items())]) + "\n"


def group(name: str, *entries: str, more: str = "") -> str:
    names = ", ".join(f'"{text.split(chr(34))[1]}"' for text in entries)
    return "".join(entries) + f'[[group]]\nname = "{name}"\nmodules = [{names}]\n{more}\n'


def boundary(name: str, *keys: str) -> str:
    lines = [
        "[[boundary]]", f'name = "{name}"', "shape = [512]", *keys,
        'owners = [{ module = "ahead" }]', 'readers = [{ module = "behind" }]', "",
    ]  # fmt: skip
    return "\n".join(lines)


@pytest.fixture(scope="module")
def ended_well(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of one run of groups one after the other, all of which end well."""
    folder = tmp_path_factory.mktemp("coupling")
    program = '[[module]]\nname = "prog"\nexecutable = ["true"]\n'
    groups = {
        "walls": [module("near", processes=2), module("far", processes=2)],
        "unread": [
            module("sends_and_leaves", options='{ to = "forgetful" }'),
            module("forgetful", options="{ seconds = 0.5 }"),
        ],
        "deaf": [module("hears_nothing", copies=4)],  # on every rank that there is
        "ended": [
            module("sends_late", "sends_and_leaves", options='{ to = "left", seconds = 1 }'),
            module("left", "forgetful"),
        ],
        "addresses": [
            module("addresses"),
            module("stranger", "forgetful", processes=2),
            program,
        ],
        "elsewhere": [module("elsewhere", "forgetful")],
        "ahead": [module("ahead", file="ahead"), module("behind", file="ahead")],
        "last": [module("late", "exchanges_late"), module("early")],  # so that all wait
    }
    toml = WALL + boundary("unbounded") + boundary("paced", "ahead = 1")
    toml += boundary("latest", "ahead = 2", 'policy = "drop oldest"')
    for (name, entries), before in zip(groups.items(), ["", *groups], strict=False):
        toml += group(name, *entries, more=f'depends = ["{before}"]' if before else "")
    finished = diel("run", workflow(folder, toml, m=MODULES, ahead=AHEAD), cwd=folder)
    assert finished.status == 0, finished.output
    return folder


def warnings(folder: Path, *modules: str) -> list[str]:
    return [
        f"{record['module']}: {record['text']}"
        for record in records_of(folder, "MessageLogged")
        if record["module"] in modules or not modules
    ]


def returned(folder: Path, module: str) -> list[object]:
    return [record["returned"] for record in records_of(folder, "CopyFinished", module=module)]


def test_openDIELs_direct_communication_over_shared_boundary_conditions(ended_well: Path) -> None:
    """`IEL_send` (non-blocking), `IEL_recv` and `IEL_move` (blocking), and a declared array."""
    assert returned(ended_well, "near") == returned(ended_well, "far") == [None]
    assert warnings(ended_well, "near", "far") == []


def test_messages_that_nobody_receives_are_warnings_and_reach_no_later_copy(
    ended_well: Path,
) -> None:
    sender = "from sends_and_leaves.0 rank 0 to rank 0"
    assert sorted(warnings(ended_well, "forgetful", "sends_and_leaves")) == [
        f"forgetful: 2 messages {sender} (tag 'unread') were never received",
        f"forgetful: a message {sender} (no tag) was never received",
        f"forgetful: a message {sender} (tag ('to', 1)) was never received",
    ]
    nothing = "recv(from anybody): nothing happened within 1 s"
    assert returned(ended_well, "hears_nothing") == [nothing] * 4


def test_messages_to_a_copy_that_has_ended_hold_nobody_up(ended_well: Path) -> None:
    found = warnings(ended_well, "left", "sends_late")
    assert all(one.startswith("left: ") and "never received" in one for one in found)
    assert any("(no tag)" in one for one in found)


def test_a_wrong_address_is_told_who_is_there(ended_well: Path) -> None:
    (log,) = ended_well.glob("runs/*/logs/addresses.0.0.log")
    there = "addresses (1 copy of 1 rank), stranger (1 copy of 2 ranks)"
    assert log.read_text().splitlines() == [
        "prog is an executable, which receives no messages: use files, or the tuple space",
        f'there is no module "strnger" in group "addresses", which has {there}; '
        'did you mean "stranger"?',
        "there is no copy 1 of stranger: it has 1 copy, from 0",
        "there is no rank 2 of stranger.0: it has 2 ranks, from 0",
        f'there is no module "elsewhere" in group "addresses", which has {there}',
        '7 is no address: write "module", ("module", copy) or ("module", copy, rank)',
        'the workflow file has no [[boundary]] "wal"; it has wall, unbounded, paced, latest',
    ]


def test_a_sender_that_is_far_ahead_keeps_what_it_has_sent_and_no_more(ended_well: Path) -> None:
    (grown_mib,) = returned(ended_well, "ahead")
    # 640 pushes of 4 KiB. If MPI had all of them it would take half a GiB.
    assert isinstance(grown_mib, float)
    assert grown_mib < 64


def test_a_sender_that_computes_is_no_deadlock(ended_well: Path) -> None:
    assert returned(ended_well, "early") == [1]
    assert warnings(ended_well, "late", "early") == []


def test_a_wait_ends_when_the_other_module_fails(tmp_path: Path) -> None:
    toml = group("g", module("waits_for_failing"), module("failing"))
    finished = diel("run", workflow(tmp_path, toml, m=MODULES), cwd=tmp_path)
    assert finished.status == 1
    assert "module 'failing' failed: ValueError: the flow diverged" in finished.stderr
    assert "waits_for_failing" not in finished.stderr
    assert len(list(tmp_path.glob("runs/*/stopped"))) == 1
    assert warnings(tmp_path) == []


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_a_boundary_refuses(
    ranks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found before anything runs: all of it at once."""
    for variable in THREAD_VARIABLES:  # the command sets them: give them back afterwards
        monkeypatch.setenv(variable, "1")
    toml = group("g", module("near", processes=ranks), module("far")) + WALL.replace(
        "shape = [10000, 2]", "shape = [9000, 2]"
    )
    assert status_of("check", workflow(tmp_path, toml, m=MODULES)) == 2
    assert capsys.readouterr().err.count("goes beyond axis 0, whose length is 9000") == 4
