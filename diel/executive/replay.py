"""From the journal of a run back to its scheduler.

Pure. Of the records of a run, complete or cut short anywhere, `replay` tells in which state the
scheduler was: the same events give the same state, and the journal has them all, down to whole
copies; which ranks of a copy had finished while others had not is not in it.

`diel.run.resuming.finished_in` tells which iterations of which groups were behind it.
``Scheduler(groups, pool, finished)`` goes on from there, on any pool: every iteration that had
begun without having finished is run again, so each is run at least once. The answer for the records
up to a checkpoint of the tuple space is what was behind at that checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from diel.executive.events import (
    CopyRankFailed,
    CopyRankFinished,
    CopyRankLeft,
    Event,
    Instruction,
    LeaveCopy,
    LookForTag,
    ModuleCommAsked,
    RestartCopies,
    StartGroup,
    StopAsked,
    TagLooked,
    TimeLimitPassed,
)
from diel.executive.nest import Finished
from diel.executive.plans import CopyPlan, GroupPlan
from diel.executive.scheduler import Choose, Scheduler, in_order

Records = Iterable[Mapping[str, Any]]


def replay(
    records: Records,
    groups: Sequence[GroupPlan],
    pool: Iterable[int],
    choose: Choose = in_order,
) -> Scheduler:
    """Return the scheduler in the state in which it was after these records.

    Parameters
    ----------
    records : iterable of mapping
        From the journal, in order. Where the run was resumed, only what follows that counts.
    groups : sequence of GroupPlan
        Of the run, or of its last resumption.
    pool : iterable of int
        Likewise.
    choose : callable, optional
        As in the run.
    """
    pool = tuple(pool)
    replayed = _Replay(Scheduler(groups, pool, choose=choose))
    for record in records:
        if record["event"] == "RunStarted":
            replayed = _Replay(Scheduler(groups, pool, _finished_before(record), choose))
            replayed.follow(replayed.scheduler.start())
        else:
            for event in replayed.events_of(record):
                replayed.follow(replayed.scheduler.handle(event))
    return replayed.scheduler


def _finished_before(record: Mapping[str, Any]) -> dict[str, Finished]:
    return {
        group: Finished(tuple(iteration), is_last)
        for group, (iteration, is_last) in record.get("finished", {}).items()
    }


class _Replay:
    """A scheduler, and what it has last said about each copy and group."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._plans: dict[tuple[str, int], CopyPlan] = {}  # by module and copy
        self._leaving: dict[tuple[str, int], tuple[int, ...]] = {}
        self._looking: dict[str, LookForTag] = {}

    def follow(self, instructions: Sequence[Instruction]) -> None:
        """Take in what would be performed."""
        for one in instructions:
            if isinstance(one, (StartGroup, RestartCopies)):
                for plan in one.copies:
                    self._plans[plan.module, plan.copy_index] = plan
            elif isinstance(one, LeaveCopy):
                self._leaving[one.plan.module, one.plan.copy_index] = one.ranks
            elif isinstance(one, LookForTag):
                self._looking[one.group] = one

    def events_of(self, record: Mapping[str, Any]) -> list[Event]:
        """Return the events that have led to a record."""
        handler = getattr(self, f"_of_{record['event']}", None)
        events: list[Event] = [] if handler is None else handler(record)
        return events

    # Each method below is named after the event of the journal that it handles.

    def _of_CopyFinished(self, record: Mapping[str, Any]) -> list[Event]:
        plan = self._plans[record["module"], record["copy"]]
        return [CopyRankFinished(plan.serial, rank, record["returned"]) for rank in plan.ranks]

    def _of_ModuleCommMade(self, record: Mapping[str, Any]) -> list[Event]:
        first = self._plans[record["module"], 0]
        copies = [self._plans[record["module"], index] for index in range(first.copies)]
        return [ModuleCommAsked(one.serial, rank) for one in copies for rank in one.ranks]

    def _of_ModuleFailed(self, record: Mapping[str, Any]) -> list[Event]:
        plan = self._plans[record["module"], record["copy"]]
        if record["rank"] is None:
            return [TimeLimitPassed(plan.serial, record["error"])]
        return [
            CopyRankFailed(
                plan.serial, record["rank"], record["error"], record["host"], record["detail"]
            )
        ]

    def _of_CopiesRestarted(self, record: Mapping[str, Any]) -> list[Event]:
        return [one for copy in record["copies"] for one in self._left(record["module"], copy)]

    def _of_CopyGivenUp(self, record: Mapping[str, Any]) -> list[Event]:
        return self._left(record["module"], record["copy"])

    def _left(self, module: str, copy: int) -> list[Event]:
        plan = self._plans[module, copy]
        return [CopyRankLeft(plan.serial, rank) for rank in self._leaving.pop((module, copy), ())]

    def _of_GroupFinished(self, record: Mapping[str, Any]) -> list[Event]:
        look = self._looking.pop(record["group"], None)
        if look is None:
            return []
        return [TagLooked(look.group, look.iteration, record["ended_by"] == "until")]

    def _of_StopOrdered(self, record: Mapping[str, Any]) -> list[Event]:
        return [StopAsked(record["reason"])]
