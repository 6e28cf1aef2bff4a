"""Checkpoints of a run, so that it can be resumed: at the ends of iterations, as often as is cheap.

What is finished is in the journal; the tuples are in a file. Both are of the same moment, between
two decisions of the scheduler. Where groups run side by side, those that run have put and taken
tuples already: they are repeated, with the tuples as they were.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from diel.run.records import CheckpointSaved

if TYPE_CHECKING:
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
    clock : callable, optional
        Returns seconds.
    """

    def __init__(
        self,
        recorder: Recorder,
        tuples: Callable[[], TupleClient],
        number: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recorder = recorder
        self._tuples = tuples
        self._number = number
        self._clock = clock
        self._next_s = clock()

    def is_due(self) -> bool:
        """Whether a checkpoint at this moment leaves all of them within their share of the time."""
        return self._clock() >= self._next_s

    def save(self) -> None:
        """Save the run as it is; what is finished is in the journal already.

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
        self._number += 1
        name = None if is_empty else file.name
        self._recorder.record(CheckpointSaved(number=self._number, file=name))
        self._recorder.sync()
        # The one before stays: this one may yet be found to be unreadable.
        directory.checkpoint_file(self._number - 2).unlink(missing_ok=True)
        ended_s = self._clock()
        self._next_s = ended_s + (ended_s - started_s) * (1 / _SHARE - 1)
