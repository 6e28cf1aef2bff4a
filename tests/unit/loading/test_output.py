from __future__ import annotations

from pathlib import Path

from diel.loading.environment import OpenLog, shorten


def test_the_same_log_stays_open_and_another_one_closes_it(tmp_path: Path) -> None:
    logs = OpenLog(2**16)
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


def test_of_a_log_that_outgrows_its_limit_the_beginning_and_the_end_stay(tmp_path: Path) -> None:
    file, limit_bytes = tmp_path / "a.log", 2**16
    logs = OpenLog(limit_bytes)
    log = logs.open(file)
    written_bytes = 0
    for number in range(50_000):
        written_bytes += log.write(f"line {number}\n")
    text = file.read_text()
    assert len(text) <= limit_bytes
    assert text.startswith("line 0\nline 1\n")
    assert text.endswith("line 49998\nline 49999\n")
    assert "bytes are left out here: log_size in [workflow] is 65,536 ..." in text
    left_out_bytes = logs.take_left_out_bytes()
    assert abs(left_out_bytes - (written_bytes - len(text))) < 200 * written_bytes / limit_bytes
    assert logs.take_left_out_bytes() == 0
    log.write("x" * 1_000_000)  # without an end of line, and longer than the limit by itself
    assert limit_bytes // 4 < file.stat().st_size <= limit_bytes
    log.write("the end\n")
    assert file.read_text().endswith("xxthe end\n")
    logs.close()


def test_a_program_goes_on_behind_the_new_end_of_its_log(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    with file.open("ab", buffering=0) as program:
        program.write(b"begin\n" + b"middle\n" * 20_000)
        assert shorten(file, 2**16) > 2**16
        assert shorten(file, 2**16) == 0
        program.write(b"end\n")
    assert file.read_text().startswith("begin\n")
    assert file.read_text().endswith("middle\nend\n")
    assert shorten(tmp_path / "none.log", 2**16) == 0
