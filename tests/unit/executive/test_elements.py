"""Elements of ``foreach``: how many run, what follows when one fails, and what a table says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from diel.executive.events import AbandonCopy, EndRun, Instruction, StartGroup, StopRun
from diel.executive.explanation import explain
from diel.executive.messages import RankFailed, RankFinished, RankLeft
from diel.executive.plans import GroupPlan, ModulePlan, recorded
from diel.executive.scheduler import Scheduler
from diel.run.element_tables import as_csv, element_rows
from diel.run.kept_groups import KeptGroups
from diel.run.records import (
    CopyFinished,
    Elements,
    Finished,
    GroupFinished,
    GroupSkipped,
    GroupStarted,
    RunStarted,
)
from diel.run.status import StatusView
from diel.run.view import RunView

Instructions = Sequence[Instruction]


def array(
    count: int, *, at_once: int | None = None, failures: int | None = None, coupled: bool = False
) -> list[GroupPlan]:
    """Return the plans of elements of one group each, or of two in a row, and a group after all."""
    names = tuple(f"cases-{number}" for number in range(count))
    rows = [[number / 10] for number in range(count)]
    elements = Elements("cases", ("dt",), rows, at_once, failures)
    plans = [GroupPlan("cases", groups=names, elements=elements)]
    for number, name in enumerate(names):
        if coupled:
            modules = (ModulePlan(f"heat-{number}", 1, 1), ModulePlan(f"flow-{number}", 1, 1))
            plans.append(GroupPlan(name, modules))
            continue
        first, second = f"first-{number}", f"second-{number}"
        plans.append(GroupPlan(name, groups=(first, second)))
        plans.append(GroupPlan(first, (ModulePlan(f"a-{number}", 1, 1),)))
        plans.append(GroupPlan(second, (ModulePlan(f"b-{number}", 1, 1),), depends=(first,)))
    plans.append(GroupPlan("after", (ModulePlan("end", 1, 1),), depends=("cases",)))
    return plans


class Run:
    """A scheduler, and what it has said so far."""

    def __init__(self, plans: list[GroupPlan], ranks: int = 8, **more: Any) -> None:
        self.plans = plans
        self.scheduler = Scheduler(plans, range(2, 2 + ranks), **more)
        self.said: list[Instruction] = []
        self.copies: dict[str, Any] = {}
        self._hear(self.scheduler.start())

    def _hear(self, instructions: Instructions) -> list[Instruction]:
        self.said += instructions
        for each in instructions:
            if isinstance(each, StartGroup):
                self.copies |= {copy.module: copy for copy in each.copies}
        return list(instructions)

    def finish(self, module: str) -> list[Instruction]:
        copy = self.copies.pop(module)
        return self._hear(self.scheduler.handle(RankFinished(copy.serial, copy.ranks[0])))

    def fail(self, module: str) -> list[Instruction]:
        copy = self.copies.pop(module)
        failed = RankFailed(copy.serial, copy.ranks[0], "ValueError: no", "host", "")
        return self._hear(self.scheduler.handle(failed))

    def view(self) -> RunView:
        view = RunView()
        view.apply(RunStarted(workflow="w", ranks=10, servers=[1], **recorded(self.plans)))
        for each in self.said:
            if not isinstance(each, (StartGroup, AbandonCopy, EndRun, StopRun)):
                view.apply(each)
        return view

    def ended(self, kind: type = GroupFinished) -> list[str]:
        return [each.group for each in self.said if isinstance(each, kind)]


def test_so_many_run_at_once_and_the_next_follows() -> None:
    run = Run(array(4, at_once=2))
    assert [*run.copies] == ["a-0", "a-1"]
    run.finish("a-1")
    assert [*run.copies] == ["a-0", "b-1"]
    run.finish("b-1")
    assert [*run.copies] == ["a-0", "a-2"]
    for module in ("a-2", "b-2", "a-3", "a-0", "b-3", "b-0"):
        run.finish(module)
    assert run.ended()[-2:] == ["cases-0", "cases"]
    assert run.finish("end")[-1] == EndRun()


def test_a_held_element_says_for_what_it_waits() -> None:
    run = Run(array(20, at_once=2))
    said = {each.group: each.text for each in explain(run.view(), StatusView(), 0.0).groups}
    assert said["cases"] == "runs, 0 of 20 elements have ended"
    assert said["cases-2"] == "waits for its turn: 2 elements of cases run at the same time"
    assert said["first-2"] == "waits for cases-2 to begin, which it is inside of"
    assert "cases-6" not in said


def test_what_comes_after_a_failure_in_its_element_is_skipped() -> None:
    run = Run(array(3, failures=1))
    run.fail("a-1")
    assert "b-1" not in run.copies
    assert run.ended(GroupSkipped) == ["second-1"]
    (finished,) = [
        each for each in run.said if isinstance(each, GroupFinished) and each.group == "cases-1"
    ]
    assert finished.outcome == "failed"
    for module in ("a-0", "a-2", "b-0", "b-2", "end"):
        run.finish(module)
    assert run.said[-1] == EndRun()
    assert run.scheduler.outcomes["cases"] == "failed"


def test_one_failure_more_than_may_be_ends_the_run() -> None:
    run = Run(array(4, failures=1))
    run.fail("a-1")
    assert not run.scheduler.stopping
    said = run.fail("a-0")
    assert isinstance(said[-1], StopRun)
    assert said[-1].reason == "2 of the 4 elements of cases have failed, and max_failures is 1"
    assert "cases" not in run.ended()


def test_without_max_failures_the_first_ends_the_run() -> None:
    run = Run(array(4))
    assert isinstance(run.fail("a-1")[-1], StopRun)


def test_modules_of_a_failed_element_are_left_together() -> None:
    run = Run(array(3, failures=2, coupled=True))
    partner = run.copies["flow-1"]
    (left,) = [each for each in run.fail("heat-1") if isinstance(each, AbandonCopy)]
    assert left.plan == partner
    assert "cases-1" not in run.ended()
    run._hear(run.scheduler.handle(RankLeft(partner.serial, partner.ranks[0])))
    assert run.ended() == ["cases-1"]
    assert set(partner.ranks) <= set(run.scheduler.free_ranks)


def finished_of(kept: KeptGroups) -> list[str]:
    return sorted(name for name, end in kept.finished.items() if end.is_last)


def kept_of(run: Run) -> KeptGroups:
    started = RunStarted(workflow="w", ranks=10, servers=[1], **recorded(run.plans))
    kept = KeptGroups(started, {}, {})
    for each in run.said:
        if isinstance(each, CopyFinished):
            kept.apply(each.replace(is_apart=True))
        elif isinstance(each, (GroupStarted, GroupFinished, GroupSkipped)):
            kept.apply(each)
    return kept


def test_a_run_that_goes_on_repeats_what_failed_and_what_came_after_it() -> None:
    run = Run(array(3, failures=1), ranks=1)
    run.finish("a-0")
    run.fail("a-1")
    run.finish("a-2")
    run.finish("b-0")
    kept = kept_of(run)
    assert finished_of(kept) == ["cases-0", "first-0", "first-2", "second-0"]
    again = Run(run.plans, finished=kept.finished, outcomes=kept.outcomes)
    assert [*again.copies] == ["a-1", "b-2"]


def test_a_checkpoint_amid_elements_keeps_no_failed_ones() -> None:
    run = Run(array(3, failures=1), ranks=1)
    for module in ("a-0",):
        run.finish(module)
    run.fail("a-1")
    kept = kept_of(run)
    saved = kept.at(run.scheduler.finished, run.scheduler.outcomes)
    assert finished_of(saved) == ["first-0"]
    assert saved.failed == [("first-1", (0, 0, 0))]
    assert "first-1" not in saved.outcomes


def test_a_finished_run_keeps_failed_elements_until_it_goes_back() -> None:
    run = Run(array(2, failures=1), ranks=2)
    run.fail("a-1")
    run.finish("a-0")
    run.finish("b-0")
    kept = kept_of(run)
    at_end = kept.at(run.scheduler.finished, run.scheduler.outcomes)
    assert "cases" in finished_of(at_end)
    for group, iteration in kept.failed:
        at_end.repeat(group, iteration)
    assert finished_of(at_end) == ["cases-0", "first-0", "second-0"]


def test_the_table_has_a_row_for_each() -> None:
    run = Run(array(3, failures=1))
    run.fail("a-1")
    for module in ("a-0", "a-2", "b-0"):
        run.finish(module)
    view = run.view()
    view._returned["second-0", "b-0.0"] = {"energy": 2.5, "field": [1, 2]}
    view._returned["second-2", "b-2.0"] = 7
    view._returned["second-1", "b-1.0"] = {"dt": 9}
    rows = element_rows(view, "cases")
    assert [row["outcome"] for row in rows] == ["finished", "failed", "running"]
    assert rows[0]["energy"] == 2.5
    assert "field" not in rows[0]
    assert (rows[1]["dt"], rows[1]["b.dt"]) == (0.1, 9)
    assert rows[2]["returned"] == 7
    lines = as_csv(rows).splitlines()
    assert lines[0] == "element,dt,outcome,seconds,energy,b.dt,returned"
    assert lines[2].startswith("cases-1,0.1,failed,")
    view._returned["first-0", "a-0.0"] = {"energy": 3}
    assert element_rows(view, "cases")[0]["a.energy"] == 3
    assert str(view.arrays["cases"]) == "2 of 3 elements have ended, 1 failed"


@pytest.mark.parametrize("at_once", [None, 1, 3])
def test_what_an_earlier_session_has_finished_is_not_begun(at_once: int | None) -> None:
    done = {name: Finished((0, 0), True) for name in ("cases-0", "cases-2")}
    run = Run(array(5, at_once=at_once), finished=done)
    expected = ["a-1", "a-3", "a-4"][: at_once or 3]
    assert [*run.copies] == expected
