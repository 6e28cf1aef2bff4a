"""Checkpoints: training goes on bit for bit; a file that does not fit says why."""

import copy
import json
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import dnn
from dnn import SGD, AdamW, FullyConnected, Input, NeuralNetwork, mlp
from dnn.errors import CheckpointError, MissingDependencyError
from dnn.optimizers.schedules import Cosine
from dnn.training.loss_scaling import LossScaling

safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")


def samples(n=90, d=5, classes=3, seed=0):
    generator = np.random.default_rng(seed)
    y = generator.integers(0, classes, n)
    return (generator.normal(size=(n, d)) + 2 * np.eye(d)[y]).astype("f4"), y


OPTIMIZERS = {
    "SGD": lambda: SGD(0.1),
    "momentum": lambda: SGD(0.1, 0.9, 0.01),
    "AdaGrad": lambda: dnn.AdaGrad(0.05),
    "RMSProp": lambda: dnn.RMSProp(0.01),
    "Adam": lambda: dnn.Adam(0.01),
    "AdamW": lambda: dnn.AdamW(0.01),
    "NAdam": lambda: dnn.NAdam(0.01),
    "clipped": lambda: SGD(0.1, 0.9, clip_norm=0.5),
    "scheduled": lambda: SGD(0.1, 0.9, schedule=Cosine(30)),
}


def network(seed=0, optimizer=None, hidden=(8,), activation="tanh", **options):
    layers = mlp(5, list(hidden), 3, activation)
    return NeuralNetwork(layers, optimizer=optimizer or SGD(0.1, 0.9), seed=seed, **options)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_3_and_3_epochs_equal_6(name, tmp_path):
    x, y = samples()
    make = OPTIMIZERS[name]
    once, before, after = (network(seed, make()) for seed in (5, 5, 77))
    once.fit(x, y, validation=(x, y), epochs=6, batch_size=16)
    before.fit(x, y, validation=(x, y), epochs=3, batch_size=16)
    before.save(tmp_path / "c")
    after.load(tmp_path / "c")
    after.fit(x, y, validation=(x, y), epochs=3, batch_size=16)
    for name, array in once.parameters.items():
        assert array.tobytes() == after.parameters[name].tobytes()
    assert after.history.loss == once.history.loss
    assert after.history.validation == once.history.validation
    assert after.history.steps == once.history.steps
    assert after.seed == 5


def test_the_scale_of_the_loss_goes_on(tmp_path, monkeypatch):
    x, y = samples()
    monkeypatch.setattr(LossScaling, "INTERVAL", 4)
    once, before, after = (network(5, dtype="mixed_float16") for _ in range(3))
    once.fit(x, y, epochs=2, batch_size=16)
    before.fit(x, y, batch_size=16)
    before.save(tmp_path / "c")
    after.load(tmp_path / "c")
    after.fit(x, y, batch_size=16)
    assert after._update.scale == once._update.scale > 2**15
    assert after.predict_proba(x).tobytes() == once.predict_proba(x).tobytes()


IN_A_NEW_PROCESS = """
import sys
import numpy as np
from dnn import AdamW, NeuralNetwork, mlp
folder = sys.argv[1]
data = np.load(folder + "/data.npz")
model = NeuralNetwork(mlp(5, [8], 3, "tanh"), optimizer=AdamW(0.01), seed=1)
model.load(folder + "/c")
model.fit(data["x"], data["y"], epochs=3, batch_size=16)
np.save(folder + "/p.npy", model.predict_proba(data["x"]))
"""


def test_a_new_process_goes_on_bit_for_bit(tmp_path):
    x, y = samples()
    once, before = (network(5, AdamW(0.01)) for _ in range(2))
    once.fit(x, y, epochs=6, batch_size=16)
    before.fit(x, y, epochs=3, batch_size=16)
    before.save(tmp_path / "c")
    np.savez(tmp_path / "data.npz", x=x, y=y)
    command = [sys.executable, "-c", textwrap.dedent(IN_A_NEW_PROCESS), str(tmp_path)]
    subprocess.run(command, check=True, timeout=60)
    assert np.load(tmp_path / "p.npy").tobytes() == once.predict_proba(x).tobytes()


def written(path, **options):
    model = network(**options)
    model.fit(*samples(), epochs=2)
    model.save(path)
    return model


@pytest.mark.parametrize(("there", "here"), [("float32", "float16"), ("bfloat16", "float32")])
def test_another_precision_is_named_and_parameters_are_taken(there, here, tmp_path):
    x, y = samples()
    trained, other = network(dtype=there), network(dtype=here)
    trained.fit(x, y)
    trained.save(tmp_path / "m")
    with pytest.raises(CheckpointError, match=f"trained in {there}, and this one is in {here}"):
        other.load(tmp_path / "m")
    dnn.load_checkpoint(other, tmp_path / "m", parameters_only=True)
    for name, parameter in trained.parameters.items():
        np.testing.assert_array_equal(other.parameters[name], parameter)


def test_parameters_alone_for_another_optimizer(tmp_path):
    x, _ = samples()
    model = written(tmp_path / "c")
    other = network(3, dnn.Adam())
    with pytest.raises(CheckpointError, match="optimizer is SGD there and Adam here"):
        other.load(tmp_path / "c")
    dnn.load_checkpoint(other, tmp_path / "c", parameters_only=True)
    assert other.predict_proba(x).tobytes() == model.predict_proba(x).tobytes()
    assert other.seed == 3
    assert len(other.history) == 0


class Scale(dnn.Layer):
    def build(self, shape):
        self.factor = self.parameter("factor", shape, "ones")

    def forward(self, x):
        return x * self.factor


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (lambda: network(hidden=[9]), "units of fully_connected_1 is 8 there and 9 here"),
        (lambda: network(hidden=[8, 8]), "it has 4 layers there and 6 here"),
        (lambda: network(activation="relu"), "function of activation_1 is 'tanh' there and 'relu'"),
        (lambda: network(dtype="float64"), "its dtype is float32 there and float64 here"),
        (lambda: network(loss="mean_squared_error"), "its loss is SoftmaxCrossEntropy there"),
        (
            lambda: NeuralNetwork(
                [
                    Input(5),
                    FullyConnected(8, bias=False),
                    dnn.Activation("tanh"),
                    FullyConnected(3),
                ]
            ),
            "with_bias of fully_connected_1 is True there and False here",
        ),
        (
            lambda: NeuralNetwork([Input(6), *mlp(6, [8], 3, "tanh")[1:]]),
            r"shape of input_1 is \[5\] there and \[6\] here",
        ),
        (
            lambda: NeuralNetwork([Input(5), FullyConnected(8), Scale(), FullyConnected(3)]),
            "a layer is activation_1 there and scale_1 here",
        ),
    ],
)
def test_a_checkpoint_of_another_architecture(other, difference, tmp_path):
    written(tmp_path / "c")
    model = other()
    before = [array.tobytes() for array in model.parameters.values()]
    with pytest.raises(CheckpointError, match=f"another model: {difference}"):
        model.load(tmp_path / "c")
    assert [array.tobytes() for array in model.parameters.values()] == before
    assert len(model.history) == 0


def test_an_optimizer_that_remembers_something_else(tmp_path):
    written(tmp_path / "c", optimizer=SGD(0.1))
    with pytest.raises(CheckpointError, match=r"velocity/fully_connected_1\.weight is missing"):
        network(optimizer=SGD(0.1, 0.9)).load(tmp_path / "c")
    written(tmp_path / "c", optimizer=SGD(0.1, 0.9))
    with pytest.raises(CheckpointError, match=r"velocity/.* is there and not here"):
        network(optimizer=SGD(0.1)).load(tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"trained in float32, and this one is in float16"):
        network(dtype="mixed_float16").load(tmp_path / "c")


def test_another_start_and_another_rate_are_the_same_architecture(tmp_path):
    model = written(tmp_path / "c")
    layers = [
        Input(5),
        FullyConnected(8, initializer="zeros"),
        dnn.Activation("tanh"),
        FullyConnected(3),
    ]
    other = NeuralNetwork(layers, optimizer=SGD(0.001, 0.5))
    other.load(tmp_path / "c")
    x, _ = samples()
    assert other.predict_proba(x).tobytes() == model.predict_proba(x).tobytes()
    assert other._update.scalars["learning_rate"] == np.float32(0.001)


def rewritten(path, change):
    """Change the metadata of a checkpoint and leave the rest as it is."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    metadata = json.loads(raw[8 : 8 + size])["__metadata__"]
    path.write_bytes(safetensors.save(safetensors.load(raw), metadata=change(metadata)))


def test_another_version(tmp_path):
    written(tmp_path / "c")
    rewritten(tmp_path / "c", lambda m: {"dnn": json.dumps({**json.loads(m["dnn"]), "version": 9})})
    with pytest.raises(CheckpointError, match="version 9, but this is dnn with version 1"):
        network().load(tmp_path / "c")


def test_foreign_files(tmp_path):
    path = tmp_path / "c"
    path.write_bytes(safetensors.save({"a": np.zeros(3)}))
    with pytest.raises(CheckpointError, match="no checkpoint of dnn"):
        network().load(path)
    path.write_bytes(safetensors.save({"a": np.zeros(3)}, metadata={"dnn": "[1]"}))
    with pytest.raises(CheckpointError, match="no checkpoint of dnn"):
        network().load(path)
    for raw in (b"", b"\x80\x04K\x01.", b"PK" + bytes(100), np.zeros(100).tobytes()):
        path.write_bytes(raw)
        with pytest.raises(CheckpointError, match="truncated, or no safetensors file"):
            network().load(path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        network().load(tmp_path / "nowhere")


def test_truncated_and_damaged_files(tmp_path):
    path = tmp_path / "c"
    written(path)
    raw = path.read_bytes()
    model = network()
    for size in (4, 40, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:size])
        with pytest.raises(CheckpointError, match="truncated"):
            model.load(path)
    path.write_bytes(raw[:-5] + bytes([raw[-5] ^ 1]) + raw[-4:])
    with pytest.raises(CheckpointError, match="damaged"):
        model.load(path)
    path.write_bytes(raw)
    model.load(path)


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "c"
    model = written(path)
    raw = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    model.fit(*samples())
    with pytest.raises(CheckpointError, match="No space left"):
        model.save(path)
    assert path.read_bytes() == raw
    assert [file.name for file in tmp_path.iterdir()] == ["c"]
    with pytest.raises(CheckpointError, match="cannot be written"):
        model.save(tmp_path / "nowhere" / "c")


def test_without_safetensors_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    for call in (
        lambda: network().save(tmp_path / "c"),
        lambda: network().load(tmp_path / "c"),
        lambda: dnn.BestCheckpoint(tmp_path / "c"),
    ):
        with pytest.raises(MissingDependencyError, match=r'pip install "diel\[checkpoint\]"'):
            call()


def normalised(seed=0):
    """A network with running statistics, noise, and layers inside of a layer."""
    inside = [FullyConnected(8), dnn.Dropout(0.2), dnn.Activation("tanh")]
    layers = [Input(5), FullyConnected(8), dnn.BatchNorm(), dnn.Residual(inside), FullyConnected(3)]
    return NeuralNetwork(layers, optimizer=SGD(0.1, 0.9), seed=seed)


def test_running_statistics_and_noise_go_on_bit_for_bit(tmp_path):
    x, y = samples()
    once, before, after = normalised(5), normalised(5), normalised(6)
    once.fit(x, y, epochs=6, batch_size=16)
    before.fit(x, y, epochs=3, batch_size=16)
    before.save(tmp_path / "c")
    after.load(tmp_path / "c")
    after.fit(x, y, epochs=3, batch_size=16)
    for name, array in once.trained_arrays().items():
        assert array.tobytes() == after.trained_arrays()[name].tobytes(), name
    other = normalised(7)
    dnn.load_checkpoint(other, tmp_path / "c", parameters_only=True)
    assert other.predict_proba(x).tobytes() == before.predict_proba(x).tobytes()
    own = normalised(7).trained_arrays()["state/noise.seed"]
    assert other.trained_arrays()["state/noise.seed"] == own


def test_what_layers_inside_of_a_layer_are_is_part_of_the_architecture(tmp_path):
    model = normalised()
    model.fit(*samples())
    model.save(tmp_path / "c")
    other = normalised()
    other._network.layers[3].layers[1].rate = 0.5
    with pytest.raises(CheckpointError, match="layers of residual_1"):
        other.load(tmp_path / "c")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_trains_on_bit_for_bit_and_alone(copied):
    x, y = samples()
    model = normalised()
    model.fit(x, y, epochs=2, batch_size=16)
    twin = copied(model)
    assert twin.history == model.history
    before = model.predict_proba(x)
    twin.fit(x, y, epochs=2, batch_size=16)
    assert model.predict_proba(x).tobytes() == before.tobytes()
    assert len(model.history) == 2
    model.fit(x, y, epochs=2, batch_size=16)
    for name, array in model.trained_arrays().items():
        assert array.tobytes() == twin.trained_arrays()[name].tobytes(), name
    copied(twin)


def test_a_copy_of_a_layer_is_not_built():
    layer = FullyConnected(3)
    NeuralNetwork([Input(5), layer])
    other = copy.deepcopy(layer)
    assert layer.parameters
    assert not other.parameters
    NeuralNetwork([Input(7), other])
