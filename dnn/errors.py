"""Every error that dnn raises on purpose.

::

    DnnError                    the base class of all of them
    ├── ShapeError              shapes that do not fit together (ValueError)
    ├── DtypeError              types of elements that do not fit together (TypeError)
    ├── ConfigurationError      an unknown name or a hyperparameter out of range (ValueError)
    ├── DataError               the data themselves are wrong (ValueError)
    │   └── LabelError          a label is not an integer in 0 .. classes - 1
    ├── NonFiniteError          NaN or infinity, found by a check for it (ArithmeticError)
    ├── DeviceError             a device that is missing, or cannot do it (RuntimeError)
    │   └── OutOfDeviceMemory   a GPU has no room for what was asked for (MemoryError)
    ├── OutOfRangeError         an index outside a tensor (IndexError)
    ├── CheckpointError         a network's file that cannot be written, read or used (ValueError)
    ├── CommunicationError      ranks that do not answer, or do not fit together (RuntimeError)
    │   ├── PeerError           another rank of the same training has failed
    │   └── DisagreementError   ranks differ in what has to be the same (ValueError)
    └── MissingDependencyError  an optional package is not installed (ImportError)

and one warning, `MixedPrecisionWarning`: a loss was no number in mixed precision (RuntimeWarning).

Errors cross ranks, so each survives pickling with its fields.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any, ParamSpec, TypeVar

from dnn.names import suggestion

__all__ = [
    "CheckpointError",
    "CommunicationError",
    "ConfigurationError",
    "DataError",
    "DeviceError",
    "DisagreementError",
    "DnnError",
    "DtypeError",
    "LabelError",
    "MissingDependencyError",
    "MixedPrecisionWarning",
    "NonFiniteError",
    "OutOfDeviceMemory",
    "OutOfRangeError",
    "PeerError",
    "ShapeError",
]


class MixedPrecisionWarning(RuntimeWarning):
    """A loss was NaN or infinite in mixed precision; the message says what helps."""


class DnnError(Exception):
    """Base class of every error that dnn raises on purpose, with a message for a person."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class again with `args`, which is only the finished message.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[DnnError], args: tuple[Any, ...], fields: dict[str, Any]) -> DnnError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class ShapeError(DnnError, ValueError):
    """Shapes that do not fit together.

    Parameters
    ----------
    where : str
        The operation or layer that met them.
    message : str
        What does not fit; it names the shapes.
    shapes : tuple of int, any number of them
        The shapes, for programs.
    """

    def __init__(self, where: str, message: str, *shapes: tuple[int, ...]) -> None:
        self.where = where
        self.shapes = shapes
        super().__init__(f"{where}: {message}")


class DtypeError(DnnError, TypeError):
    """Types of elements that do not fit together."""


class ConfigurationError(DnnError, ValueError):
    """An unknown name, or a hyperparameter out of its range."""


class DataError(DnnError, ValueError):
    """The data are wrong: a cell that is no number, a truncated file, a missing file."""


class LabelError(DataError):
    """A label is not an integer in ``0 .. classes - 1``.

    Parameters
    ----------
    message : str
        Which label is wrong, where it stands and what was expected.
    row : int, optional
        The first row with such a label, for programs.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        self.row = row
        super().__init__(message)


class DeviceError(DnnError, RuntimeError):
    """A device is missing, or cannot do what it was asked for.

    Parameters
    ----------
    message : str
        What is missing, and what to install or to change.
    device : str
        Such as ``"cuda:0"``, for programs.
    """

    def __init__(self, message: str, device: str = "cuda") -> None:
        self.device = device
        super().__init__(message)


class OutOfDeviceMemory(DeviceError, MemoryError):
    """A GPU has too little free memory for an allocation.

    Parameters
    ----------
    device : str
        Such as ``"cuda:0"``.
    wanted_bytes, free_bytes, total_bytes : int
    """

    def __init__(self, device: str, wanted_bytes: int, free_bytes: int, total_bytes: int) -> None:
        self.wanted_bytes = wanted_bytes
        self.free_bytes = free_bytes
        self.total_bytes = total_bytes
        unit_bytes, unit = _unit(total_bytes)
        free = f"{free_bytes / unit_bytes:.1f} {unit} of {total_bytes / unit_bytes:.1f} free"
        unit_bytes, unit = _unit(wanted_bytes)
        super().__init__(
            f"{device} has no room: {wanted_bytes / unit_bytes:.1f} {unit} wanted, {free}", device
        )


def _unit(size_bytes: int) -> tuple[int, str]:
    """Return bytes and name of the largest unit that is not larger than a size."""
    units = {1 << 30: "GiB", 1 << 20: "MiB", 1 << 10: "KiB"}
    return next(
        ((unit_bytes, unit) for unit_bytes, unit in units.items() if size_bytes >= unit_bytes),
        (1, "bytes"),
    )


class OutOfRangeError(DnnError, IndexError):
    """An index that lies outside a tensor."""


class CheckpointError(DnnError, ValueError):
    """A checkpoint, or another file of a network, cannot be written, read or used."""


class CommunicationError(DnnError, RuntimeError):
    """A rank did not answer in time, or sent an unexpected message."""


class PeerError(CommunicationError):
    """Another rank of the same training has failed.

    Parameters
    ----------
    rank : int
        The rank that failed first.
    message : str
        Its error: ``ValueError: ...``.
    """

    def __init__(self, rank: int, message: str) -> None:
        self.rank = rank
        self.message = message
        super().__init__(f"rank {rank}: {message}")


class DisagreementError(CommunicationError, ValueError):
    """Ranks differ in values that have to be the same on all of them.

    Parameters
    ----------
    message : str
        What differs, and between which ranks.
    rank : int, optional
        The first rank that differs from rank 0, for programs.
    layer : str, optional
        The layer in which they differ, if it is one.
    """

    def __init__(self, message: str, rank: int | None = None, layer: str = "") -> None:
        self.rank = rank
        self.layer = layer
        super().__init__(message)


class NonFiniteError(DnnError, ArithmeticError):
    """NaN or infinity was found by a check for it.

    Parameters
    ----------
    message : str
        The first node with such a value, and what it was computed from.
    node : str, optional
        The node's name or else its operation, for programs.
    """

    def __init__(self, message: str, node: str = "") -> None:
        self.node = node
        super().__init__(message)


class MissingDependencyError(DnnError, ImportError):
    """An optional package is needed here and not installed."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> ConfigurationError:
    """Return the error for an unknown name; its message suggests the name probably meant.

    `kind` is what the name should have named, such as ``"activation"``.
    """
    names = sorted(known)
    hint = suggestion(kind, name, names)
    return ConfigurationError(f"unknown {kind} {name!r}{hint} (known: {', '.join(names)})")


def check_count(name: str, value: object) -> int:
    """Return `value` as an int; raise `ConfigurationError` unless it is an integer above 0."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ConfigurationError(f"{name} must be an integer of at least 1, not {value!r}")
    return int(value)


P = ParamSpec("P")
R = TypeVar("R")


def explains_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that the error for an unknown argument suggests the one meant.

    It raises `ConfigurationError` where Python raises `TypeError`. It is not for a function that
    takes ``**options``, whose names it would refuse.
    """
    parameters = inspect.signature(function).parameters
    names = [name for name in parameters if name != "self"]
    known = frozenset(parameters)

    @functools.wraps(function)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        if not known.issuperset(options):
            wrong = next(name for name in options if name not in known)
            where, arguments = function.__qualname__, names
            if function.__name__ == "__init__":  # of a base class, perhaps
                where = type(args[0]).__name__
                own = inspect.signature(type(args[0])).parameters.values()
                arguments = [option.name for option in own if option.kind is not option.VAR_KEYWORD]
                arguments += [name for name in names if name not in arguments]
            hint = suggestion("argument", wrong, arguments)
            message = f"{where} has no argument {wrong!r}{hint}"
            raise ConfigurationError(f"{message} (known: {', '.join(arguments)})")
        return function(*args, **options)

    return checked
