"""The hyperparameters of the trainer of this package, as losses and optimizers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from diel import OneOf
from dnn import catalogue

from .layer_list import built

if TYPE_CHECKING:
    from dnn import Loss, Optimizer

WIDE: Final = 128
"""Units from which on a layer on a CPU takes longer in matrix products than in calls, so that
several networks in one plan gain nothing."""
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

_OF_LOSSES: Final = {
    "delta": "delta",
    "gamma": "gamma",
    "quantiles": "quantiles",
    "loss_epsilon": "epsilon",
    "label_smoothing": "label_smoothing",
}
"""Parameters that go with some losses alone, and the argument of their class that each becomes."""

_DEFAULT_LOSSES: Final = {
    "classes": "softmax_cross_entropy",
    "labels": "multi_label_cross_entropy",
    "values": "mean_squared_error",
}
"""The loss for each kind of targets, as `dnn.Loss.takes` has them, where none is given."""

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


def cells() -> dict[str, Any]:
    """Return the recurrent layers by their kinds."""
    from dnn import GRU, LSTM, RNN

    return {layer.kind(): layer for layer in (LSTM, GRU, RNN)}


_Factor = Annotated[float, Field(ge=0, allow_inf_nan=False)]


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
    loss: Annotated[str | None, OneOf(lambda: catalogue("loss"))] = Field(
        None, description="what training minimises; left out, what fits the targets"
    )
    delta: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="from which difference on huber is linear"
    )
    gamma: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="of focal: how little sure samples count"
    )
    quantiles: list[Annotated[float, Field(gt=0, lt=1)]] | None = Field(
        None, min_length=1, description="of quantile: which ones are predicted, ascending"
    )
    loss_epsilon: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="of cross_entropy: added to probabilities"
    )
    class_weight: Literal["none", "balanced"] | list[_Factor] | dict[str, _Factor] = Field(
        "none",
        description="factors of the losses of classes, a list of all or a table by name; balanced: "
        "classes weigh the same, by their training rows",
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
    cell: Annotated[str, OneOf(cells)] = Field("lstm", description="of recurrent layers")
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
            if name in _OF_CLASSES and self.loss is None:
                continue  # the loss is that of the targets
            if getattr(self, parent) not in kinds:
                wanted = " or ".join(repr(kind) for kind in kinds)
                raise ValueError(
                    f"{name} goes with {parent} {wanted}, not {getattr(self, parent)!r}: "
                    f"give it an if = {{ {parent} = ... }}"
                )
        if self.quantiles and [*self.quantiles] != sorted({*self.quantiles}):
            raise ValueError("quantiles must be in ascending order")
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
        return any(layer.kind() in cells() for layer in built(self.layers))

    @property
    def widest(self) -> int:
        """Units of the widest layer."""
        if self.layers is None:
            return max(self.hidden, default=0)
        return max((getattr(layer, "units", 0) for layer in built(self.layers)), default=0)

    @property
    def is_scheduled_by_epochs(self) -> bool:
        """Whether learning rates depend on how many epochs there will be."""
        return is_scheduled_by_epochs(self.schedule)

    @property
    def named_loss(self) -> tuple[str, ...]:
        """``("loss",)`` if the loss is a parameter of the trial, in place of the metric."""
        return ("loss",) if self.loss is not None else ()

    @property
    def are_counts(self) -> bool:
        """Whether the targets are counts, which may be scaled for training and not shifted."""
        return self.loss is not None and catalogue("loss")[self.loss].takes == "counts"

    @property
    def network_key(self) -> tuple[Any, ...]:
        """The values in which networks with the same layers agree, but for dropout."""
        return (
            *(tuple(self.channels), self.depth, self.kernel, tuple(self.hidden)),
            *(tuple(self.recurrent), self.cell, self.bidirectional),
            *(self.activation, self.batch_norm, json.dumps(self.layers, sort_keys=True)),
            *(self.loss, tuple(self.quantiles or ())),
        )

    def plan_key(self) -> tuple[Any, ...]:
        """Return the values in which networks have to agree to be trained in one plan."""
        taken = _arguments_of_schedule(self.schedule)
        scheduled = (getattr(self, name) for name, of in _OF_SCHEDULES.items() if of in taken)
        flags = (self.of_optimizer(name) for name in _flags(self.optimizer))
        return (
            *(*self.network_key, self.drops, self.batch_size),
            *(self.optimizer, *flags, self.schedule, self.warm_up, *scheduled),
            *(self.label_smoothing > 0, self.l1 > 0, self.l2 > 0, self.average > 0),
            *(str(self.class_weight), self.batch_growth, self.growth_every),
        )


_OF_OPTIMIZERS: Final = tuple(
    name
    for name, info in Hyperparameters.model_fields.items()
    if info.default is None and name not in ("layers", "loss", *_OF_LOSSES)
)
"""Parameters of optimizers, each of which has only some of them."""
_OF_SOME: Final = tuple(
    name
    for name in (*_OF_OPTIMIZERS, *_OF_SCHEDULES, *_OF_LOSSES, "class_weight")
    if name not in ("learning_rate", "epochs")
)
"""Parameters that go with some optimizers, schedules or losses alone."""
_OF_CLASSES: Final = ("label_smoothing", "class_weight")
"""Those that go with the loss that classes have where none is given."""


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


@lru_cache(maxsize=1)
def free_in_a_plan() -> frozenset[str]:
    """Return the parameters in which networks that are trained in one plan may differ.

    They do not enter `Hyperparameters.plan_key`, some of them as long as none is 0 or all are. Nor
    do epochs with most schedules, but networks that come to their end together gain most by a plan.
    """
    flags = {flag for name in defaults() for flag in _flags(name)}
    of_all = ("weight_decay", "average", "dropout", "l1", "l2")
    return frozenset({*of_all, *_OF_OPTIMIZERS, *_OF_LOSSES} - {*flags, "quantiles"})


def is_scheduled_by_epochs(schedule: str) -> bool:
    """Whether learning rates of a schedule depend on how many epochs there will be."""
    return _OF_SCHEDULES["epochs"] in _arguments_of_schedule(schedule)


@lru_cache
def _arguments_of_schedule(name: str) -> Collection[str]:
    return inspect.signature(catalogue("schedule")[name]).parameters


@lru_cache
def _arguments_of_loss(name: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(catalogue("loss")[name]).parameters


def _goes_with(name: str) -> tuple[str, list[str]]:
    """Return, for a parameter of some optimizers, say, ``"optimizer"`` and which."""
    if name in _OF_OPTIMIZERS:
        return "optimizer", [kind for kind, taken in defaults().items() if name in taken]
    losses = catalogue("loss")
    if name == "class_weight":
        kinds = [kind for kind, loss in losses.items() if loss.takes in ("classes", "labels")]
        return "loss", kinds
    if name in _OF_LOSSES:
        return "loss", [kind for kind in losses if _OF_LOSSES[name] in _arguments_of_loss(kind)]
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
        elif name in _OF_LOSSES and info.default is None:
            kind = _goes_with(name)[1][0]
            default = _arguments_of_loss(kind)[_OF_LOSSES[name]].default
            found[name] = [[*default]] if isinstance(default, tuple) else default
        elif name == "class_weight":
            found[name] = ["none", "balanced"]
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


def loss_of(wanted: Hyperparameters | Sequence[Hyperparameters], takes: str = "classes") -> Loss:
    """Return the loss of one network, or that of K networks which agree in `plan_key`.

    Parameters
    ----------
    wanted : Hyperparameters or sequence of Hyperparameters
    takes : str
        What the targets are, as `dnn.Loss.takes` has it: ``"classes"``, ``"labels"`` or
        ``"values"``, with which losses of counts go too.

    Raises
    ------
    ValueError
        If the loss is one of other targets.
    """
    from dnn import L1, L2

    is_one = isinstance(wanted, Hyperparameters)
    each = [wanted] if isinstance(wanted, Hyperparameters) else wanted

    def numbers(name: str, default: Any = None) -> Any:
        given = [getattr(parameters, name) for parameters in each]
        found = [default if value is None else value for value in given]
        return found[0] if is_one or name == "quantiles" else found

    first, losses = each[0], catalogue("loss")
    if text := loss_problem(first, takes):
        raise ValueError(text)
    kind = losses[first.loss or _DEFAULT_LOSSES[takes]]
    options: dict[str, Any] = {}
    for name, argument in _OF_LOSSES.items():
        parameter = _arguments_of_loss(kind.name).get(argument)
        if parameter is not None:
            options[argument] = numbers(name, parameter.default)
    loss: Loss = kind(**options)
    for name, penalty in (("l1", L1), ("l2", L2)):
        if getattr(first, name):
            loss = loss + penalty(numbers(name))
    return loss


def loss_problem(wanted: Hyperparameters, takes: str, classes: int | None = None) -> str:
    """Return why a loss and its options do not fit targets; "" if they do.

    `takes` is as for `loss_of`, and `classes` how many there are, if that is known.
    """
    losses = catalogue("loss")
    kind = losses[wanted.loss or _DEFAULT_LOSSES[takes]]
    if kind.takes != takes and (takes, kind.takes) != ("values", "counts"):
        others = [repr(name) for name, each in losses.items() if each.takes == takes]
        what = f"loss {kind.name!r} takes {kind.takes}, and these targets are {takes}"
        return f"{what}: take {' or '.join(others)}"
    if kind.name == "binary_cross_entropy" and classes not in (2, None):
        return f"loss {kind.name!r} is of two classes, and there are {classes}"
    if takes == "values":
        given = [name for name in _OF_CLASSES if getattr(wanted, name) not in (0.0, "none")]
        return f"{given[0]} is of classes, and these targets are {takes}" if given else ""
    weights = wanted.class_weight
    if isinstance(weights, list) and classes is not None and len(weights) != classes:
        return f"class_weight has {len(weights)} numbers, and there are {classes} {takes}"
    return ""


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
            settings[name] = first.of_optimizer(name)
        else:
            settings[name] = [parameters.of_optimizer(name) for parameters in wanted]
    kind: Callable[..., Optimizer] = catalogue("optimizer")[first.optimizer]
    return kind(schedule=_schedule_of(first, rows), **settings)


def batch_size_of(wanted: Hyperparameters) -> Callable[[int], int]:
    """Return a function from the number of epochs done to the size of a batch."""
    from dnn import GrowingBatch

    return GrowingBatch(wanted.batch_size, wanted.growth_every, wanted.batch_growth)


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
