"""What ranks tell of their time, added up."""

from __future__ import annotations

from typing import Any

from diel.comm.meter import Times
from diel.executive.plans import CopyPlan
from diel.executive.timesheet import Timesheet


def plan(serial: int, module: str, *ranks: int) -> CopyPlan:
    return CopyPlan(serial, "g", module, 0, 1, ranks, 100, ranks)


def by(key: str, rows: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    return {row[key]: row for row in rows}


def test_ranks_and_modules() -> None:
    sheet = Timesheet([1], [2, 3], lambda rank: f"node{rank}")
    sheet.note_order(plan(1, "a", 2, 3))
    sheet.note_copy(2, 1, Times(3.0, 1.0, 0.0))
    sheet.note_copy(3, 1, Times(1.0, 2.0, 1.0, 0.5))
    sheet.note_order(plan(2, "b", 2))
    sheet.note_copy(2, 2, Times(0.5, 0.0, 0.0))
    sheet.note_total(2, Times(4.0, 6.0, 0.0))
    told = sheet.tell()
    ranks = by("rank", told["ranks"])
    assert ranks[1] == {
        "rank": 1,
        "host": "node1",
        "copies": ["tuple server"],
        "working_s": 0.0,
        "waiting_s": 0.0,
        "communicating_s": 0.0,
        "cpu_s": 0.0,
    }
    assert (ranks[2]["copies"], ranks[2]["waiting_s"]) == (["a.0", "b.0"], 6.0)
    # It never said goodbye: what it did in copies is known.
    assert (ranks[3]["working_s"], ranks[3]["communicating_s"]) == (1.0, 1.0)
    assert ranks[3]["cpu_s"] == 0.5
    modules = by("module", told["modules"])
    assert (modules["a"]["ranks"], modules["a"]["working_s"]) == (2, 4.0)
    assert (modules["b"]["ranks"], modules["b"]["working_s"]) == (1, 0.5)


def test_a_report_of_another_copy_is_nobodys() -> None:
    sheet = Timesheet([], [2], str)
    sheet.note_order(plan(1, "a", 2))
    sheet.note_order(plan(2, "b", 2))
    sheet.note_copy(2, 1, Times(3.0, 1.0, 0.0))
    assert sheet.tell()["modules"] == []
