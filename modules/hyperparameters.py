"""The hyperparameters of the trainer of this package, as networks, losses and optimizers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .layer_list import built

if TYPE_CHECKING:
    from dnn import Layer, Loss, Optimizer, SequenceInput

DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9, "nesterov": False, "decoupled": False},
    "adam": {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    "adamw": {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    "nadam": {
        **{"learning_rate": 0.002, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
        **{"momentum_decay": 0.004, "decoupled": False},
    },
    "rmsprop": {
        **{"learning_rate": 0.01, "momentum": 0.0, "smoothing": 0.99, "epsilon": 1e-8},
        "decoupled": False,
    },
    "adagrad": {"learning_rate": 0.01, "epsilon": 1e-10, "decoupled": False},
    "lars": {"learning_rate": 1.0, "momentum": 0.9, "trust": 0.001},
    "muon": {"learning_rate": 0.02, "momentum": 0.95, "nesterov": True},
}
"""Parameters of each optimizer besides the weight decay, with their defaults."""

_GOES_WITH: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    name: ("optimizer", tuple(kind for kind, taken in DEFAULTS.items() if name in taken))
    for name in (
        "momentum",
        "nesterov",
        "decoupled",
        "beta1",
        "beta2",
        "momentum_decay",
        "smoothing",
        "epsilon",
        "trust",
    )
} | {
    "decay_every": ("schedule", ("step",)),
    "decay_factor": ("schedule", ("step",)),
    "rise": ("schedule", ("one_cycle",)),
}

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

_FLAGS: Final = ("nesterov", "decoupled")
"""Parameters of optimizers in which all networks of one plan agree."""


class Hyperparameters(BaseModel):
    """The parameters of a trial; a search space may name any of them."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    optimizer: Literal["sgd", "adam", "adamw", "nadam", "rmsprop", "adagrad", "lars", "muon"] = (
        "sgd"
    )
    learning_rate: float | None = Field(None, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False)
    momentum: float | None = Field(None, ge=0, lt=1, description="of sgd, rmsprop, lars, muon")
    nesterov: bool | None = Field(None, description="of sgd and muon")
    decoupled: bool | None = Field(
        None, description="weight decay apart; of sgd, nadam, rmsprop, adagrad"
    )
    beta1: float | None = Field(None, ge=0, lt=1, description="of adam, adamw and nadam")
    beta2: float | None = Field(None, ge=0, lt=1, description="of adam, adamw and nadam")
    momentum_decay: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="of nadam, how fast its momentum grows"
    )
    smoothing: float | None = Field(None, ge=0, lt=1, description="of rmsprop")
    epsilon: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="of adam, adamw, nadam, rmsprop, adagrad"
    )
    trust: float | None = Field(None, gt=0, allow_inf_nan=False, description="of lars")
    schedule: Literal["constant", "cosine", "one_cycle", "step"] = "constant"
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
    cell: Literal["lstm", "gru", "rnn"] = Field("lstm", description="of recurrent layers")
    bidirectional: bool = Field(False, description="whether they read from both ends")
    hidden: list[Annotated[int, Field(ge=1)]] = Field(
        [64], description="units of each hidden layer"
    )
    activation: Literal[
        "relu", "sigmoid", "tanh", "leaky_relu", "elu", "softplus", "rbf", "gelu", "softmax"
    ] = "relu"
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
        for name, (parent, kinds) in _GOES_WITH.items():
            if name in self.model_fields_set and getattr(self, parent) not in kinds:
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
        return DEFAULTS[self.optimizer][name] if given is None else given

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
        cells = get_args(type(self).model_fields["cell"].annotation)
        return any(layer.kind() in cells for layer in built(self.layers))

    @property
    def widest(self) -> int:
        """Units of the widest layer."""
        if self.layers is None:
            return max(self.hidden, default=0)
        return max((getattr(layer, "units", 0) for layer in built(self.layers)), default=0)

    def plan_key(self) -> tuple[Any, ...]:
        """Return the values in which networks have to agree to be trained in one plan."""
        scheduled: tuple[Any, ...] = (self.schedule, self.warm_up)
        if self.schedule in ("cosine", "one_cycle"):
            scheduled += (self.epochs,)
        if self.schedule == "one_cycle":
            scheduled += (self.rise,)
        if self.schedule == "step":
            scheduled += (self.decay_every, self.decay_factor)
        taken = DEFAULTS[self.optimizer]
        flags = tuple(self.of_optimizer(name) for name in _FLAGS if name in taken)
        return (
            *(tuple(self.channels), self.depth, self.kernel, tuple(self.hidden)),
            *(tuple(self.recurrent), self.cell, self.bidirectional),
            *(self.activation, self.batch_norm, self.drops, self.batch_size),
            json.dumps(self.layers, sort_keys=True),
            *(self.optimizer, *flags, *scheduled),
            *(self.label_smoothing > 0, self.l1 > 0, self.l2 > 0, self.average > 0),
            *(self.batch_growth, self.growth_every),
        )


def suggested_values() -> dict[str, Any]:
    """Return a first entry of a space for each parameter: all choices, or else one usual value."""
    found: dict[str, Any] = {}
    for name, info in Hyperparameters.model_fields.items():
        if name == "layers":
            continue
        kind = info.annotation
        if get_origin(kind) is Literal:
            found[name] = [*get_args(kind)]
        elif info.default is None:
            found[name] = next(taken[name] for taken in DEFAULTS.values() if name in taken)
        else:
            found[name] = [info.default] if isinstance(info.default, list) else info.default
    return found


def parameters_with(name: str, value: Any) -> dict[str, Any]:
    """Return parameters with this value, and with another one where it needs that to be valid."""
    if name in _PARTS:
        return {name: value, _PARTS[name][0]: [1]}
    parent, kinds = _GOES_WITH.get(name, ("", ()))
    return {name: value, **({parent: kinds[0]} if parent else {})}


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
    from dnn import GRU, LSTM, RNN, Flatten, FullyConnected, Input, Reshape, SequenceInput

    layers: list[Layer] = [Input(features) if in_rows or shape is None else Input(*shape)]
    lengths: SequenceInput | None = None
    if shape is not None and len(shape) == 2:
        layers = [lengths := SequenceInput(*shape)]
    as_image = [Reshape(*shape)] if shape is not None and lengths is None and in_rows else []
    if wanted.layers is not None:
        listed = built(wanted.layers)
        for layer in listed:
            if isinstance(layer, (GRU, LSTM, RNN)):
                layer.lengths = lengths
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
    from dnn import GRU, LSTM, RNN

    kind = {layer.kind(): layer for layer in (LSTM, GRU, RNN)}[wanted.cell]
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
    import dnn

    class_of = {name.lower(): name for name in dnn.__all__}
    first = wanted if isinstance(wanted, Hyperparameters) else wanted[0]
    settings: dict[str, Any] = {}
    average = ("average",) if first.average else ()
    for name in ("weight_decay", *average, *DEFAULTS[first.optimizer]):
        if isinstance(wanted, Hyperparameters) or name in _FLAGS:
            settings[name] = _setting(first, name)
        else:
            settings[name] = [_setting(parameters, name) for parameters in wanted]
    kind: Callable[..., Optimizer] = getattr(dnn, class_of[first.optimizer])
    return kind(schedule=_schedule_of(first, rows), **settings)


def batch_size_of(wanted: Hyperparameters) -> Callable[[int], int]:
    """Return a function from the number of epochs done to the size of a batch."""
    from dnn import GrowingBatch

    return GrowingBatch(wanted.batch_size, wanted.growth_every, wanted.batch_growth)


def _setting(wanted: Hyperparameters, name: str) -> Any:
    of_all = name in ("weight_decay", "average")
    return getattr(wanted, name) if of_all else wanted.of_optimizer(name)


def _schedule_of(wanted: Hyperparameters, rows: int) -> Callable[[int], float] | None:
    from dnn import Cosine, OneCycle, StepDecay, WarmUp

    steps = -(-rows // wanted.batch_size)
    sizes = (batch_size_of(wanted)(epoch) for epoch in range(wanted.warm_up))
    warm = sum(-(-rows // size) for size in sizes)
    then: Callable[[int], float] | None = None
    if wanted.schedule == "cosine":
        then = Cosine(max(1, wanted.epochs * steps - warm))
    elif wanted.schedule == "one_cycle":
        then = OneCycle(max(1, wanted.epochs * steps - warm), wanted.rise)
    elif wanted.schedule == "step":
        then = StepDecay(wanted.decay_every * steps, wanted.decay_factor)
    return WarmUp(warm, then=then or "constant") if warm else then
