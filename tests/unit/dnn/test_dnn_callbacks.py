"""Callbacks: order, early stopping, the best epoch, pruning, the progress bar; validation sets."""

import io
import re
import sys

import numpy as np
import pytest

import dnn
from dnn import (
    SGD,
    BestCheckpoint,
    Callback,
    EarlyStopping,
    FullyConnected,
    Input,
    NeuralNetwork,
    ProgressBar,
    Pruning,
    mlp,
)
from dnn.data.dataset import split_rows
from dnn.errors import ConfigurationError, DataError, MissingDependencyError


def samples(n=90, d=5, classes=3, seed=0):
    generator = np.random.default_rng(seed)
    y = generator.integers(0, classes, n)
    return (generator.normal(size=(n, d)) + 2 * np.eye(d)[y]).astype("f4"), y


def network(seed=0, rate=0.1):
    return NeuralNetwork(mlp(5, [8], 3, "tanh"), optimizer=SGD(rate, 0.9), seed=seed)


class Diary(Callback):
    """Writes down what it is told; stops after some epochs."""

    def __init__(self, stop_after=None, fail=False):
        self.entries = []
        self.stop_after = stop_after
        self.fail = fail

    def on_fit_begin(self, model, epochs):
        self.entries.append(("begin", epochs))

    def on_epoch_end(self, epoch):
        self.entries.append((epoch.index, epoch.loss, dict(epoch.validation)))
        if self.fail:
            raise RuntimeError("a callback's own mistake")
        return "enough" if len(epoch.history) == self.stop_after else None

    def on_fit_end(self, model, history):
        self.entries.append(("end", len(history), history.stopped))


def test_a_callback_sees_every_epoch_and_may_stop():
    x, y = samples()
    model, diary, other = network(), Diary(stop_after=2), Diary()
    history = model.fit(x, y, validation=(x, y), epochs=5, callbacks=[diary, other])
    assert history.stopped == "enough"
    assert len(history) == 2
    assert diary.entries[0] == ("begin", 5)
    assert diary.entries[-1] == ("end", 2, "enough")
    assert diary.entries == other.entries  # all are called, though the first has asked to stop
    assert diary.entries[1:-1] == [
        (epoch, history.loss[epoch], history.validation[epoch]) for epoch in range(2)
    ]
    model.fit(x, y, callbacks=[diary])
    assert diary.entries[-2][0] == 2  # counted over the life of the model
    assert len(model.history) == 3
    assert model.history.stopped is None


def test_callbacks_end_though_one_fails():
    x, y = samples()
    failing, diary = Diary(fail=True), Diary()
    with pytest.raises(RuntimeError, match="own mistake"):
        network().fit(x, y, callbacks=[failing, diary])
    assert failing.entries[-1] == diary.entries[-1] == ("end", 1, None)


def test_callbacks_change_no_bit_of_the_training():
    x, y = samples()
    alone, watched = network(), network()
    alone.fit(x, y, epochs=4)
    callbacks = [Diary(), Pruning(lambda epoch, value: False, "loss"), ProgressBar()]
    watched.fit(x, y, epochs=4, callbacks=callbacks)
    assert alone.predict_proba(x).tobytes() == watched.predict_proba(x).tobytes()


def overfitting():
    """Labels that are noise: the validation loss must rise."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(60, 5)).astype("f4")
    return x, generator.integers(0, 3, 60), generator.normal(size=(60, 5)).astype("f4")


def test_early_stopping_restores_the_best_epoch():
    x, y, other = overfitting()
    validation = (other, y[::-1])
    watching = EarlyStopping(patience=3)
    model = network(rate=0.3)
    history = model.fit(x, y, validation=validation, epochs=200, callbacks=[watching])
    losses = [result["loss"] for result in history.validation]
    assert len(losses) < 200
    assert watching.best == min(losses) == losses[watching.best_epoch]
    assert len(losses) == watching.best_epoch + 1 + 3
    assert history.stopped == "validation_loss has not become better for 3 epochs"
    assert model.evaluate(*validation)["loss"] == min(losses)
    last = network(rate=0.3)
    keeping = EarlyStopping(patience=3, restore_best=False)
    last.fit(x, y, validation=validation, epochs=200, callbacks=[keeping])
    assert last.evaluate(*validation)["loss"] == losses[-1] > min(losses)


def test_the_best_is_restored_after_the_last_epoch_too():
    x, y, other = overfitting()
    model = network(rate=0.3)
    callback = EarlyStopping(patience=100)
    history = model.fit(x, y, validation=(other, y), epochs=30, callbacks=[callback])
    assert history.stopped is None
    assert callback.best_epoch < 29
    assert model.evaluate(other, y) == history.validation[callback.best_epoch]


def test_early_stopping_wants_an_improvement_of_min_delta():
    x, y = samples()
    callback = EarlyStopping("validation_accuracy", patience=2, min_delta=1.0)
    history = network().fit(x, y, validation=(x, y), epochs=50, callbacks=[callback])
    assert len(history) == 3
    assert callback.best == history.validation_accuracy[0]


def test_an_early_stopping_can_watch_one_training_after_another():
    x, y, other = overfitting()
    callback = EarlyStopping(patience=2)
    first = network(rate=0.3).fit(x, y, validation=(other, y), epochs=99, callbacks=[callback])
    again = network(rate=0.3).fit(x, y, validation=(other, y), epochs=99, callbacks=[callback])
    assert first.loss == again.loss


def test_a_network_that_diverges_gets_its_best_epoch_back():
    class TooFast(Callback):
        def on_epoch_end(self, epoch):
            if epoch.index == 2:
                epoch.model._update.scalars["learning_rate"][...] = 1e38

    x, y = samples()
    model = network(rate=0.1)
    callbacks = [EarlyStopping("loss", patience=5), TooFast()]
    history = model.fit(x, y, epochs=50, callbacks=callbacks)
    assert history.diverged
    assert len(history) == 4
    assert np.isfinite(model.predict_proba(x)).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EarlyStopping("validation_los"), "validation_los"),
        (lambda: EarlyStopping(patience=0), "patience"),
        (lambda: EarlyStopping(min_delta=-1), "min_delta"),
        (lambda: Pruning(lambda epoch, value: True, every=0), "every"),
        (lambda: Pruning(lambda epoch, value: True, "val_acc"), "validation_accuracy"),
    ],
)
def test_options_of_callbacks_out_of_range(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_watching_a_validation_set_that_there_is_not():
    with pytest.raises(ConfigurationError, match=r"'validation_loss'.*no validation set"):
        network().fit(*samples(), callbacks=[EarlyStopping()])
    layers = [Input(5), FullyConnected(1)]
    x, y = samples()
    model = NeuralNetwork(layers, "mean_squared_error")
    with pytest.raises(ConfigurationError, match=r"'validation_accuracy'.*: loss, validation_loss"):
        model.fit(x, y, validation=(x, y), callbacks=[EarlyStopping("validation_accuracy")])


def test_pruning_reports_and_obeys():
    x, y = samples()
    reports = []

    def report(epoch, value):
        reports.append((epoch, value))
        return epoch >= 4

    callback = Pruning(report, "validation_accuracy", every=2)
    history = network().fit(x, y, validation=(x, y), epochs=9, callbacks=[callback])
    assert history.stopped == "pruned"
    assert callback.pruned
    assert reports == [(2, history.validation_accuracy[1]), (4, history.validation_accuracy[3])]
    network().fit(x, y, validation=(x, y), epochs=1, callbacks=[callback])
    assert not callback.pruned


def test_the_best_epoch_is_written(tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    x, y, other = overfitting()
    path = tmp_path / "best.safetensors"
    callback = BestCheckpoint(path)
    model = network(rate=0.3)
    history = model.fit(x, y, validation=(other, y), epochs=30, callbacks=[callback])
    best = network(seed=9)
    dnn.load_checkpoint(best, path)
    assert best.evaluate(other, y) == history.validation[callback.best_epoch]
    assert len(best.history) == callback.best_epoch + 1 < 30
    assert [file.name for file in tmp_path.iterdir()] == ["best.safetensors"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_progress_bar_is_for_terminals(monkeypatch):
    x, y = samples()
    for progress, stream, shown in [
        (None, Terminal(), True),
        (True, Terminal(), True),
        (False, Terminal(), False),
        (None, io.StringIO(), False),
        (True, io.StringIO(), False),
    ]:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        network().fit(x, y, validation=(x, y), epochs=3, progress=progress)
        text = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", stream.getvalue())  # no colours
        assert ("3/3" in text) == shown
        assert ("accuracy" in text) == shown


def test_a_second_bar_at_one_terminal_is_left_out(monkeypatch):
    class Inner(Callback):
        def on_epoch_end(self, epoch):
            network().fit(x, y, progress=True)

    x, y = samples()
    monkeypatch.setattr(sys, "stderr", Terminal())
    network().fit(x, y, epochs=2, callbacks=[Inner()], progress=True)


def test_without_rich_only_a_wanted_bar_fails(monkeypatch):
    for module in ("rich", "rich.progress", "rich.console"):
        monkeypatch.setitem(sys.modules, module, None)
    network().fit(*samples())
    with pytest.raises(MissingDependencyError, match="rich"):
        network().fit(*samples(), progress=True)


def test_a_share_of_the_samples_validates():
    x, y = samples(90)
    model = network()
    history = model.fit(x, y, validation=0.2, epochs=3, batch_size=8)
    assert len(history.validation) == 3
    assert history.steps == 3 * 9  # 72 rows remain
    kept, held_out = split_rows(90, y, 0.2, 0)
    apart = network()
    expected = apart.fit(
        x[kept], y[kept], validation=(x[held_out], y[held_out]), epochs=3, batch_size=8
    )
    assert history.validation == expected.validation
    again = network()
    for _ in range(3):  # the same rows in every call
        again.fit(x, y, validation=0.2, batch_size=8)
    assert again.predict_proba(x).tobytes() == model.predict_proba(x).tobytes()


@pytest.mark.parametrize("share", [0.0, 1.0, 2.0, True])
def test_shares_out_of_range(share):
    with pytest.raises(ConfigurationError, match="share between 0 and 1"):
        network().fit(*samples(), validation=share)
    with pytest.raises(DataError, match="90 samples"):
        network().fit(*samples(), validation=0.001)


def test_history_of_one_call_and_of_all():
    x, y = samples()
    model = network()
    first = model.fit(x, y, epochs=2, batch_size=30)
    second = model.fit(x, y, validation=(x, y), epochs=1, batch_size=30)
    assert model.history.loss == first.loss + second.loss
    assert model.history.steps == 9
    assert model.history.validation_accuracy == second.validation_accuracy
    assert second.validation_accuracy == [second.validation[0]["accuracy"]]
    assert second.validation_loss == [second.validation[0]["loss"]]
    assert model.history.training == first.training + second.training
    assert model.history.accuracy == first.accuracy + second.accuracy
    assert len(first.epoch_times_s) == 2
    assert first.training_time_s == sum(first.epoch_times_s) > 0


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"callbacks": [3]}, "3 is no Callback"),
        ({"callbacks": EarlyStopping()}, r"a sequence: \[EarlyStopping"),
        ({"callbacks": [EarlyStopping]}, "is no Callback"),
        ({"validation": (1,)}, "1 things"),
        ({"validation": (1, 2, 3)}, "3 things"),
        ({"validation": "0.2"}, "share between 0 and 1"),
    ],
)
def test_options_of_fit_that_are_none(option, message):
    with pytest.raises(ConfigurationError, match=message):
        network().fit(*samples(), **option)
