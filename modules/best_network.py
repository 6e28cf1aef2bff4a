"""The networks that a trainer keeps: of its best trial, and of the best epoch of one in progress.

The network of the best trial is there when the sweep is over, and need not be trained again. Where
the time of a sweep may end a training, the parameters of its best epoch are kept beside those that
go on, and those of its last epoch, which is scored once it is known to be the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from .trial import Report

if TYPE_CHECKING:
    from dnn import Progress

Snapshot: TypeAlias = "dict[str, Any]"


class KeptNetwork(NamedTuple):
    """The network of a trial, after its training."""

    trial: int
    seed: int
    progress: Progress
    best_epoch: int | None
    """The epoch, from 1, that its parameters are of, where it need not be the last one."""


class BestNetwork:
    """Keeps the network of the best of the trials that are offered, one at a time, on the host."""

    def __init__(self) -> None:
        self._kept: KeptNetwork | None = None
        self._rank: tuple[float, int] | None = None

    def offer(
        self,
        report: Report,
        metrics: Mapping[str, Any],
        progress: Callable[[], Progress],
        best_epoch: int | None = None,
    ) -> None:
        """Keep the network of a trial that has ended, if none so far is as good.

        `progress` returns the network. Trials that were stopped early have no rank, except by time.
        """
        score = report.score(metrics)
        if score is None or (report.is_stopped and not report.is_out_of_time):
            return
        rank = score, -report.trial
        if self._rank is None or rank > self._rank:
            self._kept = KeptNetwork(report.trial, report.seed, progress(), best_epoch)
            self._rank = rank

    @property
    def trial(self) -> int | None:
        """The trial whose network is kept; None if there is none."""
        return None if self._kept is None else self._kept.trial

    def of(self, report: Report) -> KeptNetwork | None:
        """Return the network of a trial; None if another one is kept, or none."""
        kept = self._kept
        is_it = kept is not None and (kept.trial, kept.seed) == (report.trial, report.seed)
        return kept if is_it else None


class EpochsInTime:
    """The parameters of the last and of the best epoch of a training that time may end.

    Attributes
    ----------
    last, best : int or None
        Epochs, from 1; None before the first has ended, or was scored.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.last: int | None = None
        self.best: int | None = None
        self._score: float | None = None
        self._scored: int | None = None
        self._last_arrays: Snapshot | None = None
        self._best_arrays: Snapshot | None = None

    def note(
        self,
        epoch: int,
        snapshot: Callable[[Snapshot | None], Snapshot],
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep the parameters of an epoch that has ended, and has these metrics if it was scored.

        `snapshot` is as `NeuralNetwork.snapshot`.
        """
        self.last, self._last_arrays = epoch, snapshot(self._last_arrays)
        if metrics is not None:
            self.compare(metrics)

    def compare(self, metrics: Mapping[str, Any]) -> None:
        """Score the last epoch; it is the best if no earlier one is as good."""
        self._scored, score = self.last, self._report.score(metrics)
        if self.best is None or score is None or self._score is None or score > self._score:
            if score is None and self._score is not None:
                return
            self.best, self._score = self.last, score
            assert self._last_arrays is not None
            self._best_arrays = {name: array.copy() for name, array in self._last_arrays.items()}

    @property
    def is_scored(self) -> bool:
        """Whether the last epoch has been scored."""
        return self._scored == self.last

    def arrays(self, *, best: bool) -> Snapshot:
        """Return the parameters of the last epoch, or of the best one."""
        arrays = self._best_arrays if best else self._last_arrays
        assert arrays is not None
        return arrays


def settle(
    kept: Mapping[int, EpochsInTime],
    restore: Callable[[int, Snapshot], None],
    evaluate: Callable[[], Sequence[Mapping[str, Any]]],
) -> dict[int, Mapping[str, Any]]:
    """Give networks whose training time has ended the parameters of their best epochs.

    Parameters
    ----------
    kept : dict of int to EpochsInTime
        By the index of the network; an epoch has ended in each.
    restore : callable
        Sets the parameters of a network.
    evaluate : callable
        Returns the metrics of all networks.

    Returns
    -------
    dict of int to dict
        The metrics of the last epoch of those networks in which it had not been scored.
    """
    unscored = {k: epochs for k, epochs in kept.items() if not epochs.is_scored}
    for k, epochs in unscored.items():
        restore(k, epochs.arrays(best=False))
    found: dict[int, Mapping[str, Any]] = {}
    if unscored:
        scores = evaluate()
        found = {k: scores[k] for k in unscored}
        for k, epochs in unscored.items():
            epochs.compare(found[k])
    for k, epochs in kept.items():
        restore(k, epochs.arrays(best=True))
    return found
