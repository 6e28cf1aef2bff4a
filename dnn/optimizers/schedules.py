"""Schedules: how the learning rate changes as training goes on.

A schedule is a function of the number of steps done, 0 before the first, and returns a factor of
the learning rate. So one schedule serves K networks with a learning rate each, and it needs no
state. `steps` are training steps; an epoch has ``ceil(samples / batch_size)`` of them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dnn.backend import Array, Ops
from dnn.errors import ConfigurationError, explains_arguments, unknown_name
from dnn.graph.operation import Step
from dnn.graph.operations.arithmetic import Multiply
from dnn.parameters import FlatBuffer, Segment

__all__ = [
    "SCHEDULES",
    "Constant",
    "Cosine",
    "GrowingBatch",
    "OneCycle",
    "Schedule",
    "StepDecay",
    "WarmUp",
    "schedule_of",
    "schedule_steps",
]

Schedule = Callable[[int], float]
"""``steps done -> factor of the learning rate``, not negative."""


@dataclass(frozen=True)
class Constant:
    """A constant factor of 1, which leaves the learning rate as it is."""

    def __call__(self, step: int) -> float:
        """Return the factor after `step` steps."""
        return 1.0


@explains_arguments
@dataclass(frozen=True)
class StepDecay:
    """``factor^(step // every)``: smaller by a factor after every so many steps.

    Parameters
    ----------
    every : int, steps, at least 1
    factor : float, above 0
    """

    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _check_steps("StepDecay", "every", self.every)
        if not 0 < self.factor < math.inf:
            raise ConfigurationError(f"StepDecay: factor must be above 0, not {self.factor!r}")

    def __call__(self, step: int) -> float:
        """Return the factor after `step` steps."""
        return float(self.factor) ** (step // self.every)


@explains_arguments
@dataclass(frozen=True)
class Cosine:
    """Half a cosine from 1 to `end` [1]_, then `end`.

    Parameters
    ----------
    steps : int, at least 1
        Number of steps from 1 to `end`.
    end : float, in 0 .. 1

    References
    ----------
    .. [1] Loshchilov and Hutter, SGDR: stochastic gradient descent with warm restarts, 2017,
       equation 5, without restarts.
    """

    steps: int
    end: float = 0.0

    def __post_init__(self) -> None:
        _check_steps("Cosine", "steps", self.steps)
        if not 0 <= self.end <= 1:
            raise ConfigurationError(f"Cosine: end must be in 0 .. 1, not {self.end!r}")

    def __call__(self, step: int) -> float:
        """Return the factor after `step` steps."""
        done = min(step / self.steps, 1.0)
        return self.end + (1.0 - self.end) * (1.0 + math.cos(math.pi * done)) / 2.0


@explains_arguments
@dataclass(frozen=True)
class WarmUp:
    """A straight line from `start` to 1 [1]_, then another schedule from its beginning.

    Parameters
    ----------
    steps : int, at least 1
        The first step is made with ``start + (1 - start) / steps``, the last of them with 1.
    start : float, in 0 .. 1
    then : schedule or str
        Called with the number of steps since the end of the warm-up.

    References
    ----------
    .. [1] Goyal et al., Accurate, large minibatch SGD, 2017, section 2.2.
    """

    steps: int
    start: float = 0.0
    then: Schedule | str = "constant"

    def __post_init__(self) -> None:
        _check_steps("WarmUp", "steps", self.steps)
        if not 0 <= self.start <= 1:
            raise ConfigurationError(f"WarmUp: start must be in 0 .. 1, not {self.start!r}")
        object.__setattr__(self, "then", schedule_of(self.then))

    def __call__(self, step: int) -> float:
        """Return the factor after `step` steps."""
        if step < self.steps:
            return self.start + (1.0 - self.start) * (step + 1) / self.steps
        assert callable(self.then)
        return self.then(step - self.steps)


@explains_arguments
@dataclass(frozen=True)
class OneCycle:
    """Up from `start` to 1, then down to `end` [1]_, then `end`.

    Parameters
    ----------
    steps : int, at least 1
        Number of steps up and down together: the last of them is made with `end`.
    rise : float, at least 0 and below 1
        The share of the steps in which it grows.
    start : float, in 0 .. 1
    end : float, in 0 .. 1
    linear : bool
        Along straight lines, and not along half a cosine each.

    References
    ----------
    .. [1] Smith and Topin, Super-convergence: very fast training of neural networks using large
       learning rates, 2018, section 2; the shape and what is left out are those of PyTorch.
    """

    steps: int
    rise: float = 0.3
    start: float = 1 / 25
    end: float = 1 / 250_000
    linear: bool = False

    def __post_init__(self) -> None:
        _check_steps("OneCycle", "steps", self.steps)
        if not 0 <= self.rise < 1:
            message = f"rise must be at least 0 and below 1, not {self.rise!r}"
            raise ConfigurationError(f"OneCycle: {message}")
        for name, value in (("start", self.start), ("end", self.end)):
            if not 0 <= value <= 1:
                raise ConfigurationError(f"OneCycle: {name} must be in 0 .. 1, not {value!r}")

    def __call__(self, step: int) -> float:
        """Return the factor after `step` steps."""
        top = self.rise * self.steps - 1  # need not be an integer
        if step < top:
            return self._between(self.start, 1.0, step / top)
        return self._between(1.0, self.end, min((step - top) / (self.steps - 1 - top), 1.0))

    def _between(self, first: float, last: float, done: float) -> float:
        part = done if self.linear else (1.0 - math.cos(math.pi * done)) / 2.0
        return first + (last - first) * part


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": Constant,
    "cosine": Cosine,
    "one_cycle": OneCycle,
    "step": StepDecay,
    "warm_up": WarmUp,
}


@explains_arguments
@dataclass(frozen=True)
class GrowingBatch:
    """``start factor^(epochs done // every)`` samples in a batch, `most` at most [1]_.

    A larger batch reduces the noise of steps as a smaller learning rate does, in fewer steps. It is
    given to `fit` as its ``batch_size``.

    Parameters
    ----------
    start : int, at least 1
    every : int, epochs, at least 1
    factor : float, at least 1
    most : int, at least `start`, optional
        All samples if left out.

    Examples
    --------
    >>> [GrowingBatch(32, every=10, most=100)(epoch) for epoch in (0, 9, 10, 20, 30)]
    [32, 32, 64, 100, 100]

    References
    ----------
    .. [1] Smith et al., Don't decay the learning rate, increase the batch size, 2018.
    """

    start: int
    every: int
    factor: float = 2.0
    most: int | None = None

    def __post_init__(self) -> None:
        _check_steps("GrowingBatch", "start", self.start)
        _check_steps("GrowingBatch", "every", self.every)
        if not 1 <= self.factor < math.inf:
            raise ConfigurationError(
                f"GrowingBatch: factor must be at least 1, not {self.factor!r}"
            )
        if self.most is not None:
            _check_steps("GrowingBatch", "most", self.most)
            if self.most < self.start:
                message = f"most must be at least start, {self.start}, not {self.most}"
                raise ConfigurationError(f"GrowingBatch: {message}")

    def __call__(self, epochs: int) -> int:
        """Return the size of a batch after so many epochs."""
        most = sys.maxsize if self.most is None else self.most
        # By logarithms, since the power itself may overflow.
        grown = math.log(self.start) + epochs // self.every * math.log(self.factor)
        if grown >= math.log(most):
            return most
        return min(int(self.start * self.factor ** (epochs // self.every)), most)


def schedule_of(given: str | Schedule, **settings: float) -> Schedule:
    """Return a schedule by name and settings; a function is returned as it is.

    Examples
    --------
    >>> schedule_of("step", every=100, factor=0.5)(250)
    0.25

    Raises
    ------
    ConfigurationError
        If no schedule has that name, or a setting is missing, unknown or out of range.
    """
    if callable(given):
        return given
    if given not in SCHEDULES:
        raise unknown_name("schedule", given, SCHEDULES)
    try:
        return SCHEDULES[given](**settings)
    except TypeError as error:
        raise ConfigurationError(f"schedule {given!r}: {error}") from error


def schedule_steps(
    ops: Ops,
    schedule: Schedule,
    scalars: dict[str, Array],
    state: dict[str, FlatBuffer],
    name: str = "learning_rate",
    counted_as: str = "schedule",
) -> list[Step]:
    """Return the calls that multiply the learning rate, or another scalar, by a schedule.

    ``scalars[name]`` becomes the array that they write; ``state[counted_as]`` is added, the number
    of steps done.
    """
    given = scalars[name]
    scheduled = scalars[name] = ops.asarray(np.ones(given.shape, given.dtype))
    # On the host, whatever the device: the schedule is a function of Python.
    counter = state[counted_as] = FlatBuffer([Segment("steps_done", (), 0)], np.int64, Ops())
    steps_done = counter["steps_done"]

    factor = ops.asarray(np.ones((), given.dtype))
    advance: Step = (_advance, (schedule, steps_done, factor))
    return [advance, ops.elementwise(Multiply.formula, (given, factor), scheduled)]


def _advance(schedule: Schedule, steps_done: Array, factor: Array) -> None:
    factor[...] = schedule(int(steps_done))
    np.add(steps_done, 1, steps_done)


def _check_steps(kind: str, name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        message = f"{kind}: {name} must be an integer of at least 1, not {value!r}"
        raise ConfigurationError(message)
