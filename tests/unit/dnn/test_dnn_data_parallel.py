"""Data parallelism on ranks that are threads."""

from __future__ import annotations

import copy
import itertools
import re

import numpy as np
import pytest
from data_parallel_cases import CASES, FIT, X, Y, check_sharded, make_buckets_small

from dnn import (
    SGD,
    Adam,
    BatchNorm,
    Callback,
    ConfigurationError,
    DataError,
    Dropout,
    Ensemble,
    FullyConnected,
    Input,
    Muon,
    NeuralNetwork,
    Residual,
    mlp,
)
from dnn.distributed import DataParallel, run_on_threads
from dnn.errors import DisagreementError, PeerError
from dnn.optimizers.schedules import GrowingBatch, StepDecay


@pytest.mark.sample(8)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("check", CASES, ids=lambda check: check.__name__)
def test_ranks_train_together(check, ranks, monkeypatch):
    make_buckets_small(monkeypatch)
    run_on_threads(ranks, check, timeout_s=60)


OF_FIT = ("epochs", "batch_size", "validation")


def outcome(function):
    """Return the error of a call."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 (which one, the callers look at)
        function()
    return caught.value


def model_of(comm, *, layers=None, optimizer=None, seed=1, loss="softmax_cross_entropy", **options):
    parallel = DataParallel(comm, **options)
    layers = layers or mlp(6, [8], 3)
    return NeuralNetwork(layers, loss, optimizer or SGD(0.1), seed=seed, parallel=parallel)


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
        (
            {"layers": mlp(6, [8], 3, "tanh")},
            "layer activation_1: rank 1 has function='tanh', rank 0 has function='sigmoid'",
        ),
        (
            {"rate": 0.4},
            r"residual_1: rank 1 has layers with residual_1.dropout_1: rate=0.5, rank 0 .*=0.1",
        ),
        (
            {"optimizer": SGD(0.1, schedule=StepDecay(1, 0.5))},
            r"rank 1 has .*StepDecay\(every=1, factor=0.5\).*rank 0 has .*factor=0.1\)",
        ),
        ({"validation": (X, Y)}, "the validation: rank 1 has 43, rank 0 has None"),
        (
            {"batch_size": GrowingBatch(10, 1)},
            r"later batches: rank 1 has GrowingBatch\(.*rank 0 has None",
        ),
    ],
)
def test_ranks_that_disagree_all_say_so(different, words):
    def train(comm):
        given = dict(different) if comm.rank == 1 else {}
        fit = {
            **FIT,
            **{name: given.pop(name) for name in OF_FIT if name in given},
        }
        rows, shift = given.pop("rows", 43), given.pop("shift", 0)
        if "rate" in different:
            rate = given.pop("rate", 0.0) + 0.1
            given["layers"] = [Input(6), Residual([Dropout(rate)]), FullyConnected(3)]
        model = model_of(comm, **{"optimizer": SGD(0.1, schedule=StepDecay(1)), **given})
        return outcome(lambda: model.fit(X[:rows] + shift, Y[:rows], **fit))

    for error in run_on_threads(3, train, timeout_s=60):
        assert isinstance(error, DisagreementError)
        assert error.rank == 1
        assert re.search(words, str(error)), str(error)


def test_sizes_of_batches_may_be_of_numpy():
    def train(comm):
        options = {**FIT, "batch_size": lambda epoch: np.int64(16)}
        return model_of(comm).fit(X, Y, **options).loss

    first, second = run_on_threads(2, train, timeout_s=60)
    assert first == second


def test_wrong_data_of_one_rank_end_all():
    def train(comm):
        x = X.copy()
        x[3, 2] = np.nan if comm.rank == 1 else 0
        return outcome(lambda: model_of(comm).fit(x, Y, **FIT))

    errors = run_on_threads(2, train, timeout_s=60)
    assert isinstance(errors[1], DataError)
    assert isinstance(errors[0], PeerError)
    assert "rank 1: DataError: x contains nan in row 3" in str(errors[0])


@pytest.mark.parametrize(
    ("made", "given", "words"),
    [
        ({"loss": "squares"}, {}, "squares"),
        ({"layers": [FullyConnected(3)]}, {}, "Input"),
        ({"optimizer": SGD([0.1, 0.2])}, {}, "SGD"),
        ({"optimizer": Muon(leave_out=["nowhere"])}, {}, "nowhere"),
        ({}, {"epochs": 0}, "epochs must be"),
        ({}, {"batch_size": 0}, "batch_size must be"),
        ({}, {"metrics": []}, "metrics must be a dict"),
    ],
)
def test_wrong_arguments_of_one_rank_end_all(made, given, words):
    def train(comm):
        own = comm.rank == 1

        def run():
            model = model_of(comm, **(made if own else {}))
            model.fit(X, Y, **{**FIT, **(given if own else {})})

        return outcome(run)

    heard, raised = run_on_threads(2, train, timeout_s=60)
    assert isinstance(heard, PeerError)
    assert words in str(heard)
    assert not isinstance(raised, PeerError)


def test_a_callback_that_raises_on_one_rank_ends_all():
    class Raises(Callback):
        def on_epoch_end(self, epoch):
            raise ValueError("no more")

    def train(comm):
        callbacks = [Raises()] if comm.rank == 1 else []
        return outcome(lambda: model_of(comm).fit(X, Y, **FIT, callbacks=callbacks))

    first, second = run_on_threads(2, train, timeout_s=60)
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

    for history in run_on_threads(2, train, timeout_s=60):
        assert (len(history), history.stopped) == (1, "enough")


def spoiled(comm, on_nan, sharded=False, at=((1, 3),), **given):
    """Train with gradients of one layer that are NaN, each on a rank in one of all steps."""
    model = model_of(comm, on_nan=on_nan, sharded=sharded)
    trainer_of, steps = model._scheme.trainer, itertools.count(1)

    def trainer(network, *arguments):
        made = trainer_of(network, *arguments)
        start = made._exchange.start  # once in a step: there is one bucket of gradients

        def spoil():
            if (comm.rank, next(steps)) in at:
                network.gradients["fully_connected_2.weight"][0, 1] = np.nan
            start()

        made._exchange.start = spoil
        return made

    model._scheme.trainer = trainer
    return model, model.fit(X, Y, **{**FIT, **given})


@pytest.mark.parametrize(("sharded", "nodes"), [(False, (0, 0)), (True, (0, 0)), (True, (0, 1))])
def test_nan_gradients_stop_the_training_and_are_named(sharded, nodes):
    results = run_on_threads(
        2, lambda comm: spoiled(comm, "stop", sharded), nodes=nodes, timeout_s=60
    )
    for model, history in results:
        assert history.diverged
        assert len(history) == 1
        assert (
            history.stopped == "rank 1 has NaN or infinite gradients in fully_connected_2 at step 3"
        )
        assert model.explain_divergence() == "fully_connected_2"


@pytest.mark.parametrize("sharded", [False, True])
def test_a_step_with_nan_gradients_is_left_out(sharded):
    results = run_on_threads(3, lambda comm: spoiled(comm, "skip", sharded), timeout_s=60)
    for model, history in results:
        assert not history.diverged
        assert (len(history), history.skipped_steps) == (2, 1)
        assert history.exchange[0]["nan"] == {"rank": 1, "layer": "fully_connected_2", "step": 3}
        assert np.isfinite(model._network.parameters.flat).all()


@pytest.mark.parametrize("sharded", [False, True])
def test_nan_gradients_of_the_last_step_stop_the_training(sharded):
    """The loss is of before that step: it says nothing of it."""
    at = [(1, 5)]
    for model, history in run_on_threads(
        2, lambda comm: spoiled(comm, "stop", sharded, at), timeout_s=60
    ):
        assert len(history) == 1
        assert history.stopped.endswith("in fully_connected_2 at step 5")
        assert model.explain_divergence() == "fully_connected_2"


def test_each_epoch_says_what_it_met_first():
    """Steps are those of the epoch, whether it has pauses or not."""
    at = [(1, 2), (0, 4), (0, 15)]
    for every in (None, 1, 3):
        callbacks = [] if every is None else [Pauses(every)]
        given = {"at": at, "epochs": 3, "callbacks": callbacks}
        results = run_on_threads(2, lambda comm, g=given: spoiled(comm, "skip", **g), timeout_s=60)
        for _, history in results:
            found = [each.get("nan") for each in history.exchange]
            layer = {"layer": "fully_connected_2"}
            assert found == [{"rank": 1, "step": 2, **layer}, None, {"rank": 0, "step": 5, **layer}]
            assert history.skipped_steps == 3


class Pauses(Callback):
    """Does nothing, within epochs."""

    def __init__(self, every):
        self.every_steps = every

    def on_steps(self, model):
        pass


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_gradients_too_large_for_the_wire_blame_no_rank(on_nan):
    def train(comm):
        model = model_of(comm, wire="float16", on_nan=on_nan, loss="mean_squared_error")
        return model, model.fit(X, X[:, :3] * 1e8, **{**FIT, "epochs": 1})

    for model, history in run_on_threads(2, train, nodes=(0, 1), timeout_s=60):
        found = history.exchange[0]["nan"]
        assert (found["wire"], found["step"], "rank" in found) == ("float16", 1, False)
        assert model.explain_divergence() == found["layer"]
        if on_nan == "stop":
            assert history.stopped == (
                f"the sum of gradients in {found['layer']} at step 1 is too large for float16: "
                "train without wire='float16'"
            )
        else:
            assert np.isfinite(model._network.parameters.flat).all()
            assert history.skipped_steps == 5


def test_noise_differs_between_ranks_and_goes_on_alike():
    """Also where a rank has no row of the last batch, and so draws nothing for it."""

    def train(comm):
        model = model_of(comm, layers=[Input(6), Dropout(0.5), FullyConnected(3)])
        states, seen = model._network.states, []

        class Looks(Callback):
            every_steps = 1

            def on_steps(self, model):
                seen.append(int(states[model._network.step_name]))

        model.fit(X[:21], Y[:21], **FIT, callbacks=[Looks()])
        seen.append(int(states[model._network.step_name]))
        return seen, int(states["noise.seed"]), model.predict(X).tolist()

    first, *others = run_on_threads(3, train, timeout_s=60)
    assert first[0] == [1, 2, 4, 5, 6]  # no pause behind the last step of an epoch
    assert all(each == first for each in others)


def test_sharded_state_over_several_hosts():
    run_on_threads(3, check_sharded, nodes=(0, 0, 1), timeout_s=60)


def test_ranks_of_a_host_have_one_array_of_sharded_parameters():
    def make(comm):
        network = model_of(comm, sharded=True)._network
        comm.gather_values(None)
        if comm.rank == 1:
            network.parameters["fully_connected_1.bias"][0] = 3
        comm.gather_values(None)
        return network.parameters["fully_connected_1.bias"][0]

    assert run_on_threads(2, make, timeout_s=60) == [3, 3]
    assert run_on_threads(2, make, nodes=[0, 1], timeout_s=60) == [0, 3]


def test_a_copy_needs_the_whole_sharded_state():
    def make(comm):
        model = model_of(comm, optimizer=Adam(), sharded=True)
        error = outcome(lambda: copy.deepcopy(model))
        return error, copy.deepcopy(model.gathered()).predict(X).shape

    for error, shape in run_on_threads(2, make, timeout_s=60):
        assert isinstance(error, ConfigurationError)
        assert "part of the optimizer's state alone: call gathered()" in str(error)
        assert shape == (43,)


def test_mistakes_are_named():
    def make(comm):
        with pytest.raises(ConfigurationError, match="rows must be 'shared' or 'own'"):
            DataParallel(comm, rows="mine")
        with pytest.raises(ConfigurationError, match="sent as they are: no wire"):
            DataParallel(comm, wire="float16", sharded=True)
        scheme = DataParallel(comm, sharded=True)
        with pytest.raises(ConfigurationError, match="sharded=True is not for an Ensemble"):
            Ensemble(mlp(6, [8], 3), seeds=[1, 2], parallel=scheme)
        with pytest.raises(ConfigurationError, match="sharded=True is not for float16"):
            NeuralNetwork(mlp(6, [8], 3), dtype="float16", parallel=scheme)

    run_on_threads(1, make)


def test_ranks_that_normalise_together_need_a_row_each():
    def train(comm):
        layers = [Input(6), BatchNorm(), FullyConnected(3)]
        model = model_of(comm, layers=layers, batch_norm="together")
        return outcome(lambda: model.fit(X, Y, **{**FIT, "batch_size": 21}))

    for error in run_on_threads(2, train, timeout_s=60):
        assert isinstance(error, ConfigurationError)
        assert "2 ranks need a row each in every batch" in str(error)
