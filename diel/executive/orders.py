"""Orders to the ranks, from the scheduler's instructions, and the deadlines of copies.

::

    StartGroup      RunGroup, to all ranks of the group
    RestartCopies   RunCopy, to the ranks of each copy
    AbandonCopy     LeaveCopy, to the ranks of the copy
    ConnectModule   MakeModuleComm, to the ranks of the module

A copy's time limit begins with its order to run, the time that it has to leave with its order to
leave.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final

from diel.comm.mailbox import Mailbox
from diel.executive import messages
from diel.executive.deadlock import WaitWatch
from diel.executive.events import (
    AbandonCopy,
    ConnectModule,
    Event,
    Instruction,
    LeaveTimedOut,
    RestartCopies,
    StartGroup,
    TimeLimitPassed,
)
from diel.executive.listener import TimeTable
from diel.executive.plans import CopyPlan, RunPlan
from diel.run.records import CopyFinished, ModuleFailed
from diel.text import format_duration

if TYPE_CHECKING:
    from diel.executive.messages import Report
    from diel.executive.placement.assignment import RankAssignment
    from diel.executive.placement.pinning import Pins
    from diel.loading.module_spec import ModuleSpec

# As long as ranks have to leave at the end of a run. A rank that waits in diel needs milliseconds.
_LEAVE_TIMEOUT_S: Final = 5.0


class Orders:
    """Sends orders to the ranks of the pool, and tracks the deadlines of copies.

    Parameters
    ----------
    mailbox, leaves : Mailbox
        To the ranks of the pool; the second one reaches a rank in the middle of a copy.
    plan : RunPlan
    assignment : RankAssignment
        Which GPUs a copy has.
    waits : WaitWatch
        Its waits of ranks that are ordered to leave are removed.
    time_table : TimeTable
        Notes which copy each rank has been ordered to run.
    note_copy : callable, optional
        Called with the plan and the spec of each copy that is started.
    warn : callable, optional
        Called with the plan of a copy, and what is to be said of it.

    Attributes
    ----------
    pins : Pins or None
        Chooses the cores of copies, if modules are pinned: to be set before any order is given.
    """

    def __init__(
        self,
        mailbox: Mailbox[Report],
        leaves: Mailbox[Any],
        *,
        plan: RunPlan,
        assignment: RankAssignment,
        waits: WaitWatch,
        time_table: TimeTable,
        note_copy: Callable[[CopyPlan, ModuleSpec], object] | None = None,
        warn: Callable[[CopyPlan, str], object] = lambda plan, text: None,
    ) -> None:
        self._mailbox, self._leaves = mailbox, leaves
        self._assignment = assignment
        self._waits = waits
        self._time_table = time_table
        self._note_copy = note_copy
        self._warn = warn
        self._specs = plan.specs
        self.pins: Pins | None = None
        self._numbers = {group.name: number for number, group in enumerate(plan.groups)}
        self._copies_of = {
            group.name: {
                plan.specs[module.module].own_name: module.copies for module in group.modules
            }
            for group in plan.groups
        }
        self._modules = plan.modules
        self._present_copies: dict[str, dict[str, CopyPlan]] = {}  # by group and name
        self._alarms = Alarms()  # by "limit" or "leave", and what identifies the copy
        self._handlers: dict[type, Callable[[Any], None]] = {
            StartGroup: self._start_group,
            RestartCopies: self._restart_copies,
            AbandonCopy: self._abandon_copy,
            ConnectModule: self._connect_module,
        }

    def give(self, instructions: Sequence[Instruction], free_ranks: Sequence[int] = ()) -> None:
        """Send the orders that follow from instructions; other instructions are ignored.

        `free_ranks` are those on which no copy runs any more.
        """
        if self.pins is not None:
            self.pins.release(free_ranks)
            for instruction in instructions:
                if isinstance(instruction, StartGroup):
                    self.pins.release(rank for plan in instruction.copies for rank in plan.ranks)
        for instruction in instructions:
            if type(instruction) in self._handlers:
                self._handlers[type(instruction)](instruction)

    def note_end(self, copy: CopyFinished | ModuleFailed) -> None:
        """Record that a copy has ended: cancel its time limit."""
        self._alarms.call_off(_limit_of(copy))

    def overdue(self, now_s: float) -> list[Event]:
        """Return an event for each copy that has exceeded its time, once."""
        return self._alarms.due(now_s)

    def _start_group(self, instruction: StartGroup) -> None:
        copies = instruction.copies
        gpus = [self._assignment.gpus_of_copy(plan.module, plan.ranks) for plan in copies]
        order = messages.RunGroup(
            self._numbers[instruction.group],
            instruction.iteration,
            tuple(rank for plan in copies for rank in plan.ranks),
            copies[0].module_serial,
            tuple(gpus) if any(each is not None for each in gpus) else None,
            self._cpus_of(copies),
        )
        self._mailbox.send_to_all(order, order.ranks)
        self._present_copies[instruction.group] = {plan.name: plan for plan in copies}
        self._note_orders(copies)

    def _cpus_of(
        self, copies: Sequence[CopyPlan]
    ) -> tuple[tuple[tuple[int, ...] | None, ...] | None, ...] | None:
        """Choose the cores of copies that start; return them by copy and rank."""
        if self.pins is None:
            return None
        for plan in self.pins.take(copies):
            self._warn(
                plan,
                f"its ranks {', '.join(map(str, plan.ranks))} are not bound to cores as pin says: "
                "their launcher has bound them to cores that others have; start the ranks with "
                "mpirun --bind-to none, or by diel run",
            )
        cpus = tuple(map(self.pins.of, copies))
        return cpus if any(each is not None for each in cpus) else None

    def _restart_copies(self, instruction: RestartCopies) -> None:
        present = self._present_copies[instruction.group]
        present.update((plan.name, plan) for plan in instruction.copies)
        peers = messages.peers_of(instruction.group, list(present.values()), self._specs)
        for plan in instruction.copies:
            gpus = self._assignment.gpus_of_copy(plan.module, plan.ranks)
            copies_of = self._copies_of[plan.group]
            cpus = None if self.pins is None else self.pins.of(plan)
            order = messages.RunCopy(plan, copies_of, peers, gpus, cpus)
            self._mailbox.send_to_all(order, plan.ranks)
        self._note_orders(instruction.copies)

    def _note_orders(self, copies: Sequence[CopyPlan]) -> None:
        for plan in copies:
            self._time_table.note_order(plan)
            if self._note_copy is not None:
                self._note_copy(plan, self._specs[plan.module])
            limit_s = self._modules[plan.group, plan.module].time_limit_s
            if limit_s is not None:
                error = f"time limit of {format_duration(limit_s)} exceeded"
                event = TimeLimitPassed(plan.serial, error)
                self._alarms.set(_limit_of(plan), time.monotonic() + limit_s, event)

    def _abandon_copy(self, instruction: AbandonCopy) -> None:
        serial = instruction.plan.serial
        self._leaves.send_to_all(messages.LeaveCopy(serial), instruction.ranks)
        for rank in instruction.ranks:  # the order ends their waits
            self._waits.forget(rank)
        grace_ends_s = time.monotonic() + _LEAVE_TIMEOUT_S
        timed_out = LeaveTimedOut(serial, _LEAVE_TIMEOUT_S)
        self._alarms.set(("leave", serial), grace_ends_s, timed_out)

    def _connect_module(self, instruction: ConnectModule) -> None:
        self._mailbox.send_to_all(messages.MakeModuleComm(instruction.serial), instruction.ranks)


class Alarms:
    """Events that are due at a given time unless they are cancelled, each under a name.

    A dictionary, not a heap: there are at most about as many alarms as running copies.
    """

    def __init__(self) -> None:
        self._alarms: dict[Hashable, tuple[float, Event]] = {}

    def set(self, name: Hashable, at_s: float, event: Event) -> None:
        """Schedule an event for `at_s`, in place of any earlier event of this name."""
        self._alarms[name] = (at_s, event)

    def call_off(self, name: Hashable) -> None:
        """Cancel the event of this name, if there is one."""
        self._alarms.pop(name, None)

    def due(self, now_s: float) -> list[Event]:
        """Remove and return the events whose time has come, earliest first."""
        late = [name for name, (at_s, _) in self._alarms.items() if at_s <= now_s]
        late.sort(key=lambda name: self._alarms[name][0])
        return [self._alarms.pop(name)[1] for name in late]


def _limit_of(copy: CopyPlan | CopyFinished | ModuleFailed) -> tuple[object, ...]:
    """Return the name of the alarm for a copy's time limit."""
    return "limit", copy.group, copy.iteration, copy.name, copy.attempt
