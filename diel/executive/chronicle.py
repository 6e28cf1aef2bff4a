"""What the journal says about a run: a record for each thing that the scheduler decides.

::

    GroupStarted      group, iteration; copies and placement, or groups where it holds others
    ModuleCommMade    group, iteration, module: its copies share ctx.module_comm
    CopyFinished      group, iteration, module, copy, attempt, returned; of a large value
                      returned_file, returned_type and returned_bytes
    ModuleFailed      group, iteration, module, copy, attempt, error, ...; policy: what follows
    CopiesRestarted   group, iteration, module, copies, attempt
    CopyGivenUp       group, iteration, module, copy, attempt, error
    GroupFinished     group, iteration; ended_by: why no further iteration follows, or null
    StopOrdered       reason

`diel.executive.replay` reads them: together they say all that a scheduler has to be told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from diel.executive.events import (
    MakeModuleComm,
    NoteCopyFailed,
    NoteCopyFinished,
    NoteCopyGivenUp,
    NoteGroupFinished,
    NoteNestStarted,
    RestartCopies,
    StartGroup,
)
from diel.executive.plans import CopyPlan, GroupPlan
from diel.run.records import StoredValue

if TYPE_CHECKING:
    from diel.run.journal import Record
    from diel.run.recorder import Recorder


class Chronicle:
    """Writes down what the scheduler decides.

    Parameters
    ----------
    recorder : Recorder
    groups : mapping of str to GroupPlan
        By name.
    """

    def __init__(self, recorder: Recorder, groups: Mapping[str, GroupPlan]) -> None:
        self._record = recorder.record
        self._groups = groups
        self._copies_of = {
            name: {module.module: module.copies for module in group.modules}
            for name, group in groups.items()
        }

    def copies_of(self, group: str) -> dict[str, int]:
        """Return the copies of each module in a group."""
        return self._copies_of[group]

    def group_started(self, started: StartGroup) -> None:
        """Write down that the modules of a group start."""
        self._record(
            "GroupStarted",
            group=started.group,
            iteration=started.iteration,
            copies=self._copies_of[started.group],
            placement={plan.name: plan.ranks for plan in started.copies},
        )

    def nest_started(self, note: NoteNestStarted) -> None:
        """Write down that an iteration of a group of groups begins."""
        groups = self._groups[note.group].groups
        self._record("GroupStarted", group=note.group, iteration=note.iteration, groups=groups)

    def module_comm_made(self, made: MakeModuleComm) -> None:
        """Write down that all copies of a module share a communicator from now on."""
        self._record(
            "ModuleCommMade", group=made.group, iteration=made.iteration, module=made.module
        )

    def copy_finished(self, note: NoteCopyFinished) -> None:
        """Write down what a copy has returned."""
        returned = note.returned
        fields: dict[str, Any] = {"returned": returned}
        if isinstance(returned, StoredValue):
            fields = {
                "returned": None,
                "returned_file": returned.file,
                "returned_type": returned.type,
                "returned_bytes": returned.size_bytes,
            }
        self._record("CopyFinished", **_place(note.plan), **fields)

    def copy_failed(self, note: NoteCopyFailed) -> Record:
        """Write down a failure and what follows."""
        plan, rank = note.plan, note.rank
        return self._record(
            "ModuleFailed",
            **_place(plan),
            rank=rank,
            copy_rank=None if rank is None else plan.ranks.index(rank),
            ranks=plan.ranks,
            host=note.host,
            error=note.error,
            detail=note.detail,
            policy=note.policy,
            whole_module=note.whole_module,
        )

    def copies_restarted(self, restarted: RestartCopies) -> None:
        """Write down that copies of a module start again."""
        first = restarted.copies[0]
        self._record(
            "CopiesRestarted",
            group=restarted.group,
            iteration=restarted.iteration,
            module=first.module,
            copies=[plan.copy_index for plan in restarted.copies],
            attempt=first.attempt,
        )

    def copy_given_up(self, note: NoteCopyGivenUp) -> None:
        """Write down that the rest goes on without a copy."""
        self._record("CopyGivenUp", **_place(note.plan), error=note.error)

    def group_finished(self, note: NoteGroupFinished) -> None:
        """Write down that an iteration is done, and whether it was the last."""
        self._record(
            "GroupFinished", group=note.group, iteration=note.iteration, ended_by=note.ended_by
        )


def _place(plan: CopyPlan) -> dict[str, Any]:
    return {
        "group": plan.group,
        "iteration": plan.iteration,
        "module": plan.module,
        "copy": plan.copy_index,
        "attempt": plan.attempt,
    }
