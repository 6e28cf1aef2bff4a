"""The file by which processes outside of a run find its tuples."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from diel.run.directory import RunDirectory, TupleAccess, read_tuple_access, write_tuple_access

FIRST = TupleAccess("here", "/tmp/diel-1/tuples", "0" * 32)


def test_only_the_owner_may_read_the_file_and_a_newer_one_takes_its_place(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert read_tuple_access(directory) is None
    for access in (FIRST, FIRST.replace(token="1" * 32)):
        write_tuple_access(directory, access)
        assert read_tuple_access(directory) == access
        assert stat.S_IMODE(directory.tuple_access.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [directory.tuple_access]


def test_the_file_is_there_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory(tmp_path)
    dumps, seen = json.dumps, []

    def look(value: object) -> str:
        seen.append(read_tuple_access(directory))
        assert directory.tuple_access.exists() == bool(seen[-1])
        return dumps(value)

    monkeypatch.setattr(json, "dumps", look)
    write_tuple_access(directory, FIRST)
    write_tuple_access(directory, FIRST.replace(host="there"))
    assert seen == [None, FIRST]
