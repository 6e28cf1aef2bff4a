"""Networks as members of a group that can be taken apart and put together anew."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from dnn.backend import Array
from dnn.optimizers import Optimizer, Update
from dnn.training.network import Network

__all__ = ["Member", "fill", "group", "members"]

Member = dict[str, Array]
"""All that one network consists of and remembers, by name."""

UPDATE = "update."


def members(network: Network, update: Update) -> list[Member]:
    """Copy all that each of K networks consists of.

    Parameters
    ----------
    network : Network
        Of K models.
    update : Update
        Of its parameters.

    Returns
    -------
    list of K dict of str to array
    """
    arrays, to_host = _arrays(network, update), network.ops.to_host
    return [
        {name: to_host(x[k, ...] if own else x).copy() for name, (x, own) in arrays.items()}
        for k in range(network.models or 0)
    ]


def group(
    network: Network, optimizer: Optimizer, chosen: Sequence[Member], indices: Sequence[int]
) -> Update:
    """Make these the networks that are trained, and no others.

    Parameters
    ----------
    network : Network
        Resized and filled.
    optimizer : Optimizer
    chosen : sequence of Member
        Trained for the same number of steps.
    indices : sequence of int
        Which of the optimizer's values belong to each of them.

    Returns
    -------
    Update
        It goes on where the members stood.
    """
    network.resize(len(chosen))
    for_these = copy.copy(optimizer)
    for_these.hyperparameters = {
        name: tuple(value[k] for k in indices) if isinstance(value, tuple) else value
        for name, value in optimizer.hyperparameters.items()
    }
    update = for_these.bind(network.ops, network.parameters, network.gradients)
    together = {
        name: np.stack([member[name] for member in chosen]) if own else chosen[0][name]
        for name, (_, own) in _arrays(network, update).items()
    }
    load = network.ops.load
    load(together["parameters"], network.parameters.flat)
    load(together["states"], network.state_buffer.flat)
    for name in ("noise.seed", "noise.step"):
        load(together[name], network.states[name])
    update.restore(
        {name[len(UPDATE) :]: x for name, x in together.items() if name.startswith(UPDATE)}
    )
    return update


def fill(network: Network, update: Update, member: Member) -> None:
    """Let one network without an axis of models be what a member is.

    Parameters
    ----------
    network : Network
        Of the same layers.
    update : Update
        Of its parameters, by the same optimizer.
    member : Member

    Raises
    ------
    ShapeError
        If the optimizer is another; then nothing was changed.
    """
    # What another optimizer remembers is missing or too much, and `restore` says so. Rows of a
    # member begin at cache lines, so they may be longer.
    update.restore(
        {
            name: member[f"{UPDATE}{name}"][tuple(slice(n) for n in array.shape)]
            for name, array in update.snapshot().items()
            if f"{UPDATE}{name}" in member
        }
    )
    load = network.ops.load
    load(member["parameters"][: network.parameters.flat.size], network.parameters.flat)
    load(member["states"][: network.state_buffer.flat.size], network.state_buffer.flat)
    for name in ("noise.seed", "noise.step"):
        load(member[name], network.states[name])


def _arrays(network: Network, update: Update) -> dict[str, tuple[Array, bool]]:
    """Return all that the networks consist of, and whether each has its own."""
    kept = {f"{UPDATE}{name}": (x, x.ndim > 0) for name, x in update.snapshot().items()}
    for name, buffer in update.state.items():
        kept[f"{UPDATE}state.{name}"] = (buffer.flat, buffer.models is not None)
    return kept | {
        "parameters": (network.parameters.flat, True),
        "states": (network.state_buffer.flat, True),
        "noise.seed": (network.states["noise.seed"], True),
        "noise.step": (network.states["noise.step"], False),
    }
