"""``status.json`` is there whole, or counts as empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from diel.run.directory import RunDirectory
from diel.run.status import ServerView, StatusView, WaitView, read_status, write_status


def test_what_is_written_is_read(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    wait = {"rank": 3, "copy": "m.0", "what": "tget('a')", "since_s": 12.5}
    server = {"rank": 1, "tuples": 2, "size_bytes": 700, "capacity_bytes": 1000}
    write_status(directory, {"waiting": [wait], "servers": [server]})
    expected = StatusView((WaitView(3, "m.0", "tget('a')", 12.5),), (ServerView(1, 2, 700, 1000),))
    assert read_status(directory) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"waiting": [{}], "servers": []}'])
def test_what_cannot_be_read_is_empty(tmp_path: Path, text: str) -> None:
    directory = RunDirectory(tmp_path)
    assert read_status(directory) == StatusView()
    directory.status.write_text(text)
    assert read_status(directory) == StatusView()
