"""Who chooses the points of a simulated search, and what each is told of trials.

`Random`, Optuna's samplers as Ray Tune and Optuna use them, and the strategies of `modules`.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from replay_table import CONTINUOUS, SPACE, Point

EPOCHS_MOST = 30


class Model(Protocol):
    """Chooses points. `told` says what it hears of a stopped trial.

    ``fail``: that there was one; ``last``: its last score, as if it had been finished; ``curve``:
    its reports and that it was stopped.
    """

    def ask(self, number: int, like: Point | None = None) -> Point:
        """Choose the point of a trial; one with the structure of `like`, if that is given."""
        ...

    def tell(
        self, number: int, point: Point, reports: list[tuple[int, float]], *, finished: bool
    ) -> None:
        """Take the reports of a trial that has ended."""
        ...


class Random:
    """Draws points uniformly."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def ask(self, number: int, like: Point | None = None) -> Point:
        """Draw a point."""
        draw = self._random
        share = draw.random(3)
        point = {
            "depth": int(draw.integers(1, 4)),
            "width": 2 ** int(draw.integers(4, 10)),
            "activation": ("relu", "tanh")[int(draw.integers(2))],
            "learning_rate": 1e-4 * 1e4 ** share[0],
            "momentum": 0.95 * share[1],
            "weight_decay": 1e-6 * 1e4 ** share[2],
            "batch_size": 2 ** int(draw.integers(4, 9)),
        }
        if like is not None:
            point |= {name: value for name, value in like.items() if name not in CONTINUOUS}
        return point

    def tell(
        self, number: int, point: Point, reports: list[tuple[int, float]], *, finished: bool
    ) -> None:
        """Do nothing."""


class Optuna:
    """A sampler of Optuna on a study in memory.

    With `hyperband`, its pruner divides trials into brackets, and the sampler sees those of one.
    """

    def __init__(self, seed: int, sampler: str, told: str, hyperband: bool = False) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna, self._told, self._hyperband = optuna, told, hyperband
        known = optuna.distributions
        self._fixed = {
            "depth": known.IntDistribution(1, 3),
            "log2_width": known.IntDistribution(4, 9),
            "activation": known.CategoricalDistribution(["relu", "tanh"]),
            "learning_rate": known.FloatDistribution(1e-4, 1.0, log=True),
            "momentum": known.FloatDistribution(0.0, 0.95),
            "weight_decay": known.FloatDistribution(1e-6, 1e-2, log=True),
            "log2_batch": known.IntDistribution(4, 8),
        }
        arguments: dict[str, Any] = {
            "tpe": {},
            "tpe_liar": {"constant_liar": True},
            "tpe_multivariate": {"constant_liar": True, "multivariate": True},
        }[sampler]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._sampler = optuna.samplers.TPESampler(seed=seed, **arguments)
        pruner = optuna.pruners.HyperbandPruner(1, EPOCHS_MOST, 3) if hyperband else None
        self._study = optuna.create_study(
            direction="maximize",
            sampler=self._sampler,
            pruner=pruner or optuna.pruners.NopPruner(),
            study_name=str(seed),
        )
        self._trials: dict[int, Any] = {}

    def ask(self, number: int, like: Point | None = None) -> Point:
        """Ask the sampler; what `like` has is fixed."""
        self._study.sampler = self._sampler
        if like is not None:
            held = {
                "depth": like["depth"],
                "log2_width": int(np.log2(like["width"])),
                "activation": like["activation"],
                "log2_batch": int(np.log2(like["batch_size"])),
            }
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._study.sampler = self._optuna.samplers.PartialFixedSampler(held, self._sampler)
        trial = self._trials[number] = self._study.ask(self._fixed)
        point = dict(trial.params)
        point["width"] = 2 ** point.pop("log2_width")
        point["batch_size"] = 2 ** point.pop("log2_batch")
        return point

    def prunes(self, number: int, step: int, score: float) -> bool:
        """Report a score; whether the pruner of the study ends the trial."""
        self._trials[number].report(score, step)
        return bool(self._trials[number].should_prune())

    def tell(
        self, number: int, point: Point, reports: list[tuple[int, float]], *, finished: bool
    ) -> None:
        """Tell the study, as `told` says."""
        trial, states = self._trials.pop(number), self._optuna.trial.TrialState
        if finished or self._told == "last":
            self._study.tell(trial, reports[-1][1])
        elif self._told == "fail":
            self._study.tell(trial, state=states.FAIL)
        else:
            if not self._hyperband:
                for step, score in reports:
                    trial.report(score, step)
            self._study.tell(trial, state=states.PRUNED)


class Ours:
    """A strategy of `modules`, as a sweep uses it."""

    def __init__(self, seed: int, name: str, told: str) -> None:
        from modules.space import Space
        from modules.strategies import check_strategy, make_strategy

        table = check_strategy({"name": name}, Path())
        self._strategy: Any = make_strategy(table, Space.parse(SPACE), seed)
        self._told = told

    def ask(self, number: int, like: Point | None = None) -> Point:
        """Ask the strategy."""
        if like is not None:
            return dict(self._strategy.ask_alike(number, like, CONTINUOUS))
        return dict(self._strategy.ask(number))

    def tell(
        self, number: int, point: Point, reports: list[tuple[int, float]], *, finished: bool
    ) -> None:
        """Tell the strategy, as `told` says."""
        score = reports[-1][1] if finished or self._told == "last" else None
        if self._told == "curve":
            self._strategy.tell_curve(number, point, reports, score)
        else:
            self._strategy.tell(number, point, score)


def model(name: str, told: str, seed: int, rule: str) -> Any:
    """Make a model by its name: ``random``, ``optuna:SAMPLER`` (a peer's) or ``ours:STRATEGY``."""
    kind, _, which = name.partition(":")
    if kind == "random":
        return Random(seed)
    if kind == "ours":
        return Ours(seed, which, told)
    return Optuna(seed, which, told, hyperband=rule == "hyperband")
