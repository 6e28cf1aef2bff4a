"""Layers from tables of plain values, as a TOML or JSON file has them, and back.

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
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from dnn import layers
from dnn.errors import ConfigurationError, check_count, explains_arguments, unknown_name
from dnn.graph.operations.activations import RECTIFIERS
from dnn.initializers import initializer_of
from dnn.layers import Activation, Input, Layer, SequenceInput
from dnn.layers.nested import Nested

__all__ = ["described_layers", "layer_kinds", "layers_from_tables", "rebuilt_layers"]

_KIND: Final = "type"
_ACTIVATION: Final = "activation"
_REPEAT: Final = "repeat"
_FIRST_LAYERS: Final = {layer.kind(): layer for layer in (Input, SequenceInput)}
_LENGTHS: Final = "lengths"
_INTEGERS: Final = "integers"
_ATTRIBUTES: Final = {"bias": "with_bias", _ACTIVATION: "cell"}
"""Attributes that hold arguments of another name: ``activation`` is of an `RNN`."""


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
    return {cls.kind(): cls for cls in found if cls not in (Layer, *_FIRST_LAYERS.values())}


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
    for name in given:
        if name not in known:
            hint = unknown_name("argument", name, {*known, _REPEAT})
            raise ConfigurationError(f"{kind}: {hint}")
    after: list[Layer] = []
    if isinstance(initializer := given.get("initializer"), str):
        initializer_of(initializer)  # else an unknown name is found when the network is built
    if "initializer" in known and given.get(_ACTIVATION) is not None:
        function = given.pop(_ACTIVATION)
        after.append(Activation(function))
        if function in RECTIFIERS:
            given.setdefault("initializer", "he_uniform")
    return [_layer_of(cls, known, given, layers_from_tables), *after]


def _layer_of(
    cls: type[Layer],
    known: Mapping[str, inspect.Parameter],
    given: dict[str, Any],
    inside: Callable[[Any], list[Layer]],
) -> Layer:
    """Return a layer of given values; `inside` makes the layers of a `Nested` from tables."""
    kind = cls.kind()
    for name, value in given.items():
        if name in known and (text := _expected(str(known[name].annotation), value)):
            raise ConfigurationError(f"{kind}: {name} is {text}, not {value!r:.80}")
    if issubclass(cls, Nested):
        given = {name: inside(tables) for name, tables in given.items()}
    shape: Sequence[Any] = ()
    for name, argument in known.items():
        if argument.kind is argument.VAR_POSITIONAL:
            shape = given.pop(name, None)
            if not isinstance(shape, list):
                raise ConfigurationError(f"{kind}: {name} is a list of numbers, not {shape!r:.80}")
        elif argument.default is argument.empty and name not in given:
            raise ConfigurationError(f"{kind}: {name} is missing")
    try:
        return cls(*shape, **given)
    except TypeError as error:
        raise ConfigurationError(f"{kind}: {error}") from None


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


def described_layers(layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """Return the layers of a network, the first one included, as plain values for a file.

    `rebuilt_layers` is the way back. Initializers are left out: the file has what was trained.

    Raises
    ------
    ConfigurationError
        If a layer, or its function, is one of the user's own; it names the layer.
    """
    first, *rest = layers
    kind = first.kind()
    if type(first) is not _FIRST_LAYERS.get(kind):
        raise _own_class(first)
    assert isinstance(first, Input)
    table: dict[str, Any] = {_KIND: kind, "shape": list(first.shape)}
    if isinstance(first, SequenceInput):
        table["shape"] = [first.steps, *first.shape[1:]]
    if first.integers:
        table[_INTEGERS] = True
    return [table, *(_described(layer) for layer in rest)]


def _described(layer: Layer) -> dict[str, Any]:
    kind = layer.kind()
    if layer.kept_bytes is not None:
        return {_KIND: kind}
    if type(layer) is not _classes().get(kind):
        raise _own_class(layer)
    if isinstance(layer, Activation) and layer.is_of_own_function:
        raise ConfigurationError(f"{layer.name or kind}: its function is one of your own")
    table: dict[str, Any] = {_KIND: kind}
    if isinstance(layer, Nested):
        for name in _arguments(type(layer)):
            table[name] = [_described(inside) for inside in getattr(layer, name)]
        return table
    for name in _own_arguments(type(layer)):
        table[name] = _plain(getattr(layer, _ATTRIBUTES.get(name, name)))
    if getattr(layer, _LENGTHS, None) is not None:
        table[_LENGTHS] = True
    return table


def _own_class(layer: Layer) -> ConfigurationError:
    kind = type(layer).__name__
    return ConfigurationError(f"{layer.name or layer.kind()}: {kind} is a layer of your own")


def _own_arguments(cls: type[Layer]) -> dict[str, inspect.Parameter]:
    """Return the arguments of a layer on which its predictions depend."""
    arguments = _arguments(cls)
    if arguments.pop("initializer", None) is not None:
        del arguments[_ACTIVATION]  # of tables alone
    return arguments


def _plain(value: Any) -> Any:
    return [_plain(part) for part in value] if isinstance(value, (tuple, list)) else value


def rebuilt_layers(
    tables: Any, by_content: Mapping[str, Callable[[], Layer]] = MappingProxyType({})
) -> list[Layer]:
    """Return the layers of a network from what `described_layers` has returned.

    Functions of `by_content` make, one after the other, the layers of a kind that have contents.

    Raises
    ------
    ConfigurationError
        If it is something else.
    """
    if not isinstance(tables, list) or not tables or not isinstance(tables[0], dict):
        raise ConfigurationError("the layers are no list of tables")
    first = tables[0]
    cls, shape = _FIRST_LAYERS.get(str(first.get(_KIND))), first.get("shape")
    if cls is None or not isinstance(shape, list) or not shape:
        raise ConfigurationError(f"the first layer is {first!r:.80}, and no input")
    dtype = int if first.get(_INTEGERS) is True else None
    source = cls(*shape, dtype=dtype)
    return [source, *(_rebuilt(table, source, by_content) for table in tables[1:])]


def _rebuilt(table: Any, source: Input, by_content: Mapping[str, Callable[[], Layer]]) -> Layer:
    given = dict(table) if isinstance(table, dict) else {}
    kind = given.pop(_KIND, None)
    if kind in [*by_content] and not given:
        return by_content[kind]()
    cls = _classes().get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise unknown_name("type of layer", kind, _classes())
    known = _own_arguments(cls)
    if given.pop(_LENGTHS, None) is True and isinstance(source, SequenceInput):
        given[_LENGTHS] = source
    wrong = [name for name in given if name not in known and name != _LENGTHS]
    if wrong:
        raise unknown_name(f"argument of {kind}", wrong[0], known)
    return _layer_of(
        cls, known, given, lambda tables: [_rebuilt(x, source, by_content) for x in tables]
    )
