"""The interface of schemes by which ranks train one network, with the defaults of one process.

`Networks` and `Fit` ask a `Scheme` at a few places: how a network is built and bound to its
optimizer, what trains it, how it is measured, and what all ranks agree on. The scheme of this file
is that of one process; those of `dnn.distributed` derive from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from dnn.backend import Array, Ops
from dnn.data.augmentation import Images
from dnn.layers import Layer
from dnn.losses import Loss
from dnn.optimizers import Optimizer, Update
from dnn.precision import Precision
from dnn.training.data import Samples
from dnn.training.epoch import Trainer, TrainingTask
from dnn.training.evaluation import evaluate, outputs_of
from dnn.training.loss_scaling import LossScaling
from dnn.training.network import Network, PlanKind
from dnn.training.state import states_of

if TYPE_CHECKING:
    from dnn.training.networks import Fit

__all__ = ["Scheme", "TrainerLike"]


class TrainerLike(Protocol):
    """What a scheme's `trainer` returns; `Trainer` says what each of these is."""

    samples: Samples
    count: int
    batch_size: int
    steps: int

    def epoch(self, order: Array, seeds: Sequence[int] = (), number: int = 0) -> list[float]:
        """Visit every sample once; return the mean loss of each of K networks."""
        ...

    def tallies(self) -> list[list[int]] | None:
        """Return what each network predicted in the last epoch, None where it is not counted."""
        ...

    def exchange(self) -> dict[str, Any] | None:
        """Return what the last epoch cost, as `History.exchange` has it; None of one process."""
        ...


class Scheme:
    """Training in this process alone; what several ranks do otherwise, a subclass says.

    A scheme is a description that any number of networks may share: what belongs to one network
    is kept by what the methods return. Every rank calls the same methods in the same order.

    Attributes
    ----------
    communicator : Communicator, optional
        Of the ranks that train a network together; None in one process.
    accumulates : bool
        Whether a batch may be computed in pieces, as `accumulate` of `fit` asks for.
    cuts_state : bool
        Whether a rank remembers of its optimizer a part alone.
    """

    accumulates: bool = True
    cuts_state: bool = False
    communicator: Any = None

    def network(
        self,
        layers: Sequence[Layer],
        loss: Loss,
        seeds: int | Sequence[int],
        precision: Precision,
        ops: Ops,
        passes: Sequence[str] | None,
    ) -> Network:
        """Build this rank's part of a network; parameters and errors as for `Network`."""
        return Network(layers, loss, seeds, precision, ops, passes)

    def bind(self, network: Network, optimizer: Optimizer) -> Update | LossScaling:
        """Return what moves the parameters of this rank; called anew when K networks become fewer.

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
        """Let other ranks know of an error in what is done before an exchange: wrong data, say."""
        yield

    def begin(self, fit: Fit) -> None:
        """Check, before the first epoch of a `fit`, that ranks agree, and let them start alike.

        Raises
        ------
        DisagreementError
            On every rank, if they differ in layers, optimizer, seed, validation, batches, epochs.
        PeerError
            If another rank raised while it prepared.
        """

    @contextmanager
    def training(self) -> Iterator[None]:
        """Let other ranks end too if this one raises while epochs are trained."""
        yield

    def trainer(self, network: Network, task: TrainingTask) -> TrainerLike:
        """Return what trains a network for an epoch; errors as for `Trainer`."""
        return Trainer(network, task)

    def end_epoch(self, network: Network, update: Update | LossScaling) -> None:
        """Let all ranks predict alike after an epoch, with averages and running statistics too.

        Called in the pauses of an epoch too, before the network is saved, say.
        """

    def gathered(self, network: Network, update: Update | LossScaling) -> dict[str, Array]:
        """Return every array that training changes, by name, whole and copied to the host.

        Of one network; all ranks call it, and all get the same.
        """
        (state,) = states_of(network, update)
        return {
            name: array
            for name, array in state.arrays.items()
            if not name.startswith("hyperparameter/")
        }

    def own_part(self, network: Network, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return what of `gathered` arrays belongs to this rank."""
        return dict(arrays)

    def validate(self, network: Network, samples: Samples) -> list[dict[str, float]]:
        """Measure each of K networks after an epoch: the same numbers on every rank."""
        return self.evaluate(network, samples)

    def agreed(self, reasons: Sequence[str | None]) -> list[str | None]:
        """Return why each of some networks ends now, if it does: the first rank's that says so."""
        return [*reasons]

    def evaluate(self, network: Network, samples: Samples) -> list[dict[str, float]]:
        """Measure each of K networks when a user asks for it."""
        return evaluate(network, samples)

    def outputs(self, network: Network, samples: Array | Images, kind: PlanKind) -> Array:
        """Return the outputs for checked samples, or their probabilities; of K (K, n, ...)."""
        return outputs_of(network, samples, kind)
