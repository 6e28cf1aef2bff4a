"""A batch in pieces: the step of the whole batch, in the memory of a piece."""

from __future__ import annotations

import numpy as np
import pytest

from dnn import (
    SGD,
    Adam,
    BatchNorm,
    ConfigurationError,
    Dropout,
    Ensemble,
    Flatten,
    FullyConnected,
    Images,
    Input,
    NeuralNetwork,
    Shift,
    mlp,
)

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(43, 6)).astype("f4")
Y = GENERATOR.integers(0, 3, 43)


def trained(accumulate: int, layers=None, x=X, y=Y, **options):
    model = NeuralNetwork(layers or mlp(6, [8], 3), optimizer=SGD(0.1, momentum=0.9), seed=1)
    options = {"epochs": 2, "batch_size": 20, **options}
    history = model.fit(x, y, progress=False, accumulate=accumulate, **options)
    return model, history


@pytest.mark.parametrize("pieces", [2, 3, 50])
def test_pieces_make_the_step_of_the_whole_batch(pieces):
    weights = GENERATOR.random(43)
    whole, expected = trained(1, sample_weight=weights)
    model, history = trained(pieces, sample_weight=weights)
    flat, other = (each._network.parameters.flat for each in (model, whole))
    np.testing.assert_allclose(flat, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(history.loss, expected.loss, rtol=1e-6)
    assert (history.steps, history.tallies) == (expected.steps, expected.tallies)


def test_a_last_batch_of_one_row_has_one_piece():
    whole, expected = trained(1, batch_size=6)
    model, history = trained(3, batch_size=6)
    flat, other = (each._network.parameters.flat for each in (model, whole))
    np.testing.assert_allclose(flat, other, rtol=1e-5, atol=1e-6)
    assert history.steps == expected.steps == 2 * 8


def test_the_scale_of_gradients_is_as_before_afterwards():
    model, _ = trained(3)
    model.fit(X, Y, epochs=1, batch_size=20, progress=False)
    whole, _ = trained(1, epochs=3)
    np.testing.assert_allclose(
        model._network.parameters.flat, whole._network.parameters.flat, rtol=1e-5, atol=1e-6
    )


def test_networks_at_once_take_pieces_too():
    networks = Ensemble(mlp(6, [8], 3), optimizer=Adam([0.01, 0.02]), seeds=[1, 2])
    histories = networks.fit(X, Y, epochs=2, batch_size=20, accumulate=3)
    for k, rate in enumerate((0.01, 0.02)):
        single = NeuralNetwork(mlp(6, [8], 3), optimizer=Adam(rate), seed=1 + k)
        expected = single.fit(X, Y, epochs=2, batch_size=20, progress=False)
        np.testing.assert_allclose(histories[k].loss, expected.loss, rtol=1e-6)


def test_prepared_images_are_cut_into_pieces():
    pixels = GENERATOR.integers(0, 255, (11, 1, 6, 6)).astype(np.uint8)
    images = Images(pixels, [Shift(2)])
    results = [
        trained(
            pieces,
            [Input(1, 6, 6), Flatten(), FullyConnected(10)],
            images,
            np.arange(11) % 10,
            batch_size=6,
        )[1].loss
        for pieces in (1, 4)
    ]
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5)


def test_the_memory_is_that_of_a_piece():
    sizes = [
        trained(pieces, mlp(6, [64, 64], 3))[0]._network._arena.size_bytes for pieces in (1, 4)
    ]
    assert sizes[1] < 0.4 * sizes[0]


def test_noise_differs_between_pieces():
    layers = [Input(4), Dropout(0.5), FullyConnected(3)]
    model = NeuralNetwork(layers, seed=1)
    model.fit(np.ones((8, 4), "f4"), np.zeros(8, int), batch_size=8, accumulate=4, progress=False)
    assert model._network.states["noise.step"] == 4


def test_mistakes_are_named():
    with pytest.raises(ConfigurationError, match="accumulate must be an integer of at least 1"):
        trained(0)
    layers = [Input(6), BatchNorm(), FullyConnected(3)]
    model = NeuralNetwork(layers, dtype="float16")
    with pytest.raises(ConfigurationError, match="take each batch as a whole"):
        model.fit(X, Y, accumulate=2, progress=False)
