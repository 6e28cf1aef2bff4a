"""Layers from plain values, as a TOML or JSON file has them.

::

    layers = [
        { type = "conv2d", filters = 8, window = 3, padding = "same", activation = "relu" },
        { type = "max_pool2d" },
        { type = "flatten" },
        { type = "fully_connected", units = 64, activation = "relu", repeat = 2 },
    ]
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from dnn import layers
from dnn.errors import ConfigurationError, check_count, explains_arguments, unknown_name
from dnn.graph.operations.activations import RECTIFIERS
from dnn.initializers import initializer_of
from dnn.layers import Activation, Layer
from dnn.layers.basic import Nested

__all__ = ["layer_kinds", "layers_from_tables"]

_KIND: Final = "type"
_ACTIVATION: Final = "activation"
_REPEAT: Final = "repeat"
_FIRST_LAYERS: Final = ("input", "sequence_input")


@explains_arguments
def layers_from_tables(tables: Sequence[Mapping[str, Any]]) -> list[Layer]:
    """Return the layers that tables of plain values describe.

    Parameters
    ----------
    tables : sequence of mapping
        Each has the key ``type``, one of `layer_kinds`, and the arguments of that layer by their
        names. Layers inside a layer, such as a `Residual`, are a list of tables too. Two keys add
        layers: ``activation``, of layers with weights, puts an `Activation` behind the layer, and,
        where that is a rectifier, lets the weights start from ``"he_uniform"``; ``repeat = 3`` puts
        both there three times, ``repeat = 0`` not at all.

    Returns
    -------
    list of Layer
        Without an `Input`.

    Raises
    ------
    ConfigurationError
        If a kind or an argument is unknown, or its value is not one that the layer takes.

    Examples
    --------
    >>> import dnn
    >>> tables = [{"type": "fully_connected", "units": 8, "activation": "relu"}]
    >>> [layer.kind() for layer in dnn.layers_from_tables(tables)]
    ['fully_connected', 'activation']
    """
    return [layer for table in tables for layer in _layers_of(table)]


def layer_kinds() -> dict[str, dict[str, inspect.Parameter]]:
    """Return which layers tables can describe, and the arguments of each.

    Returns
    -------
    dict of str to dict of str to inspect.Parameter
        By kind, such as ``"conv2d"``, and by name.
    """
    return {kind: _arguments(cls) for kind, cls in _classes().items()}


@lru_cache(maxsize=1)
def _classes() -> dict[str, type[Layer]]:
    public = (getattr(layers, name) for name in layers.__all__)
    found = [item for item in public if isinstance(item, type) and issubclass(item, Layer)]
    return {cls.kind(): cls for cls in found if cls.kind() not in ("layer", *_FIRST_LAYERS)}


def _arguments(cls: type[Layer]) -> dict[str, inspect.Parameter]:
    """Return the arguments of a layer, with those that it passes on to its base class."""
    arguments: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        own = [] if base is object else list(inspect.signature(base).parameters.values())
        for argument in own:
            # A plain value cannot stand for the network's Input.
            if argument.kind is not argument.VAR_KEYWORD and "Input" not in str(
                argument.annotation
            ):
                arguments.setdefault(argument.name, argument)
        if not any(argument.kind is argument.VAR_KEYWORD for argument in own):
            break
    arguments.pop("args", None)
    with_weights = "initializer" in arguments
    if with_weights:
        only = inspect.Parameter.KEYWORD_ONLY
        arguments[_ACTIVATION] = inspect.Parameter(
            _ACTIVATION, only, default=None, annotation="str"
        )
    return arguments


def _layers_of(table: Mapping[str, Any]) -> list[Layer]:
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"a layer is a table with a type, not {table!r}")
    given = dict(table)
    kind = given.pop(_KIND, None)
    if kind is None:
        raise ConfigurationError(f"a layer has no {_KIND}: one of {', '.join(_classes())}")
    cls = _classes().get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise unknown_name("type of layer", kind, _classes())
    repeat = given.pop(_REPEAT, 1)
    if repeat != 0 or isinstance(repeat, bool):
        repeat = check_count(f"{kind}: {_REPEAT}", repeat)
    return [layer for _ in range(repeat) for layer in _built(cls, kind, given)]


def _built(cls: type[Layer], kind: str, table: Mapping[str, Any]) -> list[Layer]:
    """Return the layer of a table, and its activation behind it if the table has one."""
    known = _arguments(cls)
    given = dict(table)
    for name, value in given.items():
        if name not in known:
            hint = unknown_name("argument", name, {*known, _REPEAT})
            raise ConfigurationError(f"{kind}: {hint}")
        if text := _expected(str(known[name].annotation), value):
            raise ConfigurationError(f"{kind}: {name} is {text}, not {value!r}")
    after: list[Layer] = []
    if isinstance(initializer := given.get("initializer"), str):
        initializer_of(initializer)  # else an unknown name is found when the network is built
    if "initializer" in known and given.get(_ACTIVATION) is not None:
        function = given.pop(_ACTIVATION)
        after.append(Activation(function))
        if function in RECTIFIERS:
            given.setdefault("initializer", "he_uniform")
    if issubclass(cls, Nested):
        given = {name: layers_from_tables(inside) for name, inside in given.items()}
    shape: Sequence[Any] = ()
    for name, argument in known.items():
        if argument.kind is argument.VAR_POSITIONAL:
            shape = given.pop(name, None)
            if not isinstance(shape, list):
                raise ConfigurationError(f"{kind}: {name} is a list of numbers, not {shape!r}")
        elif argument.default is argument.empty and name not in given:
            raise ConfigurationError(f"{kind}: {name} is missing")
    try:
        layer = cls(*shape, **given)
    except TypeError as error:
        raise ConfigurationError(f"{kind}: {error}") from None
    return [layer, *after]


def _expected(annotation: str, value: Any) -> str:
    """Return the expected type, in words, if a value is of another type; else an empty string."""
    if annotation == "bool" and not isinstance(value, bool):
        return "true or false"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if annotation == "float" and not is_number:
        return "a number"
    if annotation.startswith("Sequence[Layer]") and not isinstance(value, list):
        return "a list of layers"
    return ""
