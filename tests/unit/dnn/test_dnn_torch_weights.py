"""Weights to and from PyTorch: the same modules there compute the same."""

import functools
import pickle
import shlex
import subprocess
import sys
from collections import OrderedDict

import numpy as np
import pytest
from torchvision_models import torchvision_models

import dnn
from dnn import NeuralNetwork, mlp, nets
from dnn.errors import CheckpointError, ConfigurationError
from dnn.io.torchvision_names import TORCHVISION
from dnn.layers import (
    Activation,
    AvgPool2D,
    BatchNorm,
    Concat,
    Conv2D,
    Dropout,
    Flatten,
    FullyConnected,
    GlobalAvgPool2D,
    Input,
    LayerNorm,
    MaxPool2D,
    Output,
    Residual,
)

SHAPE = (2, 8, 8)


def layers():
    """One of each that has an equal in PyTorch."""
    return [
        *(Input(*SHAPE), Conv2D(4, 3, padding=1, groups=2), BatchNorm(), Activation("relu")),
        *(MaxPool2D(2), Dropout(0.3), *nets.basic_block(4, 4), *nets.basic_block(4, 6, 2)),
        *(Concat([Conv2D(2, 1, bias=False)]), AvgPool2D(2, stride=1), Flatten()),
        *(FullyConnected(5, bias=False), LayerNorm(), Activation("tanh"), FullyConnected(3)),
        Output(3),
    ]


def torch_twin(torch, layers):
    """The same modules, of arguments taken from the layers, but for the shapes of weights."""
    nn = torch.nn

    class Beside(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layers = sequential(layer.layers)
            self.shortcut = sequential(getattr(layer, "shortcut", ()))
            self.concats = isinstance(layer, Concat)

        def forward(self, x):
            if self.concats:
                return torch.cat([x, self.layers(x)], 1)
            return self.shortcut(x) + self.layers(x)

    def module_of(layer):
        if isinstance(layer, Conv2D):
            filters, channels, *_ = layer.weight.shape
            how = layer.stride, layer.zeros_around[0][0], layer.dilation, layer.groups
            return nn.Conv2d(
                channels * layer.groups, filters, layer.window, *how, bias=layer.with_bias
            )
        if isinstance(layer, FullyConnected):
            return nn.Linear(*layer.weight.shape, bias=layer.with_bias)
        if isinstance(layer, BatchNorm):
            return nn.BatchNorm2d(layer.scale.shape[0], layer.epsilon)
        if isinstance(layer, LayerNorm):
            return nn.LayerNorm(layer.scale.shape[0], layer.epsilon)
        if isinstance(layer, MaxPool2D):
            return nn.MaxPool2d(layer.window, layer.stride, layer.around[0][0])
        if isinstance(layer, AvgPool2D):
            return nn.AvgPool2d(layer.window, layer.stride)
        if isinstance(layer, GlobalAvgPool2D):
            return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        if isinstance(layer, Activation):
            return {"relu": nn.ReLU, "tanh": nn.Tanh}[layer.function]()
        if isinstance(layer, Residual | Concat):
            return Beside(layer)
        return {Dropout: nn.Dropout, Flatten: nn.Flatten, Output: nn.Identity}[type(layer)]()

    def sequential(some):
        return nn.Sequential(*(module_of(layer) for layer in some))

    return sequential(layers[1:]).double()


def same_in_torch(torch, made, shape):
    """A trained network, its twin with the same weights, and samples."""
    model = NeuralNetwork(made, seed=1, optimizer=dnn.SGD(0.01))
    x = np.random.default_rng(0).normal(size=(6, *shape)).astype("f4")
    model.fit(x, np.arange(6) % 3, epochs=2, batch_size=6)  # so that statistics are not 0 and 1
    module = torch_twin(torch, model._network.layers)
    state = {name: torch.from_numpy(array) for name, array in model.state_dict().items()}
    module.load_state_dict(state)
    return model, module.eval(), x


def test_pytorch_computes_the_same_with_the_state_dict_and_back():
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    model, module, x = same_in_torch(torch, layers(), SHAPE)
    expected = module(torch.from_numpy(x).double()).detach().numpy()
    np.testing.assert_allclose(model(x), expected, atol=1e-5 * abs(expected).max())
    for state, in_order in [(module.state_dict(), False), (torch_named(module), True)]:
        other = NeuralNetwork(layers(), seed=2)
        assert not np.allclose(other(x), expected)
        other.load_state_dict(state, in_order=in_order)
        np.testing.assert_array_equal(other(x), model(x))


def torch_named(module):
    return {f"module.{name}": value for name, value in module.state_dict().items()}


@pytest.mark.sample
@pytest.mark.parametrize("name", ["alexnet", "resnet18"])
def test_a_network_by_name_has_the_gradients_of_pytorch(name):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    shape = (1, 16, 16)
    made = getattr(nets, name)(shape, 3)
    model = NeuralNetwork(made, dtype="float64", seed=1, optimizer=dnn.SGD(0.1))
    module = torch_twin(torch, model._network.layers).train()
    before = model.state_dict()
    module.load_state_dict({key: torch.from_numpy(array) for key, array in before.items()})
    x, y = np.random.default_rng(0).normal(size=(4, *shape)), np.array([0, 1, 2, 0])
    loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y))
    loss.backward()
    (found,) = model.fit(x, y, epochs=1, batch_size=4).loss
    assert found == pytest.approx(loss.item(), rel=1e-9)
    after = model.state_dict()
    for key, parameter in module.named_parameters():
        gradient = (before[key] - after[key]) / 0.1
        expected = parameter.grad.numpy()
        scale = abs(expected).max() + 1e-12
        np.testing.assert_allclose(gradient / scale, expected / scale, atol=1e-6, err_msg=key)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(dnn.LSTM, "LSTM"), (dnn.GRU, "GRU"), (dnn.RNN, "RNN")]
)
def test_recurrent_layers_and_embeddings_have_the_weights_of_pytorch(ours, theirs):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    layers = [Input(5, dtype=int), dnn.Embedding(7, 3), ours(4, layers=2, bidirectional=True)]
    model = NeuralNetwork(layers, "mean_squared_error", dtype="float64", seed=1)
    words = np.random.default_rng(0).integers(0, 7, (6, 5))
    module = torch.nn.ModuleList(
        [
            torch.nn.Embedding(7, 3),
            getattr(torch.nn, theirs)(3, 4, 2, batch_first=True, bidirectional=True),
        ]
    ).double()
    state = {name: torch.from_numpy(array) for name, array in model.state_dict().items()}
    module.load_state_dict(state)
    _, last = module[1](module[0](torch.from_numpy(words)))
    of_states = last[0] if theirs == "LSTM" else last
    expected = torch.cat([of_states[-2], of_states[-1]], -1).detach().numpy()
    np.testing.assert_allclose(model(words), expected, rtol=1e-9, atol=1e-12)


def test_a_file_for_pytorch_and_back(tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    model = NeuralNetwork(layers(), seed=1)
    path = tmp_path / "weights.safetensors"
    model.save_safetensors(path)
    other = NeuralNetwork(layers(), seed=2)
    other.load_safetensors(path)
    x = np.random.default_rng(0).normal(size=(3, *SHAPE)).astype("f4")
    np.testing.assert_array_equal(other(x), model(x))
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    from safetensors.torch import load_file, save_file

    module = torch_twin(torch, model._network.layers).float()
    module.load_state_dict(load_file(path))
    np.testing.assert_allclose(
        model(x), module.eval()(torch.from_numpy(x)).detach().numpy(), rtol=1e-4, atol=1e-5
    )
    renamed = {f"body.{name}": value for name, value in module.state_dict().items()}
    save_file(renamed, path)
    third = NeuralNetwork(layers(), seed=3)
    with pytest.raises(CheckpointError, match=r"weights.safetensors: 0.weight is missing"):
        third.load_safetensors(path)
    names = {f"body.{i}": str(i) for i in range(20)}
    third.load_safetensors(path, names=names)
    np.testing.assert_array_equal(third(x), model(x))


def changed(**changes):
    state = NeuralNetwork(layers(), seed=1).state_dict()
    for name, change in changes.items():
        name = name.replace("_", ".", 1)
        value = change(state[name])
        if value is None:
            del state[name]
        else:
            state[name] = value
    return state


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (lambda: changed(**{"0_weight": lambda x: None}), "0.weight is missing, for conv2d_1.weig"),
        (lambda: changed() | {"99.bias": np.zeros(2)}, "99.bias is there, and no layer here has"),
        (
            lambda: changed(**{"0_weight": lambda x: x[:1]}),
            r"0.weight has the shape \(1, 1, 3, 3\), and conv2d_1.weight takes \(4, 1, 3, 3\)",
        ),
        (lambda: changed(**{"0_bias": lambda x: x * np.nan}), "0.bias has NaN or infinity"),
        (
            lambda: changed(**{"0_bias": lambda x: x.astype("f8") + 1e300}),
            "0.bias has NaN or infinity",
        ),
        (lambda: changed(**{"0_bias": lambda x: x.astype(int)}), "must be of floats, not int64"),
        (lambda: changed(**{"1_running_var": lambda x: x - 9}), "1.running_var has a variance bel"),
        (lambda: {"conv.weight": np.zeros(3)}, "is missing.*in_order=True takes arrays"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_taken(state, says):
    model = NeuralNetwork(layers(), seed=2)
    before = model.state_dict()
    with pytest.raises(CheckpointError, match=f"the state dict: .*{says}"):
        model.load_state_dict(state())
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize("beginning", ["module.", "model.", "_orig_mod.module."])
def test_names_of_wrappers_before_those_of_a_network(beginning, tmp_path):
    model, other = NeuralNetwork(layers(), seed=1), NeuralNetwork(layers(), seed=2)
    state = {f"{beginning}{name}": value for name, value in model.state_dict().items()}
    np.savez(tmp_path / "w.npz", **state)
    found = other.load_weights(tmp_path / "w.npz")
    assert f'without "{beginning}" before their names' in str(found)
    assert found.fitted[0] == (f"{beginning}0.weight", "conv2d_1.weight")
    for name, value in other.state_dict().items():
        np.testing.assert_array_equal(value, state[f"{beginning}{name}"])
    np.savez(tmp_path / "w.npz", **{**state, "step": np.zeros(1)})
    with pytest.raises(CheckpointError, match="step is there, and no layer here has it"):
        other.load_weights(tmp_path / "w.npz")
    np.savez(tmp_path / "w.npz", **{"other.0.weight": np.zeros(1)})
    with pytest.raises(CheckpointError, match=r'names={"theirs": "ours"} renames'):
        other.load_weights(tmp_path / "w.npz")


def test_a_matrix_with_its_axes_in_the_other_order_is_named():
    model = NeuralNetwork(mlp(3, [4], 2))
    state = {name: value.T for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"0.weight has .* \(4, 3\): transposed, so load its"):
        model.load_state_dict(state)


def test_in_order_the_numbers_have_to_agree():
    model = NeuralNetwork(layers())
    with pytest.raises(CheckpointError, match="1 arrays are there, and 37 are wanted"):
        model.load_state_dict({"a": np.zeros(3)}, in_order=True)


def test_no_pickle_is_read(tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    path = tmp_path / "weights.pt"
    path.write_bytes(pickle.dumps({"0.weight": np.zeros(3)}))
    with pytest.raises(
        CheckpointError, match=r"a pickle, and no safetensors file.*convert it: pyt"
    ):
        NeuralNetwork(layers()).load_safetensors(path)
    np.savez(tmp_path / "objects.npz", a=np.array([{}], object))
    with pytest.raises(CheckpointError, match=r"objects.npz: cannot be read"):
        NeuralNetwork(layers()).load_weights(tmp_path / "objects.npz")


def test_the_command_for_a_pickle_converts_it(tmp_path):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    model, other = NeuralNetwork(layers(), seed=1), NeuralNetwork(layers(), seed=2)
    state = {name: torch.from_numpy(array) for name, array in model.state_dict().items()}
    torch.save({"state_dict": state}, tmp_path / "weights.pt")
    with pytest.raises(CheckpointError, match="convert it") as caught:
        other.load_weights(tmp_path / "weights.pt")
    words = shlex.split(str(caught.value).partition("convert it: ")[2])
    assert words[0] == "python"
    subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, check=True, timeout=120)
    other.load_weights(tmp_path / "weights.safetensors")
    x = np.random.default_rng(0).normal(size=(3, *SHAPE)).astype("f4")
    np.testing.assert_array_equal(other(x), model(x))


def test_narrow_numbers_become_wide(tmp_path):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    model = NeuralNetwork(dnn.mlp(3, [4], 2), seed=1)
    arrays = model.state_dict()
    kinds = zip(arrays.items(), [torch.bfloat16, torch.float16] * 2, strict=True)
    state = {name: torch.from_numpy(array).to(kind) for (name, array), kind in kinds}
    safetensors.save_file(state, tmp_path / "w.safetensors")
    model.load_weights(tmp_path / "w.safetensors")
    other = NeuralNetwork(dnn.mlp(3, [4], 2), seed=2)
    other.load_state_dict(state)
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, state[name].float().numpy())
        np.testing.assert_array_equal(array, other.state_dict()[name])


# -- what fits, and what does not ------------------------------------------------------------------


def test_a_table_says_what_does_not_fit():
    model = NeuralNetwork(dnn.mlp(3, [4], 2), seed=1)
    state = model.state_dict()
    del state["0.bias"]
    state |= {"2.weight": np.ones((5, 4), "f4"), "extra": np.ones(2, "f4")}
    with pytest.raises(CheckpointError) as caught:
        model.load_state_dict(state)
    assert str(caught.value).splitlines() == [
        "the state dict: 0.bias is missing, for fully_connected_1.bias",
        "2 of 4 arrays fit",
        "  missing     0.bias    for fully_connected_1.bias",
        "  unexpected  extra",
        "  other shape 2.weight  (5, 4), and fully_connected_2.weight takes (2, 4)",
    ]
    with pytest.raises(CheckpointError, match=r"2.weight has the shape"):
        model.load_state_dict(state, strict=False)
    before = model.state_dict()
    found = model.load_state_dict(state, strict=False, skip=["fully_connected_2.w*"])
    assert found.missing == [("0.bias", "fully_connected_1.bias")]
    assert (found.unexpected, found.skipped) == (["extra"], ["fully_connected_2.weight"])
    assert [ours for _, ours in found.fitted] == [
        "fully_connected_1.weight",
        "fully_connected_2.bias",
    ]
    np.testing.assert_array_equal(model.state_dict()["2.weight"], before["2.weight"])
    with pytest.raises(ConfigurationError, match=r"skip: 'conv\*': no array is called so"):
        model.load_state_dict(state, skip=["conv*"])
    with pytest.raises(CheckpointError, match="no array there is one of this network"):
        model.load_state_dict({"other": np.ones(2)}, strict=False)


def test_a_long_table_is_cut():
    model = NeuralNetwork(dnn.mlp(3, [4] * 10, 2))
    with pytest.raises(CheckpointError, match="missing     and 10 more"):
        model.load_state_dict({})


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_weights_in_a_file_and_back(suffix, tmp_path):
    if suffix == "safetensors":
        pytest.importorskip("safetensors", reason="safetensors is not installed")
    model, other = NeuralNetwork(layers(), seed=1), NeuralNetwork(layers(), seed=2)
    model.save_weights(tmp_path / f"w.{suffix}")
    table = str(other.load_weights(tmp_path / f"w.{suffix}"))
    assert table == "37 of 37 arrays fit"
    x = np.random.default_rng(0).normal(size=(3, *SHAPE)).astype("f4")
    np.testing.assert_array_equal(other(x), model(x))


@pytest.mark.parametrize("average", [None, 0.9])
def test_weights_of_a_checkpoint_are_those_of_its_predictions(average, tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    options = {} if average is None else {"average": average}
    made = [*layers()[:4], Dropout(0.2), Flatten(), FullyConnected(3)]
    model = NeuralNetwork(made, optimizer=dnn.SGD(0.1, momentum=0.9, **options), seed=1)
    x = np.random.default_rng(0).normal(size=(6, *SHAPE)).astype("f4")
    model.fit(x, np.arange(6) % 3, epochs=2, progress=False)
    model.save(tmp_path / "model.safetensors")
    again = [*layers()[:4], Dropout(0.5), Flatten(), FullyConnected(3)]
    other = NeuralNetwork(again, optimizer="adam", seed=2)
    assert str(other.load_weights(tmp_path / "model.safetensors")) == "8 of 8 arrays fit"
    np.testing.assert_array_equal(other(x), model(x))


# -- torchvision -----------------------------------------------------------------------------------

SIZES = {"alexnet": 96}
# Those with fully connected layers get images that leave 2 x 2 pixels to them, and 43 million
# weights at most; how many there are for images of ImageNet is asked in test_dnn_nets.py.
FIRST_LINEAR = {"alexnet": (1, 256), "vgg16": (0, 512)}
OPTIONS = {"vgg16": {"batch_norm": False}}


def random_module(torch, make):
    """A network of torchvision with random weights; none of its statistics and scales is 0 or 1."""
    torch.manual_seed(0)
    module = make(weights=None).eval()
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if name.endswith(("running_mean", "bias")):
                value.normal_(0, 0.1)
            elif name.endswith(("running_var", "layer_scale")):
                value.uniform_(0.5, 1.5)
    return module


def of_small_images(torch, make, place, channels, weights):
    """A network of torchvision that takes 2 x 2 pixels as they are, without a pooling to more."""
    module = make(weights=weights)
    module.avgpool = torch.nn.Identity()
    module.classifier[place] = torch.nn.Linear(channels * 2 * 2, 4096)
    return module


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", sorted(TORCHVISION, key=lambda name: name not in ("resnet18",)))
def test_networks_of_torchvision_in_both_directions(name):
    models = torchvision_models()
    torch = sys.modules["torch"]
    make = getattr(models, name)
    if name in FIRST_LINEAR:
        make = functools.partial(of_small_images, torch, make, *FIRST_LINEAR[name])
    module = random_module(torch, make)
    size = SIZES.get(name, 64)
    made = getattr(dnn, name)((3, size, size), 1000, **OPTIONS.get(name, {}))
    model = NeuralNetwork(made, seed=3)
    state = module.state_dict()
    found = model.load_state_dict(state)
    assert not found.count_of_problems
    x = np.random.default_rng(0).normal(size=(2, 3, size, size)).astype("f4")
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(model(x), expected, rtol=0, atol=1e-5 * abs(expected).max())
    back = model.state_dict(names=name)
    assert back.keys() == {each for each in state if not each.endswith("num_batches_tracked")}
    for each, array in back.items():
        np.testing.assert_array_equal(array, state[each].numpy(), err_msg=each)
    theirs = OrderedDict((each, torch.from_numpy(array * 0)) for each, array in back.items())
    theirs._metadata = state._metadata
    fitted = module.load_state_dict(theirs, strict=False)
    assert not fitted.unexpected_keys
    assert all(each.endswith("num_batches_tracked") for each in fitted.missing_keys)


@pytest.mark.thorough
def test_a_network_of_torchvision_is_trained_alike():
    models = torchvision_models()
    torch = sys.modules["torch"]
    module = random_module(torch, models.shufflenet_v2_x1_0).double().train()
    made = dnn.shufflenet_v2_x1_0((3, 64, 64), 1000)
    model = NeuralNetwork(made, dtype="float64", optimizer=dnn.SGD(0.1))
    model.load_state_dict(module.state_dict())
    before = model.state_dict(names="shufflenet_v2_x1_0")
    x, y = np.random.default_rng(0).normal(size=(4, 3, 64, 64)), np.array([0, 1, 2, 0])
    loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y))
    loss.backward()
    (found,) = model.fit(x, y, epochs=1, batch_size=4).loss
    assert found == pytest.approx(loss.item(), rel=1e-9)
    after = model.state_dict(names="shufflenet_v2_x1_0")
    for key, parameter in module.named_parameters():
        expected = parameter.grad.numpy()
        scale = abs(expected).max() + 1e-9
        gradient = (before[key] - after[key]) / 0.1
        np.testing.assert_allclose(gradient / scale, expected / scale, atol=1e-5, err_msg=key)
    for key, buffer in module.named_buffers():
        if not key.endswith("num_batches_tracked"):
            np.testing.assert_allclose(after[key], buffer.numpy(), rtol=1e-6, atol=1e-9)


def test_other_classes_than_those_of_torchvision():
    models = torchvision_models()
    torch = sys.modules["torch"]
    state = random_module(torch, models.mobilenet_v3_small).state_dict()
    model = NeuralNetwork(dnn.mobilenet_v3_small((3, 32, 32), 5), seed=1)
    message = r"classifier.3.weight has the shape \(1000, 1024\), and .* takes \(5, 1024\)"
    with pytest.raises(CheckpointError, match=message):
        model.load_state_dict(state)
    found = model.load_state_dict(state, skip=["classifier.3"])
    assert found.skipped == ["fully_connected_2.weight", "fully_connected_2.bias"]
    with pytest.raises(ConfigurationError, match="unknown network of torchvision 'resnet19'"):
        model.state_dict(names="resnet19")
