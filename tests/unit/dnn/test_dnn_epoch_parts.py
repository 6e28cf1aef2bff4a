"""Epochs in parts: checkpoints within an epoch, from which training goes on at that step."""

import copy

import numpy as np
import pytest

import dnn
from dnn import SGD, Callback, Checkpoint, NeuralNetwork, mlp
from dnn.distributed import (
    AsynchronousSGD,
    DataParallel,
    LocalSGD,
    Mesh,
    ParameterServer,
    run_on_threads,
)
from dnn.errors import ConfigurationError, DisagreementError

pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")


class Stop(Exception):
    """Ends a training in the middle."""


class StopAt(Callback):
    """Raises after so many steps of an epoch."""

    def __init__(self, epoch, steps):
        self.epoch, self.every_steps = epoch, steps

    def on_steps(self, model):
        if len(model.history) == self.epoch:
            raise Stop


class Seen(Callback):
    """Notes the steps at which it is called."""

    def __init__(self, every_steps):
        self.every_steps, self.steps, self.epochs = every_steps, [], 0

    def on_steps(self, model):
        self.steps.append(model._update.steps_done)

    def on_epoch_end(self, epoch):
        self.epochs += 1


def samples(n=90, d=5, classes=3, seed=0):
    generator = np.random.default_rng(seed)
    y = generator.integers(0, classes, n)
    return (generator.normal(size=(n, d)) + 2 * np.eye(d)[y]).astype("f4"), y


def network(seed=3, **options):
    layers = mlp(5, [8], 3, "tanh")
    layers.insert(2, dnn.Dropout(0.3))
    return NeuralNetwork(layers, optimizer=SGD(0.1, 0.9), seed=seed, **options)


def same(a, b):
    return all(
        array.tobytes() == b.parameters[name].tobytes() for name, array in a.parameters.items()
    )


@pytest.mark.parametrize("batch_size", [16, 45, 100])
def test_pauses_change_no_bit(batch_size):
    x, y = samples()
    once, paused = network(), network()
    once.fit(x, y, epochs=3, batch_size=batch_size)
    seen = Seen(2)
    paused.fit(x, y, epochs=3, batch_size=batch_size, callbacks=[seen])
    assert same(once, paused)
    np.testing.assert_allclose(paused.history.loss, once.history.loss, rtol=1e-12)
    assert paused.history.tallies == once.history.tallies
    assert paused.history.steps == once.history.steps
    steps = -(-90 // batch_size)
    within = range(2, steps, 2)  # 2 and 4 of the 6 steps of an epoch
    assert seen.steps == [epoch * steps + step for epoch in range(3) for step in within]
    assert seen.epochs == 3


@pytest.mark.parametrize(("epoch", "steps"), [(0, 1), (1, 3), (2, 5)])
def test_a_training_goes_on_in_the_middle_of_an_epoch(epoch, steps, tmp_path):
    x, y = samples()
    once = network()
    once.fit(x, y, validation=(x, y), epochs=3, batch_size=16)
    before, after = network(), network(seed=99)
    writes = Checkpoint(tmp_path / "c", every_steps=steps)
    with pytest.raises(Stop):
        before.fit(
            *(x, y),
            validation=(x, y),
            epochs=3,
            batch_size=16,
            callbacks=[writes, StopAt(epoch, steps)],
        )
    after.load(tmp_path / "c")
    assert len(after.history) == epoch
    assert after.history.steps == 6 * epoch
    copied = copy.deepcopy(after)
    for model in (after, copied):
        history = model.fit(x, y, validation=(x, y), epochs=3 - epoch, batch_size=16)
        assert same(once, model)
        np.testing.assert_allclose(model.history.loss, once.history.loss, rtol=1e-12)
        assert len(history) == 3 - epoch
        # Every sample once in an epoch: so many predictions were counted.
        assert [sum(counted[:-1]) for _, counted in model.history.tallies] == [90] * 3
        assert model.history.tallies == once.history.tallies
        assert model.history.validation == once.history.validation


def test_batches_of_another_size_take_what_is_left_of_the_epoch(tmp_path):
    x, y = samples()
    before, after = network(), network()
    callbacks = [Checkpoint(tmp_path / "c", 2), StopAt(0, 2)]
    with pytest.raises(Stop):
        before.fit(x, y, epochs=1, batch_size=16, callbacks=callbacks)
    after.load(tmp_path / "c")
    after.fit(x, y, epochs=1, batch_size=29)  # 90 - 32 = 2 * 29
    assert after.history.steps == 4
    assert [sum(counted[:-1]) for _, counted in after.history.tallies] == [90]


def test_other_samples_than_those_of_the_epoch_are_refused(tmp_path):
    x, y = samples()
    before, after = network(), network()
    callbacks = [Checkpoint(tmp_path / "c", 2), StopAt(0, 2)]
    with pytest.raises(Stop):
        before.fit(x, y, epochs=1, batch_size=16, callbacks=callbacks)
    after.load(tmp_path / "c")
    with pytest.raises(ConfigurationError, match=r"an epoch of 90 samples, and there are 60"):
        after.fit(x[:60], y[:60], epochs=1, batch_size=16)
    with pytest.raises(ConfigurationError, match="every_steps must be"):
        Checkpoint(tmp_path / "c", 0)


def test_an_epoch_that_failed_begins_anew():
    x, y = samples()
    once, failed = network(), network()
    once.fit(x, y, epochs=1, batch_size=16)
    start = failed.snapshot()
    with pytest.raises(Stop):
        failed.fit(x, y, epochs=1, batch_size=16, callbacks=[StopAt(0, 2)])
    failed.restore(start)
    failed.fit(x, y, epochs=1, batch_size=16)
    assert [sum(counted[:-1]) for _, counted in failed.history.tallies] == [90]


SCHEMES = {
    "data": DataParallel,
    "local": lambda comm: LocalSGD(comm, steps=1),
    "server": ParameterServer,
    "pipeline": lambda comm: Mesh(comm, pipeline=2, split="multiply_adds"),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_two_ranks_have_begun_goes_on_with_one_and_with_three(scheme, tmp_path):
    """In the middle of an epoch, and to rounding what one process does without a stop."""
    x, y = samples()

    def fresh(communicator=None, kind=None):
        parallel = None if communicator is None else SCHEMES[kind](communicator)
        layers = mlp(5, [8, 8], 3, "tanh")
        return NeuralNetwork(layers, optimizer=SGD(0.1), seed=3, parallel=parallel)

    once = fresh()
    once.fit(x, y, epochs=2, batch_size=16)

    def begin(communicator):
        callbacks = [Checkpoint(tmp_path / "c", 2), StopAt(1, 4)]
        with pytest.raises(Stop):
            fresh(communicator, scheme).fit(x, y, epochs=2, batch_size=16, callbacks=callbacks)

    def go_on(communicator=None):
        model = fresh(communicator, "data")
        model.load(tmp_path / "c")
        model.fit(x, y, epochs=1, batch_size=16)
        return model

    run_on_threads(2, begin, timeout_s=60)
    for model in (go_on(), *run_on_threads(3, go_on, timeout_s=60)):
        for name, array in once.parameters.items():
            np.testing.assert_allclose(model.parameters[name], array, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(model.history.loss, once.history.loss, rtol=1e-5)
        assert [sum(counted[:-1]) for _, counted in model.history.tallies] == [90, 90]


@pytest.mark.parametrize("scheme", ["local", "server", "asynchronous"])
def test_a_part_may_have_fewer_samples_than_there_are_ranks(scheme):
    """One sample is left behind the last pause; every rank draws other noise behind it."""
    x, y = samples(65)

    def train(communicator):
        parallel = {**SCHEMES, "asynchronous": AsynchronousSGD}[scheme](communicator)
        model = network(parallel=parallel)
        history = model.fit(x, y, epochs=2, batch_size=16, callbacks=[Seen(2)])
        assert [sum(counted[:-1]) for _, counted in history.tallies] == [65, 65]
        few = network(parallel=parallel).fit(x[:2], y[:2], epochs=2, batch_size=16)
        assert [sum(counted[:-1]) for _, counted in few.tallies] == [2, 2]
        states = model._network.states
        return history.loss, int(states[model._network.step_name]), model.parameters

    first, *others = run_on_threads(3, train, timeout_s=60)
    for losses, drawn, parameters in others:
        assert losses == first[0]
        assert drawn == first[1]
        for name, array in parameters.items():
            np.testing.assert_array_equal(array, first[2][name])


def test_a_checkpoint_is_a_matter_of_all_ranks(tmp_path):
    x, y = samples()

    def train(communicator):
        callbacks = [Checkpoint(tmp_path / "c", 2)] if communicator.rank == 0 else []
        model = network(parallel=DataParallel(communicator))
        with pytest.raises(DisagreementError, match="steps from one call within epochs"):
            model.fit(x, y, epochs=1, batch_size=16, callbacks=callbacks)

    run_on_threads(2, train, timeout_s=60)


@pytest.mark.parametrize("after", [1, 9])
def test_an_interrupted_epoch_is_in_no_history(after):
    x, y = samples()
    model, whole, steps = network(), network(), []
    whole.fit(x, y, epochs=3, batch_size=16)  # six steps each

    def interrupt():
        steps.append(1)
        return len(steps) == after

    watched = network()
    watched.fit(x, y, epochs=3, batch_size=16, interrupt=lambda: False)
    assert watched.history.loss == whole.history.loss
    history = model.fit(x, y, epochs=3, batch_size=16, interrupt=interrupt, metrics={})
    assert history.stopped == "interrupted within an epoch"
    assert history.loss == whole.history.loss[: after // 6]
    assert len(steps) == after
    with pytest.raises(ConfigurationError, match="interrupt must be a function"):
        model.fit(x, y, interrupt=True)


def test_interrupted_networks_are_restored_and_used_again():
    x, y = samples()
    many = dnn.Ensemble(mlp(5, [8], 3), optimizer=SGD([0.1, 0.2, 0.3]), seeds=[1, 2, 3])
    kept, steps = {}, []

    def on_epoch(epoch, active, histories):
        kept.update({k: many.snapshot(k) for k in active})
        return [1] if epoch == 0 else []

    def interrupt():
        steps.append(1)
        return len(steps) == 15

    histories = many.fit(x, y, epochs=4, batch_size=16, on_epoch=on_epoch, interrupt=interrupt)
    assert [len(history) for history in histories] == [2, 1, 2]
    for k, epochs in enumerate([2, 1, 2]):
        many.restore(k, kept[k])
        alone = NeuralNetwork(mlp(5, [8], 3), optimizer=SGD([0.1, 0.2, 0.3][k]), seed=k + 1)
        alone.fit(x, y, epochs=epochs, batch_size=16)
        for name, array in alone.parameters.items():
            np.testing.assert_array_equal(many.parameters[name][k], array)
    many.restart([1, 2, 3])
    fresh = dnn.Ensemble(mlp(5, [8], 3), optimizer=SGD([0.1, 0.2, 0.3]), seeds=[1, 2, 3])
    each = [one.fit(x, y, epochs=2, batch_size=16) for one in (many, fresh)]
    assert [h.loss for h in each[0]] == [h.loss for h in each[1]]


def test_ranks_are_not_interrupted_within_an_epoch():
    def train(communicator):
        with pytest.raises(ConfigurationError, match="different steps"):
            network(parallel=DataParallel(communicator)).fit(*samples(), interrupt=lambda: False)

    run_on_threads(2, train, timeout_s=60)
