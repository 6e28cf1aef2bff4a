"""Layers from tables of plain values."""

from __future__ import annotations

from typing import Any

import pytest

import dnn


def kinds(*tables: Any) -> list[str]:
    return [layer.kind() for layer in dnn.layers_from_tables(list(tables))]


def test_tables_give_the_layers_that_their_classes_give() -> None:
    inside = {"type": "conv2d", "filters": 2, "window": 3, "padding": "same"}
    tables: list[dict[str, Any]] = [
        {"type": "reshape", "shape": [1, 4, 4]},
        {**inside, "activation": "relu"},
        {"type": "residual", "layers": [inside]},
        {"type": "max_pool2d"},
        {"type": "flatten"},
        {"type": "fully_connected", "units": 3, "activation": "tanh", "repeat": 2},
        {"type": "dropout", "rate": 0.25, "repeat": 0},
    ]
    same = [
        dnn.Reshape(1, 4, 4),
        dnn.Conv2D(2, 3, padding="same", initializer="he_uniform"),
        dnn.Activation("relu"),
        dnn.Residual([dnn.Conv2D(2, 3, padding="same")]),
        dnn.MaxPool2D(),
        dnn.Flatten(),
        *(dnn.FullyConnected(3), dnn.Activation("tanh")) * 1,
        *(dnn.FullyConnected(3), dnn.Activation("tanh")) * 1,
    ]
    found = dnn.layers_from_tables(tables)
    first = dnn.Input(16)
    assert dnn.summary([first, *found]) == dnn.summary([first, *same])
    weights = [
        dnn.NeuralNetwork([dnn.Input(16), *layers], seed=3).parameters for layers in (found, same)
    ]
    assert weights[0].keys() == weights[1].keys()
    assert all((weights[0][name].numpy() == weights[1][name].numpy()).all() for name in weights[0])


def test_every_kind_can_be_made_of_its_arguments() -> None:
    given = {"function": "relu", "layers": [{"type": "flatten"}], "shape": [2, 2]}
    for kind, arguments in dnn.layer_kinds().items():
        needed = {
            name: given.get(name, 2)
            for name, argument in arguments.items()
            if argument.default is argument.empty
        }
        assert kinds({"type": kind, **needed})[0] == kind


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (3, "tables must be a list of tables, not [3]"),
        ({}, "a layer has no type: one of activation,"),
        ({"type": "dense"}, "unknown type of layer 'dense'; here that is 'fully_connected'"),
        ({"type": "fully_conected"}, "did you mean 'fully_connected'?"),
        ({"type": ["x"]}, "unknown type of layer"),
        ({"type": "conv2d", "filters": 8}, "conv2d: window is missing"),
        ({"type": "conv2d", "filters": 8, "kernel": 3}, "here that is 'window'"),
        ({"type": "conv2d", "filters": 0, "window": 3}, "filters must be an integer of at least 1"),
        ({"type": "lstm", "units": 2, "bidirectional": 1}, "bidirectional is true or false, not 1"),
        ({"type": "lstm", "units": 2, "lengths": 1}, "unknown argument 'lengths'"),
        ({"type": "batch_norm", "momentum": "x"}, "momentum is a number, not 'x'"),
        ({"type": "reshape"}, "shape is a list of numbers, not None"),
        ({"type": "residual", "layers": 3}, "layers is a list of layers, not 3"),
        ({"type": "residual", "layers": [{"type": "x"}]}, "unknown type of layer 'x'"),
        ({"type": "flatten", "repeat": -1}, "repeat must be an integer of at least 1, not -1"),
        ({"type": "flatten", "activation": "relu"}, "unknown argument 'activation'"),
        ({"type": "fully_connected", "units": 2, "initializer": "x"}, "initializer"),
        ({"type": "fully_connected", "units": 2, "activation": "rleu"}, "did you mean 'relu'?"),
    ],
)
def test_what_is_none_is_said(table: Any, message: str) -> None:
    with pytest.raises(dnn.ConfigurationError) as caught:
        dnn.layers_from_tables([table])
    assert message in str(caught.value)
