"""What schemes of several ranks have in common: ranks start alike, end and fail together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnn.backend import Array, Ops
from dnn.distributed.agreement import check_agreement, facts_of
from dnn.distributed.communicator import Communicator
from dnn.distributed.mpi import communicator_of
from dnn.distributed.shards import BatchRunner
from dnn.errors import DisagreementError
from dnn.layers import Layer
from dnn.losses import Loss
from dnn.optimizers import Update
from dnn.precision import Precision
from dnn.training.loss_scaling import LossScaling
from dnn.training.network import Network
from dnn.training.networks import Fit
from dnn.training.parallel import Scheme

__all__ = ["EpochTotals", "RanksScheme", "average", "on_host", "own_noise", "share_gradients"]


class RanksScheme(Scheme):
    """A scheme of several ranks.

    Parameters
    ----------
    communicator : Communicator or mpi4py.MPI.Intracomm
        Of the ranks that train together; all of them make the scheme, with the same options.

    Attributes
    ----------
    replicas : Communicator
        Of those that have the same parameters: all of them, but where ranks have parts.
    """

    accumulates = False
    same_rows = True

    def __init__(self, communicator: Any) -> None:
        self.communicator: Communicator = communicator_of(communicator)
        self.replicas = self.communicator

    def network(
        self,
        layers: Sequence[Layer],
        loss: Loss,
        seeds: int | Sequence[int],
        precision: Precision,
        ops: Ops,
        passes: Sequence[str] | None,
    ) -> Network:
        """Build this rank's network, if all ranks can; parameters and errors as for `Network`."""
        with self.agreeing():
            return super().network(layers, loss, seeds, precision, ops, passes)

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Let other ranks know of an error, in the exchange that comes next."""
        try:
            yield
        except Exception as error:
            self.communicator.gather_values({"error": f"{type(error).__name__}: {error}"})
            raise

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """Compare the schemes that ranks make, once this one has its options.

        A scheme begins with it: what ranks exchange later depends on the options. So does each
        network, which may share memory with those of other ranks.

        Raises
        ------
        DisagreementError
            On every rank, if two make other schemes; ``repr(self)`` is what is compared.
        PeerError
            If another rank raises in here: its options are wrong, say.
        """
        with self.preparing():
            yield
        check_agreement(self.communicator.gather_values({"scheme": repr(self)}))

    def check(self, fit: Fit) -> None:
        """Compare what has to be the same on all ranks, once at the beginning of a fit.

        Raises
        ------
        DisagreementError, PeerError
            See `check_agreement`; on every rank.
        """
        check_agreement(self.communicator.gather_values(facts_of(fit, self.same_rows)))

    def begin(self, fit: Fit) -> None:
        """Check that ranks agree, and let replicas start from what the first of them has."""
        self.check(fit)
        network = fit.networks._network
        for array in self.common_arrays(network, fit.networks._update):
            with on_host(network.ops, array) as host:
                self.replicas.broadcast(host)

    def common_arrays(self, network: Network, update: Update | LossScaling) -> list[Array]:
        """Return what is the same on all ranks when a fit begins: that of rank 0."""
        arrays = [network.parameters.flat, network.state_buffer.flat]
        arrays += [network.states["noise.seed"], network.states[network.step_name]]
        arrays += [buffer.flat for buffer in update.state.values()]
        if isinstance(update, LossScaling):
            arrays += update.arrays.values()
        return arrays

    @contextmanager
    def training(self) -> Iterator[None]:
        """Tell other ranks of an error in the loop over epochs, so that they end too."""
        try:
            yield
        except DisagreementError:  # which all ranks raise
            raise
        except BaseException as error:
            self.communicator.report_failure(error)
            raise

    def average_states(self, network: Network) -> None:
        """Let running statistics be the mean of all replicas'."""
        flat = network.state_buffer.flat
        if not flat.size:
            return
        # In float64, so that what no rank has changed stays as it is.
        sums = network.ops.to_host(flat).astype(np.float64)
        self.replicas.sum(sums)
        network.ops.load((sums / self.replicas.size).astype(flat.dtype), flat)

    def agreed(self, reasons: Sequence[str | None]) -> list[str | None]:
        """Return why each of some networks ends now, if it does: the first rank's that says so."""
        said = zip(*self.communicator.gather_values(list(reasons)), strict=True)
        return [next((each for each in of_rank if each is not None), None) for of_rank in said]


@dataclass(frozen=True)
class EpochTotals:
    """What all ranks have seen in an epoch together.

    Attributes
    ----------
    losses : list of K float
        Mean over all samples.
    tallies : list of K lists of int, optional
        As `Trainer.tallies` gives them.
    facts : list
        What each rank has added.
    """

    losses: list[float]
    tallies: list[list[int]] | None
    facts: list[Any]

    @classmethod
    def of(
        cls, communicator: Communicator, runner: BatchRunner, count: int, fact: Any
    ) -> EpochTotals:
        """Gather them, on every rank, of so many samples in all."""
        own = [runner.losses.tolist(), runner.tallies, fact]
        losses, tallies, facts = zip(*communicator.gather_values(own), strict=True)
        means = (np.add.reduce(np.array(losses)) / count).tolist()
        counted = None if tallies[0] is None else np.add.reduce(np.array(tallies)).tolist()
        return cls(means, counted, list(facts))


def share_gradients(communicator: Communicator, network: Network) -> None:
    """Let gradients lie where ranks of a host sum them without a copy, if they are on the host.

    All ranks call it for the same networks in the same order, before an update is bound to them.
    """
    flat = network.gradients.flat
    if communicator.size > 1 and isinstance(flat, np.ndarray):
        network.gradients.lie_in(communicator.shared_memory(flat.nbytes).view(flat.dtype))


@contextmanager
def on_host(ops: Ops, array: Array) -> Iterator[Array]:
    """Give an array of a device on the host, and take back there what becomes of it."""
    host = ops.to_host(array)
    yield host
    if host is not array:
        ops.load(host, array)


def average(communicator: Communicator, array: Array, weight: float) -> int:
    """Replace an array of the host by its mean over all ranks, whose weights add up to 1.

    Returns
    -------
    int
        The bytes that all ranks hand over for it, together.
    """
    array *= array.dtype.type(weight)
    communicator.sum(array)
    return communicator.size * int(array.nbytes) if communicator.size > 1 else 0


@contextmanager
def own_noise(communicator: Communicator, network: Network, batches: int) -> Iterator[None]:
    """Let dropout draw other numbers than on other ranks, for an epoch of so many batches."""
    ops, number = network.ops, network.states[network.step_name]
    first = int(ops.to_host(number))
    own = first + (communicator.rank << 40)  # no training has so many batches
    ops.load(np.array(own, np.uint64), number)
    try:
        yield
    except BaseException:
        ops.load(np.array(first, np.uint64), number)
        raise
    draws = np.array([int(ops.to_host(number)) != own], np.float64)
    communicator.sum(draws)  # a server alone, or a rank without a row, has drawn nothing
    ops.load(np.array(first + batches * bool(draws[0]), np.uint64), number)
