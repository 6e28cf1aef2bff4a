"""The hyperparameters of the trainer of this package, as networks, losses and optimizers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from diel import OneOf
from dnn import catalogue

from .layer_list import built

if TYPE_CHECKING:
    from dnn import Layer, Loss, Optimizer, SequenceInput

_OTHER_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9}
}
"""Defaults of optimizers that are not those of their classes."""

_OF_SCHEDULES: Final = {
    "epochs": "steps",
    "decay_every": "every",
    "decay_factor": "factor",
    "rise": "rise",
}
"""Parameters on which a schedule depends, and the argument of its class that each becomes."""

_OF_SHAPE: Final = (
    *("channels", "depth", "kernel", "recurrent", "cell", "bidirectional"),
    *("hidden", "activation", "dropout", "batch_norm"),
)
"""Parameters that define the layers of a network, where no list of layers does."""
_PARTS: Final[Mapping[str, tuple[str, str]]] = {
    "depth": ("channels", "convolutions: give channels, the filters"),
    "kernel": ("channels", "convolutions: give channels, the filters"),
    "cell": ("recurrent", "recurrent layers: give recurrent, the units"),
    "bidirectional": ("recurrent", "recurrent layers: give recurrent, the units"),
}
"""Parameters of layers that exist only if another parameter is given: that one, and a text."""


def _schedules() -> list[str]:
    # A warm-up is a parameter of its own, and goes before any of them.
    return [name for name in catalogue("schedule") if name != "warm_up"]


def _cells() -> dict[str, Any]:
    """Return the recurrent layers by their kinds."""
    from dnn import GRU, LSTM, RNN

    return {layer.kind(): layer for layer in (LSTM, GRU, RNN)}


class Hyperparameters(BaseModel):
    """The parameters of a trial; a search space may name any of them."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    optimizer: Annotated[str, OneOf(lambda: catalogue("optimizer"))] = "sgd"
    learning_rate: float | None = Field(None, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False)
    momentum: float | None = Field(None, ge=0, lt=1)
    nesterov: bool | None = None
    decoupled: bool | None = Field(None, description="whether the weight decay is apart")
    beta1: float | None = Field(None, ge=0, lt=1)
    beta2: float | None = Field(None, ge=0, lt=1)
    momentum_decay: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="how fast the momentum grows"
    )
    smoothing: float | None = Field(None, ge=0, lt=1)
    epsilon: float | None = Field(None, gt=0, allow_inf_nan=False)
    trust: float | None = Field(None, gt=0, allow_inf_nan=False)
    schedule: Annotated[str, OneOf(_schedules)] = "constant"
    warm_up: int = Field(0, ge=0, description="epochs in which the learning rate grows")
    decay_every: int = Field(10, ge=1, description="epochs, of schedule step")
    decay_factor: float = Field(0.1, gt=0, le=1, description="of schedule step")
    rise: float = Field(0.3, ge=0, lt=1, description="share of the steps, of schedule one_cycle")
    average: float = Field(
        0.0, ge=0, lt=1, description="of the parameters: what it keeps of the past in each step"
    )
    label_smoothing: float = Field(0.0, ge=0, le=1, description="in the loss of the training")
    l1: float = Field(0.0, ge=0, allow_inf_nan=False, description="times the sum of |w|, in it too")
    l2: float = Field(0.0, ge=0, allow_inf_nan=False, description="times the sum of w^2, in it too")
    batch_size: int = Field(32, ge=1)
    batch_growth: float = Field(
        1.0, ge=1, allow_inf_nan=False, description="what batches grow by, again and again"
    )
    growth_every: int = Field(10, ge=1, description="epochs, of batch_growth")
    epochs: int = Field(20, ge=1)
    channels: list[Annotated[int, Field(ge=1)]] = Field(
        [], description="filters of each stage of convolutions, which ends in a pooling of 2 x 2"
    )
    depth: int = Field(1, ge=1, description="convolutions in each stage")
    kernel: int = Field(3, ge=1, description="rows and columns of their windows")
    recurrent: list[Annotated[int, Field(ge=1)]] = Field(
        [],
        description="units of each recurrent layer, which reads sequences, or images row by row",
    )
    cell: Annotated[str, OneOf(_cells)] = Field("lstm", description="of recurrent layers")
    bidirectional: bool = Field(False, description="whether they read from both ends")
    hidden: list[Annotated[int, Field(ge=1)]] = Field(
        [64], description="units of each hidden layer"
    )
    activation: Annotated[str, OneOf(lambda: catalogue("activation"))] = "relu"
    dropout: float = Field(0.0, ge=0, lt=1, description="after each hidden layer")
    batch_norm: bool = Field(
        False, description="in each convolution and hidden layer, before its activation"
    )
    layers: list[dict[str, Any]] | None = Field(
        None, description="in place of all these: the layers, from the trainer's option layers"
    )

    @model_validator(mode="after")
    def _check_that_they_go_together(self) -> Hyperparameters:
        if self.layers is not None:
            for name in _OF_SHAPE:
                if name in self.model_fields_set:
                    raise ValueError(f"{name} is of no network whose trainer has layers: remove it")
            built(self.layers)
        for name in (name for name in _OF_SOME if name in self.model_fields_set):
            parent, kinds = _goes_with(name)
            if getattr(self, parent) not in kinds:
                wanted = " or ".join(repr(kind) for kind in kinds)
                raise ValueError(
                    f"{name} goes with {parent} {wanted}, not {getattr(self, parent)!r}: "
                    f"give it an if = {{ {parent} = ... }}"
                )
        for name, (parent, whose) in _PARTS.items():
            if name in self.model_fields_set and not getattr(self, parent):
                raise ValueError(f"{name} is of {whose} of each")
        if self.recurrent and self.channels:
            raise ValueError("recurrent and channels: a network has either, not both")
        if self.batch_growth > 1 and self.schedule != "constant":
            raise ValueError(
                f"batch_growth goes with schedule 'constant', not {self.schedule!r}: growing "
                "batches take its place"
            )
        if "growth_every" in self.model_fields_set and self.batch_growth == 1:
            raise ValueError("growth_every goes with a batch_growth above 1")
        if self.nesterov and not self.of_optimizer("momentum"):
            raise ValueError("nesterov needs a momentum above 0")
        return self

    def of_optimizer(self, name: str) -> Any:
        """Return the value of an optimizer's parameter: its default, if it was not given."""
        given = getattr(self, name)
        return defaults()[self.optimizer][name] if given is None else given

    @property
    def drops(self) -> bool:
        """Whether the network has layers for dropout."""
        return self.layers is None and self.dropout > 0 and bool(self.hidden)

    @property
    def is_convolutional(self) -> bool:
        """Whether the network has convolutions."""
        if self.layers is None:
            return bool(self.channels)
        return any(layer.kind().startswith("conv") for layer in built(self.layers))

    @property
    def is_recurrent(self) -> bool:
        """Whether the network has recurrent layers."""
        if self.layers is None:
            return bool(self.recurrent)
        return any(layer.kind() in _cells() for layer in built(self.layers))

    @property
    def widest(self) -> int:
        """Units of the widest layer."""
        if self.layers is None:
            return max(self.hidden, default=0)
        return max((getattr(layer, "units", 0) for layer in built(self.layers)), default=0)

    @property
    def is_scheduled_by_epochs(self) -> bool:
        """Whether learning rates depend on how many epochs there will be."""
        return _OF_SCHEDULES["epochs"] in _arguments_of_schedule(self.schedule)

    def plan_key(self) -> tuple[Any, ...]:
        """Return the values in which networks have to agree to be trained in one plan."""
        taken = _arguments_of_schedule(self.schedule)
        scheduled = (getattr(self, name) for name, of in _OF_SCHEDULES.items() if of in taken)
        flags = (self.of_optimizer(name) for name in _flags(self.optimizer))
        return (
            *(tuple(self.channels), self.depth, self.kernel, tuple(self.hidden)),
            *(tuple(self.recurrent), self.cell, self.bidirectional),
            *(self.activation, self.batch_norm, self.drops, self.batch_size),
            json.dumps(self.layers, sort_keys=True),
            *(self.optimizer, *flags, self.schedule, self.warm_up, *scheduled),
            *(self.label_smoothing > 0, self.l1 > 0, self.l2 > 0, self.average > 0),
            *(self.batch_growth, self.growth_every),
        )


_OF_OPTIMIZERS: Final = tuple(
    name
    for name, info in Hyperparameters.model_fields.items()
    if info.default is None and name != "layers"
)
"""Parameters of optimizers, each of which has only some of them."""
_OF_SOME: Final = tuple(
    name for name in (*_OF_OPTIMIZERS, *_OF_SCHEDULES) if name not in ("learning_rate", "epochs")
)
"""Parameters that go with some optimizers or schedules alone."""


@lru_cache(maxsize=1)
def defaults() -> Mapping[str, Mapping[str, Any]]:
    """Return the parameters of each optimizer besides the weight decay, with their defaults."""
    return {
        name: {
            parameter: _OTHER_DEFAULTS.get(name, {}).get(parameter, taken.default)
            for parameter, taken in inspect.signature(kind).parameters.items()
            if parameter in _OF_OPTIMIZERS
        }
        for name, kind in catalogue("optimizer").items()
    }


def _flags(optimizer: str) -> list[str]:
    """Return the parameters of an optimizer in which all networks of one plan agree."""
    return [name for name, value in defaults()[optimizer].items() if isinstance(value, bool)]


@lru_cache
def _arguments_of_schedule(name: str) -> Collection[str]:
    return inspect.signature(catalogue("schedule")[name]).parameters


def _goes_with(name: str) -> tuple[str, list[str]]:
    """Return, for a parameter of some optimizers or schedules, ``"optimizer"`` and which, say."""
    if name in _OF_OPTIMIZERS:
        return "optimizer", [kind for kind, taken in defaults().items() if name in taken]
    of = _OF_SCHEDULES[name]
    return "schedule", [kind for kind in _schedules() if of in _arguments_of_schedule(kind)]


def suggested_values() -> dict[str, Any]:
    """Return a first entry of a space for each parameter: all choices, or else one usual value."""
    found: dict[str, Any] = {}
    for name, info in Hyperparameters.model_fields.items():
        if name == "layers":
            continue
        names = [each.names() for each in info.metadata if isinstance(each, OneOf)]
        if names:
            found[name] = [*names[0]]
        elif info.default is None:
            found[name] = next(taken[name] for taken in defaults().values() if name in taken)
        else:
            found[name] = [info.default] if isinstance(info.default, list) else info.default
    return found


def parameters_with(name: str, value: Any) -> dict[str, Any]:
    """Return parameters with this value, and with another one where it needs that to be valid."""
    if name in _PARTS:
        return {name: value, _PARTS[name][0]: [1]}
    if name not in _OF_SOME:
        return {name: value}
    parent, kinds = _goes_with(name)
    return {name: value, parent: kinds[0]}


def layers_of(
    wanted: Hyperparameters,
    features: int,
    classes: int,
    shape: tuple[int, ...] | None = None,
    *,
    in_rows: bool = True,
) -> list[Layer]:
    """Return the layers of a network: convolutions or recurrent layers, if any, then hidden ones.

    If `wanted` has a list of layers, return those, and behind them one with a unit for each class.

    Parameters
    ----------
    wanted : Hyperparameters
    features, classes : int
        How many numbers a sample has, and how many classes there are.
    shape : tuple of int, optional
        Shape of a sample, if it is an image or a sequence.
    in_rows : bool
        Whether an image arrives as one row of numbers.

    Raises
    ------
    ValueError
        If samples are not what the layers read, or images too small for so many stages.
    """
    from dnn import Flatten, FullyConnected, Input, Reshape, SequenceInput

    layers: list[Layer] = [Input(features) if in_rows or shape is None else Input(*shape)]
    lengths: SequenceInput | None = None
    if shape is not None and len(shape) == 2:
        layers = [lengths := SequenceInput(*shape)]
    as_image = [Reshape(*shape)] if shape is not None and lengths is None and in_rows else []
    if wanted.layers is not None:
        listed = built(wanted.layers)
        for layer in listed:
            if layer.kind() in _cells():
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
    kind = _cells()[wanted.cell]
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


def loss_of(wanted: Hyperparameters | Sequence[Hyperparameters]) -> Loss:
    """Return the loss of one network, or that of K networks which agree in `plan_key`."""
    from dnn import L1, L2, SoftmaxCrossEntropy

    def numbers(name: str) -> Any:
        if isinstance(wanted, Hyperparameters):
            return getattr(wanted, name)
        return [getattr(parameters, name) for parameters in wanted]

    first = wanted if isinstance(wanted, Hyperparameters) else wanted[0]
    loss: Loss = SoftmaxCrossEntropy(label_smoothing=numbers("label_smoothing"))
    for name, penalty in (("l1", L1), ("l2", L2)):
        if getattr(first, name):
            loss = loss + penalty(numbers(name))
    return loss


def optimizer_of(wanted: Hyperparameters | Sequence[Hyperparameters], rows: int) -> Optimizer:
    """Return the optimizer of one network, or that of K networks which agree in `plan_key`.

    `rows` is the number of rows of an epoch, from which schedules count steps.
    """
    first = wanted if isinstance(wanted, Hyperparameters) else wanted[0]
    settings: dict[str, Any] = {}
    average = ("average",) if first.average else ()
    flags = _flags(first.optimizer)
    for name in ("weight_decay", *average, *defaults()[first.optimizer]):
        if isinstance(wanted, Hyperparameters) or name in flags:
            settings[name] = _setting(first, name)
        else:
            settings[name] = [_setting(parameters, name) for parameters in wanted]
    kind: Callable[..., Optimizer] = catalogue("optimizer")[first.optimizer]
    return kind(schedule=_schedule_of(first, rows), **settings)


def batch_size_of(wanted: Hyperparameters) -> Callable[[int], int]:
    """Return a function from the number of epochs done to the size of a batch."""
    from dnn import GrowingBatch

    return GrowingBatch(wanted.batch_size, wanted.growth_every, wanted.batch_growth)


def _setting(wanted: Hyperparameters, name: str) -> Any:
    of_all = name in ("weight_decay", "average")
    return getattr(wanted, name) if of_all else wanted.of_optimizer(name)


def _schedule_of(wanted: Hyperparameters, rows: int) -> Callable[[int], float] | None:
    from dnn import WarmUp

    steps = -(-rows // wanted.batch_size)
    sizes = (batch_size_of(wanted)(epoch) for epoch in range(wanted.warm_up))
    warm = sum(-(-rows // size) for size in sizes)
    then: Callable[[int], float] | None = None
    if wanted.schedule != "constant":
        given = {"steps": max(1, wanted.epochs * steps - warm), "rise": wanted.rise}
        given |= {"every": wanted.decay_every * steps, "factor": wanted.decay_factor}
        taken = _arguments_of_schedule(wanted.schedule)
        settings = {name: value for name, value in given.items() if name in taken}
        then = catalogue("schedule")[wanted.schedule](**settings)
    return WarmUp(warm, then=then or "constant") if warm else then
