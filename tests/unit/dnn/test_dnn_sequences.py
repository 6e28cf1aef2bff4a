"""Networks of sequences: recurrent layers as PyTorch's, embeddings, lengths, what is refused."""

import copy
import pickle

import numpy as np
import pytest
from layer_cases import F8, Alone

import dnn
from dnn import graph
from dnn.errors import ConfigurationError, DataError, DtypeError, ShapeError


def words(samples, seed=0, longest=12):
    """Sequences of 1 .. 19, and whether 7 is among them."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(3, longest + 1, samples)
    given = [generator.integers(1, 20, length) for length in lengths]
    return dnn.pad_sequences(given, longest), np.array([int(7 in x) for x in given])


def network(device="numpy", seed=1, **options):
    first = dnn.SequenceInput(12, dtype=int)
    layers = [first, dnn.Embedding(20, 8, padding=0), dnn.LSTM(16, lengths=first, **options)]
    optimizer = dnn.Adam(0.03)
    layers.append(dnn.FullyConnected(2))
    return dnn.NeuralNetwork(layers, optimizer=optimizer, seed=seed, device=device)


def test_a_lstm_learns_to_find_a_word_in_sequences_of_different_lengths():
    x, y = words(500)
    model = network("cpu")
    assert model.evaluate(x[400:], y[400:])["accuracy"] < 0.75
    history = model.fit(x[:400], y[:400], epochs=12, batch_size=25, progress=False)
    assert history.accuracy[-1] > 0.97
    assert model.evaluate(x[400:], y[400:])["accuracy"] > 0.95


@pytest.mark.parametrize("reverse", [False, True])
def test_vectors_past_the_end_of_a_sequence_do_not_count(reverse):
    # Lengths of samples of floats are a column of the samples themselves.
    draw = np.random.default_rng(3)
    vectors, lengths = draw.normal(size=(40, 5, 4)), draw.integers(1, 6, 40)
    y = (vectors[np.arange(40), 0 if reverse else lengths - 1, 0] > 0).astype(int)
    losses = []
    for device in ("numpy", "cpu"):
        first = dnn.SequenceInput(5, 4)
        layers = [first, dnn.LSTM(6, lengths=first, bidirectional=reverse), dnn.FullyConnected(2)]
        model = dnn.NeuralNetwork(layers, optimizer=dnn.Adam(0.05), seed=1, device=device)
        x = dnn.pad_sequences(vectors, 5, lengths)
        losses.append(model.fit(x, y, epochs=2, batch_size=20, progress=False).loss)
        other = np.where(np.arange(6)[:, None] < lengths[:, None, None], x, 9.0)
        other[:, 5] = x[:, 5]
        np.testing.assert_allclose(model(other), model(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(*losses, rtol=1e-4)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_layers_on_each_other_in_both_directions_are_those_of_torch(kind):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    x = np.random.default_rng(1).normal(size=(4, 6, 3))
    alone = Alone(
        getattr(dnn, kind)(5, layers=2, bidirectional=True, return_sequences=True), x, True
    )
    torch.manual_seed(0)
    module = getattr(torch.nn, kind)(
        3, 5, num_layers=2, bidirectional=True, batch_first=True, dtype=torch.float64
    )
    for parameter in alone.layer.parameters:
        name = parameter.node.name.partition(".")[2]
        alone.values[parameter.node] = getattr(module, name).detach().numpy()
    assert len(alone.layer.parameters) == len(list(module.parameters()))
    given = torch.tensor(x, requires_grad=True)
    theirs, _ = module(given)
    (theirs**2).sum().backward()
    loss = graph.sum(alone.y * alone.y)
    y, *found = alone(alone.y, *graph.gradients(loss, alone.trained))
    np.testing.assert_allclose(y, theirs.detach().numpy(), rtol=1e-12, atol=1e-14)
    names = [parameter.node.name.partition(".")[2] for parameter in alone.layer.parameters]
    wanted = [given.grad, *(getattr(module, name).grad for name in names)]
    for mine, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, other.numpy(), rtol=1e-10, atol=1e-12)


def test_the_last_states_are_those_of_all_states_at_the_ends():
    x = np.random.default_rng(2).normal(size=(4, 6, 3))
    whole = Alone(dnn.GRU(5, bidirectional=True, return_sequences=True), x, False)
    last = Alone(dnn.GRU(5, bidirectional=True), x, False)
    (states,), (ends,) = whole(), last()
    np.testing.assert_array_equal(ends, np.hstack([states[:, -1, :5], states[:, 0, 5:]]))


def test_dropout_is_between_layers_and_in_training_alone():
    x = np.random.default_rng(2).normal(size=(4, 6, 3))
    layer = dnn.LSTM(5, layers=2, dropout=0.5)
    (predicted,) = Alone(layer, x, False)()
    assert not np.array_equal(Alone(layer, x, True)()[0], predicted)
    one = dnn.LSTM(5, dropout=0.5)
    np.testing.assert_array_equal(Alone(one, x, True)()[0], Alone(one, x, False)()[0])


def test_trained_starts_are_what_the_first_step_begins_with():
    x = np.random.default_rng(2).normal(size=(4, 6, 3))
    alone = Alone(dnn.RNN(5, initial="trained"), x, False)
    start = next(p.node for p in alone.layer.parameters if p.node.name.endswith("h0_l0"))
    (before,) = alone()
    assert not np.array_equal(alone(values={start: np.ones(5)})[0], before)


@pytest.mark.parametrize("padding", [None, 2])
def test_vectors_of_integers_and_the_gradient_of_those_that_are_read(padding):
    layer = dnn.Embedding(6, 3, padding=padding)
    layer.dtype = F8
    layer.name = "embedding_1"
    layer.build((4,))
    (weight,) = (parameter.node for parameter in layer.parameters)
    values = np.random.default_rng(0).normal(size=(6, 3))
    ids = np.array([[1, 2, 1, 5], [0, 0, 2, 1]])
    y = layer.forward(graph.constant(ids, np.intp))
    factors = np.random.default_rng(1).normal(size=y.shape)
    (slope,) = graph.gradients(graph.sum(y * factors), [weight])
    found, gradient = graph.evaluate([y, slope], {weight: values})
    kept = ids != padding
    np.testing.assert_array_equal(found, values[ids] * kept[..., None])
    expected = np.zeros((6, 3))
    np.add.at(expected, ids[kept], factors[kept])
    np.testing.assert_allclose(gradient, expected, rtol=1e-14)


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_several_networks_have_the_bits_of_each_alone(device):
    x, y = words(60)
    first = dnn.SequenceInput(12, dtype=int)
    cells = dnn.LSTM(8, layers=2, dropout=0.2, lengths=first)
    layers = [first, dnn.Embedding(20, 4), cells, dnn.FullyConnected(2)]
    rates = [0.01, 0.1]
    several = dnn.Ensemble(
        copy.deepcopy(layers), optimizer=dnn.SGD(rates), seeds=[1, 2], device=device
    )
    several.fit(x, y, epochs=2, batch_size=20)
    alone = dnn.NeuralNetwork(layers, optimizer=dnn.SGD(0.1), seed=2, device=device)
    alone.fit(x, y, epochs=2, batch_size=20, progress=False)
    np.testing.assert_array_equal(several.predict_proba(x)[1], alone.predict_proba(x))


def test_a_network_of_sequences_is_copied_and_saved(tmp_path):
    x, y = words(50)
    model = network()
    model.fit(x, y, epochs=1, progress=False)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
    pytest.importorskip("safetensors", reason="checkpoints are written by safetensors")
    model.save(tmp_path / "words.safetensors")
    other = network(seed=9)
    other.load(tmp_path / "words.safetensors")
    np.testing.assert_array_equal(other.predict_proba(x), model.predict_proba(x))


def test_sequences_are_padded_with_their_lengths():
    padded = dnn.pad_sequences([[3, 1], [2], [5, 6, 7]])
    np.testing.assert_array_equal(padded, [[3, 1, 0, 2], [2, 0, 0, 1], [5, 6, 7, 3]])
    vectors = dnn.pad_sequences([np.ones((1, 2)), np.ones((3, 2))], 4)
    assert vectors.shape == (2, 5, 2)
    np.testing.assert_array_equal(vectors[:, 4, 0], [1, 3])
    again = dnn.pad_sequences(vectors[:, :4], lengths=[1, 3])
    np.testing.assert_array_equal(again, vectors[:, [0, 1, 2, 4]])


def test_sequences_that_do_not_fit_are_refused():
    x, y = words(50)
    model = network()
    name = r"sequence_input_1: "
    with pytest.raises(DataError, match=r"sequence 1 of shape \(0,\) has length 0"):
        dnn.pad_sequences([[1], []])
    with pytest.raises(ShapeError, match=r"sequence 0 of shape \(3,\) has length 3, .* 2 time"):
        dnn.pad_sequences([[1, 2, 3]], 2)
    with pytest.raises(ShapeError, match=r"sequence 1 has shape \(1,\), but sequence 0 has \(1, 2"):
        dnn.pad_sequences([[[1, 2]], [1]])
    with pytest.raises(DataError, match="there are no sequences"):
        dnn.pad_sequences([])
    x[3, 12] = 0
    with pytest.raises(
        DataError, match=name + r"sequence 3 has length 0, but x of shape \(50, 13\)"
    ):
        model.fit(x, y)
    x[3, 12] = 13
    with pytest.raises(DataError, match=name + r"sequence 3 has length 13, .* takes 1 \.\. 12"):
        model.fit(x, y)
    x[3, 12], x[2, 1] = 12, 20
    with pytest.raises(
        DataError, match=r"embedding_1: x of shape \(50, 12\) has 20 in row 2, .*19"
    ):
        model.predict(x)
    x[2, 1] = -1
    with pytest.raises(DataError, match=r"embedding_1: .* has -1 in row 2"):
        model.fit(dnn.DeviceData(x, y))
    with pytest.raises(
        DataError, match=name + r"x of shape \(50, 13\) must be integers, not float64"
    ):
        model.fit(x * 1.0, y)
    with pytest.raises(ShapeError, match=name + r"x has shape \(50, 12\), but the layer takes"):
        model.fit(x[:, :12], y)


def test_layers_that_do_not_fit_are_refused():
    def built(*layers):
        return dnn.NeuralNetwork([*layers, dnn.FullyConnected(2)])

    with pytest.raises(DtypeError, match=r"embedding_1 takes integers, .*dtype=int"):
        built(dnn.Input(5), dnn.Embedding(9, 3))
    with pytest.raises(ShapeError, match=r"lstm_1: a sample must be of shape \(steps, features\)"):
        built(dnn.Input(5), dnn.LSTM(3))
    with pytest.raises(ConfigurationError, match="lstm_1: its lengths are of a SequenceInput"):
        built(dnn.Input(5, 3), dnn.LSTM(3, lengths=dnn.SequenceInput(5, 3)))
    with pytest.raises(ConfigurationError, match="lengths must be the network's SequenceInput"):
        dnn.GRU(3, lengths=[1, 2])
    with pytest.raises(ConfigurationError, match="dropout must be in 0"):
        dnn.GRU(3, dropout=1.0)
    with pytest.raises(ConfigurationError, match="initial must be 'zeros' or 'trained'"):
        dnn.GRU(3, initial="ones")
    with pytest.raises(ConfigurationError, match="activation must be 'tanh' or 'relu'"):
        dnn.RNN(3, "sigmoid")
    with pytest.raises(ConfigurationError, match=r"padding must be in 0 \.\. 8"):
        dnn.Embedding(9, 3, padding=9)
    with pytest.raises(ConfigurationError, match="dtype must be int or float"):
        dnn.Input(3, dtype=str)


@pytest.mark.parametrize(
    ("options", "zeros"),
    [
        ({"padding": "causal", "dilation": 2}, (4, 0)),
        ({"padding": "same", "stride": 2}, (1, 1)),
        ({"padding": (0, 3), "groups": 2}, (0, 3)),
    ],
)
def test_convolution_of_sequences_is_that_of_torch(options, zeros):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    x = np.random.default_rng(4).normal(size=(3, 4, 9))
    alone = Alone(dnn.Conv1D(6, 3, **options), x, True)
    weight, bias = (parameter.node for parameter in alone.layer.parameters)
    alone.values[bias] = np.arange(6.0)
    how = {name: value for name, value in options.items() if name != "padding"}
    given = torch.nn.functional.pad(torch.tensor(x), zeros)
    values = [torch.tensor(alone.values[node]) for node in (weight, bias)]
    expected = torch.nn.functional.conv1d(given, *values, **how)
    np.testing.assert_allclose(alone()[0], expected.numpy(), rtol=1e-12, atol=1e-12)


def test_a_causal_convolution_sees_nothing_of_what_comes():
    x = np.random.default_rng(4).normal(size=(2, 3, 9))
    alone = Alone(dnn.Conv1D(5, 3, padding="causal"), x, False)
    (before,) = alone()
    x[:, :, 6:] += 1.0
    (after,) = alone(values={alone.x: x})
    assert before.shape == (2, 5, 9)
    np.testing.assert_array_equal(after[:, :, :6], before[:, :, :6])
    assert (after[:, :, 6] != before[:, :, 6]).all()


def test_sequences_that_a_convolution_does_not_take_are_refused():
    def built(*layers):
        return dnn.NeuralNetwork([*layers, dnn.Flatten(), dnn.FullyConnected(2)])

    with pytest.raises(ShapeError, match=r"conv1d_1: a sample must be \(channels, length\)"):
        built(dnn.Input(5), dnn.Conv1D(3, 2))
    with pytest.raises(ShapeError, match=r"a window of 3 reaches over 5 elements, .* \(2, 4\)"):
        built(dnn.Input(2, 4), dnn.Conv1D(3, 3, dilation=2))
    with pytest.raises(ConfigurationError, match="groups = 2 does not divide 3 channels"):
        built(dnn.Input(3, 4), dnn.Conv1D(2, 2, groups=2))
    with pytest.raises(ConfigurationError, match="stride must be an integer of at least 1, not 0"):
        dnn.Conv1D(3, 2, stride=0)
    with pytest.raises(ConfigurationError, match="padding must be 'valid', 'same', 'causal' or"):
        dnn.Conv1D(3, 2, padding="full")


def normalised(y, scale):
    return (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5) * scale


def test_a_normalised_lstm_is_that_of_the_paper():
    x = np.random.default_rng(6).normal(size=(3, 5, 4))
    alone = Alone(dnn.LSTM(6, layer_norm=True, return_sequences=True), x, False)
    generator = np.random.default_rng(7)
    values = {}
    for parameter in alone.layer.parameters:
        value = generator.normal(size=parameter.node.shape)
        alone.values[parameter.node] = values[parameter.node.name.partition(".")[2]] = value
    h = c = np.zeros((3, 6))
    states = []
    for t in range(5):
        y = normalised(x[:, t] @ values["weight_ih_l0"].T, values["norm_ih_l0"])
        z = normalised(h @ values["weight_hh_l0"].T, values["norm_hh_l0"])
        total = y + values["bias_ih_l0"] + z + values["bias_hh_l0"]
        i, f, g, o = np.split(total, 4, axis=1)
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(normalised(c, values["norm_cell_l0"]))
        states.append(h)
    np.testing.assert_allclose(alone()[0], np.stack(states, 1), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_normalised_layer_minds_lengths(kind):
    x = np.random.default_rng(6).normal(size=(40, 6, 3)).astype("f4")
    given = dnn.pad_sequences(x, lengths=1 + np.arange(40) % 6)
    y = np.arange(40) % 2

    def scores(samples):
        first = dnn.SequenceInput(6, 3)
        cells = getattr(dnn, kind)(4, layer_norm=True, lengths=first, bidirectional=True)
        layers = [first, cells, dnn.FullyConnected(2)]
        model = dnn.NeuralNetwork(layers, optimizer=dnn.SGD(0.1), seed=1, device="numpy")
        model.fit(samples, y, epochs=1, progress=False)
        return model.predict_proba(samples)

    changed = given.copy()
    changed[:, :6][np.arange(6) >= given[:, 6, :1]] = 100.0  # behind the end
    np.testing.assert_array_equal(scores(given), scores(changed))
