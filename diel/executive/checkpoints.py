"""Checkpoints of a run, so that it can be resumed: at the ends of iterations, as often as is cheap.

What is finished is in the journal; the tuples are in a file, and so is what modules have saved of
their own state. All are of the same moment, between two decisions of the scheduler. Groups that run
then, beside the one that has finished, or since a checkpoint is saved by time or for a state, have
put and taken tuples already: they are repeated, with the tuples as they were, and each module from
the state that it had saved.
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
    from diel.run.recorder import Recorder
    from diel.tuples.client import TupleClient

_SHARE: Final = 0.05
"""Of the time of a run, at most so much goes into checkpoints."""
_AFTER_FAILURE_S: Final = 60.0


class Checkpoints:
    """Saves a run now and then.

    Parameters
    ----------
    recorder : Recorder
    tuples : callable
        Returns the client that reads the tuples.
    number : int
        Of the last checkpoint that there is; 0 for none.
    states : sequence of str
        The files with states that belong to it.
    every_s : float, optional
        How often to save one whether an iteration has finished or not.
    clock : callable, optional
        Returns seconds.
    """

    def __init__(
        self,
        recorder: Recorder,
        tuples: Callable[[], TupleClient],
        number: int = 0,
        states: Sequence[str] = (),
        *,
        every_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recorder = recorder
        self._tuples = tuples
        self._number = number
        self._every_s = math.inf if every_s is None else every_s
        self._clock = clock
        self._next_s = clock()
        self._saved_s = clock()
        self._states = {state_stem(name): name for name in states}
        self._is_state_new = False
        self._needed: tuple[frozenset[str], ...] = (frozenset(), frozenset(states))
        self._written = set(states)  # files with states that are there

    def is_due(self) -> bool:
        """Whether a checkpoint at this moment leaves all of them within their share of the time."""
        return self._clock() >= self._next_s

    def is_due_by_time(self) -> bool:
        """Whether one is due though no iteration has finished: for a state, or by the time."""
        is_wanted = self._is_state_new or self._clock() - self._saved_s >= self._every_s
        return is_wanted and self.is_due()

    def is_wanted_before_end(self) -> bool:
        """Whether one is worth its time though the run is about to be stopped."""
        return self._is_state_new or math.isfinite(self._every_s)

    def note_state(self, state: StateSaved) -> None:
        """Record that a module has saved its state; it counts from the next checkpoint on."""
        self._states[state_stem(state.name)] = state.name
        self._written.add(state.name)
        self._is_state_new = True

    def forget_states(self, group: str) -> None:
        """Forget the states of modules in an iteration of a group, which has finished."""
        self._states = {
            stem: name for stem, name in self._states.items() if group_of_state(name) != group
        }

    def save(self, hear: Callable[[], object] = lambda: None) -> None:
        """Save the run as it is; what is finished is in the journal already.

        Parameters
        ----------
        hear : callable, optional
            Called when the tuples have been copied: what ranks had reported before that is to be
            in the journal before the checkpoint is.

        Raises
        ------
        OSError
            If the file cannot be written; earlier checkpoints are still there.
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
                raise
        hear()
        self._number += 1
        name = None if is_empty else file.name
        states = sorted(self._states.values())
        self._recorder.record(CheckpointSaved(number=self._number, file=name, states=states))
        self._recorder.sync()
        self._is_state_new = False
        self._remove_states(frozenset(states))
        # The one before stays: this one may yet be found to be unreadable.
        directory.checkpoint_file(self._number - 2).unlink(missing_ok=True)
        ended_s = self._clock()
        self._next_s = ended_s + (ended_s - started_s) * (1 / _SHARE - 1)
        self._saved_s = ended_s

    def _remove_states(self, states: frozenset[str]) -> None:
        """Remove the files of states that neither this checkpoint nor the one before needs."""
        self._needed = self._needed[1], states
        for name in self._written.difference(*self._needed):
            (self._recorder.directory.states / name).unlink(missing_ok=True)
            self._written.discard(name)
