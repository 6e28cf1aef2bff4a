"""When a report is written, and what becomes of a disk that is full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modules.evaluation import BiasReport
from modules.report import (
    LiveReport,
    Moment,
    RankAccount,
    Sweep,
    conclude_report,
    write_report,
)

SWEEP = Sweep("s", "accuracy", True, ("a",), expected=100)


def rows(start: int, stop: int) -> list[dict[str, Any]]:
    return [{"trial": one, "a": one % 5, "accuracy": one / 100} for one in range(start, stop)]


class Clock:
    """A clock that a test sets; every look at it takes `look_s`."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.look_s = 0.0

    def __call__(self) -> float:
        self.now_s += self.look_s
        return self.now_s


def test_it_is_there_from_the_start_and_ends_with_the_sweep(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    report = LiveReport(file, SWEEP)
    assert 'class="state running"' in file.read_text()
    report.add(rows(0, 30))
    report.close()
    text = file.read_text()
    assert 'class="state finished"' in text
    assert "All 30 trials with a result are shown" in text
    assert report.problem == ""
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_the_caution_is_there_while_the_sweep_goes_on(tmp_path: Path) -> None:
    file, clock = tmp_path / "report.html", Clock()
    told: list[BiasReport | None] = []
    report = LiveReport(file, SWEEP, bias=lambda: told[-1] if told else None, clock=clock)
    assert "lucky" not in file.read_text()
    clock.now_s += 1000
    told.append(BiasReport("accuracy", True, 0.9, trials=5, warning="only lucky"))
    report.add(rows(0, 5))
    assert "only lucky" in file.read_text()
    assert 'class="state running"' in file.read_text()
    told.append(None)
    report.close()
    assert "lucky" not in file.read_text()


def test_it_is_written_every_few_seconds(tmp_path: Path) -> None:
    file, clock = tmp_path / "report.html", Clock()
    report = LiveReport(file, SWEEP, every_s=3.0, clock=clock)
    written = []
    for second in range(10):
        file.write_text("old")
        clock.now_s = 101.0 + second
        report.add(rows(second, second + 1))
        written.append(file.read_text() != "old")
    assert written == [False, False, True, False, False, True, False, False, True, False]


def test_a_report_that_takes_long_is_written_less_often(tmp_path: Path) -> None:
    file, clock = tmp_path / "report.html", Clock()
    clock.look_s = 1.0  # writing looks at the clock in between: 2 s
    report = LiveReport(file, SWEEP, every_s=3.0, clock=clock)
    clock.look_s = 0.0
    file.write_text("old")
    clock.now_s += 90.0
    report.add(rows(0, 1))
    assert file.read_text() == "old"
    clock.now_s += 15.0  # 50 times 2 s have passed
    report.add(rows(1, 2))
    assert file.read_text() != "old"


def test_a_report_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    report = LiveReport(folder / "report.html", SWEEP, every_s=0.0)
    assert "cannot be written: FileNotFoundError" in report.problem
    report.add(rows(0, 20))
    folder.mkdir()
    report.close()
    assert report.problem == ""
    assert "All 20 trials" in (folder / "report.html").read_text()


def test_a_mistake_of_ours_ends_no_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = LiveReport(tmp_path / "report.html", SWEEP)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr("modules.report.live.page", fail)
    report.close()
    assert "ZeroDivisionError: a mistake (test_report_live.py:" in report.problem


def test_rows_that_nobody_foresaw_end_no_sweep(tmp_path: Path) -> None:
    report = LiveReport(tmp_path / "report.html", SWEEP)
    report.add([{**rows(0, 1)[0], "trainer": ["a list", "of all things"]}])
    report.add(rows(1, 5))
    report.close()
    assert "lacks trials: TypeError: unhashable type: 'list' (data.py:" in report.problem
    assert "All 4 trials with a result" in (tmp_path / "report.html").read_text()


def test_how_many_there_will_be_may_be_known_late(tmp_path: Path) -> None:
    report = LiveReport(tmp_path / "report.html", Sweep("s", "accuracy", True, ("a",)))
    report.add(rows(0, 12))
    report.expect(12)
    report.close()
    assert "all of them" in (tmp_path / "report.html").read_text()


def test_a_report_that_was_written_live_equals_one_of_all_rows(tmp_path: Path) -> None:
    live = LiveReport(tmp_path / "live.html", SWEEP, every_s=0.0)
    for start in range(0, 60, 20):
        live.add(rows(start, start + 20))
    live.close()
    write_report(tmp_path / "again.html", SWEEP, rows(0, 60), Moment())
    one, other = (
        (tmp_path / name).read_text().split("<section", 1)[1].split("<footer")[0]
        for name in ("live.html", "again.html")
    )
    assert one == other


def test_the_account_is_added_at_the_end_of_the_run(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    LiveReport(file, SWEEP).add(rows(0, 20))
    account = {"rank": 1, "host": "h", "copies": ["tuple server"]}
    account |= {"working_s": 1.0, "waiting_s": 1.0, "communicating_s": 0.0}
    measured = {**account, "rank": 2, "cpu_s": 0.5}
    conclude_report(file, "failed", [account, measured])
    text = file.read_text()
    assert 'class="state failed"' in text
    assert "rank 1 on h: tuple server" in text
    assert ">50%</span>" in text  # as earlier journals have it
    assert ">50%, CPU 25%</span>" in text
    assert RankAccount.of(account).copies == ["tuple server"]
