"""What is said of a run at its end, from a journal written by hand."""

from __future__ import annotations

import pytest
from unit.cli.journals import RUDE, Journal

from diel.cli import conclusion
from diel.cli.display import PlainDisplay
from diel.run.directory import RunDirectory


def conclude(directory: RunDirectory, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    shown = PlainDisplay(directory)
    shown.refresh()
    capsys.readouterr()
    status = shown.conclude()
    return status, capsys.readouterr().out


def test_the_table_is_ranked_and_says_what_modules_said(
    directory: RunDirectory, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.start()
    journal.declare(3)
    journal.row(0, RUDE, 0.123456)
    journal.row(1, "b" * 90, "nan")
    journal.row(2, [64, 32], 0.9)
    journal.end(0)
    status, out = conclude(directory, capsys)
    assert status == 0
    _, title, _, header, _, *rows = out.splitlines()
    assert title.strip() == "3 best of 3 by highest accuracy"
    assert header.split() == ["#", "trial", "note", "accuracy"]
    assert rows[0].split() == ["1", "2", "64x32", "0.9"]
    assert rows[1].split(maxsplit=2) == ["2", "0", f"{RUDE}{' ' * (90 - len(RUDE))}     0.1235"]
    assert rows[2].split() == ["3", "1", "b" * 90, "nan"]
    assert "study finished after" in out
    assert not any(line.endswith(" ") for line in out.splitlines())


def test_columns_that_say_the_same_everywhere_go_below_the_table(
    directory: RunDirectory, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.start()
    journal.declare(20)
    for trial in range(20):
        journal.row(trial, RUDE, 0.5)
    journal.end(0)
    _, out = conclude(directory, capsys)
    out = " ".join(out.split())  # a title wraps at the width of its table
    assert "10 best of 20 by highest accuracy" in out
    assert out.count(RUDE) == 1
    assert f"note {RUDE}" in out
    assert "accuracy 0.5" not in out  # the objective stays a column


@pytest.mark.parametrize("lost", [2, 3])
def test_rows_that_are_no_results_are_counted(
    directory: RunDirectory, journal: Journal, capsys: pytest.CaptureFixture[str], lost: int
) -> None:
    journal.start()
    journal.declare(3, file="results.csv")
    best = [{"trial": 2, "note": "a", "accuracy": 0.9}] if lost == 2 else []
    unranked = {"failed": 1, "diverged": lost - 1}
    (directory.path / "results.csv").write_text("trial,note,accuracy,state\n2,a,0.9,finished\n")
    journal.add(
        "ResultsShown", module="master", copy=0, file="results.csv", count=3, best=best,
        constants={}, unranked=unranked,
    )  # fmt: skip
    shown = PlainDisplay(directory)
    shown.refresh()
    text = f"1 failed, {lost - 1} diverged"
    best_so_far = "best accuracy 0.9" if best else "none yet"
    assert f"master: 3 of 3 results, {best_so_far} ({text})" in capsys.readouterr().out
    journal.end(0)
    _, out = conclude(directory, capsys)
    if best:
        assert f"1 best of 1 by highest accuracy; of 3: {text}" in out
    else:
        assert f"master: no result among 3: {text}" in out
        assert "best of" not in out


def test_each_table_is_shown(
    directory: RunDirectory, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.start()
    journal.declare()
    journal.declare(module="other", objective="trial", maximise=False)
    journal.row(0, "a", 0.5)
    journal.add("ResultAdded", module="other", row={"trial": 1, "note": "b", "accuracy": 0.1})
    journal.end(0)
    _, out = conclude(directory, capsys)
    assert "by highest accuracy" in out
    assert "by lowest trial" in out


@pytest.mark.parametrize("has_table", [False, True])
def test_what_modules_returned_is_shown(
    directory: RunDirectory,
    journal: Journal,
    capsys: pytest.CaptureFixture[str],
    has_table: bool,
) -> None:
    journal.start()
    if has_table:
        journal.declare()
        journal.row(7, "a", 0.5)
        best = {"trial": 7, "note": "a", "accuracy": 0.5}  # stands in the table
        journal.add("CopyFinished", group="g", module="master", copy=0, returned=best)
    for copy in reversed(range(15)):
        journal.add("CopyFinished", group="g", module="m", copy=copy, returned=f"{copy} {RUDE}")
    journal.end(0)
    _, out = conclude(directory, capsys)
    assert f"\nm.0 returned 0 {RUDE}\n" in f"\n{out}"
    assert ("by highest accuracy" in out) == has_table
    assert "master.0 returned" not in out
    assert "m.9 returned" in out
    assert "m.10 returned" not in out
    assert "... and 5 more, in the journal" in out


def test_what_was_returned_is_a_line_without_control_characters(
    directory: RunDirectory, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    values = ["two\nlines \x1b[2J", repr(b"\0" * 1000), "\0" * 1000, repr(b"\0"), "\ud800"]
    journal.start()
    for copy, value in enumerate(values):
        journal.add("CopyFinished", group="g", module="m", copy=copy, returned=value)
    journal.add(
        "CopyFinished", group="g", module="n", copy=0, returned=None,
        returned_file="n.0.g.0.npy", returned_type="array float64 1000x1000",
        returned_bytes=8_000_128,
    )  # fmt: skip
    journal.end(0)
    _, out = conclude(directory, capsys)
    assert [line for line in out.splitlines() if " returned " in line] == [
        r"m.0 returned two\nlines \x1b[2J",
        "m.1 returned bytes (4,003 characters, in the journal)",
        "m.2 returned " + r"\x00" * 50 + " ... (1,000 characters, in the journal)",
        r"m.3 returned b'\x00'",
        r"m.4 returned \ud800",
        "n.0 returned array float64 1000x1000 of 8,000,128 bytes: returned/n.0.g.0.npy",
    ]


def test_what_is_long_is_shown_in_part(
    directory: RunDirectory, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.start()
    journal.add("CopyFinished", group="g", module="m", copy=0, returned="x" * 2_000_000)
    journal.end(0)
    _, out = conclude(directory, capsys)
    assert out.startswith("m.0 returned xxx")
    assert "xxx ... (2,000,000 characters, in the journal)" in out
    assert len(out) < 2000


def test_a_run_that_ended_without_a_word(
    directory: RunDirectory, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.start()
    directory.launcher_log.write_bytes(b"".join(b"line %d \xff\n" % n for n in range(30)))
    assert PlainDisplay(directory).conclude(launcher_status=137) == conclusion.FAILED
    err = capsys.readouterr().err
    assert "the launcher exited with status 137" in err
    assert "launcher | line 29" in err
    assert "launcher | line 14" not in err
    assert str(directory.path) in err
