"""Averages of parameters: in torch, in predictions, checkpoints, K networks and float16."""

import numpy as np
import pytest

from dnn import SGD, Adam, EarlyStopping, Ensemble, Muon, NeuralNetwork, graph, mlp
from dnn.backend import Ops
from dnn.errors import ConfigurationError
from dnn.parameters import FlatBuffer, segments_of


def data(n=60):
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, n)
    return (generator.normal(size=(n, 4)) + 2 * np.eye(4)[y]).astype("f4"), y


def model(optimizer, **options):
    return NeuralNetwork(mlp(4, [5], 3, "tanh"), optimizer=optimizer, seed=1, **options)


def test_averages_against_torch():
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    segments = segments_of([graph.variable((5, 4), "f8", "w")])
    w, g = (FlatBuffer(segments, "f8", Ops()) for _ in range(2))
    w["w"][...] = np.random.default_rng(0).normal(size=(5, 4))
    update = SGD(0.1, 0.9, average=0.8).bind(Ops(), w, g)
    theirs = torch.nn.Linear(4, 5, bias=False).double()
    ema = torch.optim.swa_utils.get_ema_multi_avg_fn(0.8)
    averaged = torch.optim.swa_utils.AveragedModel(theirs, multi_avg_fn=ema)
    for step in range(5):
        g["w"][...] = np.random.default_rng(step).normal(size=(5, 4))
        update.run()
        with torch.no_grad():
            theirs.weight.copy_(torch.tensor(w["w"]))
        averaged.update_parameters(theirs)
        found = averaged.module.weight.detach().numpy()
        np.testing.assert_allclose(update.state["average"]["w"], found, rtol=1e-12)


def test_networks_predict_and_are_measured_with_the_averages():
    x, y = data()
    kept, plain = model(SGD(0.5, average=0.9)), model(SGD(0.5))
    np.testing.assert_array_equal(kept(x), plain(x))  # before the first step
    averages = {}
    for step in range(6):
        for each in (kept, plain):
            each.fit(x, y, batch_size=len(x))  # one step
        for name, array in plain.parameters.items():
            now = array.numpy().astype("f8")
            averages[name] = now if not step else 0.9 * averages[name] + 0.1 * now
            # Training itself does not know of them.
            assert kept.parameters[name].numpy().tobytes() == array.numpy().tobytes()
    by_hand = model(SGD(0.5))
    for name, array in by_hand.parameters.items():
        array[...] = averages[name].astype("f4")
    np.testing.assert_allclose(kept(x), by_hand(x), rtol=1e-4, atol=1e-5)
    assert kept.evaluate(x, y)["loss"] == pytest.approx(by_hand.evaluate(x, y)["loss"], rel=1e-4)
    assert abs(kept.evaluate(x, y)["loss"] - plain.evaluate(x, y)["loss"]) > 1e-3


def test_each_of_k_networks_has_averages_of_its_own_bit_for_bit():
    x, y = data()
    pasts, epochs = [0.5, 0.9, 0.99], [3, 1, 3]
    together = Ensemble(mlp(4, [5], 3, "tanh"), optimizer=Adam(0.05, average=pasts), seeds=[1] * 3)
    for again in range(2):
        if again:
            together.restart([1] * 3, Adam(0.05, average=pasts))
        together.fit(x, y, epochs=epochs, batch_size=16)
        for k, past in enumerate(pasts):
            alone = model(Adam(0.05, average=past))
            alone.fit(x, y, epochs=epochs[k], batch_size=16)
            np.testing.assert_array_equal(together(x)[k], alone(x))


def test_a_checkpoint_keeps_them(tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    x, y = data()
    whole, half, rest = (model(Muon(0.1, average=0.9)) for _ in range(3))
    whole.fit(x, y, epochs=4, batch_size=16)
    half.fit(x, y, epochs=2, batch_size=16)
    half.save(tmp_path / "half")
    rest.load(tmp_path / "half")
    np.testing.assert_array_equal(rest(x), half(x))
    rest.fit(x, y, epochs=2, batch_size=16)
    np.testing.assert_array_equal(rest(x), whole(x))
    from dnn import load_checkpoint

    plain = model(SGD(0.1))
    load_checkpoint(plain, tmp_path / "half", parameters_only=True)
    np.testing.assert_array_equal(plain(x), half(x))


def averaged():
    """A model that predicts with averages, which are far from its parameters, and samples."""
    x, y = data()
    trained = model(SGD(0.5, average=0.95))
    trained.fit(x, y, epochs=3, batch_size=16)
    return trained, x


def test_weights_that_leave_are_those_that_predict(tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    trained, x = averaged()
    other = model(SGD(0.1))
    other.load_state_dict(trained.state_dict())
    np.testing.assert_array_equal(other(x), trained(x))
    trained.save_safetensors(tmp_path / "w")
    other = model(SGD(0.1))
    other.load_safetensors(tmp_path / "w")
    np.testing.assert_array_equal(other(x), trained(x))
    pytest.importorskip("onnx", reason="onnx is not installed")
    trained.export_onnx(tmp_path / "w.onnx")
    other = NeuralNetwork.from_onnx(tmp_path / "w.onnx")
    np.testing.assert_array_equal(other(x), trained(x))


def test_a_model_predicts_with_the_weights_that_it_takes_not_with_old_averages(tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    from dnn import load_checkpoint

    fresh = NeuralNetwork(mlp(4, [5], 3, "tanh"), seed=2)
    trained, x = averaged()
    trained.load_state_dict(fresh.state_dict())
    np.testing.assert_array_equal(trained(x), fresh(x))
    fresh.save(tmp_path / "c")
    trained, x = averaged()
    load_checkpoint(trained, tmp_path / "c", parameters_only=True)
    np.testing.assert_array_equal(trained(x), fresh(x))


def test_a_checkpoint_before_the_first_step_has_no_averages_to_take(tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    from dnn import load_checkpoint

    x, _ = data()
    untrained, plain = model(SGD(0.1, average=0.9)), NeuralNetwork(mlp(4, [5], 3, "tanh"), seed=2)
    untrained.save(tmp_path / "c")
    load_checkpoint(plain, tmp_path / "c", parameters_only=True)
    np.testing.assert_array_equal(plain(x), untrained(x))
    assert plain(x).any()


def test_the_best_epoch_comes_back_with_its_averages():
    x, y = data()
    network = model(SGD(3.0, 0.9, average=0.5))
    stopping = EarlyStopping("validation_loss", patience=3)
    history = network.fit(x, y, validation=(x, y), epochs=40, callbacks=[stopping])
    assert network.evaluate(x, y)["loss"] == pytest.approx(stopping.best)
    assert min(history.validation_loss) == stopping.best


def test_a_first_step_that_is_left_out_leaves_no_zeros():
    x, y = data()
    network = model(SGD(0.1, average=0.9), dtype="float16")
    network._network.ops.load(np.array(np.inf, "f4"), network._update._scale)
    network.fit(x, y, epochs=1, batch_size=len(x))
    assert network.history.skipped_steps == 1
    np.testing.assert_array_equal(network(x), model(SGD(0.1), dtype="float16")(x))


@pytest.mark.parametrize("past", [0, 1, -0.5, "long"])
def test_averages_that_are_none(past):
    with pytest.raises(ConfigurationError, match="average must be above 0 and below 1"):
        SGD(0.1, average=past)
    with pytest.raises(ConfigurationError, match="say it to Muon"):
        Muon(others=SGD(0.1, average=0.9))
