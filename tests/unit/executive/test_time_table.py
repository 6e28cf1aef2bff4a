"""What ranks tell of their time, added up."""

from __future__ import annotations

from diel.comm.meter import Times
from diel.executive.listener import TimeTable
from diel.executive.plans import CopyPlan
from diel.run.records import RankTimes


def plan(serial: int, module: str, *ranks: int) -> CopyPlan:
    return CopyPlan(serial, "g", module, 0, 1, ranks, 100, ranks)


def test_ranks_and_modules() -> None:
    sheet = TimeTable([1], [2, 3], lambda rank: f"node{rank}")
    sheet.note_order(plan(1, "a", 2, 3))
    sheet.note_copy(2, 1, Times(3.0, 1.0, 0.0))
    sheet.note_copy(3, 1, Times(1.0, 2.0, 1.0, 0.5))
    sheet.note_order(plan(2, "b", 2))
    sheet.note_copy(2, 2, Times(0.5, 0.0, 0.0))
    sheet.note_total(2, Times(4.0, 6.0, 0.0))
    record = sheet.record()
    server, second, third = record.ranks
    assert server == RankTimes(1, "node1", ("tuple server",), 0.0, 0.0, 0.0, 0.0)
    assert (second.copies, second.waiting_s) == (("a.0", "b.0"), 6.0)
    # It never said goodbye: what it did in copies is known.
    assert (third.working_s, third.communicating_s) == (1.0, 1.0)
    assert third.cpu_s == 0.5
    a, b = record.modules
    assert (a.module, a.ranks, a.working_s) == ("a", 2, 4.0)
    assert (b.module, b.ranks, b.working_s) == ("b", 1, 0.5)


def test_a_copy_that_has_not_ended_is_named() -> None:
    sheet = TimeTable([1], [2, 3, 4], str)
    sheet.note_order(plan(1, "a", 2, 3))
    sheet.note_copy(2, 1, Times(1.0, 0.0, 0.0))
    sheet.note_order(plan(2, "a", 2))
    sheet.note_order(plan(3, "b", 4))
    sheet.note_total(4, Times(1.0, 0.0, 0.0))  # it has left its copy, and said goodbye
    copies = [rank.copies for rank in sheet.record().ranks]
    assert copies == [("tuple server",), ("a.0", "a.0 (did not end)"), ("a.0 (did not end)",), ()]


def test_a_report_of_another_copy_is_nobodys() -> None:
    sheet = TimeTable([], [2], str)
    sheet.note_order(plan(1, "a", 2))
    sheet.note_order(plan(2, "b", 2))
    sheet.note_copy(2, 1, Times(3.0, 1.0, 0.0))
    assert sheet.record().modules == []
