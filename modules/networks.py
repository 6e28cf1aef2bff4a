"""Networks that hyperparameters describe, as lists of layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dnn import catalogue

from .hyperparameters import Hyperparameters, cells
from .layer_list import built

if TYPE_CHECKING:
    from dnn import Layer, SequenceInput


def layers_of(
    wanted: Hyperparameters,
    features: int,
    classes: int,
    shape: tuple[int, ...] | None = None,
    embeds: Sequence[int] = (),
    *,
    in_rows: bool = True,
) -> list[Layer]:
    """Return the layers of a network: convolutions or recurrent layers, if any, then hidden ones.

    If `wanted` has a list of layers, return those, and behind them the last one, whose units are as
    many as the loss needs.

    Parameters
    ----------
    wanted : Hyperparameters
    features, classes : int
        How many numbers a sample has, and how many classes, or targets, there are.
    shape : tuple of int, optional
        Shape of a sample, if it is an image or a sequence.
    embeds : sequence of int
        For each of the last columns, if they are to be embedded: how many categories it has.
    in_rows : bool
        Whether an image arrives as one row of numbers.

    Raises
    ------
    ValueError
        If samples are not what the layers read, or images too small for so many stages.
    """
    from dnn import (
        Activation,
        EmbedColumns,
        Flatten,
        FullyConnected,
        Input,
        Reshape,
        SequenceInput,
    )

    if wanted.loss is not None:
        loss = catalogue("loss")[wanted.loss]
        classes = loss(**_quantiles(wanted)).output_count(classes)
        if loss.needs:  # probabilities
            plain = wanted.model_copy(update={"loss": None})
            before = layers_of(plain, features, classes, shape, embeds, in_rows=in_rows)
            return [*before, *map(Activation, loss.needs)]
    layers: list[Layer] = [Input(features) if in_rows or shape is None else Input(*shape)]
    if embeds:
        layers.append(EmbedColumns(embeds))
    lengths: SequenceInput | None = None
    if shape is not None and len(shape) == 2:
        layers = [lengths := SequenceInput(*shape)]
    as_image = [Reshape(*shape)] if shape is not None and lengths is None and in_rows else []
    if wanted.layers is not None:
        listed = built(wanted.layers)
        for layer in listed:
            if layer.kind() in cells():
                vars(layer)["lengths"] = lengths
        return [*layers, *as_image, *listed, FullyConnected(classes)]
    if lengths is not None and not wanted.recurrent:
        raise ValueError("these samples are sequences: give recurrent, the units of each layer")
    if wanted.channels:
        _check_images(wanted, features, shape)
        layers += [*as_image, *_convolutions(wanted), Flatten()]
    elif wanted.recurrent:
        if lengths is None:
            layers.append(Reshape(*_rows_as_steps(wanted, features, shape)))
        layers += _recurrent(wanted, lengths)
    elif not in_rows:
        layers.append(Flatten())
    return [*layers, *_hidden(wanted, features, classes)]


def _quantiles(wanted: Hyperparameters) -> dict[str, Any]:
    return {} if wanted.quantiles is None else {"quantiles": wanted.quantiles}


def _hidden(wanted: Hyperparameters, features: int, classes: int) -> Iterator[Layer]:
    """Yield the hidden layers, and the layer with a unit for each class."""
    from dnn import Activation, BatchNorm, Dropout, mlp

    for layer in mlp(features, wanted.hidden, classes, wanted.activation)[1:]:
        is_activation = isinstance(layer, Activation)
        if is_activation and wanted.batch_norm:
            yield BatchNorm()
        yield layer
        if is_activation and wanted.drops:
            yield Dropout(wanted.dropout)


def _rows_as_steps(
    wanted: Hyperparameters, features: int, shape: tuple[int, ...] | None
) -> tuple[int, int]:
    """Return time steps and features of an image that is read row by row."""
    if shape is None or shape[0] != 1:
        given = f"images of {shape[0]} channels" if shape else f"rows of {features} numbers"
        raise ValueError(
            f"recurrent = {wanted.recurrent}: recurrent layers are of sequences, and of images "
            f"of one channel; these samples are {given}"
        )
    return shape[1], shape[2]


def _recurrent(wanted: Hyperparameters, lengths: SequenceInput | None) -> Iterator[Layer]:
    """Yield the recurrent layers; only the last of them returns its last state alone."""
    kind = cells()[wanted.cell]
    last = len(wanted.recurrent) - 1
    for number, units in enumerate(wanted.recurrent):
        yield kind(
            units,
            bidirectional=wanted.bidirectional,
            return_sequences=number < last,
            lengths=lengths,
        )


def _check_images(wanted: Hyperparameters, features: int, shape: tuple[int, ...] | None) -> None:
    """Raise a ValueError if samples are no images, or too small for all stages."""
    if shape is None or len(shape) != 3:
        given = f"rows of {features} numbers" if shape is None else "sequences"
        raise ValueError(
            f"channels = {wanted.channels}: convolutions are of images, and these samples are "
            f"{given}"
        )
    if min(shape[1:]) >> len(wanted.channels) < 1:
        raise ValueError(
            f"channels = {wanted.channels}: each stage halves images, and these are of "
            f"{' x '.join(map(str, shape[1:]))} pixels"
        )


def _convolutions(wanted: Hyperparameters) -> Iterator[Layer]:
    """Yield a network's layers from the first convolution to the last pooling."""
    from dnn import Activation, BatchNorm, Conv2D, MaxPool2D, mlp

    # Weights start as those of hidden layers with this activation do.
    _, hidden, *_ = mlp(1, [1], 1, wanted.activation)
    initializer = vars(hidden)["initializer"]
    for filters in wanted.channels:
        for _ in range(wanted.depth):
            yield Conv2D(
                filters,
                wanted.kernel,
                padding="same",
                bias=not wanted.batch_norm,
                initializer=initializer,
            )
            if wanted.batch_norm:
                yield BatchNorm()
            yield Activation(wanted.activation)
        yield MaxPool2D(2)


def dropout_rates(wanted: Sequence[Hyperparameters]) -> dict[str, list[float]]:
    """Return the dropout rates of K networks, as states of a `dnn.Ensemble`."""
    layers = len(wanted[0].hidden) if wanted[0].drops else 0
    rates = [parameters.dropout for parameters in wanted]
    return {f"dropout_{number}.rate": rates for number in range(1, layers + 1)}
