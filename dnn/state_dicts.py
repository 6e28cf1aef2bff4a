"""Weights of a network as PyTorch has them: a state dict, or a file of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from dnn.backend import Array
from dnn.errors import explains_arguments
from dnn.training.networks import Networks

if TYPE_CHECKING:
    from dnn.io.weights import LoadedWeights

__all__ = ["LoadsWeights", "StateDicts"]


class LoadsWeights(Networks):
    """Base class of networks that read weights, one or K of them."""

    @explains_arguments
    def load_weights(
        self,
        path: str | PathLike[str],
        *,
        names: str | Mapping[str, str] | None = None,
        strict: bool = True,
        skip: Sequence[str] = (),
    ) -> LoadedWeights:
        """Set parameters and running statistics from a file, of K networks those of each alike.

        Parameters
        ----------
        path : path
            A safetensors or .npz file with the arrays of a `state_dict`, or a checkpoint of dnn, of
            which optimizer and history are left alone.
        names : str or mapping of str to str, optional
            The network of torchvision whose names the file has, found by the names if left out; or
            from names in the file to names in a state dict, where they differ: whole names, or
            their beginnings up to a dot, such as ``{"fc1": "0"}``.
        strict : bool
            Whether the file must have all arrays of the network, and no others. Shapes must fit in
            any case.
        skip : sequence of str
            Arrays to leave as they are, by patterns of their names here or there, or of the
            beginnings of these up to a dot: such as ``["fc"]``, of a last layer with other classes.

        Returns
        -------
        LoadedWeights
            Printed, a table of what was loaded and what was not.

        Raises
        ------
        CheckpointError
            If the file cannot be read or does not fit; it names the arrays. The model is as it was.
            A pickle, as ``torch.save`` writes it, is not read, and the message has the command
            that converts it.
        ConfigurationError
            If no network is called `names`, or a pattern is of no array.
        MissingDependencyError
            If safetensors is not installed.
        """
        self._check_whole("load_weights")
        from dnn.io.weights import load_weights

        return load_weights(self, path, names=names, strict=strict, skip=skip)


class StateDicts(LoadsWeights):
    """Base class of `NeuralNetwork`: its methods that write and read weights."""

    @explains_arguments
    def state_dict(self, names: str | None = None) -> dict[str, Array]:
        """Return parameters and running statistics as PyTorch has them.

        Parameters
        ----------
        names : str, optional
            A network of torchvision, such as ``"resnet18"``, whose names to take.

        Returns
        -------
        dict of str to array
            Copies on the host, by the names that ``torch.nn.Sequential`` of the same layers without
            the `Input` gives, and in PyTorch's order of axes: such as ``0.weight``, of shape
            (units, inputs).

        Raises
        ------
        ConfigurationError
            If no network is called `names`.
        """
        self._check_whole("state_dict")
        from dnn.io.weights import state_dict

        return state_dict(self, names)

    @explains_arguments
    def load_state_dict(
        self,
        state: Mapping[str, Any],
        *,
        in_order: bool = False,
        names: str | None = None,
        strict: bool = True,
        skip: Sequence[str] = (),
    ) -> LoadedWeights:
        """Set parameters and running statistics from a `state_dict` of PyTorch.

        Parameters
        ----------
        state : mapping of str to array or tensor of the host
            Of the names and shapes of `state_dict`.
        in_order : bool
            Ignore names, such as those of another module: take arrays in the order of `state`,
            which is that of ``module.state_dict()``.
        names : str, optional
            The network of torchvision whose names `state` has; found by the names if left out.
        strict, skip
            As for `load_weights`.

        Returns
        -------
        LoadedWeights
            Printed, a table of what was loaded and what was not.

        Raises
        ------
        CheckpointError
            If they do not fit; it names the arrays. The model is as it was.
        ConfigurationError
            As for `load_weights`.
        """
        self._check_whole("load_state_dict")
        from dnn.io.weights import load_arrays

        how: dict[str, Any] = {"names": names, "strict": strict, "skip": skip}
        return load_arrays(self, "the state dict", state, in_order, **how)

    @explains_arguments
    def save_weights(self, path: str | PathLike[str], *, names: str | None = None) -> None:
        """Write `state_dict` into a file: safetensors for PyTorch, or with the suffix .npz NumPy's.

        Parameters
        ----------
        path : path
        names : str, optional
            As for `state_dict`.

        Raises
        ------
        CheckpointError
            If the file cannot be written.
        ConfigurationError
            If no network is called `names`.
        MissingDependencyError
            If safetensors is not installed.
        """
        self._check_whole("save_weights")
        from dnn.io.weights import save_weights

        save_weights(self, path, names)

    @explains_arguments
    def save_safetensors(self, path: str | PathLike[str]) -> None:
        """Write `state_dict` for ``safetensors.torch.load_file``, as `save_weights` does.

        Parameters
        ----------
        path : path
        """
        self.save_weights(path)

    @explains_arguments
    def load_safetensors(
        self, path: str | PathLike[str], *, names: Mapping[str, str] | None = None
    ) -> LoadedWeights:
        """Set parameters and running statistics from a file, as `load_weights` does.

        Parameters
        ----------
        path : path
        names : mapping of str to str, optional

        Returns
        -------
        LoadedWeights
        """
        return self.load_weights(path, names=names)
