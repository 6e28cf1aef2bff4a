from __future__ import annotations

from pathlib import Path

from diel.loading.output import OpenLog


def test_the_same_log_stays_open_and_another_one_closes_it(tmp_path: Path) -> None:
    logs = OpenLog()
    first = logs.open(tmp_path / "a.log")
    first.write("one\n")
    assert logs.open(tmp_path / "a.log") is first
    second = logs.open(tmp_path / "b.log")
    assert first.closed
    second.close()  # as a module may do with its standard output
    third = logs.open(tmp_path / "b.log")
    third.write("two\n")
    logs.close()
    assert (tmp_path / "a.log").read_text() == "one\n"
    assert (tmp_path / "b.log").read_text() == "two\n"
