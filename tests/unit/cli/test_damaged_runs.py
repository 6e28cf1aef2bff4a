"""Run directories that are damaged in every way we can think of, and each command that reads them.

A good run directory is damaged by a generator with a fixed seed, which stands in the name of each
test: ``test_every_reader[17]`` is what ``Damage(17)`` does. Whatever it does, a command ends soon,
with a message of ours or without any, and nothing of the damage reaches the terminal as a command.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import record as read_record
from support import status_of

from diel.cli.main import main
from diel.errors import RunDirectoryError
from diel.run.directory import RunDirectory
from diel.run.journal import Recorder
from diel.run.resumption import order_resumption
from diel.run.status import write_status
from diel.run.trace_part import TracePart, span_event
from modules.sweep.in_flight import InFlightTrials, read_in_flight
from modules.sweep.ledger import Ledger, LedgerError, about_of, ledger_path, trials_of
from modules.sweep.messages import Tags

ESCAPES = "\x1b[2J\x1b]0;owned\x07\u202e\x9b31m"
ODD: list[Any] = [
    None, True, -1, 0, 1.5, 2**63, 10**400, "", "text", ESCAPES, "../../etc/passwd", [], {}, [[]],
    [None], {"a": None}, {"": {"": []}}, ["x"] * 50, "nan", "x" * 10_000,
]  # fmt: skip
RAW = [b"1e999", b"NaN", b"-Infinity", b"[" * 5000 + b"]" * 5000, b'"\\ud800"', b"nul", b""]
FILES = [
    "journal.jsonl", "status.json", "results.csv", "results-2.csv", "workflow.toml",
    "trace/rank-2.jsonl", "sweeps/g.master/trials.jsonl", "logs/launcher.log", "report.html",
    "stop", "checkpoints/000001.tuples", "sweeps/g.trainer.0.0.under-way",
]  # fmt: skip
FOLDERS = ["logs", "trace", "sweeps", "sweeps/g.master", "checkpoints"]
WORKFLOW = """\
[[module]]
name = "master"
function = "modules.master:run"
options = {trainer = "trainer", space = {x = [1, 2]}, objective = "score", maximise = true}
[[module]]
name = "trainer"
function = "./m.py:train"
[[group]]
name = "g"
modules = ["master", "trainer"]
"""


def make_run(folder: Path) -> RunDirectory:
    """Make the directory of a run that failed in its second group, with all that can be in it."""
    file = folder / "w.toml"
    file.write_text(WORKFLOW)
    (folder / "m.py").write_text("def train(ctx):\n    pass\n")
    directory = RunDirectory.create(folder / "runs", "w", file)
    recorder = Recorder(directory)

    def record(event: str, **fields: Any) -> None:
        recorder.record(read_record(event, **fields))

    times = {"working_s": 1.0, "waiting_s": 0.5, "communicating_s": 0.0}
    record(
        "RunStarted", workflow="w", ranks=4, groups=["o", "g", "h"], file=str(file), mpi="Open MPI",
        iterations={"o": 2, "g": None, "h": 1}, inside={"g": "o"}, until=["g"], servers=[1],
        copies={"g": {"master": 1}}, nodes=[{"host": "n", "ranks": [2, 3], "gpus": []}],
    )  # fmt: skip
    who = {"group": "g", "iteration": [0, 0], "module": "master", "copy": 0, "attempt": 1}
    record("GroupStarted", group="o", iteration=[0], groups=["g"])
    record(
        "GroupStarted", group="g", iteration=[0, 0], copies={"master": 1, "trainer": 1},
        placement={"master.0": [2], "trainer.0": [3]},
    )  # fmt: skip
    table = {"columns": ["trial", "x", "score"], "objective": "score", "maximise": True}
    record("ResultsDeclared", module="master", copy=0, expected=9, file="results-2.csv", **table)
    rows = [{"trial": trial, "x": trial % 2, "score": trial / 10} for trial in range(9)]
    shown = {"best": rows[:3], "constants": {"x": 1}, "unranked": {"diverged": 1}}
    record("ResultsShown", module="master", copy=0, file="results-2.csv", count=9, **shown)
    record("ResultsDeclared", module="other", copy=0, expected=None, parameters=["x"], **table)
    for row in rows:
        record("ResultAdded", module="other", copy=0, row=row)
    record("ProgressMade", module="trainer", copy=0, done=1, total=2.5, text="half")
    record("MessageLogged", module="trainer", copy=0, level="WARNING", text="hm")
    record("ModuleFailed", **who, rank=2, copy_rank=0, ranks=[2], host="n", error="E: x",
           detail="Traceback", policy="retry", whole_module=False)  # fmt: skip
    record("CopiesRestarted", group="g", iteration=[0, 0], module="master", copies=[0], attempt=2)
    record("CopyGivenUp", **who | {"module": "trainer"}, error="E: x")
    record("CopyFinished", **who, returned={"a": [1, 2]})
    record("GroupFinished", group="g", iteration=[0, 0], ended_by="until")
    record("CheckpointSaved", number=1, file="000001.tuples")
    record(
        "GroupStarted", group="h", iteration=[0], copies={"master": 1}, placement={"master.0": [2]}
    )
    record("ModuleFailed", **who | {"group": "h"}, rank=2, copy_rank=0, ranks=[2], host="n",
           error="E: y", detail="", policy="stop", whole_module=False)  # fmt: skip
    record("StopOrdered", reason="master.0 failed")
    accounts = [
        {"rank": rank, "host": "n", "copies": ["master.0"], **times} for rank in range(1, 4)
    ]
    modules = [{"module": "master", "ranks": 1, **times}]
    record("TimeAccounted", ranks=accounts, modules=modules)
    record("RunEnded", exit_code=1, tuples_left=3)
    recorder.close()
    lines = [
        "trial,x,score,trainer,seed,state",
        *(f"{n},{n % 2},{n / 10},0,1,finished" for n in range(9)),
    ]
    (directory.path / "results-2.csv").write_text("\n".join(lines) + "\n")
    ledger = Ledger(
        ledger_path(directory.path, "g", "master", (0,)),
        {"objective": ["score"], "maximise": True, "table": "results-2.csv"},
    )
    ledger.write(
        {"trial": row["trial"], "state": "finished", "parameters": {"x": row["x"]}, "seed": 1,
         "metrics": {"score": row["score"]}, "reports": [[1, {"score": 0.5}]], "trainer": "t",
         "started_s": 1.0, "seconds": 2.0}
        for row in rows
    )  # fmt: skip
    ledger.close()
    InFlightTrials(directory.path, Tags("g", "trainer"), 0, 0).note(3, 5)
    part = TracePart(directory, 2)
    about = {"group": "g", "iteration": [0, 0], "attempt": 1}
    part.write([span_event("master.0", "module", 10**18, 10**18 + 5, 2, about)])
    part.close()
    wait = {"rank": 2, "copy": "master.0", "what": "tget('x')", "since_s": 1.7e9}
    server = {"rank": 1, "tuples": 3, "size_bytes": 10, "capacity_bytes": 100}
    progress = {"copy": "trainer.0", "done": 1.0, "total": None, "text": "t"}
    write_status(directory, {"waiting": [wait], "servers": [server], "progress": [progress]})
    directory.launcher_log.write_text("process rank 2 exited\n")
    directory.checkpoints.mkdir()
    directory.checkpoint_file(1).write_bytes(b"diel checkpoint 1\n")
    (directory.path / "report.html").write_text("<p>")
    directory.request_stop()
    return directory


class Damage:
    """Damages a run directory in one to three ways; the same seed does the same."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.done: list[str] = []

    def do(self, directory: Path) -> None:
        """Damage what is in a folder."""
        self._directory = directory
        ways = [
            (8, self._change_value), (5, self._spoil_line), (4, self._cut), (2, self._flip),
            (2, self._replace), (2, self._remove), (1, self._fill),
        ]  # fmt: skip
        weights, methods = zip(*ways, strict=True)
        for _ in range(self._random.choice([1, 1, 2, 3])):
            (method,) = self._random.choices(methods, weights)
            name = self._random.choice(["journal.jsonl"] * 12 + FILES)
            path = directory / name
            if path.is_file() or method in (self._replace, self._remove):
                self.done.append(f"{method.__name__} {name}")
                method(path)

    def _change_value(self, path: Path) -> None:
        """Put something else in the place of a value, remove a key, or add one."""
        lines = path.read_bytes().split(b"\n")
        at = self._random.randrange(len(lines))
        try:
            record = json.loads(lines[at])
        except ValueError:
            return self._spoil_line(path)
        places = [(record, key) for key in record] if isinstance(record, dict) else []
        for table, key in list(places):
            if isinstance(table[key], dict):
                places += [(table[key], inner) for inner in table[key]]
            elif isinstance(table[key], list):
                places += [(table[key], inner) for inner in range(len(table[key]))]
        if not places:
            return self._spoil_line(path)
        table, key = self._random.choice(places)
        self.done.append(str(key))
        marker = "a mark that occurs nowhere else"
        way = self._random.random()
        if way < 0.15:
            del table[key]
        elif way < 0.8:
            table[key] = self._random.choice(ODD)
        else:
            table[key] = marker
        text = json.dumps(record, ensure_ascii=False).encode(errors="replace")
        lines[at] = text.replace(json.dumps(marker).encode(), self._random.choice(RAW))
        path.write_bytes(b"\n".join(lines))
        return None

    def _spoil_line(self, path: Path) -> None:
        lines = path.read_bytes().split(b"\n")
        at = self._random.randrange(len(lines))
        spoilt = [
            b"null", b"[]", b"{}", b"nonsense", b"\xff\xfe\x00", b'"', ESCAPES.encode(),
            b"\0" * 100, b"[" * 100_000, b'{"event": "RunStarted"}', b'{"time_s": 1, "event": []}',
            b"x" * 200_000, lines[self._random.randrange(len(lines))],
            b'a,"' + b"y" * 200_000, b",,,,,,,,,",
        ]  # fmt: skip
        lines[at : at + self._random.randrange(2)] = [self._random.choice(spoilt)]
        path.write_bytes(b"\n".join(lines))

    def _cut(self, path: Path) -> None:
        data = path.read_bytes()
        start, stop = sorted(self._random.randrange(len(data) + 1) for _ in range(2))
        choice = self._random.choice([data[:start], data[start:], data[:start] + data[stop:]])
        path.write_bytes(choice)

    def _flip(self, path: Path) -> None:
        data = bytearray(path.read_bytes())
        for _ in range(self._random.randrange(1, 30)):
            if data:
                data[self._random.randrange(len(data))] = self._random.randrange(256)
        path.write_bytes(data)

    def _fill(self, path: Path) -> None:
        path.write_bytes(
            self._random.choice([b"", b"\n" * 1000, b"\0" * 5000, ESCAPES.encode() * 9])
        )

    def _remove(self, path: Path) -> None:
        place = (
            path if self._random.random() < 0.5 else path.parents[1] / self._random.choice(FOLDERS)
        )
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)

    def _replace(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        way = self._random.randrange(4)
        if way == 0:
            os.mkfifo(path)
        elif way == 1:
            path.mkdir()
        else:
            path.symlink_to(path if way == 2 else "/dev/zero")


@contextlib.contextmanager
def time_limit(seconds: int, what: str) -> Iterator[None]:
    """Fail if something waits: for a pipe, say."""

    def late(*_: object) -> None:
        raise AssertionError(f"{what} has not ended within {seconds} s")

    previous = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@pytest.fixture(scope="session")
def good_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("good")).path


def check_command(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with time_limit(20, " ".join(line)), pytest.raises(SystemExit) as ended:
        main(line)
    told = capsys.readouterr()
    text = told.out + told.err
    assert ended.value.code in (0, 1, 2), text
    assert "Traceback" not in told.err, text
    assert not {"\x1b", "\x07", "\x9b", "\u202e"}.intersection(text), text
    if ended.value.code:
        assert told.err.startswith("diel: "), text


def check_readers(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        ["runs", str(path.parent)],
        ["runs", "--json", str(path.parent)],
        ["watch", "--once", str(path)],
        ["explain", str(path)],
        ["trace", str(path)],
        ["sweep", str(path), "--top", "20"],
        ["report", str(path)],
    ):
        check_command(line, capsys)
    ledger = path / "sweeps" / "g.master" / "trials.jsonl"
    with time_limit(20, "a ledger"), contextlib.suppress(LedgerError, OSError):
        about_of(ledger)
        for record in trials_of(ledger):
            assert record["trial"] >= 0
            assert {"state", "parameters", "metrics"} <= record.keys()
    with time_limit(20, "the trials under way"):
        read_in_flight(path)
    with time_limit(20, "--resume"), contextlib.suppress(RunDirectoryError):
        if order_resumption(RunDirectory(path)) is not None:
            Recorder(RunDirectory(path)).close()


def copy_of(run: Path, folder: Path) -> Path:
    """Copy a run directory and its workflow, beside one that nothing was done to."""
    path = folder / "runs" / "damaged"
    shutil.copytree(run, path)
    shutil.copytree(run, folder / "runs" / "good", ignore=lambda *_: ["sweeps", "trace"])
    return path


def test_the_run_is_good(
    good_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy_of(good_run, tmp_path)
    for command in (
        ["watch", "--once"],
        ["trace"],
        ["report"],
        ["sweep", "--export", "csv", "json"],
    ):
        status = status_of(command[0], path, *command[1:])
        told = capsys.readouterr()
        assert (status, told.err) == (0, ""), command
    resumed = order_resumption(RunDirectory(path))
    assert resumed is not None
    assert resumed.finished == {"g": ((0, 0), True)}


@pytest.mark.sample(15)
@pytest.mark.parametrize("seed", range(120))
def test_every_reader(
    seed: int, good_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy_of(good_run, tmp_path)
    damage = Damage(seed)
    damage.do(path)
    print(f"seed {seed}: {', '.join(damage.done)}")  # shown if it fails
    capsys.readouterr()
    check_readers(path, capsys)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("journal.jsonl", pipe),
        ("status.json", pipe),
        ("results-2.csv", pipe),
        ("trace/rank-2.jsonl", pipe),
        ("sweeps/g.master/trials.jsonl", pipe),
        ("report.html", pipe),
        ("stop", pipe),
        ("results-2.csv", lambda path: path.write_text("")),
        ("results.csv", lambda path: path.write_text('trial,x\n1,"' + "y" * 200_000)),
        ("journal.jsonl", lambda path: path.write_text("null\n")),
        ("stop", lambda path: path.write_bytes(b"\xff\xfe")),
        ("journal.jsonl", lambda path: path.unlink()),
    ],
)
def test_what_was_found_in_use(
    name: str,
    spoil: Callable[[Path], Any],
    good_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = copy_of(good_run, tmp_path)
    spoil(path / name)
    check_readers(path, capsys)


def test_one_bad_run_does_not_break_the_list(
    good_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy_of(good_run, tmp_path)
    (path / "journal.jsonl").write_text("nonsense\n")
    path.rename(path.with_name(f"bad{ESCAPES}\nname"))
    assert status_of("runs", path.parent) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) == 3
    assert "damaged" in text
    assert r"bad\u001b[2J\u001b]0;owned\u0007\u202e\u009b31m\nname" in text
    assert "journal.jsonl, line 1: no record: it is no JSON" in text
    assert "failed" in text
