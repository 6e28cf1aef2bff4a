"""The epochs of a training: after which there are metrics, which is the best, what they take."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dnn import EarlyStopping, History

    from .trial import Report


def curve_epochs(epochs: int) -> frozenset[int]:
    """Return after which epochs to evaluate a network for its curve: 1, 2, 4, 8, 16, 32, 48, ...

    To evaluate a small network takes a third of an epoch, so that is not done after each epoch; the
    last one is evaluated anyway.
    """
    early = (1, 2, 4, 8)
    return frozenset((*(epoch for epoch in early if epoch <= epochs), *range(16, epochs + 1, 16)))


def shown_epochs(
    report: Report | None, epochs: int, patience: int | None = None, before: int = 0
) -> Collection[int]:
    """Return after which epochs a training has its metrics: for its curve, a rule, or patience.

    `before` are those of the trial from which it goes on.
    """
    if report is None:
        return ()
    if patience is not None or (report.may_be_stopped and report.judged_at is None):
        return range(before + 1, epochs + 1)
    curve = frozenset(before + epoch for epoch in curve_epochs(epochs - before))
    return curve.union(epoch for epoch in report.judged_at or () if before < epoch <= epochs)


def estimated_time_s(
    history: History,
    epoch_s: float | None = None,
    batch_size: Callable[[int], int] | None = None,
) -> float:
    """Return the seconds of a training on an idle machine: its epochs times the shortest of them.

    So the result does not depend on trainings at the same time, on this rank or on others.
    `epoch_s` is the time of an epoch of such a network, where it was measured. `batch_size` returns
    the batch size after a number of epochs; only epochs with batches of one size are compared,
    since others have another number of steps.
    """
    if epoch_s is not None:
        return len(history) * epoch_s
    times_s: dict[int, list[float]] = {}
    for epoch, time_s in enumerate(history.epoch_times_s):
        times_s.setdefault(0 if batch_size is None else batch_size(epoch), []).append(time_s)
    return sum(len(alike) * min(alike) for alike in times_s.values())


def best_epoch(rule: EarlyStopping, history: History) -> int:
    """Return the epoch, from 1, that a training with patience has kept: the last if none is best.

    A training that has come to NaN at once has no best epoch.
    """
    return len(history) if rule.best_epoch is None else rule.best_epoch + 1
