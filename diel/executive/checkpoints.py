"""Checkpoints of a run, so that it can be resumed: after iterations, for at most 5 % of the time.

The journal has the finished iterations; the tuples are in a file, and each state that a module has
saved is in another. All are of the same moment, between two decisions of the scheduler. Groups may
be running then: beside the group that has finished, or if the checkpoint is saved by time or for a
state. Their iterations are repeated in a resumed run, although they have put and taken tuples
already: with the tuples of the checkpoint, and each module from the state that it had saved.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from diel.run.directory import group_of_state, state_stem
from diel.run.records import CheckpointSaved

if TYPE_CHECKING:
    from diel.executive.messages import StateSaved
    from diel.run.journal import Recorder
    from diel.tuples.client import TupleClient

_SHARE: Final = 0.05
"""The largest share of a run's time that goes into checkpoints."""
_AFTER_FAILURE_S: Final = 60.0


class Checkpoints:
    """Saves checkpoints of a run, and decides when one is due.

    `number` and `states` are of the last checkpoint: 0 and none before the first. Every `every_s`
    one is saved whether an iteration has finished or not. `pinned` is one that is kept as long as a
    run that has finished may go back to it.
    """

    def __init__(
        self,
        recorder: Recorder,
        tuples: Callable[[], TupleClient],
        number: int = 0,
        states: Sequence[str] = (),
        *,
        every_s: float | None = None,
        pinned: CheckpointSaved | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recorder = recorder
        self._tuples = tuples
        self._number = number
        self._pinned = pinned
        self._is_pin_due = False
        self._every_s = math.inf if every_s is None else every_s
        self._clock = clock
        self._next_s = clock()
        self._saved_s = clock()
        self._states = {state_stem(name): name for name in states}
        self._is_state_new = False
        self._needed: tuple[frozenset[str], ...] = (frozenset(), frozenset(states))
        self._written = set(states)  # existing files of states

    def is_due(self) -> bool:
        """Whether a checkpoint now keeps all checkpoints within their share of the run's time."""
        return self._clock() >= self._next_s

    @property
    def is_pin_due(self) -> bool:
        """Whether the next checkpoint is to be saved at once, and kept until the run has ended."""
        return self._is_pin_due

    def note_failures(self) -> None:
        """Record that a group finishes with what can be repeated: a finished run may go back."""
        self._is_pin_due |= self._pinned is None

    def is_due_by_time(self) -> bool:
        """Whether a checkpoint is due without a finished iteration: for a new state, or by time."""
        is_wanted = self._is_state_new or self._clock() - self._saved_s >= self._every_s
        return is_wanted and self.is_due()

    def is_wanted_before_end(self) -> bool:
        """Whether to save a checkpoint before the run is stopped: for a new state, or if timed."""
        return self._is_state_new or math.isfinite(self._every_s)

    def note_state(self, state: StateSaved) -> None:
        """Record that a module has saved its state, which belongs to the next checkpoint."""
        self._states[state_stem(state.name)] = state.name
        self._written.add(state.name)
        self._is_state_new = True

    def forget_states(self, group: str) -> None:
        """Forget the states of a group's modules, since its iteration has finished."""
        self._states = {
            stem: name for stem, name in self._states.items() if group_of_state(name) != group
        }

    def save(self, hear: Callable[[], object] = lambda: None) -> None:
        """Save a checkpoint: the tuples to a file, then a record with that file and all states.

        `hear` is called when the tuples have been copied: reports that ranks sent before that have
        to be in the journal before the checkpoint's record. An OSError if the file cannot be
        written; earlier checkpoints are kept.
        """
        started_s = self._clock()
        directory, tuples = self._recorder.directory, self._tuples()
        file = directory.checkpoint_file(self._number + 1)
        is_empty = tuples.is_empty()
        if not is_empty:
            try:
                tuples.checkpoint(file)
            except OSError:
                self._next_s = self._clock() + _AFTER_FAILURE_S
                self._is_pin_due = False  # a later one would not do
                raise
        hear()
        self._number += 1
        name = None if is_empty else file.name
        states = sorted(self._states.values())
        saved = CheckpointSaved(
            number=self._number, file=name, states=states, is_pinned=self._is_pin_due
        )
        self._recorder.record(saved)
        self._recorder.sync()
        if self._is_pin_due:
            self._pinned, self._is_pin_due = saved, False
        self._is_state_new = False
        self._remove_states(frozenset(states))
        # The previous checkpoint is kept, in case this one turns out to be unreadable.
        if self._pinned is None or self._number - 2 != self._pinned.number:
            directory.checkpoint_file(self._number - 2).unlink(missing_ok=True)
        ended_s = self._clock()
        self._next_s = ended_s + (ended_s - started_s) * (1 / _SHARE - 1)
        self._saved_s = ended_s

    def _remove_states(self, states: frozenset[str]) -> None:
        """Remove the files of states that neither this nor the previous checkpoint needs."""
        self._needed = self._needed[1], states
        pinned = () if self._pinned is None else self._pinned.states
        for name in self._written.difference(*self._needed, pinned):
            (self._recorder.directory.states / name).unlink(missing_ok=True)
            self._written.discard(name)
