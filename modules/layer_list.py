"""A network as a list of layers in a workflow file: the option ``layers`` of the trainer.

::

    layers = [
        { type = "conv2d", filters = "$filters", window = 3, activation = "relu" },
        { type = "max_pool2d" },
        { type = "flatten" },
        { type = "fully_connected", units = 64, activation = "relu", repeat = "$depth" },
    ]

`dnn.layers_from_tables` says which keys a table may have. A text that begins with ``$`` stands for
the value that the parameter of that name has in a trial; `filled` inserts it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, Field, create_model
from pydantic_core import InitErrorDetails

from .problems import at

if TYPE_CHECKING:
    from dnn import Layer, LayerSummary

LayerTables = Sequence[Mapping[str, Any]]
_REFERENCE: Final = "$"
_PLAIN_TYPES: Final[Mapping[str, Any]] = {"bool": bool, "int": int, "float": float, "str": str}


def references(layers: Any) -> list[str]:
    """Return the names of the parameters that layers refer to, each once, in order."""
    return list(dict.fromkeys(_references(layers)))


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, str) and part.startswith(_REFERENCE):
        yield part.removeprefix(_REFERENCE)
    elif isinstance(part, Mapping):
        for value in part.values():
            yield from _references(value)
    elif isinstance(part, (list, tuple)):
        for value in part:
            yield from _references(value)


def filled(layers: LayerTables, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return layers with each ``$name`` replaced by the value that a trial has for that parameter.

    A ValueError names a parameter that the trial does not have.
    """
    return [_filled(table, values) for table in layers]


def _filled(part: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(part, str) and part.startswith(_REFERENCE):
        name = part.removeprefix(_REFERENCE)
        if name not in values:
            there = ", ".join(values) or "none"
            raise ValueError(f'layers use "${name}", which this trial does not have ({there})')
        return values[name]
    if isinstance(part, Mapping):
        return {key: _filled(value, values) for key, value in part.items()}
    if isinstance(part, (list, tuple)):
        return [_filled(value, values) for value in part]
    return part


def with_layers(parameters: Mapping[str, Any], layers: LayerTables | None) -> dict[str, Any]:
    """Return the parameters of a trial, with layers in place of the parameters they refer to."""
    if layers is None:
        return dict(parameters)
    inside = set(references(layers))
    rest = {name: value for name, value in parameters.items() if name not in inside}
    return {**rest, "layers": filled(layers, parameters)}


def built(layers: LayerTables) -> list[Layer]:
    """Build layers from their tables; a ValueError says which of the list is wrong, and how."""
    from dnn import DnnError, layers_from_tables

    found: list[Layer] = []
    for number, table in enumerate(layers):
        try:
            found += layers_from_tables([table])
        except DnnError as error:
            raise ValueError(f"layers[{number}]: {error}") from None
    return found


def layer_problems(layers: LayerTables) -> Iterator[InitErrorDetails]:
    """Yield the problems of a list of layers that depend on no parameter of the space."""
    from dnn import DnnError, layer_kinds, layers_from_tables

    for number, table in enumerate(layers):
        kind = table.get("type")
        if isinstance(kind, str) and kind.startswith(_REFERENCE):
            problem = f'type = "{kind}": the kind of a layer cannot come from the space; name one'
            yield at(("layers", number), dict(table), problem)
            continue
        known = isinstance(kind, str) and kind in layer_kinds()
        # Tables that refer to parameters are tried with points of the space: here only their keys.
        parts = [table]
        if references(table) and known:
            parts = [{"type": kind, key: None} for key in table if not _is_known(str(kind), key)]
        try:
            for part in parts:
                layers_from_tables([part])
        except DnnError as error:
            yield at(("layers", number), dict(table), str(error))


def _is_known(kind: str, key: str) -> bool:
    from dnn import layer_kinds

    return key in ("type", "repeat") or key in layer_kinds()[kind]


def layer_models() -> dict[str, type[BaseModel]]:
    """Return a pydantic model of the arguments of each kind of layer, for a form."""
    from dnn import layer_kinds

    found = {}
    for kind, arguments in layer_kinds().items():
        fields: dict[str, Any] = {}
        for name, argument in arguments.items():
            annotation = _PLAIN_TYPES.get(str(argument.annotation), Any)
            is_required = argument.default is argument.empty
            is_plain = isinstance(argument.default, (bool, int, float, str))
            default: Any = ... if is_required else argument.default if is_plain else None
            info = Field(default, validation_alias=name)
            fields[f"{name}_"] = (annotation, info)
        repeat = Field(
            1, validation_alias="repeat", description="how many of it, one behind another"
        )
        found[kind] = create_model(kind, **fields, repeat_=(int, repeat))
    return found


def rows_of(layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """Return a row for each layer of a network, up to the first that does not fit.

    A row has ``name``, ``shape`` (of a sample of its output), ``parameters`` and ``multiply_adds``,
    as `dnn.summary` shows them; the last one of a network that cannot be built has ``problem``.
    A ValueError if there is no layer.
    """
    from dnn import DnnError, layer_summaries

    if not layers:
        raise ValueError("layers: there are none")
    try:
        return [_row(summary) for summary in layer_summaries(layers)]
    except DnnError as error:
        problem = str(error)
    for count in range(len(layers) - 1, 0, -1):
        with contextlib.suppress(DnnError):
            rows = [_row(summary) for summary in layer_summaries(layers[:count])]
            name = layers[count].kind()
            return [*rows, {"name": name, "shape": [], "parameters": 0, "problem": problem}]
    return [{"name": layers[0].kind(), "shape": [], "parameters": 0, "problem": problem}]


def _row(summary: LayerSummary) -> dict[str, Any]:
    return {**summary._asdict(), "shape": list(summary.shape)}


def remedy_for_shapes(text: str) -> str:
    """Return the remedy for shapes that do not fit, from the text of dnn's error; empty if none."""
    return 'add { type = "flatten" } before it' if "must be a vector" in text else ""
