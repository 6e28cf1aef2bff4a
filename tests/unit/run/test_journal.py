from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diel.run.journal import JournalReader, JournalWriter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


@pytest.fixture
def writer(path: Path) -> Iterator[JournalWriter]:
    writer = JournalWriter(path)
    yield writer
    writer.close()


def written(writer: JournalWriter, path: Path, value: Any) -> Any:
    writer.write("Thing", value=value)
    (record,) = JournalReader(path).new_records()
    return record["value"]


def test_a_record_is_in_the_file_at_once(writer: JournalWriter, path: Path) -> None:
    returned = writer.write("GroupStarted", group="g", copies={"a": 2})
    (line,) = path.read_text().splitlines()
    record = json.loads(line)
    assert record == returned
    assert list(record)[:2] == ["time_s", "event"]
    assert (record["event"], record["group"], record["copies"]) == ("GroupStarted", "g", {"a": 2})


def test_a_journal_that_is_not_there_yet_has_no_records(path: Path) -> None:
    reader = JournalReader(path)
    assert reader.new_records() == []
    writer = JournalWriter(path)
    writer.write("A")
    assert [one["event"] for one in reader.new_records()] == ["A"]
    writer.close()


def test_only_new_records_are_read(writer: JournalWriter, path: Path) -> None:
    reader = JournalReader(path)
    for number in range(3):
        writer.write("N", number=number)
        writer.write("N", number=-number)
        assert [one["number"] for one in reader.new_records()] == [number, -number]
        assert reader.new_records() == []


@given(st.lists(st.dictionaries(st.text(), st.text()), max_size=4), st.data())
def test_a_torn_line_is_read_once_it_is_whole(
    records: list[dict[str, str]], data: st.DataObject
) -> None:
    text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records)
    content = text.encode(errors="replace")
    expected = [json.loads(line) for line in content.split(b"\n")[:-1]]
    cuts = data.draw(st.lists(st.integers(0, len(content)), max_size=4).map(sorted))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal.jsonl")
        path.touch()
        reader, read = JournalReader(path), []
        for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
            with path.open("ab") as file:
                file.write(content[start:end])
            read += reader.new_records()
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
        writer.write(event)
        writer.sync()
        writer.close()
    assert [one["event"] for one in JournalReader(path).new_records()] == ["First", "Second"]
