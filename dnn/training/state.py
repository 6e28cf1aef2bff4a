"""State of training: all arrays that training changes, by name, and copies to restore.

=========================== ===========================================================
parameter/NAME              each parameter
state/NAME                  running statistics; seed and step of noise
optimizer/BUFFER/NAME       state of the optimizer for each parameter
hyperparameter/NAME         of the optimizer, and as loss.NAME of the loss; in no checkpoint
=========================== ===========================================================

K networks have a leading axis of length K in each of these arrays that differs between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dnn.backend import Array
from dnn.errors import ShapeError
from dnn.optimizers import Update
from dnn.training.loss_scaling import LossScaling
from dnn.training.network import Network

__all__ = ["Snapshot", "State", "load_states", "states_of", "trained_arrays", "weights_of_each"]

Snapshot = dict[str, Array]
"""Copies of parameters and running statistics by name, on the device of the network."""


class State(NamedTuple):
    """All that training changes in one network, copied to the host.

    Attributes
    ----------
    arrays : dict of str to array
        By the names in the docstring of this module.
    steps : int
        Steps done so far.
    """

    arrays: dict[str, Array]
    steps: int


def trained_arrays(network: Network, update: Update | LossScaling) -> dict[str, Array]:
    """Return every array that training changes, by name; they are no copies."""
    return {
        name: array
        for name, array, _ in _named(network, update)
        if not name.startswith("hyperparameter/")
    }


def weights_of_each(network: Network, update: Update | LossScaling) -> dict[str, Array]:
    """Return the arrays of a `Snapshot`, of K networks those with an axis of networks in front."""
    kept = ("parameter/", "state/", "optimizer/average/")
    return {
        name: array
        for name, array, differs in _named(network, update)
        if (differs or network.models is None) and name.startswith(kept)
    }


def states_of(network: Network, update: Update | LossScaling) -> list[State]:
    """Return a copy of all that training changes in each of K networks."""
    # One transfer for all networks: of a small array it takes longer than to copy K on the host.
    to_host = network.ops.to_host
    named = [(name, to_host(x), differs) for name, x, differs in _named(network, update)]
    return [
        State(
            {name: (x[k, ...] if differs else x).copy() for name, x, differs in named},
            update.steps_done,
        )
        for k in range(network.models or 1)
    ]


def load_states(
    network: Network,
    update: Update | LossScaling,
    states: Sequence[State],
    own: Sequence[str] = (),
) -> None:
    """Load states, all after the same number of steps, into as many networks of the same layers.

    Arrays whose names begin like one in `own` stay as they are.

    Raises
    ------
    ShapeError
        If a state lacks an array or has one of another shape, as that of another optimizer does;
        nothing is changed then.
    """
    first = states[0]
    values = []
    for name, array, differs in _named(network, update):
        if name not in first.arrays:
            raise ShapeError("optimizer", f"another one's state was given: it has no {name}")
        if name.startswith(tuple(own)):
            continue
        value = first.arrays[name]
        if differs:
            value = np.stack([state.arrays[name] for state in states])
        if (value.shape, value.dtype) != (array.shape, array.dtype):
            message = f"{name} is {array.shape} {array.dtype}, given {value.shape} {value.dtype}"
            raise ShapeError("state", message, array.shape, value.shape)
        values.append((value, array))
    for value, array in values:
        network.ops.load(value, array)
    update.steps_done = first.steps


def _named(network: Network, update: Update | LossScaling) -> Iterator[tuple[str, Array, bool]]:
    """Yield each array that training changes, its name, and whether it differs between models."""
    several = network.models is not None
    parameters = network.parameters
    for segment in parameters.segments:
        yield f"parameter/{segment.name}", parameters[segment.name], several
    for name, array in network.states.items():
        yield f"state/{name}", array, several and name != network.step_name
    for kind, buffer in update.state.items():
        for segment in buffer.segments:
            yield f"optimizer/{kind}/{segment.name}", buffer[segment.name], bool(buffer.models)
    if isinstance(update, LossScaling):
        for name, array in update.arrays.items():
            yield f"optimizer/loss_scaling/{name}", array, several
    for name, array in update.scalars.items():
        yield f"hyperparameter/{name}", array, array.ndim > 0
    for name, array in network.loss_scalars.items():
        yield f"hyperparameter/loss.{name}", array, array.ndim > 0
