"""The end of a log, and what is added to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from diel.run.log_tail import LogTail, log_names


def test_a_log_is_followed_from_its_end(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text("".join(f"line {number}\n" for number in range(100)))
    tail = LogTail(file, last_bytes=50)
    text, follows = tail.new_text()
    assert (text.splitlines()[-1], follows) == ("line 99", False)
    assert text.startswith("line ")  # no half of a line
    assert len(text) <= 50
    assert tail.new_text() == ("", True)
    with file.open("ab") as log:
        log.write("é".encode()[:1])
        log.flush()
        assert tail.new_text() == ("", True)
        log.write("é".encode()[1:] + b"\xff\n")
    assert tail.new_text() == ("é\N{REPLACEMENT CHARACTER}\n", True)
    with file.open("a") as log:
        log.write("x" * 200)
    assert tail.new_text() == ("x" * 50, False)
    file.write_text("new\n")
    assert tail.new_text() == ("new\n", False)
    other = tmp_path / "b"
    other.write_text("other one\n")
    os.replace(other, file)
    assert tail.new_text() == ("other one\n", False)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    with pytest.raises(OSError, match="no regular file"):
        LogTail(tmp_path / "pipe.log").new_text()
    with pytest.raises(FileNotFoundError):
        LogTail(tmp_path / "none.log").new_text()


def test_logs_are_listed_by_their_numbers(tmp_path: Path) -> None:
    for name in ("b.10.0.log", "b.9.0.log", "launcher.log", "rank-3.crash", "notes.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "link.log").symlink_to("/etc/passwd")
    (tmp_path / "folder.log").mkdir()
    assert log_names(tmp_path) == ["launcher.log", "b.9.0.log", "b.10.0.log", "rank-3.crash"]
    assert log_names(tmp_path / "none") == []
