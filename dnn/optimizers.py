"""Optimizers: from gradients to the next parameters.

An optimizer holds hyperparameters only, so one object can train any number of networks. Bound to
a network's buffers it becomes an `Update`: like a plan, a list of (function, arrays).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dnn.backend import Array, Ops
from dnn.errors import ConfigurationError
from dnn.graph.operation import Step
from dnn.parameters import FlatBuffer, Segment

__all__ = ["SGD", "Optimizer", "Update"]

# Elements that an update takes at a time: what one ufunc leaves, the next finds in the cache.
# On 1.3 million parameters that halves the time; 32 and 64 Ki differ by 5%.
BLOCK = 65536


class Update:
    """An optimizer bound to the buffers of one network.

    Parameters
    ----------
    steps : sequence of (function, arrays)
    scalars : dict of str to array of shape ()
        What the steps read besides, to be changed between steps.
    state : dict of str to FlatBuffer
        What the optimizer remembers, such as velocities.
    gradient_scale : float
        What the gradients must come multiplied by. It multiplies the few numbers where
        differentiation begins, and saves a pass over all parameters where it ends.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        scalars: dict[str, Array],
        state: dict[str, FlatBuffer],
        gradient_scale: float = 1.0,
    ) -> None:
        self._steps = list(steps)
        self.scalars = scalars
        self.state = state
        self.gradient_scale = gradient_scale

    def run(self) -> None:
        """Move the parameters by one step."""
        for function, arguments in self._steps:
            function(*arguments)


class Optimizer:
    """From gradients to the next parameters."""

    def bind(self, ops: Ops, parameters: FlatBuffer, gradients: FlatBuffer) -> Update:
        """Compile the update of one network.

        Parameters
        ----------
        ops : Ops
        parameters, gradients : FlatBuffer
            With the same segments.

        Returns
        -------
        Update
        """
        raise NotImplementedError


class SGD(Optimizer):
    """Stochastic gradient descent with momentum and weight decay.

    ::

        g <- g + weight_decay w
        v <- momentum v + g
        w <- w - learning_rate v

    Parameters
    ----------
    learning_rate : float, positive
    momentum : float, in 0 .. 1 without 1
    weight_decay : float, not negative
    no_decay : sequence of str
        Parameters without weight decay, by the last part of their name, such as ``["bias"]``.

    Raises
    ------
    ConfigurationError
        If a hyperparameter is out of its range.

    References
    ----------
    .. [1] Sutskever et al., On the importance of initialization and momentum in deep learning,
       2013, equations 1 and 2, with the learning rate outside the velocity.
    """

    def __init__(
        self,
        learning_rate: float = 0.01,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        no_decay: Sequence[str] = (),
    ) -> None:
        # Python floats: a float64 scalar of NumPy would promote the arrays it meets.
        self.learning_rate = float(learning_rate)
        self.momentum = float(momentum)
        self.weight_decay = float(weight_decay)
        self.no_decay = tuple(no_decay)
        if not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise ConfigurationError(f"SGD: learning_rate must be above 0, not {learning_rate!r}")
        if not 0 <= self.momentum < 1:
            raise ConfigurationError(f"SGD: momentum must be in 0 .. 1, not {momentum!r}")
        if not (self.weight_decay >= 0 and math.isfinite(self.weight_decay)):
            raise ConfigurationError(f"SGD: weight_decay must be 0 or more, not {weight_decay!r}")

    def __repr__(self) -> str:
        return (
            f"SGD(learning_rate={self.learning_rate:g}, momentum={self.momentum:g}, "
            f"weight_decay={self.weight_decay:g})"
        )

    def bind(self, ops: Ops, parameters: FlatBuffer, gradients: FlatBuffer) -> Update:
        """Compile the update of one network."""
        if self.momentum:
            return self._bind_with_velocity(ops, parameters, gradients)
        # w - rate (g + decay w) = (1 - rate decay) w + (-rate g), with -rate in the gradients.
        keep = np.array(1.0 - self.learning_rate * self.weight_decay, parameters.flat.dtype)
        steps: list[Step] = []
        for start, stop, decays in _blocks(parameters.segments, self._decays):
            w, g = parameters.flat[start:stop], gradients.flat[start:stop]
            if decays:
                steps.append((ops.multiply, (w, keep, w)))
            steps.append((ops.add, (w, g, w)))
        return Update(steps, {"keep": keep}, {}, gradient_scale=-self.learning_rate)

    def _bind_with_velocity(
        self, ops: Ops, parameters: FlatBuffer, gradients: FlatBuffer
    ) -> Update:
        dtype = parameters.flat.dtype
        scalars = {
            "minus_rate": np.array(-self.learning_rate, dtype),
            "momentum": np.array(self.momentum, dtype),
            "weight_decay": np.array(self.weight_decay, dtype),
        }
        velocity = FlatBuffer(parameters.segments, dtype, ops)
        workspace = np.empty(min(BLOCK, parameters.flat.size), dtype)
        steps: list[Step] = []
        for start, stop, decays in _blocks(parameters.segments, self._decays):
            w, g = parameters.flat[start:stop], gradients.flat[start:stop]
            v, scaled = velocity.flat[start:stop], workspace[: stop - start]
            steps.append((ops.multiply, (v, scalars["momentum"], v)))
            steps.append((ops.add, (v, g, v)))
            if decays:
                steps.append((ops.multiply, (w, scalars["weight_decay"], scaled)))
                steps.append((ops.add, (v, scaled, v)))
            steps.append((ops.multiply, (v, scalars["minus_rate"], scaled)))
            steps.append((ops.add, (w, scaled, w)))
        return Update(steps, scalars, {"velocity": velocity})

    def _decays(self, segment: Segment) -> bool:
        return bool(self.weight_decay) and segment.name.rsplit(".", 1)[-1] not in self.no_decay


def _blocks(
    segments: Sequence[Segment], decays: Callable[[Segment], bool]
) -> Iterator[tuple[int, int, bool]]:
    """Cut a buffer into blocks of the cache's size; neighbours treated alike are one piece."""
    pieces: list[tuple[int, int, bool]] = []
    for segment in segments:
        if pieces and pieces[-1][2] == decays(segment):
            pieces[-1] = (pieces[-1][0], segment.stop, pieces[-1][2])
        else:
            pieces.append((segment.start, segment.stop, decays(segment)))
    for start, stop, decaying in pieces:
        for at in range(start, stop, BLOCK):
            yield at, min(at + BLOCK, stop), decaying
