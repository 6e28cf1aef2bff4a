"""What training changes in a network: all of it by name, and copies to go back to."""

from __future__ import annotations

from dataclasses import dataclass

from dnn.backend import Array
from dnn.optimizers import Update
from dnn.training.loss_scaling import LossScaling
from dnn.training.network import Network

__all__ = ["Snapshot", "trained_arrays"]


@dataclass(frozen=True)
class Snapshot:
    """Parameters and running statistics of a network at one moment.

    Attributes
    ----------
    parameters : array
        The whole flat buffer.
    states : dict of str to array
    """

    parameters: Array
    states: dict[str, Array]

    @classmethod
    def of(cls, network: Network) -> Snapshot:
        """Copy them."""
        states = {name: array.copy() for name, array in network.states.items()}
        return cls(network.parameters.flat.copy(), states)

    def take(self, network: Network) -> None:
        """Copy them again, from the same network, without new arrays."""
        self.parameters[...] = network.parameters.flat
        for name, array in network.states.items():
            self.states[name][...] = array

    def give_back(self, network: Network) -> None:
        """Copy them into the network that they were taken from."""
        network.parameters.flat[...] = self.parameters
        for name, array in network.states.items():
            array[...] = self.states[name]


def trained_arrays(network: Network, update: Update | LossScaling) -> dict[str, Array]:
    """Return every array that training changes, by name; they are the network's own.

    Parameters
    ----------
    network : Network
    update : Update or LossScaling

    Returns
    -------
    dict of str to array
        ``parameter/NAME``, ``state/NAME``, and ``optimizer/BUFFER/NAME`` for what the optimizer
        remembers of a parameter.
    """
    buffer = network.parameters
    arrays = {f"parameter/{segment.name}": buffer[segment.name] for segment in buffer.segments}
    arrays |= {f"state/{name}": array for name, array in network.states.items()}
    for kind, remembered in update.state.items():
        for segment in remembered.segments:
            arrays[f"optimizer/{kind}/{segment.name}"] = remembered[segment.name]
    if isinstance(update, LossScaling):
        for name, array in update.arrays.items():
            arrays[f"optimizer/loss_scaling/{name}"] = array
    return arrays
