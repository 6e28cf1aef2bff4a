"""Several trials of our trainer at once: one plan with a leading axis of networks.

A step of a small network is mostly the overhead of many short calls. So trainings, of different
trials and of different folds, go through `dnn.Ensemble` together where layers, batch size, kind of
optimizer, schedule and numbers of rows agree; what else differs between them is an input. Each
result is that of the network trained alone, bit for bit, so however trials are grouped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from .evaluation import Job, Rounds
from .hyperparameters import Hyperparameters, dropout_rates, layers_of, optimizer_of

if TYPE_CHECKING:
    from dnn import Dataset, Ensemble, RoutineTable

MOST_NETWORKS: Final = 64
"""In one plan: with more of them what a step needs no longer stays in a core's cache."""
WIDE: Final = 128
"""Layers of so many units and more take longer in products than in calls: nothing is gained."""
MOST_KEPT: Final = 4
"""Compiled groups that wait for the next networks of their kind."""
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
        return (*self.wanted.plan_key(), len(job.train), len(job.test))


def trials_at_once(splits: int) -> int:
    """Return how many trials to take at once, each of which is trained on so many splits."""
    return max(1, _AT_ONCE // splits)


def is_wide(wanted: Hyperparameters) -> bool:
    """Whether networks like this one are better trained alone."""
    return max(wanted.hidden, default=0) >= WIDE


class Together:
    """Trains networks for several trials at once, in plans that it keeps for the next ones.

    Parameters
    ----------
    rounds : Rounds
    metrics : sequence of str
        Which to return.
    table : RoutineTable, optional
        Of the run.
    """

    def __init__(
        self, rounds: Rounds, metrics: Sequence[str], table: RoutineTable | None = None
    ) -> None:
        self._rounds = rounds
        self._table = table
        self._metrics = tuple(metrics)
        self._versions: _Versions | None = None
        self._kept: OrderedDict[tuple[Any, ...], Ensemble] = OrderedDict()

    def __call__(
        self, trials: Sequence[tuple[Hyperparameters, Sequence[int]]]
    ) -> list[list[dict[str, float]]]:
        """Train.

        Parameters
        ----------
        trials : sequence of (Hyperparameters, sequence of int)
            And the seed of each split.

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
            key = training.key(self._rounds.jobs[training.number])
            groups.setdefault(key, []).append(training)
        results: list[list[dict[str, float]]] = [[{}] * len(self._rounds) for _ in trials]
        for key, group in groups.items():
            # In parts of about one size: the last one is no better than a few alone.
            parts = -(-len(group) // MOST_NETWORKS)
            for part in range(parts):
                some = group[part::parts]
                for training, found in zip(some, self._train(key, some), strict=True):
                    chosen = {name: found[name] for name in self._metrics}
                    results[training.trial][training.number] = chosen
        return results

    def _train(
        self, key: tuple[Any, ...], trainings: Sequence[_Training]
    ) -> list[Mapping[str, float]]:
        if self._versions is None:
            self._versions = _Versions(self._rounds)
        data = self._versions
        wanted = [training.wanted for training in trainings]
        jobs = [data.jobs[training.number] for training in trainings]
        offsets = [training.number * data.count for training in trainings]
        networks = self._networks((*key, len(trainings)), trainings, data, len(jobs[0].train))
        histories = networks.fit(
            data.x,
            data.y,
            rows=[job.train + offset for job, offset in zip(jobs, offsets, strict=True)],
            epochs=[one.epochs for one in wanted],
            batch_size=wanted[0].batch_size,
        )
        held_out = [job.test + offset for job, offset in zip(jobs, offsets, strict=True)]
        scores = networks.evaluate(data.x, data.y, rows=held_out)
        return [
            {**score, "training_time_s": history.training_time_s}
            for score, history in zip(scores, histories, strict=True)
        ]

    def _networks(
        self, key: tuple[Any, ...], trainings: Sequence[_Training], data: _Versions, rows: int
    ) -> Ensemble:
        from dnn import Ensemble

        wanted = [training.wanted for training in trainings]
        seeds = [training.seed for training in trainings]
        optimizer, rates = optimizer_of(wanted, rows), dropout_rates(wanted)
        networks = self._kept.pop(key, None)
        if networks is None:
            layers = layers_of(wanted[0], data.features, data.classes)
            networks = Ensemble(
                layers, optimizer=optimizer, seeds=seeds, states=rates, routines=self._table
            )
        else:
            networks.restart(seeds, optimizer, rates)
        self._kept[key] = networks
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return networks


class _Versions:
    """All rows, once for each split, prepared by what its training rows say.

    They lie one version behind the other, so that they are used where they are.
    """

    def __init__(self, rounds: Rounds) -> None:
        import numpy as np

        self.jobs = rounds.jobs
        prepared: list[tuple[Dataset, Dataset]] = list(rounds)
        first = prepared[0][0]
        rows = 1 + max(int(one.max()) for job in self.jobs for one in (job.train, job.test))
        self.count = rows
        self.x = np.zeros((len(prepared) * rows, *first.x.shape[1:]), np.float32)
        self.y = np.zeros(len(prepared) * rows, np.intp)
        for number, (job, (training, scored)) in enumerate(zip(self.jobs, prepared, strict=True)):
            for at, part in ((job.train, training), (job.test, scored)):
                self.x[number * rows + at] = part.x
                self.y[number * rows + at] = part.y
        self.classes = first.classes
        self.features = first.x.shape[1]
