"""`Scheme`: the interface by which `fit` trains, and the one for a single process.

`Networks` and `Fit` call a `Scheme` to build a network, to bind it to its optimizer, to train and
to evaluate it, and to make all ranks agree. The scheme of this file is that of one process; those
of `dnn.distributed` derive from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from dnn.backend import Array
from dnn.data.augmentation import Images
from dnn.optimizers import Optimizer, Update
from dnn.training.data import Samples
from dnn.training.epoch import Trainer, TrainingTask
from dnn.training.evaluation import evaluate, outputs_of
from dnn.training.loss_scaling import LossScaling
from dnn.training.network import Network, NetworkArguments, PlanKind
from dnn.training.state import states_of

if TYPE_CHECKING:
    from dnn.training.networks import Fit

__all__ = ["Scheme", "TrainerLike"]


class TrainerLike(Protocol):
    """Protocol of the trainers that `Scheme.trainer` returns; `Trainer` explains its members."""

    samples: Samples
    count: int
    batch_size: int
    steps: int

    def epoch(self, order: Array, seeds: Sequence[int] = (), number: int = 0) -> list[float]:
        """Visit every sample once; return the mean loss of each of K networks."""
        ...

    def tallies(self) -> Array | None:
        """Return counts of predictions of each network in the last epoch, None without counts."""
        ...

    def exchange(self) -> dict[str, Any] | None:
        """Return exchange statistics of the last epoch, as in `History.exchange`, or None."""
        ...


class Scheme:
    """Scheme of training in one process; subclasses override it for several ranks.

    A scheme is a description that any number of networks may share: the objects that its methods
    return keep the state of one network. Every rank calls the same methods in the same order.

    Attributes
    ----------
    communicator : Communicator, optional
        Connects the ranks that train a network together; None in one process.
    accumulates : bool
        Whether a batch may be computed in pieces, as `accumulate` of `fit` asks for.
    cuts_state : bool
        Whether each rank has only a part of the state of the optimizer.
    """

    accumulates: bool = True
    cuts_state: bool = False
    communicator: Any = None

    def network(self, given: NetworkArguments) -> Network:
        """Build this rank's part of a network; errors as for `Network`."""
        return Network(*given)

    def bind(self, network: Network, optimizer: Optimizer) -> Update | LossScaling:
        """Return the update of this rank's parameters; called again when K networks become fewer.

        Raises
        ------
        ConfigurationError
            As for `Optimizer.bind`, or if the scheme cannot work with the optimizer.
        """
        update = optimizer.bind(network.ops, network.parameters, network.gradients)
        if not network.precision.scales_loss:
            return update
        buffers = network.parameters, network.gradients, network.state_buffer
        return LossScaling(update, *buffers, network.gradient_scale)

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Context before an exchange: an error in it, such as wrong data, reaches all ranks."""
        yield

    def begin(self, fit: Fit) -> None:
        """Check that all ranks agree before the first epoch of a `fit`, and give them one state.

        Raises
        ------
        DisagreementError
            On every rank, if they differ in layers, optimizer, seed, validation, batches, epochs.
        PeerError
            If another rank raised while it prepared.
        """

    @contextmanager
    def training(self) -> Iterator[None]:
        """Context of the loop over epochs: an error in it ends the training on other ranks too."""
        yield

    def trainer(self, network: Network, task: TrainingTask) -> TrainerLike:
        """Return a trainer of a network; errors as for `Trainer`."""
        return Trainer(network, task)

    def end_epoch(self, network: Network, update: Update | LossScaling) -> None:
        """Make averages and running statistics the same on all ranks, so that they predict alike.

        Called after an epoch, and in its pauses, before the network is saved for instance.
        """

    def gathered(self, network: Network, update: Update | LossScaling) -> dict[str, Array]:
        """Return every array that training changes, by name, whole and copied to the host.

        For a single network. All ranks call it, and all get the same arrays.
        """
        (state,) = states_of(network, update)
        return {
            name: array
            for name, array in state.arrays.items()
            if not name.startswith("hyperparameter/")
        }

    def own_part(self, network: Network, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return this rank's part of arrays that `gathered` has returned."""
        return dict(arrays)

    def validate(
        self, network: Network, samples: Samples, metrics: Sequence[str] = ()
    ) -> list[dict[str, float]]:
        """Return metrics of each of K networks after an epoch, the same on every rank."""
        return self.evaluate(network, samples, metrics)

    def agreed(self, reasons: Sequence[str | None]) -> list[str | None]:
        """Return for each network the first rank's reason to stop now, None if no rank has one."""
        return [*reasons]

    def evaluate(
        self, network: Network, samples: Samples, metrics: Sequence[str] = ()
    ) -> list[dict[str, float]]:
        """Return metrics of each of K networks when a user calls `evaluate`."""
        return evaluate(network, samples, metrics=metrics)

    def outputs(self, network: Network, samples: Array | Images, kind: PlanKind) -> Array:
        """Return outputs or probabilities, as `kind` says, for checked samples.

        Of K networks the shape is (K, n, ...).
        """
        return outputs_of(network, samples, kind)
