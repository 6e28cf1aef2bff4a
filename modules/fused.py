"""Several trials of our trainer at once: one plan with a leading axis of networks.

A step of a small network is mostly the overhead of many short calls. So trainings, of different
trials and of different folds, go through `dnn.Ensemble` together where layers, batch size and
numbers of rows agree; what else differs between them is an input. Each result is that of the
network trained alone, bit for bit, so nobody can tell from a result how trials were grouped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from .evaluation import Job, Rounds

if TYPE_CHECKING:
    from dnn import Dataset, RoutineTable

    from .trainer import Hyperparameters

MOST_NETWORKS: Final = 64
"""In one plan: with more of them what a step needs no longer stays in a core's cache."""
WIDE: Final = 128
"""Layers of so many units and more take longer in products than in calls: nothing is gained."""
_AT_ONCE: Final = 2 * MOST_NETWORKS


@dataclass(frozen=True)
class _Training:
    """One network to train.

    Attributes
    ----------
    trial : int
        Its place among those that are trained together.
    number : int
        Of the split.
    wanted : Hyperparameters
    seed : int
    """

    trial: int
    number: int
    wanted: Hyperparameters
    seed: int

    def key(self, job: Job) -> tuple[Any, ...]:
        """Return what has to agree in one plan."""
        wanted = self.wanted
        return (
            tuple(wanted.hidden),
            wanted.activation,
            wanted.batch_size,
            len(job.train),
            len(job.test),
        )


def trials_at_once(splits: int) -> int:
    """Return how many trials to take at once, each of which is trained on so many splits."""
    return max(1, _AT_ONCE // splits)


def is_wide(wanted: Hyperparameters) -> bool:
    """Whether networks like this one are better trained alone."""
    return max(wanted.hidden, default=0) >= WIDE


def train_together(
    trials: Sequence[tuple[Hyperparameters, Sequence[int]]],
    rounds: Rounds,
    metrics: Sequence[str],
    routines: RoutineTable | None = None,
) -> list[list[dict[str, float]]]:
    """Train networks for several trials.

    Parameters
    ----------
    trials : sequence of (Hyperparameters, sequence of int)
        And the seed of each split.
    rounds : Rounds
    metrics : sequence of str
        Which to return.
    routines : RoutineTable, optional
        Of the run.

    Returns
    -------
    list of list of dict
        For each trial, what each split gave.
    """
    trainings = [
        _Training(trial, number, wanted, seed)
        for trial, (wanted, seeds) in enumerate(trials)
        for number, seed in enumerate(seeds)
    ]
    groups: dict[tuple[Any, ...], list[_Training]] = {}
    for training in trainings:
        groups.setdefault(training.key(rounds.jobs[training.number]), []).append(training)
    results: list[list[dict[str, float]]] = [[{}] * len(rounds) for _ in trials]
    versions = _Versions(rounds)
    for group in groups.values():
        # In parts of about one size: the last one is no better than a few alone.
        parts = -(-len(group) // MOST_NETWORKS)
        for part in range(parts):
            some = group[part::parts]
            for training, found in zip(some, _train(some, versions, routines), strict=True):
                results[training.trial][training.number] = {name: found[name] for name in metrics}
    return results


class _Versions:
    """All rows, once for each split, prepared by what its training rows say."""

    def __init__(self, rounds: Rounds) -> None:
        import numpy as np

        self.jobs = rounds.jobs
        prepared: list[tuple[Dataset, Dataset]] = list(rounds)
        first = prepared[0][0]
        rows = 1 + max(int(one.max()) for job in self.jobs for one in (job.train, job.test))
        self.x = np.zeros((len(prepared), rows, *first.x.shape[1:]), first.x.dtype)
        self.y = np.zeros((rows, *first.y.shape[1:]), first.y.dtype)
        for number, (job, (training, scored)) in enumerate(zip(self.jobs, prepared, strict=True)):
            for at, part in ((job.train, training), (job.test, scored)):
                self.x[number, at] = part.x
                self.y[at] = part.y
        self.classes = first.classes
        self.features = first.x.shape[1]


def _train(
    trainings: Sequence[_Training], data: _Versions, routines: RoutineTable | None
) -> list[Mapping[str, float]]:
    from dnn import SGD, Ensemble, mlp

    wanted = [training.wanted for training in trainings]
    jobs = [data.jobs[training.number] for training in trainings]
    places = [training.number for training in trainings]
    networks = Ensemble(
        mlp(data.features, wanted[0].hidden, data.classes, wanted[0].activation),
        optimizer=SGD(
            [one.learning_rate for one in wanted],
            [one.momentum for one in wanted],
            [one.weight_decay for one in wanted],
        ),
        seeds=[training.seed for training in trainings],
        routines=routines,
    )
    histories = networks.fit(
        data.x,
        data.y,
        rows=[job.train for job in jobs],
        versions=places,
        epochs=[one.epochs for one in wanted],
        batch_size=wanted[0].batch_size,
    )
    scores = networks.evaluate(data.x, data.y, rows=[job.test for job in jobs], versions=places)
    return [
        {**score, "training_time_s": history.training_time_s}
        for score, history in zip(scores, histories, strict=True)
    ]
