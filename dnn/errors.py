"""The tree of errors: every error that dnn raises on purpose.

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
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from os import PathLike
from typing import Any, Final, ParamSpec, TypeVar

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


def check_count(name: str, value: object, least: int = 1) -> int:
    """Return `value` as an int; raise `ConfigurationError` unless it is an integer from `least`."""
    if not is_integer(value) or value < least:  # type: ignore[operator]
        wanted = f"an integer of at least {least}{_of_64_bits(value)}"
        raise ConfigurationError(f"{name} must be {wanted}, not {_shown(value)}")
    return int(value)  # type: ignore[call-overload, no-any-return]


# -- arguments ------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Return an array without axes, such as a number of NumPy's, as a number of Python's."""
    is_one = getattr(value, "ndim", None) == 0 and hasattr(value, "item")
    return value.item() if is_one else value


def is_integer(value: Any) -> bool:
    """Whether a value is one integer of at most 64 bits; true and false are none."""
    plain = _plain(value)
    is_whole = not isinstance(plain, bool) and isinstance(plain, Integral)
    return is_whole and _LEAST <= int(plain) <= _MOST


def is_number(value: Any) -> bool:
    """Whether a value is one real number that can be a float; true and false are none."""
    plain = _plain(value)
    is_real = not isinstance(plain, bool) and isinstance(plain, Real)
    try:
        return is_real and isinstance(float(plain), float)
    except OverflowError:
        return False


_LEAST: Final = -(2**63)
_MOST: Final = 2**64 - 1


def _of_64_bits(value: Any) -> str:
    """Return what else a message has to ask for, of an integer that is too large."""
    is_whole = not isinstance(value, bool) and isinstance(value, Integral)
    return " of at most 64 bits" if is_whole and not is_integer(value) else ""


def _shown(value: Any) -> str:
    """Return a value as text of at most 100 characters, also where it has none."""
    try:
        return f"{value!r:.100}"
    except Exception:  # an integer of thousands of digits, or a class of the user's
        return f"a {type(value).__name__}"


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _each(fits: Callable[[Any], bool], length: int | None = None) -> Callable[[Any], bool]:
    """Return a function that says whether a value is a sequence, of values that fit."""

    def all_fit(value: Any) -> bool:
        if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
            return False
        if getattr(value, "ndim", 1) == 0:  # an array without axes has a length by name alone
            return False
        if not hasattr(value, "__len__"):  # what can be gone through only once is not touched
            return length is None
        return length in (None, len(value)) and all(map(fits, value))

    return all_fit


def _is_list(value: Any) -> bool:
    return not hasattr(value, "ndim") and _each(lambda member: True)(value)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_a(name: str) -> Callable[[Any], bool]:
    """Return a function that says whether a value is of a class; `dnn.errors` imports none."""
    return lambda value: any(kind.__name__ == name for kind in type(value).__mro__)


_KINDS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "bool": (lambda value: isinstance(_plain(value), bool), "true or false"),
    "int": (is_integer, "an integer"),
    "float": (is_number, "a number"),
    "str": (_is_text, "text"),
    "PathLike[str]": (lambda value: isinstance(value, PathLike), "a path"),
    "Path": (lambda value: isinstance(value, PathLike), "a path"),
    "None": (lambda value: value is None, "None"),
    "Sequence[int]": (_each(is_integer), "a list of integers"),
    "tuple[int, int]": (_each(is_integer, 2), "two integers"),
    "tuple[int, int, int]": (_each(is_integer, 3), "three integers"),
    "Sequence[float]": (_each(is_number), "a list of numbers"),
    "Sequence[str]": (_each(_is_text), "a list of texts"),
    "tuple[str, ...]": (_each(_is_text), "a list of texts"),
    "Initializer": (callable, "a function"),
    "Schedule": (callable, "a function"),
    "Callable[[Node], Node]": (callable, "a function"),
    "Callable[[int, float], bool]": (callable, "a function"),
    "Callable[[], bool]": (callable, "a function"),
    "Mapping[int, float]": (_is_mapping, "a mapping"),
    "Mapping[str, float | Sequence[float]]": (_is_mapping, "a mapping"),
    "Mapping[str, Any]": (_is_mapping, "a mapping"),
    "Mapping[str, str]": (_is_mapping, "a mapping"),
    "Array": (lambda value: hasattr(value, "ndim") and hasattr(value, "dtype"), "an array"),
    # What is in these is checked where it is used.
    "Sequence[Augmentation]": (_each(lambda value: True), "a list of Augmentation"),
    "Sequence[Layer]": (_is_list, "a list of layers"),
    "Sequence[Mapping[str, Any]]": (_each(_is_mapping), "a list of tables"),
    **{
        name: (_is_a(name), f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")
        for name in (
            *("Dataset", "Loss", "NeuralNetwork", "Node", "Optimizer", "RoutineTable", "Scheme"),
            *("Tensor", "TrainingParameters"),
        )
    },
}
"""By the text of an annotation: whether a value is of that kind, and what it is called."""


def _checks_of(annotation: object) -> tuple[list[Callable[[Any], bool]], str] | None:
    """Return the checks of which a value has to pass one, and what it must be, in words.

    None for an annotation with a part that is not among `_KINDS`.
    """
    parts = [""]
    for piece in str(annotation).split(" | "):
        is_inside = parts[-1].count("[") > parts[-1].count("]")
        parts[-1:] = [f"{parts[-1]} | {piece}"] if is_inside else [*filter(None, parts[-1:]), piece]
    if not all(part in _KINDS for part in parts):
        return None
    words = dict.fromkeys(_KINDS[part][1] for part in parts if part != "None")
    text = " or ".join(words) + (", or None" if "None" in parts else "")
    return [_KINDS[part][0] for part in parts], text


P = ParamSpec("P")
R = TypeVar("R")


def explains_arguments(function: Callable[P, R], *, kinds: bool = True) -> Callable[P, R]:
    """Decorate a function so that errors for wrong arguments say which, and what is expected.

    It raises `ConfigurationError` for an unknown argument, and suggests the one meant, unless the
    function takes ``**options``; and, with `kinds`, for an argument that is not what its annotation
    says, as far as that is in the table `_KINDS`. Ranges are the function's own to check. Of a
    class its ``__init__`` is decorated.
    """
    if isinstance(function, type):
        function.__init__ = explains_arguments(function.__init__)  # type: ignore[misc]
        return function
    parameters = inspect.signature(function).parameters
    names = [name for name in parameters if name != "self"]
    known = frozenset(parameters)
    every = parameters.values()
    takes_others = any(parameter.kind is parameter.VAR_KEYWORD for parameter in every)
    checks = {
        name: found
        for name, parameter in parameters.items()
        if kinds
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and (found := _checks_of(parameter.annotation)) is not None
    }
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    by_place = [
        name
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]

    @functools.wraps(function)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        where = function.__qualname__
        if function.__name__ == "__init__":  # of a base class, perhaps
            where = type(args[0]).__name__
        if not takes_others and not known.issuperset(options):
            wrong = next(name for name in options if name not in known)
            arguments = names
            if function.__name__ == "__init__":
                own = inspect.signature(type(args[0])).parameters.values()
                arguments = [option.name for option in own if option.kind is not option.VAR_KEYWORD]
                arguments += [name for name in names if name not in arguments]
            hint = suggestion("argument", wrong, arguments)
            message = f"{where} has no argument {wrong!r}{hint}"
            raise ConfigurationError(f"{message} (known: {', '.join(arguments)})")
        for name, value in (*zip(by_place, args, strict=False), *options.items()):
            if name in checks and value is not defaults[name]:
                fits, words = checks[name]
                if not any(fit(value) for fit in fits):
                    wanted = f"{words}{_of_64_bits(value)}"
                    raise ConfigurationError(
                        f"{where}: {name} must be {wanted}, not {_shown(value)}"
                    )
        return function(*args, **options)

    return checked
