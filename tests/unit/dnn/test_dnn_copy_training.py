"""Networks that go on from copies of others, with seeds and hyperparameters of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dnn import (
    Adam,
    ConfigurationError,
    Dropout,
    Ensemble,
    NeuralNetwork,
    ShapeError,
    copy_training,
    mlp,
    progress_of,
)

RATES = [0.1, 0.02, 0.02]
DROPPED = [0.1, 0.3, 0.3]
PARENTS = [2, 0, 2]
SEEDS = [7, 8, 9]


def layers(rate: float = 0.2, units: int = 5) -> list[Any]:
    *first, last = mlp(3, [units], 2)
    return [*first, Dropout(rate), last]


@pytest.fixture(scope="module")
def data() -> tuple[Any, Any]:
    generator = np.random.default_rng(1)
    return generator.normal(size=(40, 3)).astype("float32"), generator.integers(0, 2, 40)


@pytest.fixture(scope="module")
def parents(data: tuple[Any, Any]) -> Any:
    networks = Ensemble(layers(), optimizer=Adam([0.01, 0.02, 0.03]), seeds=[1, 2, 3])
    networks.fit(*data, epochs=2, batch_size=8)
    return progress_of(networks)


def test_copies_go_on_in_one_plan_as_they_do_alone(data: tuple[Any, Any], parents: Any) -> None:
    chosen = [parents[k] for k in PARENTS]
    networks = Ensemble(
        layers(), optimizer=Adam(RATES), seeds=SEEDS, states={"dropout_1.rate": DROPPED}
    )
    copy_training(networks, chosen, own=["dropout_1.rate"])
    together = networks.fit(*data, epochs=3, batch_size=8)
    for k, parent in enumerate(chosen):
        alone = NeuralNetwork(layers(DROPPED[k]), optimizer=Adam(RATES[k]), seed=SEEDS[k])
        copy_training(alone, [parent], own=["dropout_1.rate"])
        history = alone.fit(*data, epochs=3, batch_size=8, progress=False)
        assert history.loss == together[k].loss
        assert alone.history.loss == networks.histories[k].loss
        assert alone.history.loss[:2] == parent.history.loss
        here = progress_of(networks)[k].state
        for name, array in progress_of(alone)[0].state.arrays.items():
            assert np.array_equal(array, here.arrays[name]), name


def test_seeds_and_hyperparameters_are_those_of_the_copy(
    data: tuple[Any, Any], parents: Any
) -> None:
    networks = Ensemble(layers(), optimizer=Adam(RATES), seeds=SEEDS)
    copy_training(networks, [parents[2]] * 3)
    own = progress_of(networks)
    for name, array in own[0].state.arrays.items():
        is_own = name.startswith("hyperparameter/") or name == "state/noise.seed"
        assert is_own or np.array_equal(array, parents[2].state.arrays[name])
    assert [each.seed for each in own] == SEEDS
    histories = networks.fit(*data, epochs=1, batch_size=8)
    assert len({history.loss[0] for history in histories}) == 3  # two of them have one rate


def test_what_does_not_fit_is_refused(parents: Any) -> None:
    with pytest.raises(ConfigurationError, match="3 for 2 networks"):
        copy_training(Ensemble(layers(), optimizer=Adam(), seeds=[1, 2]), parents)
    with pytest.raises(ShapeError):
        copy_training(NeuralNetwork(layers(units=6), optimizer=Adam(), seed=1), parents[:1])
    with pytest.raises(ShapeError, match="another one's state"):
        copy_training(NeuralNetwork(layers(), seed=1), parents[:1])
