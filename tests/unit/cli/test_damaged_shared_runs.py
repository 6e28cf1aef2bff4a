"""Damaged files of runs that share a sweep, have joined one, or were restarted.

Each file is damaged in each way, and each command and each reader of a rank answers in words.

Which of hundreds of damages are done to a file is drawn with a fixed seed: one of them, or three in
thorough tests, other ones in a run of each kind.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from support import THOROUGH
from support import record as read_record
from unit.cli.test_damaged_runs import ODD, check_command, make_run, time_limit

from diel.errors import DielError
from diel.executive.plans import RunPlan
from diel.gui.snapshot import snapshot
from diel.loading.state import read_state, write_state
from diel.run.directory import RunDirectory, TupleAccess, write_tuple_access
from diel.run.journal import JournalWriter
from diel.run.watched_run import WatchedRun
from diel.run_tuples import SavedTuples
from diel.testing import TupleSpace
from modules.objective import Objective
from modules.space import Space
from modules.sweep.in_flight import note_interrupted, read_in_flight, read_running_curves
from modules.sweep.joined_workers import JoinedWorkers
from modules.sweep.joining import Identity, is_finished, note_finished
from modules.sweep.ledger import Ledger, about_of, has_begun, records_of
from modules.sweep.messages import SweepOrder
from modules.sweep.shared import LedgerCopy, Participation, Terms
from modules.sweep.steering import RequestReader, ask, requests_for
from modules.sweep.warm_start import EarlierResults

KINDS = ["shared", "joined", "restarted"]
IN_RUN = [
    "journal.jsonl", "workflow.toml", "part.json", "plan.json", "tuples.json", "status.json",
    "stop", "sweeps/takes-part.json", "sweeps/g.master/trials.jsonl", "sweeps/g.trainer.0.curve",
    "sweeps/g.trainer.0.0.under-way", "states/m.0.0.g.0_1.zip", "checkpoints/000001.tuples",
    "results-2.csv", "trace/rank-2.jsonl", "logs/rank-2.crash", "logs/launcher.log", "report.html",
]  # fmt: skip
IN_SHARE = [
    "trials.jsonl", "terms/000001", "terms/000001.ended", "workers/w/said.jsonl", "finished",
    "workers/w/orders-000001.jsonl", "requests.jsonl", "interrupted.txt", "warm-start.jsonl",
]  # fmt: skip
SPACE = {"x": {"from": 0, "to": 100, "step": 1}}
ABOUT = {"objective": ["score"], "maximise": True, "table": "results-2.csv", "trainer": "trainer",
         "space": SPACE}  # fmt: skip


@pytest.fixture(scope="session")
def good_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a run of each kind, and with the folder that they share."""
    folder = tmp_path_factory.mktemp("runs")
    run = make_run(folder)
    shared = folder / "shared" / "sweeps" / "g.master"
    own = run.path / "sweeps" / "g.master"
    own.joinpath("trials.jsonl").unlink()
    with contextlib.closing(Ledger(own / "trials.jsonl", ABOUT)) as ledger:
        for trial in range(9):
            row = {"trial": trial, "state": "finished", "parameters": {"x": trial}, "seed": 1}
            ledger.write([{**row, "metrics": {"score": 0.5}, "started_s": 1.0, "seconds": 2.0}])
        request = {"version": 1, "id": "a", "kind": "enqueue", "parameters": {"x": 5}}
        ledger.write([{"request": request, "accepted": True, "answer": "it is 9", "trial": 9}])
    shutil.copytree(own, shared)
    ask(shared / "trials.jsonl", requests_for(shared / "trials.jsonl", [{"kind": "pause"}]))
    note_finished(shared / "trials.jsonl")
    me = Identity("w", "host", 1, "", str(run.path), 1.0)
    Terms(shared / "trials.jsonl", me).take(1)
    Terms(shared / "trials.jsonl", me).end(1, "stopped")
    said = {"format": 1, "worker": "w", **asdict(me), "trainers": 1, "silence_s": 30.0}
    done = {
        "lease": 1,
        "metrics": [{"score": 1.0}],
        "started_s": [1.0],
        "seconds": [1.0],
        "done": 1,
    }
    write_lines(shared / "workers" / "w" / "said.jsonl", said, {"outcome": done, "term": 1})
    order = {"format": 1, "term": 1, "seed": 5, "wants_reports": False, "quarantined": [],
             "not_to_try": []}  # fmt: skip
    write_lines(shared / "workers" / "w" / "orders-000001.jsonl", order, {"end": True})
    note_interrupted(shared, [3])
    shutil.copy(shared / "trials.jsonl", shared / "warm-start.jsonl")
    run.limit_to("g", ["master", "trainer"])
    run.plan.write_text(json.dumps({"file": str(run.workflow), "source": "", "ranks": 4}))
    write_tuple_access(run, TupleAccess("nowhere", "/tmp/no-such-socket", "token"))
    curve = {"trial": 3, "curve": [[1, {"score": 0.5}]]}
    write_lines(run.path / "sweeps" / "g.trainer.0.curve", curve)
    run.states.mkdir()
    with (run.states / "m.0.0.g.0_1.zip").open("wb") as file:
        write_state(file, {"a": 1.5})
    with TupleSpace() as space:
        space.client().tput("a", 1)
        space.client().checkpoint(run.checkpoint_file(1))
    (run.logs / "rank-2.crash").write_text("Fatal Python error: Segmentation fault\n")
    for kind in KINDS:
        path = folder / "runs" / kind
        shutil.copytree(run.path, path, symlinks=True)
        if kind == "restarted":
            with JournalWriter(path / "journal.jsonl") as journal:
                lost = {"explanation": "rank 2 died", "ranks": [2], "restart": 1}
                journal.write(read_record("RunLost", **lost))
                journal.write(read_record("RunResumed", checkpoint=1, file="000001.tuples",
                              finished={}, restart=1))  # fmt: skip
            (path / "part.json").unlink()
    shutil.rmtree(run.path)
    return folder


def write_lines(path: Path, *lines: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


# -- damages --------------------------------------------------------------------------------------

Damage = Callable[[Path], object]
TEXTS = [
    b"", b"[]", b"{}", b"null", b"5", b'"text"', b"[" * 100_000, b"[" * 200 + b"]" * 200,
    b"\n" * 50, bytes(range(256)) * 8, b'{"a": NaN}', b"1" + b"0" * 400, b'{"silence_s": 1e999}',
    b"[[[]]]\n{}\n",
]  # fmt: skip


def replace_with(make: Damage) -> Damage:
    def damage(path: Path) -> None:
        path.unlink(missing_ok=True)
        make(path)

    return damage


def changed(path: Path) -> Iterator[bytes]:
    """Yield the content of a file of JSON with one value changed after the other."""
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:3]):
        try:
            table = json.loads(line)
        except ValueError:
            continue
        for key in table if isinstance(table, dict) else ():
            for odd in [*ODD, float("inf"), {**table}]:
                text = json.dumps({**table, key: odd}).encode()
                yield b"\n".join([*lines[:number], text, *lines[number + 1 :]])


def damages_to(path: Path) -> list[Damage]:
    data = path.read_bytes()
    texts = [*TEXTS, data[: len(data) // 2], data[1:], data + b"\xff\xfe", *changed(path)]
    first, _, rest = data.partition(b"\n")
    texts += [text + b"\n" + rest for text in TEXTS] + [first + b"\n" + text for text in TEXTS]
    found: list[Damage] = [
        replace_with(Path.mkdir),
        replace_with(lambda path: path.symlink_to(path)),
        replace_with(lambda path: path.symlink_to("/dev/zero")),
        replace_with(os.mkfifo),
        replace_with(lambda path: None),
        lambda path: path.chmod(0),
    ]
    return [*found, *(lambda path, text=text: path.write_bytes(text) for text in texts)]


# -- readers --------------------------------------------------------------------------------------


def commands(path: Path, other: Path) -> list[list[str]]:
    run = str(path)
    return [
        ["runs", str(path.parent)],
        ["watch", "--once", run],
        ["explain", run],
        ["trace", run],
        ["report", run],
        ["sweep", run, "--top", "5", "--export", "csv", "json"],
        ["sweep", run, "--no-wait", "--enqueue", '{"x": 7}'],
        ["sweep", run, "--repeat", "g.master:" + "9" * 5000],
        ["compare", run, str(other), "--report", str(path.parent / "comparison.html")],
        ["workers", run],
        ["tuple", "--run", run, "read", "a", "--nowait"],
        ["join", run, "--allow-run-as-root"],
        ["run", "--resume", run, "--allow-run-as-root"],
    ]


def check_ranks(path: Path, shared: Path) -> None:
    """What ranks of a run read of its files, and of those that they share with other runs."""
    directory, ledger = RunDirectory(path), shared / "trials.jsonl"
    me, space = Identity("me", "host", 2, "", str(path), 2.0), Space.parse(SPACE)
    terms = Terms(ledger, me)

    def workers() -> None:
        order = SweepOrder("here", seed=5, strategy=None)
        with contextlib.closing(JoinedWorkers(ledger, lambda: order, 1, term=1)) as workers:
            workers.look()

    def copy() -> None:
        with contextlib.closing(
            LedgerCopy(ledger, path / "sweeps" / "g.master" / "own.jsonl")
        ) as own:
            own.refresh()

    def watch() -> None:
        watched = WatchedRun(directory)
        watched.look()
        snapshot(watched)

    readers: list[Callable[[], object]] = [
        directory.limits,
        lambda: Participation.of_run(path),
        terms.latest,
        lambda: terms.leader(1),
        lambda: terms.is_of_this_run(1),
        workers,
        copy,
        watch,
        lambda: [has_begun(ledger), about_of(ledger), list(records_of(ledger))],
        lambda: is_finished(ledger),
        lambda: RequestReader(ledger).new_requests(),
        lambda: EarlierResults("", path, ledger, space, [Objective.parse("score", maximise=True)]),
        lambda: note_interrupted(shared, [1]),
        lambda: read_in_flight(path),
        lambda: read_running_curves(path, "g", "trainer"),
        lambda: read_state(directory.states / "m.0.0.g.0_1.zip"),
        lambda: SavedTuples(directory.checkpoint_file(1)),
        lambda: RunPlan.take(directory.plan, str(directory.workflow), 4),
        lambda: terms.take(7),
        lambda: terms.end(7, "finished"),
    ]
    for reader in readers:
        with time_limit(20, "a reader"), contextlib.suppress(DielError, OSError):
            reader()


@pytest.mark.sample(15)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*IN_RUN, *(f"share: {name}" for name in IN_SHARE)])
def test_each_command_answers_in_words(
    kind: str,
    name: str,
    good_runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("diel.cli.run._LaunchedRun.run_to_its_end", lambda *_, **__: 0)
    place = Path(name.removeprefix("share: "))
    is_shared = name.startswith("share: ")
    good = good_runs / "runs" / kind / place
    if is_shared:
        good = good_runs / "shared" / "sweeps" / "g.master" / place
    if not good.exists() or (is_shared and kind == "restarted"):  # it shares nothing
        return
    damages = damages_to(good)
    draw = random.Random(f"{kind} {name}")
    for number in draw.sample(range(len(damages)), min(len(damages), 3 if THOROUGH else 1)):
        folder = tmp_path / str(number)
        path, shared = folder / "runs" / kind, folder / "shared"
        shutil.copytree(good_runs / "shared", shared)
        shutil.copytree(good_runs / "runs" / kind, path)
        shutil.copytree(good_runs / "runs" / kind, folder / "runs" / "good")
        sweep = shared / "sweeps" / "g.master"
        if kind != "restarted":
            part = (
                Participation(share=str(shared))
                if kind == "shared"
                else Participation(join=str(sweep / "trials.jsonl"))
            )
            part.save(path)
        damages[number](sweep / place if is_shared else path / place)
        capsys.readouterr()
        print(f"damage {number}")  # shown if it fails
        for line in commands(path, folder / "runs" / "good"):
            print(line[0])
            check_command(line, capsys)
        check_ranks(path, sweep)
        for pathname in (path, shared):
            os.chmod(pathname, 0o700)
        shutil.rmtree(folder)
