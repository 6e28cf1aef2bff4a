"""Layers of sequences: recurrent cells, embeddings of integers, and convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.backend import Array
from dnn.errors import (
    ConfigurationError,
    DataError,
    DtypeError,
    ShapeError,
    check_count,
    explains_arguments,
)
from dnn.graph import operations
from dnn.graph.node import Node, Shape, constant
from dnn.graph.operations.activations import ACTIVATIONS
from dnn.graph.operations.convolution import pair_of
from dnn.initializers import Initializer, initializer_of, normal, uniform, zeros
from dnn.layers.basic import Input
from dnn.layers.images import FilterInitializer
from dnn.layers.layer import Layer

__all__ = ["GRU", "LSTM", "RNN", "Conv1D", "Embedding", "SequenceInput"]


class SequenceInput(Input):
    """The first layer of sequences of different lengths: `dnn.pad_sequences` makes the samples.

    A sample has one row more than there are time steps. The last one begins with the length of the
    sequence, the number of its time steps; what stands behind that is not read.

    Parameters
    ----------
    steps : int
        Time steps of the longest sequence.
    *shape : int
        Of one time step: ``SequenceInput(20, 28)`` for vectors of 28, ``SequenceInput(20)`` for
        numbers.
    dtype : type, optional
        As for `Input`: ``int`` for integers, such as those of words.

    Examples
    --------
    >>> from dnn import LSTM, Embedding, FullyConnected
    >>> words = SequenceInput(20, dtype=int)
    >>> layers = [words, Embedding(1000, 32), LSTM(64, lengths=words), FullyConnected(2)]
    """

    lengths: Node | None = None

    @explains_arguments
    def __init__(self, steps: int, *shape: int, dtype: Any = None) -> None:
        self.steps = check_count("SequenceInput: steps", steps)
        super().__init__(self.steps + 1, *shape, dtype=dtype)

    def forward(self, x: Node) -> Node:
        """Return `x` without the lengths, which stand in `lengths` from then on."""
        flat = operations.reshape(x[:, self.steps], (x.shape[0], -1))
        self.lengths = operations.reshape(flat[:, :1], (x.shape[0],))
        return x[:, : self.steps]

    def check_samples(self, name: str, samples: Array) -> Array:
        """Return samples without their lengths; `DataError` unless these are in 1 .. steps."""
        samples = super().check_samples(name, samples)
        lengths = samples[:, self.steps].reshape(len(samples), -1)[:, 0]
        wrong = np.flatnonzero(~((lengths >= 1) & (lengths <= self.steps)) | (lengths % 1 != 0))
        if wrong.size:
            message = f"sequence {wrong[0]} has length {lengths[wrong[0]]}"
            message += f", but {name} of shape {samples.shape} takes 1 .. {self.steps} time steps"
            raise DataError(f"{self.name}: {message}")
        return samples[:, : self.steps]


_WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Embedding(Layer):
    """A trained vector for each integer: ``y[..., :] = weight[x]``.

    Parameters
    ----------
    count : int
        Integers are in ``0 .. count - 1``.
    units : int
        Length of a vector.
    padding : int, optional
        This integer has 0 in place of a vector, and no gradient.
    initializer : str or Initializer
        Initializer of the vectors; normally distributed if left out.

    Raises
    ------
    ConfigurationError
        If `padding` is not in ``0 .. count - 1``; when the network is built, `DtypeError` if the
        samples are not of integers: see the `dtype` of `Input`.
    """

    @explains_arguments
    def __init__(
        self,
        count: int,
        units: int,
        *,
        padding: int | None = None,
        initializer: str | Initializer | None = None,
    ) -> None:
        super().__init__()
        self.count = check_count("Embedding: count", count)
        self.units = check_count("Embedding: units", units)
        if padding is not None and not 0 <= padding < self.count:
            message = f"Embedding: padding must be in 0 .. {self.count - 1}, not {padding!r}"
            raise ConfigurationError(message)
        self.padding = padding
        self.initializer = initializer

    def build(self, shape: Shape) -> None:
        """Declare the vectors."""
        initializer = normal(0.0, 1.0) if self.initializer is None else self.initializer
        self.weight = self.parameter("weight", (self.count, self.units), initializer)

    def check_samples(self, name: str, samples: Array) -> Array:
        """Raise `DataError` if an integer in the samples has no vector."""
        if samples.min() < 0 or samples.max() >= self.count:
            wrong = np.argwhere((samples < 0) | (samples >= self.count))
            at = tuple(int(i) for i in wrong[0])
            message = f"{name} of shape {samples.shape} has {samples[at]} in row {at[0]}"
            message += f", but there are vectors for 0 .. {self.count - 1}"
            raise DataError(f"{self.name}: {message}")
        return samples

    def forward(self, x: Node) -> Node:
        """Return the vectors of `x`, along a further axis."""
        if x.dtype != np.intp:
            message = f"takes integers, not {x.dtype}: begin with Input(..., dtype=int)"
            raise DtypeError(f"{self.name} {message}")
        y = operations.take_rows(self.weight, x)
        if self.padding is None:
            return y
        padded = operations.cast(operations.equal(x, self.padding), self.dtype)
        return y * (1.0 - operations.expand_dims(padded, -1))


class Recurrent(Layer):
    """Base class of recurrent layers; `LSTM` documents the options."""

    cell = "tanh"
    products = 1
    starts: tuple[str, ...] = ("h0",)

    @explains_arguments
    def __init__(
        self,
        units: int,
        *,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        return_sequences: bool = False,
        bias: bool = True,
        lengths: SequenceInput | None = None,
        initial: str = "zeros",
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.units = check_count(f"{name}: units", units)
        self.layers = check_count(f"{name}: layers", layers)
        if isinstance(dropout, bool) or not 0 <= dropout < 1:
            message = f"{name}: dropout must be in 0 .. 1 without 1, not {dropout!r}"
            raise ConfigurationError(message)
        if initial not in ("zeros", "trained"):
            message = f"{name}: initial must be 'zeros' or 'trained', not {initial!r}"
            raise ConfigurationError(message)
        source: object = lengths
        if source is not None and not isinstance(source, SequenceInput):
            message = f"{name}: lengths must be the network's SequenceInput, not {lengths!r}"
            raise ConfigurationError(message)
        self.bidirectional = bidirectional
        self.dropout = float(dropout)
        self.return_sequences = return_sequences
        self.with_bias = bias
        self.lengths = lengths
        self.initial = initial
        self.layer_norm = layer_norm

    def build(self, shape: Shape) -> None:
        """Declare weights, biases and trained first states of each layer and direction."""
        if len(shape) != 2:
            message = f"a sample must be of shape (steps, features), but its shape is {shape}"
            raise ShapeError(self.name, message, shape)
        bound = 1.0 / math.sqrt(self.units)
        start = uniform(-bound, bound)
        wide, features = self.products * self.units, shape[1]
        for layer in range(self.layers):
            for end in self._ends(layer):
                shapes: dict[str, Shape] = {
                    "weight_ih": (wide, features),
                    "weight_hh": (wide, self.units),
                }
                if self.with_bias:
                    shapes |= {"bias_ih": (wide,), "bias_hh": (wide,)}
                for name, of_weight in shapes.items():
                    self.parameter(name + end, of_weight, start)
                if self.layer_norm:
                    for name, length in zip(self._norms(), (wide, wide, self.units), strict=False):
                        self.parameter(name + end, (length,), "ones")
                for name in self.starts if self.initial == "trained" else ():
                    self.parameter(name + end, (self.units,), "zeros")
            features = self.units * (1 + self.bidirectional)

    def _ends(self, layer: int) -> list[str]:
        """Return the ends of a layer's names of parameters, one for each direction."""
        return [f"_l{layer}", *([f"_l{layer}_reverse"] if self.bidirectional else [])]

    def forward(self, x: Node) -> Node:
        """Return the states of all time steps, or the last state."""
        lengths = None if self.lengths is None else self.lengths.lengths
        if self.lengths is not None and (lengths is None or lengths.shape != x.shape[:1]):
            message = "its lengths are of a SequenceInput that is not this network's first layer"
            raise ConfigurationError(f"{self.name}: {message}")
        states = operations.transpose(x, (1, 0, 2))
        last: list[Node] = []
        for layer in range(self.layers):
            if layer and self.training and self.dropout:
                noise = self.uniform_noise(states.shape)
                states = operations.dropout(states, noise, self.dropout)
            found = [self._direction(states, end, lengths) for end in self._ends(layer)]
            last = [each.last for each in found]
            states = operations.concat([each.states for each in found], -1)
        if self.return_sequences:
            return operations.transpose(states, (1, 0, 2))
        return operations.concat(last, -1)

    def _norms(self) -> list[str]:
        """Return the beginnings of names of scales: for inputs, states and an LSTM's cell."""
        return ["norm_ih", "norm_hh", *(["norm_cell"] if "c0" in self.starts else [])]

    def _direction(self, x: Node, end: str, lengths: Node | None) -> operations.Recurrent:
        """Run the cell of a layer and a direction over `x`, of shape (steps, batch, features)."""
        nodes = (declared.node for declared in self.parameters)
        known = {node.name.rpartition(".")[2]: node for node in nodes}
        weights = [known.get(f"{name}{end}") for name in _WEIGHTS]
        # One row for all samples.
        of_batch = (x.shape[1], self.units)
        starts = [
            operations.broadcast_to(known[name + end], of_batch) if name + end in known else None
            for name in self.starts
        ]
        assert weights[0] is not None
        assert weights[1] is not None
        if self.layer_norm:
            scales = [known[name + end] for name in self._norms()]
            return normalised(
                x, weights, scales, starts, cell=self.cell, lengths=lengths,
                reverse=end.endswith("_reverse"),
            )  # fmt: skip
        return operations.recurrent(
            x, weights[0], weights[1], weights[2], weights[3],
            cell=self.cell, lengths=lengths, first=starts[0],
            first_cell=starts[1] if len(starts) > 1 else None, reverse=end.endswith("_reverse"),
        )  # fmt: skip


EPSILON = 1e-5
"""Added to variances, as in `LayerNorm`."""


def normalised(
    x: Node,
    weights: Sequence[Node | None],
    scales: Sequence[Node],
    starts: Sequence[Node | None],
    *,
    cell: str,
    lengths: Node | None,
    reverse: bool,
) -> operations.Recurrent:
    """Run a cell with layer normalisation over `x`, of shape (steps, batch, features).

    `weights` and `starts` are those of `dnn.graph.recurrent`, `scales` of the products of inputs
    and states and of the cell.
    """
    steps, batch, _ = x.shape
    weight, hidden_weight, bias, hidden_bias = weights
    assert weight is not None
    assert hidden_weight is not None
    units = hidden_weight.shape[1]
    nothing = constant(np.zeros((batch, units)), x.dtype)
    h, *c = (nothing if start is None else start for start in starts)

    def norm(y: Node, scale: Node, shift: Node | None = None) -> Node:
        y = operations.normalise(y, -1, EPSILON).values * scale
        return y if shift is None else y + shift

    def cut(y: Node) -> list[Node]:
        return [y[:, k * units : (k + 1) * units] for k in range(y.shape[1] // units)]

    def chosen(t: int, after: Node, before: Node) -> Node:
        if lengths is None:
            return after
        goes_on = operations.expand_dims(operations.greater(ends, float(t)), -1)
        return operations.where(goes_on, after, before)

    flat = operations.reshape(x, (steps * batch, x.shape[2])) @ weight.T
    products = operations.reshape(norm(flat, scales[0], bias), (steps, batch, weight.shape[0]))
    ends = nothing if lengths is None else operations.cast(lengths, x.dtype)
    states: list[Node] = [h] * steps
    for t in range(steps)[:: -1 if reverse else 1]:
        y, z = cut(products[t]), cut(norm(h @ hidden_weight.T, scales[1], hidden_bias))
        if cell == "lstm":
            i, f, g, o = (a + b for a, b in zip(y, z, strict=True))
            memory = operations.sigmoid(f) * c[0] + operations.sigmoid(i) * operations.tanh(g)
            after = operations.sigmoid(o) * operations.tanh(norm(memory, scales[2]))
            c = [chosen(t, memory, c[0])]
        elif cell == "gru":
            r, u = (operations.sigmoid(a + b) for a, b in zip(y[:2], z[:2], strict=True))
            after = (1.0 - u) * operations.tanh(y[2] + r * z[2]) + u * h
        else:
            after = ACTIVATIONS[cell](y[0] + z[0])
        h = chosen(t, after, h)
        states[t] = h if lengths is None else chosen(t, h, h * 0.0)
    return operations.Recurrent(operations.stack(states), h, c[0] if c else None)


class RNN(Recurrent):
    """A simple recurrent layer: ``h_t = tanh(W x_t + b + V h_(t-1) + c)``.

    Parameters
    ----------
    units : int
    activation : str
        ``"tanh"`` or ``"relu"``.
    **options
        As for `LSTM`; errors are the same too.

    References
    ----------
    .. [1] Elman, Finding structure in time, 1990.
    """

    @explains_arguments
    def __init__(self, units: int, activation: str = "tanh", **options: Any) -> None:
        super().__init__(units, **options)
        if activation not in ("tanh", "relu"):
            message = f"RNN: activation must be 'tanh' or 'relu', not {activation!r}"
            raise ConfigurationError(message)
        self.cell = activation


class LSTM(Recurrent):
    """A layer of long short-term memory, over samples that are sequences (steps, features).

    ::

        i, f, o = sigmoid(W x_t + b + V h_(t-1) + c), of three parts of the rows of W, b, V and c
        g       = tanh(W x_t + b + V h_(t-1) + c),    of the part behind the second
        c_t     = f c_(t-1) + i g
        h_t     = o tanh(c_t)

    Parameters
    ----------
    units : int
        Length of a state.
    layers : int
        Number of stacked layers, each of which reads the states of the layer below.
    bidirectional : bool
        A second cell reads each sequence from its end; the states of both are concatenated.
    dropout : float, in 0 .. 1 without 1
        Of the states between layers, in training.
    return_sequences : bool
        Put out the states of all time steps, (steps, units), 0 past the end of a sequence, and not
        the last state alone, (units,): for a cell that runs from the end that is the state at the
        beginning.
    bias : bool
    lengths : SequenceInput, optional
        The first layer of the network, where sequences differ in length.
    initial : str
        First states (and cells): ``"zeros"``, or ``"trained"``, which are parameters that start
        from 0.
    layer_norm : bool
        Normalise the products of inputs and of states, and the cell before its tanh, to mean 0 and
        variance 1, times trained scales ``norm_ih``, ``norm_hh`` and ``norm_cell`` [2]_. Such a
        layer is composed of a dozen nodes for each time step, which takes longer to compile and to
        run.

    Raises
    ------
    ConfigurationError
        If a number is out of its range; when the network is built, `ShapeError` if a sample is no
        sequence of vectors.

    Notes
    -----
    Parameters have the names, shapes and order of PyTorch's, such as ``weight_ih_l0`` and
    ``bias_hh_l1_reverse``, and start from the same distribution.

    References
    ----------
    .. [1] Hochreiter and Schmidhuber, Long short-term memory, 1997; Gers, Schmidhuber and Cummins,
       Learning to forget, 2000.
    .. [2] Ba, Kiros and Hinton, Layer normalization, 2016, section 3.1 and the supplement.
    """

    cell = "lstm"
    products = 4
    starts = ("h0", "c0")


class GRU(Recurrent):
    """A layer of gated recurrent units.

    ::

        r, u = sigmoid(W x_t + b + V h_(t-1) + c), of the first two parts of the rows
        n    = tanh(W x_t + b + r (V h_(t-1) + c)), of the third
        h_t  = (1 - u) n + u h_(t-1)

    Parameters
    ----------
    units : int
    **options
        As for `LSTM`; errors are the same too.

    References
    ----------
    .. [1] Cho et al., Learning phrase representations using RNN encoder-decoder, 2014; with the
       reset gate behind the product, as in cuDNN and PyTorch.
    """

    cell = "gru"
    products = 3

    @explains_arguments
    def __init__(self, units: int, **options: Any) -> None:
        super().__init__(units, **options)


class Conv1D(Layer):
    """Convolution of sequences with filters, plus a bias for each filter.

    Samples are (channels, length), and become (filters, places).

    Parameters
    ----------
    filters : int
    window : int
        Length of a filter.
    stride, dilation : int
        Steps between windows, and between the elements of a window.
    padding : ``"valid"``, ``"same"``, ``"causal"``, int or pair of int
        Zeros before and behind a sequence: none; so many that there are ``ceil(length / stride)``
        places; so many in front alone that no place sees what comes after it; or that many.
    groups : int
        Each filter sees the channels of its group.
    bias : bool
    initializer : str or Initializer
        Initializer of the weights, (filters, channels / groups, window); the bias starts from 0.

    Raises
    ------
    ConfigurationError
        If an argument is not valid, such as a stride of 0. When the network is built, if the groups
        do not divide the channels, and `ShapeError` if samples are no sequences, or shorter than a
        window.

    References
    ----------
    .. [1] Waibel et al., Phoneme recognition using time-delay neural networks, 1989; causal as in
       van den Oord et al., WaveNet, 2016, section 2.1.
    """

    @explains_arguments
    def __init__(
        self,
        filters: int,
        window: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        padding: str | int | Sequence[int] = "valid",
        groups: int = 1,
        bias: bool = True,
        initializer: str | Initializer = "glorot_uniform",
    ) -> None:
        super().__init__()
        self.filters = check_count("Conv1D: filters", filters)
        self.window = check_count("Conv1D: window", window)
        self.stride = check_count("Conv1D: stride", stride)
        self.dilation = check_count("Conv1D: dilation", dilation)
        self.groups = check_count("Conv1D: groups", groups)
        if self.filters % self.groups:
            message = f"groups = {self.groups} does not divide {self.filters} filters"
            raise ConfigurationError(f"Conv1D: {message}")
        if isinstance(padding, str):
            if padding not in ("valid", "same", "causal"):
                message = f"padding must be 'valid', 'same', 'causal' or numbers, not {padding!r}"
                raise ConfigurationError(f"Conv1D: {message}")
        else:
            pair_of("Conv1D", "padding", padding, 0)
        self.padding = padding
        self.with_bias = bias
        self.initializer = initializer

    def build(self, shape: Shape) -> None:
        """Declare weights and bias."""
        if len(shape) != 2:
            message = f"a sample must be (channels, length), but its shape is {shape}"
            raise ShapeError(self.name, message, shape)
        channels, length = shape
        if channels % self.groups:
            message = f"groups = {self.groups} does not divide {channels} channels"
            raise ConfigurationError(f"{self.name}: {message}")
        self.zeros_around = before, after = self._zeros(length)
        reach = (self.window - 1) * self.dilation + 1
        if length + before + after < reach:
            message = f"a window of {self.window} reaches over {reach} elements, more than a sample"
            raise ShapeError(self.name, f"{message} of shape {shape} has", shape, (self.window,))
        weights = (self.filters, channels // self.groups, self.window)
        self.weight = self.parameter(
            "weight", weights, FilterInitializer(initializer_of(self.initializer))
        )
        if self.with_bias:
            self.bias = self.parameter("bias", (self.filters,), zeros)

    def _zeros(self, length: int) -> tuple[int, int]:
        """Return how many zeros stand before and behind a sequence."""
        reach = (self.window - 1) * self.dilation + 1
        if self.padding == "valid":
            return 0, 0
        if self.padding == "causal":
            return reach - 1, 0
        if self.padding == "same":
            places = -(-length // self.stride)
            total = max((places - 1) * self.stride + reach - length, 0)
            return total // 2, total - total // 2
        return pair_of(self.name, "padding", self.padding, 0)

    def forward(self, x: Node) -> Node:
        """Return the convolution of `x`, computed as that of an image of one row."""
        batch, channels, length = x.shape
        filters, per_group, window = self.weight.shape
        y = operations.conv2d(
            operations.reshape(x, (batch, channels, 1, length)),
            operations.reshape(self.weight, (filters, per_group, 1, window)),
            self.bias if self.with_bias else None,
            stride=(1, self.stride),
            dilation=(1, self.dilation),
            padding=((0, 0), self.zeros_around),
            groups=self.groups,
        )
        return operations.reshape(y, (batch, filters, y.shape[3]))
