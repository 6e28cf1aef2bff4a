"""Checks before the first step that all ranks have the same layers, options and data.

A fit begins with one exchange of small values. A rank whose data are wrong takes part in it with
its error, so that no rank waits for it. If ranks differ, all of them raise the same error.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dnn.backend import Array
from dnn.data.augmentation import Images
from dnn.errors import DisagreementError, PeerError, check_count
from dnn.optimizers import Optimizer
from dnn.training.checkpoint import layer_facts
from dnn.training.network import Network

if TYPE_CHECKING:
    from dnn.training.networks import Fit

__all__ = ["agreement_facts", "check_agreement"]

# About so many bytes of the samples are compared: rows at equal distances.
_COMPARED = 1 << 20


def agreement_facts(fit: Fit, same_rows: bool) -> dict[str, Any]:
    """Return everything that has to be the same on all ranks, as values of JSON by name.

    `same_rows` says whether ranks are given the same samples.
    """
    networks, network, samples = fit.networks, fit.networks._network, fit.training
    size, progress, held_out = fit.batch_size, networks._progress, fit.held_out
    facts: dict[str, Any] = {
        "layers": _layers(network),
        "dtype": network.precision.name,
        "loss": [type(network.loss).__name__, repr(dict(network.loss.hyperparameters))],
        "frozen parameters": network.frozen,
        "optimizer": _text(networks.optimizer),
        "seed": [int(seed) for seed in networks._seeds],
        "epochs": [int(epochs) for epochs in fit.epochs],
        "batch_size": check_count(
            "batch_size", size(len(networks._histories[0])) if callable(size) else size
        ),
        "sizes of later batches": _text(size) if callable(size) else None,
        "accumulate": fit.accumulate,
        "steps from one call within epochs to the next": fit.pauses and fit.pauses.every,
        "samples visited of the first epoch": progress.visited if progress is not None else 0,
        "steps done": networks._update.steps_done,
        "weights of samples": samples.weights is not None,
        "validation": None if held_out is None else held_out.count if same_rows else True,
    }
    if held_out is not None and fit.validation_epochs is not None:
        facts["epochs followed by a validation"] = sorted(map(int, fit.validation_epochs))
    if same_rows:
        facts["number of samples"] = samples.count
        facts["samples"] = [_sample(samples.x), _sample(samples.targets(network))]
    return facts


def _layers(network: Network) -> list[list[Any]]:
    """Return name, kind, shape of a sample, shapes of parameters and options of each layer."""
    # Where units are cut, shapes of samples between layers differ between ranks.
    return [
        [
            layer.name,
            type(layer).__name__,
            [int(length) for length in row.shape if not network.is_part],
            [list(layer.whole_shape(each)) for each in layer.parameters],
            {k: v for k, v in layer_facts(layer).items() if k != "name" and " " not in k},
        ]
        for layer, row in zip(network.layers, network.summaries, strict=False)
    ]


def _text(value: object, depth: int = 4) -> str:
    """Describe an optimizer or a schedule by its fields, without the addresses of a repr."""
    if value is None or isinstance(value, int | float | str | np.generic):
        return str(value)
    if depth and isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_text(x, depth - 1)}' for key, x in value.items())}}}"
    if depth and isinstance(value, list | tuple):
        return f"({', '.join(_text(each, depth - 1) for each in value)})"
    fields = getattr(value, "__dict__", {})
    if not depth or not fields or not (callable(value) or isinstance(value, Optimizer)):
        return str(getattr(value, "__qualname__", type(value).__name__))
    texts = [
        f"{k}={_text(each, depth - 1)}" for k, each in sorted(fields.items()) if k != "_bounds"
    ]
    return f"{type(value).__name__}({', '.join(texts)})"


def _sample(array: Array | Images) -> int:
    """Return a checksum of some rows of an array."""
    if isinstance(array, Images) or not isinstance(array, np.ndarray):
        return 0
    row_bytes = max(1, array.nbytes // max(1, len(array)))
    step = max(1, len(array) * row_bytes // _COMPARED)
    return zlib.crc32(np.ascontiguousarray(array[::step]).tobytes())


def check_agreement(facts: Sequence[dict[str, Any]]) -> None:
    """Compare the facts of all ranks with those of rank 0.

    Raises
    ------
    PeerError
        If a rank has sent ``"error"`` in place of facts.
    DisagreementError
        If a rank differs from rank 0; it names the rank, and the layer if layers differ.
    """
    for rank, each in enumerate(facts):
        if "error" in each:
            raise PeerError(rank, each["error"])
    for rank, each in enumerate(facts):
        for name in {**facts[0], **each}:
            given: Any = each.get(name)
            expected: Any = facts[0].get(name)
            if given == expected:
                continue
            if name == "layers":
                _raise_for_layers(rank, given, expected)
            if name == "samples":
                message = f"ranks have other samples: rank {rank} than rank 0"
                raise DisagreementError(
                    f'{message}; give all of them the same ones, or say rows="own"', rank
                )
            message = f"ranks disagree on the {name}: rank {rank} has {_shown(given)}"
            raise DisagreementError(f"{message}, rank 0 has {_shown(expected)}", rank)


def _raise_for_layers(rank: int, given: list[Any], expected: list[Any]) -> None:
    for mine, theirs in zip(given, expected, strict=False):
        if mine != theirs:
            names = {mine[0], theirs[0]}
            message = f"ranks disagree on layer {' / '.join(sorted(names))}: rank {rank} has "
            if mine[:-1] == theirs[:-1]:
                message += _options_shown(mine[-1], theirs[-1])
                message += f", rank 0 has {_options_shown(theirs[-1], mine[-1])}"
            else:
                message += f"{_layer_shown(mine)}, rank 0 has {_layer_shown(theirs)}"
            raise DisagreementError(message, rank, theirs[0])
    message = f"ranks disagree on the layers: rank {rank} has {len(given)}, rank 0 {len(expected)}"
    longer = max(given, expected, key=len)
    raise DisagreementError(message, rank, longer[min(len(given), len(expected))][0])


def _layer_shown(layer: Sequence[Any]) -> str:
    _, kind, shape, parameters, _ = layer
    held = f" with parameters {', '.join(str(tuple(x)) for x in parameters)}" if parameters else ""
    return f"{kind} of {tuple(shape)}{held}"


def _options_shown(given: dict[str, Any], other: dict[str, Any]) -> str:
    """Show the options that differ; of layers inside a layer, those of the first that differs."""
    names = {**given, **other}
    different = {name: given.get(name) for name in names if given.get(name) != other.get(name)}
    for name, value in different.items():
        there = other.get(name)
        chains = (value, there) if isinstance(value, list) and isinstance(there, list) else ()
        for mine, theirs in zip(*chains, strict=False):
            if isinstance(mine, dict) and isinstance(theirs, dict) and mine != theirs:
                return f"{name} with {mine['name']}: {_options_shown(mine, theirs)}"
    return ", ".join(f"{name}={value!r}" for name, value in different.items())


def _shown(value: object) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return str(value)
