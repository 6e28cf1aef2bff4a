"""Networks as PyTorch writes them: by both of its exporters, and for any batch or a stated one."""

import contextlib
import io
import logging
import warnings

import numpy as np
import pytest

from dnn import NeuralNetwork, OnnxModel
from dnn.layers import (
    GRU,
    LSTM,
    RNN,
    Activation,
    BatchNorm,
    Conv2D,
    Flatten,
    FullyConnected,
    GlobalAvgPool2D,
    Input,
    LayerNorm,
    MaxPool2D,
)

pytest.importorskip("onnx", reason="onnx is not installed")
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nn = torch.nn


class Recurrent(nn.Module):
    """A recurrent layer, what is read of it, and a fully connected layer."""

    def __init__(self, kind, reads="last", **how):
        super().__init__()
        self.cells, self.reads = kind(5, 8, batch_first=True, **how), reads
        self.out = nn.Linear(16 if how.get("bidirectional") else 8, 3)

    def forward(self, x):
        states, end = self.cells(x)
        if self.reads == "end":
            return self.out((end[0] if isinstance(end, tuple) else end)[-1])
        return self.out(states[:, -1])


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")

    def forward(self, x):
        return self.layer(self.embedding(x)).mean(1)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.gate = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        y = nn.functional.hardswish(self.first(x))
        return (y * torch.sigmoid(self.gate(y.mean((2, 3), keepdim=True)))).flatten(1)


def images():
    return nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.SiLU()),
        *(nn.MaxPool2d(3, 2, ceil_mode=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.Dropout(0.2), nn.Linear(4, 2), nn.Softmax(dim=1)),
    )


def transposed():
    return nn.Sequential(
        *(nn.ConvTranspose2d(2, 4, 3, stride=2, output_padding=1), nn.PReLU(4)),
        *(nn.Upsample(scale_factor=2, mode="bilinear"), nn.GroupNorm(2, 4), nn.Flatten()),
    )


SEQUENCES = (4, 5)
NETWORKS = {
    "rnn of tanh": (lambda: Recurrent(nn.RNN), SEQUENCES, [RNN, FullyConnected]),
    "rnn of relu": (lambda: Recurrent(nn.RNN, nonlinearity="relu"), SEQUENCES, None),
    "lstm": (lambda: Recurrent(nn.LSTM), SEQUENCES, [LSTM, FullyConnected]),
    "gru": (lambda: Recurrent(nn.GRU), SEQUENCES, [GRU, FullyConnected]),
    "lstm of two": (lambda: Recurrent(nn.LSTM, num_layers=2), SEQUENCES, None),
    "gru at its end": (lambda: Recurrent(nn.GRU, "end"), SEQUENCES, [GRU, FullyConnected]),
    "lstm both ways": (lambda: Recurrent(nn.LSTM, bidirectional=True), SEQUENCES, None),
    "rnn of two at its end": (lambda: Recurrent(nn.RNN, "end", num_layers=2), SEQUENCES, None),
    "gru of two both ways": (
        lambda: Recurrent(nn.GRU, num_layers=2, bidirectional=True),
        SEQUENCES,
        None,
    ),
    "images": (
        images,
        (3, 9, 9),
        [Conv2D, Activation, MaxPool2D, GlobalAvgPool2D, FullyConnected, Activation],
    ),
    "gelu": (
        lambda: nn.Sequential(
            *(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8)),
            *(nn.Linear(8, 3), nn.GELU(approximate="tanh")),
        ),
        (4,),
        [FullyConnected, Activation, LayerNorm, FullyConnected, Activation],
    ),
    "flatten": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU6(), nn.Flatten(), nn.Linear(32, 3)),
        (1, 6, 6),
        [Conv2D, Activation, Flatten, FullyConnected],
    ),
    "gate": (Gated, (2, 5, 5), None),
    "transposed": (transposed, (2, 4, 4), None),
    "attention": (Attending, (7,), None),
}

WAYS = {
    "any batch": {"dynamo": False, "dynamic_axes": {"x": {0: "n"}}, "opset_version": 17},
    "stated batch": {"dynamo": False, "opset_version": 17},
    "opset 13": {"dynamo": False, "opset_version": 13, "do_constant_folding": False},
    "dynamo": {},
}


def exported(module, x, path, how):
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            torch.onnx.export(module, (x,), str(path), input_names=["x"], **how)
        finally:
            logging.disable(logging.NOTSET)


@pytest.mark.sample(8)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_as_pytorch_writes_them(name, way, tmp_path):
    if way == "dynamo":
        pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    make, shape, layers = NETWORKS[name]
    if name == "attention" and way in ("any batch", "opset 13"):
        pytest.skip("PyTorch does not export it so")
    torch.manual_seed(0)
    module = make().eval()
    integers = name == "attention"
    x = torch.randint(0, 11, (5, *shape)) if integers else torch.randn(5, *shape)
    path = tmp_path / "made.onnx"
    exported(module, x[:2], path, WAYS[way])
    expected = module(x).detach().numpy()
    np.testing.assert_allclose(OnnxModel(path)(x.numpy()), expected, rtol=1e-4, atol=1e-5)
    model = NeuralNetwork.from_onnx(path, "mean_squared_error", seed=1)
    np.testing.assert_allclose(model(x.numpy()), expected, rtol=1e-4, atol=1e-5)
    found = [type(layer) for layer in model._network.layers]
    unrolled = way == "dynamo" and "rnn" in name  # time step by time step
    normalised = [BatchNorm] if way == "opset 13" else []
    if layers is not None and not unrolled and not (name == "gelu" and way == "opset 13"):
        kept = [kind for kind in found if kind not in normalised]
        assert kept[0] is Input
        assert [kind for kind in kept[1:] if kind.__name__ != "Dropout"] == layers
    model.fit(x.numpy(), expected + 1.0, epochs=1)
