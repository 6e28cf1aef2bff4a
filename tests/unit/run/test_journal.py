from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diel.errors import RunDirectoryError
from diel.run import files, journal
from diel.run.directory import RunDirectory
from diel.run.fields import EVENTS, Record, encoded
from diel.run.journal import Damage, JournalReader, JournalWriter, Recorder
from diel.run.records import (
    FORMAT,
    CopyFinished,
    Finished,
    GroupStarted,
    MessageLogged,
    ModuleFailed,
    Node,
    RankTimes,
    ResultAdded,
    ResultsDeclared,
    ResultsShown,
    RunCreated,
    RunEnded,
    RunResumed,
    RunStarted,
    StopOrdered,
    TimeAccounted,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


@pytest.fixture
def writer(path: Path) -> Iterator[JournalWriter]:
    writer = JournalWriter(path)
    yield writer
    writer.close()


def say(text: str) -> MessageLogged:
    return MessageLogged(module="m", copy=0, level="INFO", text=text)


def texts(reader: JournalReader) -> list[str]:
    return [record.text for record in reader.new_records() if isinstance(record, MessageLogged)]


def written(writer: JournalWriter, path: Path, value: Any) -> Any:
    writer.write(RunEnded(exit_code=0, tuples_left=value))
    (record,) = JournalReader(path).new_records()
    assert isinstance(record, RunEnded)
    return record.tuples_left


def test_a_record_is_in_the_file_at_once(writer: JournalWriter, path: Path) -> None:
    returned = writer.write(GroupStarted(group="g", copies={"a": 2}))
    (line,) = path.read_text().splitlines()
    record = json.loads(line)
    assert record["time_s"] == returned.time_s
    assert list(record)[:2] == ["time_s", "event"]
    assert (record["event"], record["group"], record["copies"]) == ("GroupStarted", "g", {"a": 2})


def test_a_journal_that_is_not_there_yet_has_no_records(path: Path) -> None:
    reader = JournalReader(path)
    assert reader.new_records() == []
    writer = JournalWriter(path)
    writer.write(say("A"))
    assert texts(reader) == ["A"]
    writer.close()


def test_only_new_records_are_read(writer: JournalWriter, path: Path) -> None:
    reader = JournalReader(path)
    for number in range(3):
        writer.write(say(f"{number}"))
        writer.write(say(f"-{number}"))
        assert texts(reader) == [f"{number}", f"-{number}"]
        assert reader.new_records() == []


@given(st.lists(st.text(), max_size=4), st.data())
def test_a_torn_line_is_read_once_it_is_whole(said: list[str], data: st.DataObject) -> None:
    lines = [json.dumps(encoded(say(text), 0.0), ensure_ascii=False) + "\n" for text in said]
    content = "".join(lines).encode(errors="replace")
    expected = [json.loads(line)["text"] for line in content.split(b"\n")[:-1]]
    cuts = data.draw(st.lists(st.integers(0, len(content)), max_size=4).map(sorted))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal.jsonl")
        path.touch()
        reader, read = JournalReader(path), []
        for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
            with path.open("ab") as file:
                file.write(content[start:end])
            read += texts(reader)
            assert read == expected[: content[:end].count(b"\n")]
    assert read == expected


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float64(0.25), 0.25),
        (np.float32(0.5), 0.5),
        (np.int64(-7), -7),
        (np.bool_(True), True),
        (np.str_("text"), "text"),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (np.array(1.5), 1.5),
        (np.array([1.0, math.nan, -math.inf]), [1.0, "nan", "-inf"]),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (np.float64("nan"), "nan"),
        (np.float64("-inf"), "-inf"),
        (np.float32("nan"), "nan"),
        ({"a": np.float64(1), 2: (1, 2)}, {"a": 1.0, "2": [1, 2]}),
        ([None, True, {"deep": [np.int8(1)]}], [None, True, {"deep": [1]}]),
        (2**80, 2**80),
        (1j, "1j"),
        (np.float32, "<class 'numpy.float32'>"),
        (Path("/a"), "PosixPath('/a')"),
        ({3}, "{3}"),
        (b"ab", "b'ab'"),
    ],
)
def test_any_value_becomes_a_plain_one(
    writer: JournalWriter, path: Path, value: Any, plain: Any
) -> None:
    found = written(writer, path, value)
    assert found == plain
    assert type(found) is type(plain)


@pytest.mark.parametrize("text", ["ünï", "two\nlines", "a\r\u2028\u0085b", "\0", '"quoted" \\'])
def test_text_of_any_kind_stays_on_one_line(writer: JournalWriter, path: Path, text: str) -> None:
    assert written(writer, path, text) == text


def test_text_that_is_no_unicode_does_not_end_a_run(writer: JournalWriter, path: Path) -> None:
    assert written(writer, path, "file \udcff.txt") == "file ?.txt"


def test_a_floats_digits_are_kept(writer: JournalWriter, path: Path) -> None:
    assert written(writer, path, 0.1 + 0.2) == 0.1 + 0.2


def test_a_journal_is_only_appended_to(path: Path) -> None:
    for event in ("First", "Second"):
        writer = JournalWriter(path)
        writer.write(say(event))
        writer.sync()
        writer.close()
    assert texts(JournalReader(path)) == ["First", "Second"]


def test_what_is_no_record_is_passed_over_and_named(path: Path) -> None:
    with JournalWriter(path) as writer:
        writer.write(say("First"))
    deep = b'{"time_s": 1, "event": "Deep", "value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    with path.open("ab") as file:
        file.write(b"null\nnonsense\n\xff\xfe\n\0\0\0\n" + deep)
        file.write(b'{"time_s": 1e999, "event": "Late"}\n{"time_s": NaN, "event": "Late"}\n')
        file.write(b'{"time_s": 1, "event": "StopOrdered", "reason": 7}\n')
        finished = {"event": "CopyFinished", "group": "g", "module": "m", "copy": 0}
        file.write(json.dumps({"time_s": 1, **finished}).encode() + b"\n")
    with JournalWriter(path) as writer:
        writer.write(say("Last"))
    reader = JournalReader(path)
    assert texts(reader) == ["First", "Last"]
    assert reader.complaint == (
        f"{path}, line 2, and 8 more lines: no record, left out: it is no table in braces"
    )
    problems = [
        entry.problem for entry in JournalReader(path).new_entries() if isinstance(entry, Damage)
    ]
    assert problems[-5:] == [
        "it is nested more than 100 deep",
        "it: time_s is not a number of seconds",
        "it is no JSON",
        "StopOrdered: reason is not text",
        "CopyFinished: the run has no group 'g'",
    ]


def test_fields_that_older_journals_lack_are_filled_in(path: Path) -> None:
    path.write_text(
        '{"time_s": 1, "event": "RunStarted", "workflow": "w", "ranks": 2, "groups": ["g"]}\n'
        '{"time_s": 2, "event": "GroupStarted", "group": "g"}\n'
    )
    started, group = JournalReader(path).new_records()
    assert isinstance(started, RunStarted)
    assert (started.inside, started.servers, started.file) == ({}, (), "")
    assert group == GroupStarted(group="g", iteration=(0,), copies={}, placement={})


def test_what_a_later_version_has_added_is_passed_over(path: Path) -> None:
    path.write_text(
        '{"time_s": 1, "event": "SomethingNew", "anything": 1}\n'
        '{"time_s": 2, "event": "StopOrdered", "reason": "x", "by": "somebody"}\n'
    )
    reader = JournalReader(path)
    assert reader.new_records()[1:] == [StopOrdered(reason="x")]
    assert reader.complaint == ""


@pytest.mark.parametrize(
    "record",
    [RunCreated(file="w.toml"), RunResumed(checkpoint=0, file=None, finished={})],
    ids=["created", "resumed"],
)
def test_a_journal_in_a_newer_format_is_refused(path: Path, record: Record) -> None:
    line = encoded(record, 1.0) | {"format": FORMAT + 1}
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(RunDirectoryError, match=r"newer version of diel, in format 2 .*: use that"):
        JournalReader(path).new_records()


EXAMPLES: list[Record] = [
    RunStarted(workflow="w", ranks=3, groups=["g"], nodes=[Node("n", [1, 2], ["0"])]),
    RunStarted(workflow="w", ranks=3, groups=["g"], finished={"g": Finished((0, 1), True)}),
    RunResumed(checkpoint=1, file="000001.tuples", finished={"g": Finished((0,), False)}),
    GroupStarted(group="g", iteration=(0, 2), copies={"m": 1}, placement={"m.0": [1, 2]}),
    CopyFinished(group="g", module="m", copy=0, returned={"x": [1]}),
    CopyFinished(group="g", module="m", copy=0, returned_file="f.npy", returned_type="array"),
    ModuleFailed(group="g", module="m", copy=0, error="E", rank=1, copy_rank=0, policy="retry"),
    TimeAccounted(ranks=[RankTimes(0, "h", ["m.0"], 1, 2, 3.5, 4)], modules=[]),
]


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_what_is_written_is_read_as_the_same(
    writer: JournalWriter, path: Path, record: Record
) -> None:
    writer.write(RunStarted(workflow="w", ranks=3, groups=["g"]))
    written = writer.write(record)
    _, read = JournalReader(path).new_records()
    assert type(read) is type(record)
    line = json.loads(path.read_text().splitlines()[1])
    # A list is read as a list, and may have been a tuple.
    assert json.loads(json.dumps(encoded(read, read.time_s))) == line
    assert json.loads(json.dumps(encoded(record, written.time_s))) == line


def test_every_event_has_a_record_with_a_kind_for_each_field() -> None:
    for name, record in EVENTS.items():
        assert name == record.__name__
        assert {"time_s", *record.layout} == {*record.__annotations__, *record._fields}
        assert record.__doc__


@pytest.mark.parametrize("size_bytes", [10, 65_536, 70_000, 200_000])
def test_half_a_record_is_cut_off_however_long_it_and_the_journal_are(
    path: Path, size_bytes: int
) -> None:
    """A journal that is opened again has whole lines, all that were written and nothing else."""
    for before in (0, 100_000):
        path.unlink(missing_ok=True)
        with JournalWriter(path) as writer:
            writer.write(say("First" + "x" * before))
        whole = path.read_bytes()
        with path.open("ab") as file:
            file.write(b'{"time_s": 1, "event": "' + b"y" * size_bytes)
        with JournalWriter(path) as writer:
            assert path.read_bytes() == whole
            writer.write(say("Second"))
        assert texts(JournalReader(path)) == ["First" + "x" * before, "Second"]


def test_a_batch_is_in_the_file_at_its_end(writer: JournalWriter, path: Path) -> None:
    reader = JournalReader(path)
    with writer.batch():
        writer.write(say("One"))
        writer.write(say("Two"))
        assert reader.new_records() == []
    assert texts(reader) == ["One", "Two"]
    writer.write(say("Three"))  # at once again
    assert texts(reader) == ["Three"]
    with contextlib.suppress(KeyError), writer.batch():
        writer.write(say("Four"))
        raise KeyError
    assert texts(reader) == ["Four"]
    writer.write(say("Five"))
    assert texts(reader) == ["Five"]


def test_a_lock_that_is_held_for_a_moment_is_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks whether a run goes on holds it; a run that does holds it for good."""
    path.touch()
    with path.open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        naps: list[float] = []

        def nap(seconds: float) -> None:
            naps.append(seconds)
            if len(naps) == 3:
                fcntl.flock(looking, fcntl.LOCK_UN)

        monkeypatch.setattr(time, "sleep", nap)
        JournalWriter(path).close()
        assert len(naps) == 3
    with JournalWriter(path):
        monkeypatch.setattr(files, "_LOCK_S", 0.0)
        with pytest.raises(RunDirectoryError, match="is being written"):
            JournalWriter(path)
    JournalWriter(path).close()  # given back


def test_a_journal_that_is_removed_is_read_to_its_end(writer: JournalWriter, path: Path) -> None:
    reader = JournalReader(path)
    writer.write(say("One"))
    assert len(reader.new_records()) == 1
    path.unlink()
    writer.write(say("Two"))
    assert texts(reader) == ["Two"]
    assert reader.complaint == f"{path} was removed while it was read"


def test_a_journal_that_is_cut_short_goes_on(writer: JournalWriter, path: Path) -> None:
    reader = JournalReader(path)
    writer.write(say("One"))
    assert len(reader.new_records()) == 1
    os.truncate(path, 5)
    assert reader.new_records() == []
    writer.write(say("Two"))
    assert texts(reader) == ["Two"]
    assert reader.complaint == f"{path} was cut short while it was read"


def test_what_is_written_after_a_cut_is_read_however_late(
    writer: JournalWriter, path: Path
) -> None:
    reader = JournalReader(path)
    size_bytes = 0
    for event in ("One", "Two", "Three"):
        writer.write(say(event))
        size_bytes = size_bytes or path.stat().st_size
        time.sleep(0.00001)  # records of one microsecond could not be told apart
    assert len(reader.new_records()) == 3
    os.truncate(path, size_bytes)
    writer.write(say("Four"))  # before anybody looks
    assert texts(reader) == ["Four"]
    writer.write(say("Five"))
    assert texts(reader) == ["Five"]


def test_a_writer_notices_what_becomes_of_its_file(writer: JournalWriter, path: Path) -> None:
    writer.write(say("é" * 3))
    with writer.batch():
        writer.write(say("Two"))
        assert not writer.damage()
    writer.write(say("Three"))
    assert not writer.damage()
    whole = path.read_bytes()
    path.write_bytes(whole + b"somebody else's\n")
    assert not writer.damage()  # nothing of ours is gone
    os.truncate(path, len(whole) - 1)
    assert writer.damage() == "was cut short"
    path.rename(path.with_suffix(".moved"))
    assert writer.damage() == "was removed"
    path.write_bytes(whole)
    assert writer.damage() == "was replaced by another file"


def test_a_journal_that_is_resumed_is_whole(path: Path) -> None:
    path.write_text('{"time_s": 1, "event": "StopOrdered", "reason": "One"}\n{"half')
    writer = JournalWriter(path)
    assert not writer.damage()
    writer.write(say("Two"))
    assert not writer.damage()
    writer.close()


def test_a_full_disk_is_named_with_the_file_and_no_record_is_lost(
    writer: JournalWriter, path: Path
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="too large") as raised:
            writer.write(StopOrdered(reason="one"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.filename == str(path)
    assert JournalReader(path).new_records() == []  # half a line is none
    writer.write(StopOrdered(reason="two"))
    assert [record.reason for record in JournalReader(path).new_records()] == ["one", "two"]


def test_a_recorder_tells_a_removed_folder_from_a_removed_journal(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.path.mkdir()
    recorder = Recorder(directory)
    recorder.record(RunCreated(file="w.toml"))
    assert not recorder.loss()
    directory.journal.unlink()
    assert recorder.loss() == f"{directory.journal} was removed"
    directory.path.rmdir()
    assert recorder.loss() == f"{directory.path} was removed"
    # What ranks say on their way out begins no table in a folder that is not there.
    recorder.record(
        ResultsDeclared(module="m", columns=["x"], objective="x", maximise=True, expected=None)
    )
    recorder.record(ResultAdded(module="m", row={"x": 1}))
    recorder.close()


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_is_not_waited_for(path: Path, kind: str) -> None:
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    with pytest.raises(RunDirectoryError, match="is no regular file"):
        JournalReader(path).new_records()


def test_a_line_without_an_end_is_given_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_LONGEST_LINE_BYTES", 1000)
    reader = JournalReader(path)
    with JournalWriter(path) as writer:
        writer.write(say("x" * 10_000))
        assert reader.new_records() == []
        writer.write(say("Short"))
    assert texts(reader) == ["Short"]
    assert "line 1: no record" in reader.complaint


def test_values_that_nest_too_deeply_are_written_as_text(writer: JournalWriter, path: Path) -> None:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    found = written(writer, path, value)
    while isinstance(found, list):
        (found,) = found
    assert found == "<list nested too deeply>"
    cycle: list[Any] = []
    cycle.append(cycle)
    writer.write(RunEnded(exit_code=0, tuples_left=cycle))
    assert len(JournalReader(path).new_records()) == 2


def test_a_row_without_a_score_takes_no_other_rows_away(path: Path, writer: JournalWriter) -> None:
    writer.write(
        ResultsDeclared(
            module="m",
            columns=["x", "y"],
            objective="y",
            maximise=True,
            expected=None,
            file="a.csv",
        )
    )
    rows = [{"x": 1, "y": 0.5}, {"x": 2, "y": "0.9"}, {"x": 3, "y": "nan"}, {"x": 4}]
    writer.write(ResultsShown(module="m", file="a.csv", count=4, best=rows))
    *_, shown = JournalReader(path).new_records()
    assert [row["x"] for row in shown.best] == [1, 3]
