"""Averages of the networks of several trials: which trials, and how good such a choice is.

::

    Request          what is wanted, with the candidates: the best trials, by their scores
    greedy           chooses some of the candidates by what they predict
    choose           trains the candidates again, and chooses; scores the choice on other rows

Trials are added one after the other, always the one with which the average has the least loss on
rows that no candidate was trained on; a trial may be added again [1]_. The loss is that of
probabilities or squares, whatever the objective: of an accuracy on few rows many trials have the
same.

A score on the rows that chose is too good. So where trials have several splits the whole choice is
repeated without the rows of one split, candidates and all, and scored on these: on the outer folds
of nested splits, on rows that a column calls test, or on each fold by the choice of the others.
With a single split the candidates are known by all of its rows, so only the second half of the
choice can be repeated.

References
----------
.. [1] Caruana, Niculescu-Mizil, Crew, Ksikes, Ensemble selection from libraries of models, ICML
   2004.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from diel import replacing

from .evaluation import TrainingJob
from .sweep.models import CANDIDATES

if TYPE_CHECKING:
    import numpy.typing as npt

    from .trial import Report

    Array = npt.NDArray[Any]

_PARTS: Final = 5
"""Into so many parts the rows of a single split are cut, each scored by a choice of the others."""
_LEAST: Final = 1e-7
"""Of a probability, in a logarithm."""


@dataclass(frozen=True)
class Candidate:
    """A trial that may be chosen: what trains it again, and its score on each split."""

    trial: int
    parameters: dict[str, Any]
    seed: int
    epochs: int | None
    """So many were trained when time ended it; None for all."""
    scores: tuple[float, ...]
    """By the objective, larger being better: for each split the mean of the rows that choose."""
    ancestors: Sequence[Mapping[str, Any]] = ()
    """The trials that it comes from, the first one first: what trains each of them again."""

    def score(self, splits: Sequence[int]) -> float:
        """Return the mean score of some splits."""
        return sum(self.scores[split] for split in splits) / len(splits)


def losses(task: str, truth: Array, predicted: Array) -> Array:
    """Return the loss of each row.

    Parameters
    ----------
    task : {"classification", "multilabel", "regression"}
    truth : array of int, shape (n,), or of numbers, shape (n, targets)
    predicted : array, shape (..., n, classes or targets)
        Probabilities, or values.
    """
    found: Array
    if task == "classification":
        found = -np.log(np.maximum(predicted[..., np.arange(len(truth)), truth], _LEAST))
    elif task == "multilabel":
        of_truth = np.where(truth > 0.5, predicted, 1 - predicted)
        found = -np.log(np.maximum(of_truth, _LEAST)).mean(axis=-1)
    else:
        found = ((predicted - truth) ** 2).mean(axis=-1)
    return found


def greedy(loss: Callable[[Array], Array], predicted: Array, count: int) -> list[int]:
    """Return the indices of members, one as often as it counts; the first of those that are equal.

    Parameters
    ----------
    loss : callable
        Takes predictions (candidates, n, outputs), returns a loss (candidates, n).
    predicted : array, shape (candidates, n, outputs)
    count : int
        Members, with repetitions.
    """
    chosen: list[int] = []
    total = np.zeros(predicted.shape[1:])
    for size in range(1, count + 1):
        means = loss((total + predicted) / size).mean(axis=-1)
        chosen.append(int(np.argmin(np.where(np.isnan(means), np.inf, means))))
        total = total + predicted[chosen[-1]]
    return chosen


class Choice:
    """Chooses among candidates by their predictions, which it asks for when they are needed.

    Parameters
    ----------
    candidates : sequence of Candidate
    jobs : sequence of TrainingJob
    task : str
    truth : array
        Of all rows.
    predict : callable
        Takes a candidate and the number of a job; returns what its network predicts of the rows
        that the job scores.
    count : int
    is_blind : bool
        Whether no result had a part in which points were tried.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        jobs: Sequence[TrainingJob],
        task: str,
        truth: Array,
        predict: Callable[[Candidate, int], Array],
        count: int,
        *,
        is_blind: bool = True,
    ) -> None:
        self._candidates, self._jobs, self._count = candidates, jobs, count
        self._is_blind = is_blind
        self._task, self._predict = task, predict
        self._truth = truth if task == "classification" else truth.reshape(len(truth), -1)
        # Targets of a regression count alike, whatever their units.
        spread = self._truth.std(axis=0) if task == "regression" else np.ones(1)
        self._unit = np.where(spread > 0, spread, 1.0)
        self._known: dict[tuple[int, int], Array] = {}

    def members(self) -> list[tuple[int, int]]:
        """Return the trials that are chosen by all rows that choose, and how often each counts."""
        jobs = [number for number, job in enumerate(self._jobs) if not job.is_test]
        pool = self._pool([self._jobs[number].outer for number in jobs])
        found = Counter(pool[place].trial for place in self._chosen(pool, jobs))
        return sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))

    def score(self) -> dict[str, Any]:
        """Return metrics of the average and of the best trial alone, on rows that did not choose.

        ``rows``, ``average`` and ``best``; ``by``, how the rows were set apart; ``is_honest``,
        whether they have had no part in the choice.
        """
        jobs = self._jobs
        tests = [number for number, job in enumerate(jobs) if job.is_test]
        if not tests and len(jobs) == 1:
            return self._score_of_parts()
        by = "rows of the outer splits" if tests else "each fold, by the choice of the others"
        truth, of_average, of_best = [], [], []
        for number in tests or range(len(jobs)):
            job = jobs[number]
            if tests:
                choosing = [n for n, j in enumerate(jobs) if j.outer == job.outer and not j.is_test]
            else:
                # Of repeated folds those of the same repeat: others have its rows too.
                choosing = [n for n, j in enumerate(jobs) if n != number and _are_apart(j, job)]
            pool = self._pool([jobs[each].outer for each in choosing])
            of_job = np.array([self._of(candidate, number) for candidate in pool])
            truth.append(self._truth[job.test])
            of_average.append(of_job[self._chosen(pool, choosing)].mean(axis=0))
            of_best.append(of_job[0])
        return self._scored(by, bool(tests) or self._is_blind, truth, of_average, of_best)

    def _score_of_parts(self) -> dict[str, Any]:
        rows = self._jobs[0].test
        pool = self._pool([0])
        every = np.array([self._of(candidate, 0) for candidate in pool])
        truth, of_average, of_best = [], [], []
        for part in range(min(_PARTS, len(rows))):
            is_here = np.arange(len(rows)) % _PARTS == part
            chosen = greedy(self._loss(rows[~is_here]), every[:, ~is_here], self._count)
            truth.append(self._truth[rows[is_here]])
            of_average.append(every[chosen][:, is_here].mean(axis=0))
            of_best.append(every[0][is_here])
        by = "each fifth of the rows, by the choice of the others among trials that all rows chose"
        return self._scored(by, False, truth, of_average, of_best)

    def _pool(self, splits: Sequence[int]) -> list[Candidate]:
        ranked = sorted(self._candidates, key=lambda each: (-each.score(splits), each.trial))
        return ranked[: CANDIDATES * self._count]

    def _chosen(self, pool: Sequence[Candidate], jobs: Sequence[int]) -> list[int]:
        rows = np.concatenate([self._jobs[number].test for number in jobs])
        predicted = [
            np.concatenate([self._of(candidate, number) for number in jobs]) for candidate in pool
        ]
        return greedy(self._loss(rows), np.array(predicted), self._count)

    def _loss(self, rows: Array) -> Callable[[Array], Array]:
        truth = self._truth[rows]
        if self._task == "regression":
            return lambda predicted: losses(self._task, truth / self._unit, predicted / self._unit)
        return lambda predicted: losses(self._task, truth, predicted)

    def _of(self, candidate: Candidate, number: int) -> Array:
        key = candidate.trial, number
        if key not in self._known:
            self._known[key] = np.asarray(self._predict(candidate, number), np.float64)
        return self._known[key]

    def _scored(
        self, by: str, is_honest: bool, truth: list[Array], of_average: list[Array],
        of_best: list[Array],
    ) -> dict[str, Any]:  # fmt: skip
        every = np.concatenate(truth)
        return {
            "by": by,
            "is_honest": is_honest,
            "rows": len(every),
            "average": self._metrics(every, np.concatenate(of_average)),
            "best": self._metrics(every, np.concatenate(of_best)),
        }

    def _metrics(self, truth: Array, predicted: Array) -> dict[str, float]:
        from dnn import metrics_of_targets

        if self._task == "classification":
            right = float((predicted.argmax(axis=1) == truth).mean())
            return {"accuracy": right, "log_loss": float(self._mean_loss(truth, predicted))}
        if self._task == "multilabel":
            return metrics_of_targets(self._task, truth, (predicted > 0.5).astype(np.int64))
        return metrics_of_targets(self._task, truth, predicted)

    def _mean_loss(self, truth: Array, predicted: Array) -> float:
        return float(losses(self._task, truth, predicted).mean())


def _are_apart(first: TrainingJob, second: TrainingJob) -> bool:
    return not np.intersect1d(first.test, second.test).size


def choose(
    train: Any,
    report_of: Callable[[Candidate], Report],
    candidates: Sequence[Candidate],
    count: int,
    path: Path,
    *,
    is_blind: bool,
    trials: int,
) -> dict[str, Any]:
    """Train candidates again, choose among them, and write the choice as JSON; return it.

    Parameters
    ----------
    train : modules.network_trainer.NetworkTrainer
    report_of : callable
        Returns the report of a candidate's trial.
    candidates : sequence of Candidate
    count : int
        Members of the average.
    path : Path
        Of the file.
    is_blind : bool
        Whether no result had a part in which points were tried.
    trials : int
        How many trials have a result, by which `kept_choice` finds the choice again.

    Returns
    -------
    dict
        ``members``, pairs of a trial and how often it counts; ``score``, as `Choice.score`.
    """
    rounds = train.rounds
    choice = Choice(
        candidates,
        rounds.jobs,
        rounds.data.task,
        rounds.data.y,
        lambda candidate, number: train.predictions(
            candidate.parameters, report_of(candidate), number, candidate.epochs
        ),
        count,
        is_blind=is_blind,
    )
    found = {"count": count, "trials": trials, "members": choice.members(), "score": choice.score()}
    with replacing(path, text=True) as file:
        json.dump(found, file)
    return found


def kept_choice(path: Path, trials: int) -> dict[str, Any] | None:
    """Return what `choose` has written; None if nothing, or if there are more trials by now."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        is_whole = found["trials"] == trials and bool(found["members"]) and found["score"]["by"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(found) if is_whole else None


def score_lines(chosen: Mapping[str, Any]) -> list[str]:
    """Return how good an average is, in lines for people."""
    score = chosen["score"]
    pairs = [
        f"{name} {value:.4g} (the best trial alone {score['best'][name]:.4g})"
        for name, value in score["average"].items()
    ]
    lines = [f"{', '.join(pairs)} on {score['rows']} rows: {score['by']}"]
    if not score["is_honest"]:
        lines.append(
            "warning: these rows had a part in which trials are candidates, so both scores are too "
            "good; nested folds, or a file of other rows, score it honestly"
        )
    return lines
