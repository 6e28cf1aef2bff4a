"""Optimizer state cut over ranks: each rank keeps the state of its slice of the parameters.

::

    gradients of rank 0  | slice 0 | slice 1 |      rank 0 sums slice 0 of all ranks' gradients,
    gradients of rank 1  | slice 0 | slice 1 |      moves slice 0 of the parameters, and so on
    parameters           | slice 0 | slice 1 |      then every rank takes the slices of all others

Where an update is elementwise, slices may begin within a parameter; otherwise they begin at
parameters. It is the first stage of [1]_: parameters and gradients remain whole.

References
----------
.. [1] Rajbhandari, Rasley, Ruwase and He, ZeRO: Memory optimizations toward training trillion
       parameter models, 2020, section 5.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from dnn.backend import Array, Ops
from dnn.distributed.allreduce import parts_of
from dnn.distributed.communicator import Communicator
from dnn.distributed.scheme import clip_by_norm_of_all
from dnn.optimizers import Optimizer, Update
from dnn.parameters import BufferSlice, FlatBuffer, Segment
from dnn.training.network import Network

__all__ = ["ShardedState", "share_parameters"]

_AVERAGE = "average"  # whole on every rank, since predictions use it


def share_parameters(communicator: Communicator, network: Network) -> None:
    """Put the parameters of rank 0 into memory that all ranks share, if they are on one host.

    All ranks call it for the same networks in the same order, before an update is bound to them.
    """
    flat = network.parameters.flat
    memory = communicator.common_memory(flat.nbytes)
    if memory is None:
        return
    values = memory.view(flat.dtype)
    if communicator.rank == 0:
        network.parameters.move_to(values)
    communicator.gather_values(None)  # rank 0 has written them
    if communicator.rank != 0:
        network.parameters.move_to(values, keeps=False)


class ShardedState:
    """Slice of a network's parameters that each rank moves, with the optimizer state of it.

    Parameters
    ----------
    communicator : Communicator
    network : Network
        A single network on the host.
    is_elementwise : bool
        Whether slices may begin within a parameter.

    Attributes
    ----------
    parts : list of slice
        Slice of each rank.
    """

    def __init__(self, communicator: Communicator, network: Network, is_elementwise: bool) -> None:
        self._communicator = communicator
        flat = network.parameters.flat
        self.parts = parts_of(flat, communicator.size)
        if not is_elementwise:
            self.parts = _between_segments(network.parameters.segments, self.parts)
        own = self.parts[communicator.rank]
        self._own_parameters = BufferSlice(network.parameters, own.start, own.stop)
        self._own_gradients = BufferSlice(network.gradients, own.start, own.stop)

    def bind(self, ops: Ops, optimizer: Optimizer) -> Update:
        """Return the update of this rank's slice; a norm of gradients is that of all slices."""
        update = optimizer.bind(ops, self._own_parameters, self._own_gradients)
        clip_by_norm_of_all(update, ops, self._communicator, np.dtype(np.float64))
        return update

    def is_cut(self, name: str, buffer: FlatBuffer) -> bool:
        """Whether a buffer of optimizer state holds only this rank's slice."""
        return name != _AVERAGE and buffer.segments == self._own_parameters.segments

    def gather_averages(self, update: Update) -> None:
        """Gather averages of the parameters, so that they are whole on every rank."""
        if _AVERAGE in update.state:
            self._communicator.allgather(update.state[_AVERAGE].flat, self.parts)

    def gathered(
        self, network: Network, update: Update, arrays: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return arrays with optimizer state gathered from all ranks; all of them call it."""
        kinds = [kind for kind, buffer in update.state.items() if self.is_cut(kind, buffer)]
        whole = {
            name: array
            for name, array in arrays.items()
            if not name.startswith(tuple(f"optimizer/{kind}/" for kind in kinds))
        }
        parameters = network.parameters
        for kind in kinds:
            flat = np.zeros(parameters.flat.shape, parameters.flat.dtype)
            mine, first = update.state[kind].flat, self.parts[self._communicator.rank].start
            flat[first : first + mine.size] = mine
            self._communicator.allgather(flat, self.parts)
            for segment in parameters.segments:
                values = flat[segment.start : segment.stop].reshape(segment.shape)
                whole[f"optimizer/{kind}/{segment.name}"] = values
        return whole

    def own_part(self, network: Network, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return this rank's part of arrays that `gathered` has returned."""
        own = self.parts[self._communicator.rank]
        mine = {segment.name: segment for segment in self._own_parameters.segments}
        segments = {segment.name: segment for segment in network.parameters.segments}
        found: dict[str, Array] = {}
        for name, array in arrays.items():
            place, _, rest = name.partition("/")
            kind, _, parameter = rest.partition("/")
            segment = segments.get(parameter)
            if place != "optimizer" or kind == _AVERAGE or segment is None:
                found[name] = array
            elif array.shape != segment.shape:
                found[name] = array  # to be refused for its shape
            elif parameter in mine:
                first = max(own.start - segment.start, 0)
                part = array.reshape(-1)[first : first + mine[parameter].size]
                found[name] = part.reshape(mine[parameter].shape)
        return found


def _between_segments(segments: Sequence[Segment], parts: Sequence[slice]) -> list[slice]:
    """Return parts with their ends moved to the nearest beginnings of segments."""
    end = parts[-1].stop
    starts = [*(segment.start for segment in segments), end]
    inner = [min(starts, key=lambda start: abs(start - part.stop)) for part in parts[:-1]]
    return [slice(*pair) for pair in pairwise([0, *inner, end])]
