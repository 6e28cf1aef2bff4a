"""What of a run need not be repeated when it goes on: the groups that are finished, and since when.

At a checkpoint everything that is finished stays so. A group that has finished later stays finished
if all its copies were executables that have not used the tuple space, which returns to the
checkpoint, and if nothing is repeated that it comes after: groups that it depends on, its earlier
iterations, and the same of the groups around it. A group with ``until`` does not: a tuple decides;
nor does one that was skipped by a tuple's value. Of elements of ``foreach``, those that have failed
are repeated as long as their group has not finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from diel.run.fields import Record
from diel.run.part import GroupLinks
from diel.run.records import (
    CopyFinished,
    Finished,
    GroupFinished,
    GroupSkipped,
    GroupStarted,
    RunStarted,
    TasksFailed,
)


class KeptGroups:
    """The groups that stay finished, from those of a checkpoint and the records that follow it.

    With `repeats_failed`, groups with failed tasks do not stay finished.

    Attributes
    ----------
    finished : dict of str to Finished
    outcomes : dict of str to str
        How they have ended, where not as ``finished``.
    failed : list of (str, tuple of int)
        Groups and iterations that finished with failed tasks, which may be repeated.
    """

    def __init__(
        self,
        started: RunStarted | None,
        finished: Mapping[str, Finished],
        outcomes: Mapping[str, str],
        *,
        repeats_failed: bool = False,
    ) -> None:
        self.finished, self.outcomes = dict(finished), dict(outcomes)
        self.failed: list[tuple[str, tuple[int, ...]]] = []
        self._started = started
        self._outer = frozenset(() if started is None else started.inside.values())
        self._repeats_failed = repeats_failed
        self._arrays = {each.group for each in (() if started is None else started.elements)}
        self._links = None if started is None else GroupLinks.of_run(started)
        self._repeated: set[str] = set()  # groups with a finished iteration that is repeated
        self._incomplete: set[str] = set()  # groups with such a group inside
        self._to_end: dict[str, int] = {}  # copies of running groups, less those that were apart
        self._has_failed: set[str] = set()
        self._has_damage = False

    def at(
        self,
        finished: Mapping[str, Finished],
        outcomes: Mapping[str, str],
        *,
        repeats_failed: bool = False,
    ) -> KeptGroups:
        """Return the groups that stay finished from a checkpoint at this moment on."""
        groups = KeptGroups(self._started, finished, outcomes, repeats_failed=repeats_failed)
        groups._to_end = dict(self._to_end)
        for group, iteration in self.failed:
            array = self._array_of(group)
            if array and not (array in finished and finished[array].is_last):
                groups.failed.append((group, iteration))
                groups.repeat(group, iteration)
        return groups

    def forget(self, groups: Iterable[str]) -> None:
        """Let all iterations of groups be repeated."""
        for group in groups:
            self.finished.pop(group, None)
            self.outcomes.pop(group, None)

    def note_damage(self) -> None:
        """Record that a line of the journal is lost: nothing that follows is kept."""
        self._has_damage = True

    def repeat(self, group: str, iteration: tuple[int, ...]) -> None:
        """Let a finished iteration of a group be repeated, with those around that end with it.

        Of an element, what comes after it in the element is repeated, too.
        """
        assert self._started is not None
        array = self._array_of(group)
        if array and self._links is not None:
            following = self._links.following(group) & self._links.inside_of(array)
            self.forget(following)
        while True:
            *around, own = iteration
            if own:
                self.finished[group] = Finished((*around, own - 1), False)
            else:
                self.finished.pop(group, None)
            self.outcomes.pop(group, None)
            self._note_repeated(group)
            group, iteration = self._started.inside.get(group, ""), iteration[:-1]
            outer = self.finished.get(group)
            if outer is None or outer.iteration != iteration:
                return

    def apply(self, record: Record) -> None:
        """Process the next record of the journal."""
        if isinstance(record, GroupStarted):
            self._to_end[record.group] = sum(record.copies.values())
        elif isinstance(record, CopyFinished):
            self._to_end[record.group] = self._to_end.get(record.group, 0) - record.is_apart
        elif isinstance(record, TasksFailed):
            self._has_failed.add(record.group)
            if record.is_repeatable and (record.group, record.iteration) not in self.failed:
                self.failed.append((record.group, record.iteration))
        elif isinstance(record, GroupSkipped):
            if self._may_be_kept(record.group) and not record.is_by_tuples:
                self._keep(record.group, Finished(record.iteration, True), "skipped")
            else:
                self._note_repeated(record.group)
        elif isinstance(record, GroupFinished):
            fails = record.outcome == "failed" and record.group not in self._outer
            if fails and self._array_of(record.group):
                self.failed.append((record.group, record.iteration))
                self._note_repeated(record.group)
            elif self._is_kept(record.group):
                finished = Finished(record.iteration, record.ended_by is not None)
                self._keep(record.group, finished, record.outcome)
            else:
                self._note_repeated(record.group)
            self._has_failed.discard(record.group)

    def _array_of(self, group: str) -> str:
        """Return the group with ``foreach`` that a group is in; empty if it is in none."""
        around = self._links.around(group) if self._links is not None and self._arrays else ()
        return next((name for name in around if name in self._arrays), "")

    def _keep(self, group: str, finished: Finished, outcome: str) -> None:
        self.finished[group] = finished
        self.outcomes.pop(group, None)
        if outcome != "finished":
            self.outcomes[group] = outcome

    def _may_be_kept(self, name: str) -> bool:
        """Whether nothing is repeated that a group comes after."""
        started = self._started
        if started is None or self._has_damage or name in started.until:
            return False
        around = name
        while around:
            before = (around, *started.depends.get(around, ()))
            if not self._repeated.isdisjoint(before):
                return False
            around = started.inside.get(around, "")
        return True

    def _is_kept(self, name: str) -> bool:
        if not self._may_be_kept(name):
            return False
        if name in self._outer:
            return name not in self._incomplete
        return self._to_end.get(name) == 0 and not (
            self._repeats_failed and name in self._has_failed
        )

    def _note_repeated(self, group: str) -> None:
        self._repeated.add(group)
        if self._started is not None and group in self._started.inside:
            self._incomplete.add(self._started.inside[group])
