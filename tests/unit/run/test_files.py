"""Files of a run: written whole or not at all, through no link, and read without a wait."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from diel.errors import RunDirectoryError
from diel.run.directory import RunDirectory
from diel.run.files import (
    PART,
    JsonLinesFile,
    file_opener,
    open_regular,
    read_json,
    replace_file,
    replacing,
)
from diel.run.journal import JournalWriter
from diel.run.json_values import DamagedRecord, as_integer, as_number, parse_json
from diel.run.results import ResultsWriter
from diel.run.trace_part import TracePart


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    file, mine = tmp_path / "a.json", tmp_path / "mine"
    mine.write_text("mine")
    file.symlink_to(mine)
    replace_file(file, '{"\ud800": 1}')
    assert read_json(file) == {"?": 1}
    assert mine.read_text() == "mine"

    def write_half() -> None:
        with replacing(file) as part:
            part.write(b"half")
            (name,) = (place.name for place in tmp_path.iterdir() if place not in (file, mine))
            assert PART.fullmatch(name)
            raise KeyError

    with pytest.raises(KeyError):
        write_half()
    assert sorted(tmp_path.iterdir()) == [file, mine]
    assert read_json(file) == {"?": 1}
    replace_file(file, "[]", mode=0o600)
    assert file.stat().st_mode & 0o777 == 0o600


WRITERS: dict[str, Callable[[Path], object]] = {
    "lines": JsonLinesFile,
    "journal": JournalWriter,
    "results": lambda path: ResultsWriter(path, ["a"]),
    "trace": lambda path: TracePart(RunDirectory(path.parents[1]), 1),
    "log": lambda path: open(path, "a", opener=file_opener),  # noqa: SIM115
}


@pytest.mark.parametrize("writer", WRITERS)
def test_nothing_is_written_through_a_link_or_to_a_pipe(writer: str, tmp_path: Path) -> None:
    place, mine = tmp_path / "trace" / "rank-1.jsonl", tmp_path / "mine"
    place.parent.mkdir()
    mine.write_text("mine")
    for make in (place.symlink_to, lambda _: os.mkfifo(place), lambda _: place.mkdir()):
        make(mine)
        with pytest.raises(OSError, match=r"is a link|is no regular file|Is a directory"):
            WRITERS[writer](place)
        assert mine.read_text() == "mine"
        place.rmdir() if place.is_dir() else place.unlink()


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for text in ("", "[" * 100_000, "[" * 102 + "]" * 102, "NaN", "\udcff", "{"):
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(DamagedRecord):
            read_json(file)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(RunDirectoryError, match="is no regular file"):
        read_json(file)
    with pytest.raises(RunDirectoryError, match="is no regular file"):
        open_regular(tmp_path)


def test_numbers_from_outside() -> None:
    assert (as_integer(5, 0, 5), as_number(5), as_number(1e300)) == (5, 5.0, 1e300)
    for odd in (None, True, "5", 5.0, 6, -1, 10**400, [], float("nan")):
        with pytest.raises(ValueError, match="is no whole number from 0 to 5"):
            as_integer(odd, 0, 5)
    for odd in (None, True, "5", 1e301, 10**400, -(10**400), 10**5000, [], {}, "x" * 999):
        with pytest.raises(ValueError, match=r"is no number from -1e\+300 to 1e\+300") as caught:
            as_number(odd)
        assert len(str(caught.value)) < 120
    for odd in map(parse_json, (b"1e999", b"-1e999")):
        with pytest.raises(ValueError, match="is no number"):
            as_number(odd)
    for odd in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="is no number"):
            as_number(odd)


def test_parts_of_processes_that_were_killed_are_removed(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.returned.mkdir()
    (tmp_path / "sweeps" / "g.m").mkdir(parents=True)
    names = [".status.json.0123456789abcdef.part", "returned/.m.npy.0123456789abcdef.part"]
    names += ["sweeps/g.m/.trials.csv.0123456789abcdef.part", ".stop.0123456789abcdee.part"]
    for name in names:
        (tmp_path / name).touch()
    old_s = time.time() - 3600
    for name in names[:3]:
        os.utime(tmp_path / name, (old_s, old_s))
    (tmp_path / "mine.part").touch()
    os.utime(tmp_path / "mine.part", (old_s, old_s))
    run.remove_parts()
    left = [path.name for path in tmp_path.rglob("*.part")]
    assert sorted(left) == [".stop.0123456789abcdee.part", "mine.part"]
