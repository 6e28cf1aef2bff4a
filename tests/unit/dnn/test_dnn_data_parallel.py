"""Data parallelism on ranks that are threads."""

from __future__ import annotations

import re

import numpy as np
import pytest
from data_parallel_cases import CASES, FIT, X, Y

from dnn import (
    SGD,
    Adam,
    BatchNorm,
    Callback,
    ConfigurationError,
    DataError,
    Dropout,
    FullyConnected,
    Input,
    NeuralNetwork,
    mlp,
)
from dnn.distributed import DataParallel, run_on_threads
from dnn.errors import DisagreementError, PeerError


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("check", CASES, ids=lambda check: check.__name__)
def test_ranks_train_together(check, ranks):
    run_on_threads(ranks, check, timeout_s=60)


def outcome(function):
    """Return the error of a call."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 (which one, the callers look at)
        function()
    return caught.value


def model_of(comm, *, layers=None, optimizer=None, seed=1, **options):
    parallel = DataParallel(comm, **options)
    layers = layers or mlp(6, [8], 3)
    return NeuralNetwork(layers, optimizer=optimizer or SGD(0.1), seed=seed, parallel=parallel)


@pytest.mark.parametrize(
    ("different", "words"),
    [
        ({"layers": mlp(6, [9], 3)}, r"layer fully_connected_1: rank 1 has .*\(9,\)"),
        ({"optimizer": Adam()}, "optimizer: rank 1 has Adam"),
        ({"optimizer": SGD(0.2)}, "optimizer: rank 1 has .*0.2.*rank 0 has .*0.1"),
        ({"seed": 2}, "seed: rank 1 has 2, rank 0 has 1"),
        ({"epochs": 3}, "epochs: rank 1 has 3"),
        ({"batch_size": 11}, "batch_size: rank 1 has 11"),
        ({"rows": 42}, "number of samples: rank 1 has 42"),
        ({"shift": 1}, "other samples: rank 1 than rank 0"),
    ],
)
def test_ranks_that_disagree_all_say_so(different, words):
    def train(comm):
        given = dict(different) if comm.rank == 1 else {}
        fit = {
            **FIT,
            **{name: given.pop(name) for name in ("epochs", "batch_size") if name in given},
        }
        rows, shift = given.pop("rows", 43), given.pop("shift", 0)
        model = model_of(comm, **given)
        return outcome(lambda: model.fit(X[:rows] + shift, Y[:rows], **fit))

    for error in run_on_threads(3, train, timeout_s=20):
        assert isinstance(error, DisagreementError)
        assert error.rank == 1
        assert re.search(words, str(error)), str(error)


def test_wrong_data_of_one_rank_end_all():
    def train(comm):
        x = X.copy()
        x[3, 2] = np.nan if comm.rank == 1 else 0
        return outcome(lambda: model_of(comm).fit(x, Y, **FIT))

    errors = run_on_threads(2, train, timeout_s=20)
    assert isinstance(errors[1], DataError)
    assert isinstance(errors[0], PeerError)
    assert "rank 1: DataError: x contains nan in row 3" in str(errors[0])


def test_a_callback_that_raises_on_one_rank_ends_all():
    class Raises(Callback):
        def on_epoch_end(self, epoch):
            raise ValueError("no more")

    def train(comm):
        callbacks = [Raises()] if comm.rank == 1 else []
        return outcome(lambda: model_of(comm).fit(X, Y, **FIT, callbacks=callbacks))

    first, second = run_on_threads(2, train, timeout_s=20)
    assert isinstance(second, ValueError)
    assert isinstance(first, PeerError)
    assert str(first) == "rank 1: ValueError: no more"


def test_what_stops_one_rank_stops_all():
    class Stops(Callback):
        def on_epoch_end(self, epoch):
            return "enough"

    def train(comm):
        options = {**FIT, "epochs": 5, "callbacks": [Stops()] if comm.rank == 1 else []}
        return model_of(comm).fit(X, Y, **options)

    for history in run_on_threads(2, train, timeout_s=20):
        assert (len(history), history.stopped) == (1, "enough")


def spoiled(comm, on_nan):
    """Train with gradients of one layer of rank 1 that are NaN in the third step."""
    model = model_of(comm, on_nan=on_nan)
    trainer_of = model._scheme.trainer

    def trainer(network, *arguments):
        made = trainer_of(network, *arguments)
        look = made._exchange._look

        def spoil():
            if comm.rank == 1 and made._exchange._step == 2:
                network.gradients["fully_connected_2.weight"][0, 1] = np.nan
            return look()

        made._exchange._look = spoil
        return made

    model._scheme.trainer = trainer
    return model, model.fit(X, Y, **FIT)


def test_nan_gradients_stop_the_training_and_are_named():
    for model, history in run_on_threads(2, lambda comm: spoiled(comm, "stop"), timeout_s=20):
        assert history.diverged
        assert len(history) == 1
        assert (
            history.stopped == "rank 1 has NaN or infinite gradients in fully_connected_2 at step 3"
        )
        assert model.explain_divergence() == "fully_connected_2"


def test_a_step_with_nan_gradients_is_left_out():
    for model, history in run_on_threads(3, lambda comm: spoiled(comm, "skip"), timeout_s=20):
        assert not history.diverged
        assert (len(history), history.skipped_steps) == (2, 1)
        assert history.exchange[0]["nan"] == {"rank": 1, "layer": "fully_connected_2", "step": 3}
        assert np.isfinite(model._network.parameters.flat).all()


def test_noise_differs_between_ranks_and_is_the_same_afterwards():
    def train(comm):
        model = model_of(comm, layers=[Input(6), Dropout(0.5), FullyConnected(3)])
        trainer = {}
        original = model._scheme.trainer
        model._scheme.trainer = lambda *a: trainer.setdefault("it", original(*a))
        model.fit(X, Y, **FIT)
        seeds = model._network.states["noise.seed"]
        return int(seeds), int(trainer["it"]._seeds_of_rank(seeds)), model.predict(X).tolist()

    results = run_on_threads(3, train, timeout_s=20)
    assert len({result[0] for result in results}) == 1
    assert len({result[1] for result in results}) == 3
    assert results[0][2] == results[1][2]


def test_mistakes_are_named():
    def make(comm):
        with pytest.raises(ConfigurationError, match="rows must be 'shared' or 'own'"):
            DataParallel(comm, rows="mine")

    run_on_threads(1, make)


def test_ranks_that_normalise_together_need_a_row_each():
    def train(comm):
        layers = [Input(6), BatchNorm(), FullyConnected(3)]
        model = model_of(comm, layers=layers, batch_norm="together")
        return outcome(lambda: model.fit(X, Y, **{**FIT, "batch_size": 21}))

    for error in run_on_threads(2, train, timeout_s=20):
        assert isinstance(error, ConfigurationError)
        assert "2 ranks need a row each in every batch" in str(error)
