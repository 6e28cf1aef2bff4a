"""All that a training needs to go on, of one network, in memory and in a file.

A `NeuralNetwork` takes what an `Ensemble` has left and the other way round, so networks that were
trained together go on alone, or with others, bit for bit. In a file it is a checkpoint without a
model: who reads it knows the layers and the optimizer, as those of the network that goes on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from dnn.errors import CheckpointError, ConfigurationError
from dnn.training.checkpoint import VERSION, read_checkpoint, write_arrays
from dnn.training.history import History
from dnn.training.state import Snapshot, State, load_states, states_of, weights_of_each

if TYPE_CHECKING:
    from dnn.training.networks import Networks

__all__ = ["Progress", "copy_training", "load_progress", "progress_of", "resume_training"]

_BEST = "best/"


@dataclass(frozen=True)
class Progress:
    """How far the training of a network has come, after an epoch.

    Attributes
    ----------
    state : State
    seed : int
    history : History
        Of all epochs.
    best : dict of str to array
        Parameters and running statistics of its best epoch, on the host, where that is kept.
    """

    state: State
    seed: int
    history: History
    best: Snapshot

    @property
    def epochs(self) -> int:
        """Epochs that are done."""
        return len(self.history)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        arrays = [*self.state.arrays.values(), *self.best.values()]
        return sum(array.nbytes for array in arrays)

    def save(self, path: str | PathLike[str], about: Mapping[str, Any] | None = None) -> None:
        """Write it, whole or not at all.

        Parameters
        ----------
        path : path
        about : mapping, optional
            Values of JSON for who reads it.

        Raises
        ------
        CheckpointError
            If the file cannot be written.
        MissingDependencyError
            If safetensors is not installed.
        """
        arrays = {**self.state.arrays, **{_BEST + name: x for name, x in self.best.items()}}
        contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
        history = dataclasses.asdict(self.history)
        described = {"seed": self.seed, "steps": self.state.steps, "history": history}
        given = {"version": VERSION, "progress_of": described, "about": dict(about or {})}
        write_arrays(path, contiguous, given)


def load_progress(path: str | PathLike[str]) -> tuple[Progress, dict[str, Any]]:
    """Read what `Progress.save` has written.

    Parameters
    ----------
    path : path

    Returns
    -------
    Progress
    dict
        The values of JSON that were given with it.

    Raises
    ------
    CheckpointError
        If the file cannot be read, is damaged, or is something else.
    """
    about, arrays = read_checkpoint(path)
    try:
        said, own = about["progress_of"], about["about"]
        history = History(**said["history"])
        best = {name.removeprefix(_BEST): x for name, x in arrays.items() if name.startswith(_BEST)}
        own_arrays = {name: x for name, x in arrays.items() if not name.startswith(_BEST)}
        state = State(own_arrays, said["steps"])
        return Progress(state, said["seed"], history, best), own
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: no progress of a training: {error}") from error


def progress_of(networks: Networks, best: Sequence[Snapshot | None] = ()) -> list[Progress]:
    """Return how far the training of each network has come; called at the end of an epoch.

    All ranks that train a network together call it, and get the same.

    Parameters
    ----------
    networks : NeuralNetwork or Ensemble
    best : sequence of (dict of str to array or None), optional
        For each network what is kept of its best epoch, as `EarlyStopping.snapshot`.

    Returns
    -------
    list of Progress
        One for each network.
    """
    histories, seeds, ended = networks._histories, networks._seeds, networks._ended
    to_host, states = networks._network.ops.to_host, ended
    if len(ended) < len(seeds):
        states = dict(enumerate(states_of(networks._network, networks._update))) | ended
    if networks._scheme.communicator is not None:  # of a single network
        whole = networks._scheme.gathered(networks._network, networks._update)
        own = states[0]
        settings = {n: x for n, x in own.arrays.items() if n.startswith("hyperparameter/")}
        states = {0: State({**whole, **settings}, own.steps)}
    found = []
    for k, seed in enumerate(seeds):
        kept = (best[k] if best else None) or {}
        on_host = {name: to_host(array) for name, array in kept.items()}
        history = History(**dataclasses.asdict(histories[k]))
        found.append(Progress(states[k], seed, history, on_host))
    return found


def resume_training(networks: Networks, progress: Sequence[Progress]) -> list[Snapshot | None]:
    """Have networks go on where others of the same layers and optimizer have ended.

    All ranks that train a network together call it.

    Parameters
    ----------
    networks : NeuralNetwork or Ensemble
    progress : sequence of Progress
        One for each network, all after as many epochs.

    Returns
    -------
    list of (dict of str to array or None)
        For each network what was kept of its best epoch, on its device, for `EarlyStopping.go_on`.

    Raises
    ------
    ConfigurationError
        If there is not one for each, or they are after different numbers of epochs.
    ShapeError
        If they are of another kind of network or optimizer; nothing is changed then.
    """
    _load(networks, progress)
    networks._seeds = [each.seed for each in progress]
    return [_on_device(networks, k, each.best) for k, each in enumerate(progress)]


def copy_training(
    networks: Networks, progress: Sequence[Progress], own: Sequence[str] = ()
) -> None:
    """Have networks go on from copies of others, with seeds and hyperparameters of their own.

    Parameters, running statistics, the state of the optimizer and the history are those of the
    others; the order of rows, the noise, learning rates and the like are not. All ranks that train
    a network together call it.

    Parameters
    ----------
    networks : NeuralNetwork or Ensemble
        As they are when they are made, or after `Ensemble.restart`.
    progress : sequence of Progress
        As for `resume_training`; one may be there several times.
    own : sequence of str, optional
        Names of states that stay those of the networks too, such as ``"dropout_1.rate"``.

    Raises
    ------
    ConfigurationError, ShapeError
        As for `resume_training`.
    """
    kept = [f"state/{name}" for name in (networks._network.seed_name, *own)]
    _load(networks, progress, ["hyperparameter/", *kept])


def _load(networks: Networks, progress: Sequence[Progress], own: Sequence[str] = ()) -> None:
    """Load states and histories, without the arrays whose names begin like one in `own`."""
    if len(progress) != len(networks._seeds):
        message = f"{len(progress)} for {len(networks._seeds)} networks"
        raise ConfigurationError(f"resume_training: {message}: it takes one for each")
    if len({each.epochs for each in progress}) > 1:
        raise ConfigurationError("resume_training: they are after different numbers of epochs")
    network, own_part = networks._network, networks._scheme.own_part
    states = [each.state for each in progress]
    states = [State(own_part(network, each.arrays), each.steps) for each in states]
    load_states(network, networks._update, states, own)
    networks._histories = [History(**dataclasses.asdict(each.history)) for each in progress]
    networks._ended, networks._progress = {}, None


def _on_device(networks: Networks, k: int, best: Snapshot) -> Snapshot | None:
    """Return the arrays of a best epoch as a snapshot of a network; None if there are none."""
    if not best:
        return None
    network, snapshot = networks._network, {}
    for name, array in weights_of_each(network, networks._update).items():
        snapshot[name] = (array if network.models is None else array[k, ...]).copy()
        if name in best:  # the step of noise is not, of a network that was trained with others
            network.ops.load(best[name], snapshot[name])
    return snapshot
