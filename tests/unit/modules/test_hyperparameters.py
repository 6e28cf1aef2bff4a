"""What our trainer takes, and what becomes of it."""

from __future__ import annotations

import inspect
from typing import Any, get_args

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

import dnn
from diel.workflow.annotations import FieldType
from dnn import Activation, BatchNorm, Dropout, NeuralNetwork
from dnn.data.dataset import STANDARDISATIONS
from dnn.graph.operations.activations import ACTIVATIONS, RECTIFIERS
from dnn.losses import LOSSES
from dnn.metrics import MORE_IS_BETTER
from dnn.optimizers import OPTIMIZERS
from dnn.optimizers.schedules import SCHEDULES
from dnn.precision import PRECISIONS, Dtype
from modules import trainer
from modules.evaluation import class_factors
from modules.hyperparameters import (
    Hyperparameters,
    defaults,
    free_in_a_plan,
    loss_of,
    loss_problem,
    optimizer_of,
    parameters_with,
)
from modules.metrics import METRICS
from modules.networks import layers_of
from modules.space import Space
from modules.space_check import parameter_problems


def choices(model: type[BaseModel], name: str) -> set[str]:
    """Return the texts that a field of options takes."""
    return {*FieldType.of(model.model_fields[name]).choices}


def test_choices_are_those_of_dnn() -> None:
    recurrent = {kind.kind() for kind in (dnn.GRU, dnn.LSTM, dnn.RNN)}
    assert choices(Hyperparameters, "activation") == set(ACTIVATIONS)
    assert choices(Hyperparameters, "optimizer") == set(OPTIMIZERS) == set(defaults())
    assert choices(Hyperparameters, "schedule") == set(SCHEDULES) - {"warm_up"}
    assert choices(Hyperparameters, "cell") == recurrent
    assert choices(trainer.Options, "standardise") == set(STANDARDISATIONS)
    # The name that Keras has for float16.
    assert choices(trainer.Options, "precision") == set(PRECISIONS) - {"mixed_float16"}
    assert set(get_args(Dtype)) == set(PRECISIONS)
    ours = {name: METRICS[name].maximise for name in METRICS if name in MORE_IS_BETTER}
    assert {**ours, "training_time_s": False}.keys() == METRICS.keys()
    assert ours == {name: MORE_IS_BETTER[name] for name in ours}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_defaults_are_parameters_of_the_optimizer(kind: str) -> None:
    taken = inspect.signature(OPTIMIZERS[kind]).parameters
    flags_and_numbers = {
        name for name, parameter in taken.items() if isinstance(parameter.default, bool | float)
    }
    assert flags_and_numbers - {"weight_decay"} == defaults()[kind].keys()


@pytest.mark.parametrize("name", sorted({*Hyperparameters.model_fields} - {"layers", "quantiles"}))
def test_networks_of_a_plan_differ_in_no_other_parameters(name: str) -> None:
    field = Hyperparameters.model_fields[name]
    given = [0.25, 0.75]
    if found := FieldType.of(field).choices:
        given = [*found[:2]]
    elif "bool" in str(field.annotation):
        given = [True, False]
    elif "list" in str(field.annotation):
        given = [[1], [2]]
    elif "int" in str(field.annotation):
        given = [1, 2]
    points = [parameters_with(name, value) for value in given]
    points = [{**point, **({"momentum": 0.5} if name == "nesterov" else {})} for point in points]
    if name in ("rise", "decay_every", "decay_factor", "epochs"):
        points = [
            {"schedule": "one_cycle" if name == "epochs" else point.get("schedule"), **point}
            for point in points
        ]
    if name == "growth_every":
        points = [{**point, "batch_growth": 2.0} for point in points]
    if name == "batch_growth":
        points = [{name: 1.25}, {name: 1.75}]
    keys = [Hyperparameters(**point).plan_key() for point in points]
    assert (keys[0] == keys[1]) == (name in free_in_a_plan())


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_is_trained(name: str) -> None:
    wanted = Hyperparameters(activation=name, hidden=[4], channels=[2])
    layers = layers_of(wanted, 16, 3, (1, 4, 4))
    first, *_, hidden, _last = (layer for layer in layers if hasattr(layer, "initializer"))
    expected = "he_uniform" if name in RECTIFIERS else "glorot_uniform"
    assert first.initializer == hidden.initializer == expected
    model = NeuralNetwork(layers, loss_of(wanted), optimizer_of(wanted, 8), seed=1)
    x = np.random.default_rng(0).normal(size=(8, 16))
    history = model.fit(x, np.arange(8) % 3, epochs=1, progress=False)
    assert all(map(np.isfinite, history.training[-1].values()))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimizer_by_its_name(kind: str) -> None:
    optimizer = optimizer_of(Hyperparameters(optimizer=kind, weight_decay=0.25), 100)
    assert type(optimizer).__name__.lower() == kind
    flags = ("nesterov", "decoupled")
    expected = {name: x for name, x in defaults()[kind].items() if name not in flags}
    assert optimizer.hyperparameters == {**expected, "weight_decay": 0.25}
    assert optimizer.schedule is None


def test_what_is_given_reaches_the_optimizer() -> None:
    wanted = Hyperparameters(optimizer="adam", learning_rate=0.5, beta1=0.1, beta2=0.2, epsilon=0.3)
    found = optimizer_of(wanted, 100).hyperparameters
    assert [found[name] for name in ("learning_rate", "beta1", "beta2", "epsilon")] == [
        0.5, 0.1, 0.2, 0.3]  # fmt: skip
    two = [wanted, Hyperparameters(optimizer="adam")]
    assert optimizer_of(two, 100).hyperparameters["beta1"] == (0.1, 0.9)


@pytest.mark.parametrize(
    ("given", "factors"),
    [
        ({"schedule": "step", "decay_every": 2, "decay_factor": 0.5}, [1, 1, 0.5, 0.5, 0.25]),
        ({"schedule": "cosine", "epochs": 4}, [1, 0.8535533, 0.5, 0.1464466, 0]),
        (
            {"schedule": "one_cycle", "epochs": 4, "rise": 0.5},
            [0.04, 0.6268100, 0.9619399, 0.3086610],
        ),
        ({"batch_growth": 2.0, "growth_every": 1, "warm_up": 2}, [1 / 6, 5 / 6, 1, 1]),
        ({"schedule": "constant", "warm_up": 2}, [1 / 8, 5 / 8, 1, 1, 1]),
        ({"schedule": "cosine", "epochs": 3, "warm_up": 1}, [1 / 4, 1, 0.5, 0]),
    ],
)
def test_schedules_count_epochs(given: dict[str, Any], factors: list[float]) -> None:
    # 100 rows in batches of 32 are 4 steps.
    schedule = optimizer_of(Hyperparameters(**given), 100).schedule
    assert schedule is not None
    assert [schedule(4 * epoch) for epoch in range(len(factors))] == pytest.approx(factors)


def test_losses_with_numbers_for_each_network() -> None:
    wanted = [Hyperparameters(label_smoothing=0.1, l2=x) for x in (0.01, 0.02)]
    assert wanted[0].plan_key() == wanted[1].plan_key() != Hyperparameters(l2=0.01).plan_key()
    loss = loss_of(wanted)
    assert loss.hyperparameters == {"label_smoothing": (0.1, 0.1), "penalty_1": (0.01, 0.02)}
    assert loss_of(Hyperparameters()).hyperparameters == {}
    assert len(loss_of(Hyperparameters(l1=0.1, l2=0.2)).penalties) == 2


LOSS_OPTIONS = {
    "cross_entropy": {"loss_epsilon": 0.01, "class_weight": [1.0, 2.0, 1.0]},
    "focal": {"gamma": 1.5, "class_weight": "balanced"},
    "huber": {"delta": 0.5},
    "quantile": {"quantiles": [0.2, 0.5]},
}


@pytest.mark.parametrize("name", sorted({*LOSSES} - {"kullback_leibler"}))
def test_every_loss_trains_with_its_options(name: str) -> None:
    wanted = Hyperparameters(loss=name, hidden=[4], **LOSS_OPTIONS.get(name, {}))
    takes = "values" if LOSSES[name].takes == "counts" else LOSSES[name].takes
    count = 2 if name == "binary_cross_entropy" else 3
    layers, loss = layers_of(wanted, 5, count), loss_of(wanted, takes)
    model = NeuralNetwork(layers, loss, optimizer_of(wanted, 12), seed=1)
    y = np.arange(12) % count if takes == "classes" else np.eye(count)[np.arange(12) % count]
    x = np.random.default_rng(0).normal(size=(12, 5))
    data = dnn.Dataset(x, np.arange(12) % count, count, "cases")
    weights = class_factors(wanted.class_weight, data)
    history = model.fit(x, y, class_weight=weights, progress=False)
    assert np.isfinite(history.loss[0])
    if name == "quantile":
        assert model(x).shape == (12, 6)
    both = [wanted, wanted.model_copy(update={"delta": None, "gamma": None, "loss_epsilon": None})]
    assert loss_of(both, takes).is_like(loss)


def test_losses_that_do_not_fit() -> None:
    for options, text in (
        ({"loss": "hubert"}, "'hinge'|'huber'"),
        ({"loss": "huber", "gamma": 1.0}, "gamma goes with loss 'focal', not 'huber'"),
        ({"delta": 1.0}, "delta goes with loss 'huber', not None"),
        ({"loss": "huber", "label_smoothing": 0.1}, "label_smoothing goes with loss 'binary_cross"),
        ({"loss": "huber", "class_weight": "balanced"}, "class_weight goes with loss"),
        ({"loss": "quantile", "quantiles": [0.5, 0.2]}, "quantiles must be in ascending order"),
        ({"loss": "quantile", "quantiles": []}, "at least 1"),
    ):
        with pytest.raises(ValidationError, match=text):
            Hyperparameters(**options)
    with pytest.raises(ValueError, match="'huber' takes values, and these targets are classes"):
        loss_of(Hyperparameters(loss="huber"))
    with pytest.raises(ValueError, match="class_weight is of classes, and these targets are val"):
        loss_of(Hyperparameters(class_weight="balanced"), "values")
    assert "of two classes" in loss_problem(
        Hyperparameters(loss="binary_cross_entropy"), "classes", 3
    )
    assert "2 numbers" in loss_problem(Hyperparameters(class_weight=[1.0, 2.0]), "classes", 3)
    assert loss_of(Hyperparameters(), "values").name == "mean_squared_error"
    assert loss_of(Hyperparameters(), "labels").name == "multi_label_cross_entropy"
    keys = [Hyperparameters(loss="huber", delta=x).plan_key() for x in (0.1, 0.2)]
    assert keys[0] == keys[1] != Hyperparameters(loss="poisson").plan_key()


def test_dropout_and_batch_normalisation_are_layers() -> None:
    wanted = Hyperparameters(hidden=[8, 4], dropout=0.25, batch_norm=True, activation="tanh")
    layers = layers_of(wanted, 5, 3)
    kinds = [type(layer).__name__ for layer in layers]
    hidden = ["FullyConnected", "BatchNorm", "Activation", "Dropout"]
    assert kinds == ["Input", *hidden, *hidden, "FullyConnected"]
    assert [layer.rate for layer in layers if isinstance(layer, Dropout)] == [0.25, 0.25]
    plain = layers_of(Hyperparameters(hidden=[8]), 5, 3)
    assert not any(isinstance(layer, (BatchNorm, Dropout)) for layer in plain)
    assert sum(isinstance(layer, Activation) for layer in plain) == 1


def test_convolutions_stand_before_hidden_layers() -> None:
    wanted = Hyperparameters(channels=[4, 6], depth=2, kernel=5, hidden=[8], batch_norm=True)
    layers = layers_of(wanted, 64, 3, (1, 8, 8))
    stage = ["Conv2D", "BatchNorm", "Activation"] * 2 + ["MaxPool2D"]
    hidden = ["FullyConnected", "BatchNorm", "Activation"]
    kinds = [type(layer).__name__ for layer in layers]
    assert kinds == ["Input", "Reshape", *stage, *stage, "Flatten", *hidden, "FullyConnected"]
    model = NeuralNetwork(layers)
    shapes = {name: tensor.shape for name, tensor in model.parameters.items()}
    assert shapes["conv2d_3.weight"] == (6, 4, 5, 5)
    assert shapes["fully_connected_1.weight"] == (6 * 2 * 2, 8)
    assert model(np.zeros((2, 64))).shape == (2, 3)
    keys = {
        Hyperparameters(**given).plan_key()
        for given in ({}, {"channels": [4]}, {"channels": [4], "kernel": 5}, {"channels": [4, 4]})
    }
    assert len(keys) == 4
    with pytest.raises(ValueError, match=r"samples are rows of 13 numbers"):
        layers_of(wanted, 13, 2)
    with pytest.raises(ValueError, match=r"each stage halves images, and these are of 8 x 8"):
        layers_of(Hyperparameters(channels=[1, 1, 1, 1]), 64, 3, (1, 8, 8))


def test_recurrent_layers_read_sequences_and_rows_of_images() -> None:
    wanted = Hyperparameters(recurrent=[4, 3], cell="gru", bidirectional=True, hidden=[8])
    given = [(wanted, 18, 2, (5, 3)), (wanted, 15, 2, (1, 5, 3))]
    kinds = [[type(layer).__name__ for layer in layers_of(*each)] for each in given]
    read = ["GRU", "GRU", "FullyConnected", "Activation", "FullyConnected"]
    assert kinds == [["SequenceInput", *read], ["Input", "Reshape", *read]]
    for each in given:
        shapes = {name: x.shape for name, x in NeuralNetwork(layers_of(*each)).parameters.items()}
        assert shapes["gru_1.weight_ih_l0_reverse"] == (12, 3)
        assert shapes["fully_connected_1.weight"] == (6, 8)
    with pytest.raises(ValueError, match=r"recurrent layers are .* samples are rows of 13 numbers"):
        layers_of(wanted, 13, 2)
    with pytest.raises(ValueError, match=r"these samples are images of 3 channels"):
        layers_of(wanted, 48, 2, (3, 4, 4))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kernel": 3}, "kernel is of convolutions: give channels"),
        ({"depth": 2, "channels": []}, "depth is of convolutions: give channels"),
        ({"cell": "gru"}, "cell is of recurrent layers: give recurrent, the units of each"),
        ({"recurrent": [4], "channels": [4]}, "a network has either, not both"),
        ({"channels": [0]}, "greater than or equal to 1"),
        ({"optimizer": "adam", "momentum": 0.5}, "momentum goes with optimizer 'sgd' or 'rmsprop'"),
        ({"beta1": 0.5}, "beta1 goes with optimizer 'adam' or 'adamw' or 'nadam', not 'sgd'"),
        ({"optimizer": "adagrad", "smoothing": 0.5}, "smoothing goes with optimizer 'rmsprop'"),
        ({"decay_every": 3}, "decay_every goes with schedule 'step'"),
        ({"rise": 0.2}, "rise goes with schedule 'one_cycle'"),
        ({"optimizer": "adam", "decoupled": True}, "decoupled goes with optimizer 'sgd'"),
        ({"batch_growth": 2.0, "schedule": "cosine"}, "batch_growth goes with schedule 'constant'"),
        ({"growth_every": 3}, "growth_every goes with a batch_growth above 1"),
        ({"trust": 0.1}, "trust goes with optimizer 'lars', not 'sgd'"),
        ({"label_smoothing": 1.5}, "less than or equal to 1"),
        ({"l2": -1.0}, "greater than or equal to 0"),
        ({"nesterov": True, "momentum": 0.0}, "nesterov needs a momentum above 0"),
        ({"optimizer": "adem"}, "Input should be 'sgd', 'adam'"),
        ({"dropout": 1.0}, "less than 1"),
        ({"warm_up": -1}, "greater than or equal to 0"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Hyperparameters(**given)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            {"beta1": [0.8, 0.9]},
            "beta1 goes with optimizer 'adam' or 'adamw' or 'nadam', not 'sgd'",
        ),
        ({"beta1": {"choices": [0.8, 0.9], "if": {"optimizer": "adam"}}}, None),
        ({"beta1": [0.8, 1.0]}, "less than 1"),
        ({"beta3": 0.9}, "no such hyperparameter"),
        ({"channels": [[4], [4, 8]], "kernel": [3, 5], "depth": [1, 2]}, None),
        ({"channels": [[], [4]], "kernel": [3, 5]}, "kernel is of convolutions: give channels"),
        ({"dropout": {"from": 0.0, "to": 0.5}, "batch_norm": [True, False]}, None),
    ],
)
def test_a_space_says_what_does_not_go_together(entry: dict[str, Any], words: str | None) -> None:
    space = Space.parse({"optimizer": ["sgd", "adam"], **entry})
    found = [str(problem["type"]) for problem in parameter_problems(space)]
    assert len(found) == (words is not None)
    assert words is None or words in found[0]
