"""The metrics of a trial: those that our trainer reports, and values as plain numbers and text."""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

from diel import describe_error
from dnn import catalogue

Metrics: TypeAlias = "dict[str, Any]"
SPLITS: Final = "splits"
"""Key among metrics: the metrics of each split, as `modules.evaluation` has them."""
_LARGEST: Final = 2**1023
"""Whole numbers beyond this are no floats, and those of some thousand digits no text either."""


@dataclass(frozen=True)
class Metric:
    """Whether a larger value of a metric is better, and between which bounds it lies."""

    maximise: bool
    lowest: float
    highest: float
    task: str = ""
    """The task whose networks have it, as `dnn.Dataset.task`; empty if all have."""
    on_request: tuple[str, ...] = ()
    """Tasks whose networks have it if it is asked for."""


TEXT: Final = "text, and no number: return float(...) of it"
"""What is wrong with a text where a number is needed, and what to do."""
METRICS: Final[Mapping[str, Metric]] = {
    **{
        name: Metric(
            *(metric.more_is_better, metric.lowest, metric.highest, metric.task, metric.on_request)
        )
        for name, metric in catalogue("metric").items()
    },
    "training_time_s": Metric(False, 0.0, math.inf),
}
"""Metrics that the trainer of this package can report, in this order."""


def metrics_of_task(task: str, *, on_request: bool = False) -> dict[str, Metric]:
    """Return the metrics that the trainer reports of a task, the usual objective first.

    Behind them those that it reports `on_request`, if these are wanted too.
    """
    found = {name: metric for name, metric in METRICS.items() if metric.task in ("", task)}
    if on_request:
        found |= {name: each for name, each in METRICS.items() if task in each.on_request}
    return found


def known_metrics(found: Mapping[str, Any], parameters: Collection[str] = ()) -> Metrics:
    """Return those of some values that are metrics of the trainer, in their order.

    One whose name is among `parameters` is left out: losses of different kinds cannot be compared.
    """
    return {name: found[name] for name in METRICS if name in found and name not in parameters}


ERRORS: Final = "standard errors"
"""Key of what a training with a single split returns beside its metrics."""
DIVERGED: Final = "diverged"
"""The metric by which a trainer says that a training has come to NaN or infinity."""


def marked(metrics: Mapping[str, Any], *, is_diverged: bool = False) -> dict[str, Any]:
    """Return metrics, with `DIVERGED` if the training diverged, or one is NaN or infinite."""
    numbers = (value for value in metrics.values() if isinstance(value, float))
    if is_diverged or not all(map(math.isfinite, numbers)):
        return {**metrics, DIVERGED: True}
    return dict(metrics)


def check_metrics(given: Any) -> Metrics:
    """Return metrics as plain numbers and text; a TypeError if they are no dictionary by name."""
    if not isinstance(given, Mapping):
        raise TypeError(f"train returned {shown(given)}, and not a dictionary of metrics")
    for name, value in given.items():
        kind = type(value)
        if kind is int:
            if not -_LARGEST <= value <= _LARGEST:
                return _plain_metrics(given)
        elif kind is not float:
            return _plain_metrics(given)
        if type(name) is not str:
            return _plain_metrics(given)
    return given if type(given) is dict else dict(given)


def sound_metrics(given: Mapping[Any, Any]) -> Metrics:
    """Return the values that are valid metrics, and leave out all others."""
    with contextlib.suppress(TypeError):
        return check_metrics(given)
    sound: Metrics = {}
    for name, value in given.items():
        with contextlib.suppress(TypeError):
            sound |= _plain_metrics({name: value})
    return sound


def plain_number(value: Any) -> int | float:
    """Return a number of any kind, as of NumPy or PyTorch, as Python's int or float.

    An array of one element is a number too, True is 1 and False 0. A TypeError says what else the
    value is: text is no number, whatever is written there.
    """
    plain = _plain_value(value)
    if isinstance(plain, str):
        raise TypeError(TEXT)
    if plain is None:
        raise TypeError("no number")
    return int(plain) if type(plain) is bool else plain


def _plain_value(value: Any) -> int | float | bool | str | None:
    """Return a number or text of any kind as one of Python's; a TypeError says what else it is."""
    kind = type(value).__name__
    try:
        if hasattr(value, "item") and getattr(value, "size", 1) == 1:  # NumPy's and PyTorch's
            value = math.nan if kind == "MaskedConstant" else value.item()
        if value is None or type(value) is bool:
            return value
        if isinstance(value, str):
            return str.__str__(value)  # a class of the user's own cannot be read on another rank
        if isinstance(value, numbers.Integral):
            whole = int(value)
            if -_LARGEST <= whole <= _LARGEST:
                return whole
            raise OverflowError
        if isinstance(value, (numbers.Real, Decimal)):
            return float(value)
    except OverflowError:
        raise TypeError("too large a number") from None
    except Exception as error:
        raise TypeError(f"a {kind} that cannot be read: {describe_error(error)}") from error
    raise TypeError(f"a {kind}, and no number")


def is_splits(value: Any) -> bool:
    """Whether a value has the metrics of each split, as `modules.evaluation` makes them."""
    if not isinstance(value, dict) or type(value.get("rows")) is not int:
        return False
    splits = [value.get(name, ()) for name in ("choice", "test")]
    return all(
        isinstance(several, (list, tuple)) and all(isinstance(split, dict) for split in several)
        for several in splits
    )


def _plain_metrics(given: Mapping[Any, Any]) -> Metrics:
    plain: Metrics = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise TypeError(f"a metric is called {shown(name)}, which is no string")
        is_known = name == SPLITS and is_splits(value)
        try:
            plain[str.__str__(name)] = value if is_known else _plain_value(value)
        except TypeError as error:
            raise TypeError(f"metric {name!r} is {error}") from None
    return plain


def shown(value: Any) -> str:
    """Return a value as text of at most 100 characters, whatever its class makes of that."""
    try:
        return f"{value!r:.100}"
    except Exception:
        return f"a {type(value).__name__}"
