"""Networks by name: their published sizes, what they compute and that they learn."""

import numpy as np
import pytest
from support import THOROUGH

import dnn
from dnn import nets
from dnn.layers import (
    Concat,
    Conv2D,
    Input,
)

IMAGENET = (3, 224, 224)

# Parameters, and billions of multiply-adds, as torchvision's documentation publishes them.
PUBLISHED = {
    "alexnet": (61_100_840, 0.71),
    "vgg16": (138_357_544, 15.47),
    "resnet18": (11_689_512, 1.81),
    "resnet50": (25_557_032, 4.09),
    "densenet121": (7_978_856, 2.83),
    "resnext50_32x4d": (25_028_904, 4.23),
    "mobilenet_v2": (3_504_872, 0.3),
    "mobilenet_v3_small": (2_542_856, 0.06),
    "mobilenet_v3_large": (5_483_032, 0.22),
    "mnasnet0_5": (2_218_512, 0.1),
    "squeezenet1_1": (1_235_496, 0.35),
    "shufflenet_v2_x1_0": (2_278_604, 0.14),
    "efficientnet_b0": (5_288_548, 0.39),
    "convnext_tiny": (28_589_128, 4.46),
}


def totals(layers):
    name, *numbers = dnn.summary(layers).splitlines()[-1].split()
    assert name == "total"
    return tuple(int(number.replace(",", "")) for number in numbers)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_multiply_adds_are_those_published(name):
    options = {"batch_norm": False} if name == "vgg16" else {}
    parameters, multiply_adds = totals(getattr(dnn, name)(IMAGENET, 1000, **options))
    assert parameters == PUBLISHED[name][0]
    assert round(multiply_adds / 1e9, 2) == PUBLISHED[name][1]


def written(layers):
    """Layers as a line: ``64@3/2`` is 64 filters of 3 x 3 in steps of 2, B batch norm, R a relu."""
    return " ".join(map(word, layers))


def word(layer):
    window = ""
    if hasattr(layer, "window"):
        window = f"{layer.window[0]}" + (f"/{layer.stride[0]}" if layer.stride != (1, 1) else "")
    match type(layer).__name__:
        case "Activation":
            return {"relu": "R"}[layer.function]
        case "AvgPool2D":
            return f"mean{window}"
        case "Concat":
            return f"[{written(layer.layers)}]"
        case "Conv2D":
            return f"{layer.filters}@{window}"
        case "Dropout":
            return f"D{layer.rate}"
        case "FullyConnected":
            return str(layer.units)
        case "MaxPool2D":
            return f"max{window}"
        case "Residual":
            return f"({written(layer.layers)} + {written(layer.shortcut)})"
        case other:
            return {"BatchNorm": "B", "Flatten": "F", "GlobalAvgPool2D": "mean"}[other]


def blocks(*stages, block):
    """Return the blocks of a residual network: (filters, how many) of each stage."""
    found = []
    for stage, (filters, number) in enumerate(stages):
        step = "/2" if stage else ""
        found += [block(filters, step, i == 0) for i in range(number)]
    return " ".join(found)


def two_of_three(filters, step, is_first):
    step = step if is_first else ""
    shortcut = f"{filters}@1{step} B" if step else ""
    return f"({filters}@3{step} B R {filters}@3 B + {shortcut}) R"


def one_three_one(filters, step, is_first):
    step = step if is_first else ""
    shortcut = f"{4 * filters}@1{step} B" if is_first else ""
    return f"({filters}@1 B R {filters}@3{step} B R {4 * filters}@1 B + {shortcut}) R"


VGG_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
DENSE = "[B R 128@1 B R 32@3]"
# The tables of the papers; LeNet-5 with rectifiers and maxima.
TABLES = {
    "lenet5": "6@5 R max2/2 16@5 R max2/2 F 120 R 84 R 10",
    "alexnet": "64@11/4 R max3/2 192@5 R max3/2 384@3 R 256@3 R 256@3 R max3/2 F"
    " D0.5 4096 R D0.5 4096 R 10",
    "vgg16": " ".join(f"{f}@3 B R " * n + "max2/2" for f, n in VGG_STAGES)
    + " F 4096 R D0.5 4096 R D0.5 10",
    "resnet18": "64@7/2 B R max3/2 "
    + blocks((64, 2), (128, 2), (256, 2), (512, 2), block=two_of_three)
    + " mean 10",
    "resnet50": "64@7/2 B R max3/2 "
    + blocks((64, 3), (128, 4), (256, 6), (512, 3), block=one_three_one)
    + " mean 10",
    "densenet121": "64@7/2 B R max3/2 "
    + " ".join(
        " ".join([DENSE] * number) + (f" B R {after}@1 mean2/2" if after else "")
        for number, after in ((6, 128), (12, 256), (24, 512), (16, 0))
    )
    + " B R mean 10",
}


@pytest.mark.parametrize("name", TABLES)
def test_layers_are_those_of_the_paper(name):
    shape = (1, 28, 28) if name == "lenet5" else IMAGENET
    assert written(getattr(dnn, name)(shape, 10)[1:]) == TABLES[name]


def test_a_multilayer_perceptron_takes_samples_of_any_shape():
    x = np.random.default_rng(0).normal(size=(5, 1, 2, 3)).astype("f4")
    of_images = dnn.NeuralNetwork(nets.mlp((1, 2, 3), [4], 2), seed=1)
    flat = dnn.NeuralNetwork(nets.mlp(6, [4], 2), seed=1)
    np.testing.assert_array_equal(of_images.predict(x), flat.predict(x.reshape(5, 6)))
    with pytest.raises(dnn.ConfigurationError, match=r"mlp: inputs must be .* not 2\.5"):
        nets.mlp(2.5, [4], 2)


def test_lenet5_has_the_parameters_of_its_common_form():
    convolutions = 28 * 28 * 6 * 25 + 10 * 10 * 16 * 6 * 25
    assert totals(dnn.lenet5()) == (61_706, convolutions + 400 * 120 + 120 * 84 + 84 * 10)


def test_vgg16_with_batch_norm():
    assert totals(dnn.vgg16(IMAGENET, 1000))[0] == 138_357_544 + 4_224


def test_a_summary_leaves_the_layers_alone_and_is_that_of_the_network():
    layers = dnn.lenet5()
    table = dnn.summary(layers)
    assert table == dnn.NeuralNetwork(layers).summary() == dnn.summary(layers)
    with pytest.raises(dnn.ConfigurationError, match="must be an Input"):
        dnn.summary(layers[1:])


def test_a_summary_counts_products_of_recurrent_cells():
    class Cell(dnn.Layer):
        def build(self, shape):
            self.inputs = self.parameter("inputs", (4 * 5, shape[1]))
            self.states = self.parameter("states", (4 * 5, 5))

        def forward(self, x):
            steps = dnn.graph.transpose(x, (1, 0, 2))
            return dnn.graph.recurrent(steps, self.inputs, self.states, cell="lstm").last

    assert totals([Input(7, 3), Cell()]) == (4 * 5 * (3 + 5), 7 * 4 * 5 * (3 + 5))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("name", [*PUBLISHED, "lenet5"])
def test_networks_take_images_of_mnist_and_cifar(name, shape):
    table = dnn.summary(getattr(dnn, name)(shape, 7))
    assert table.splitlines()[-2].split()[1] == "(7,)"


def digits():
    data = dnn.load_digits()
    x = np.asarray(data.x, "f4").reshape(-1, 1, 8, 8)
    return (x - x.mean()) / x.std(), np.asarray(data.y)


def doubled(x):
    """Images of 16 x 16, since LeNet-5 leaves nothing of smaller ones."""
    return np.kron(x, np.ones((2, 2), "f4"))


def test_lenet5_learns_digits():
    x, y = digits()
    x = doubled(x)
    model = dnn.NeuralNetwork(dnn.lenet5((1, 16, 16)), optimizer=dnn.Adam(0.005), seed=0)
    assert model.evaluate(x[1200:], y[1200:])["accuracy"] < 0.3
    model.fit(x[:1200], y[:1200], epochs=3, batch_size=32)
    assert model.evaluate(x[1200:], y[1200:])["accuracy"] > 0.8


@pytest.mark.sample
@pytest.mark.parametrize(
    ("name", "epochs"),
    [("alexnet", 15), ("vgg16", 8), ("resnet18", 4)]
    + [("resnet50", 8), ("densenet121", 5), ("mobilenet_v3_small", 4)] * THOROUGH
    + [("shufflenet_v2_x1_0", 12), ("efficientnet_b0", 12)] * THOROUGH,
)
def test_networks_learn_three_kinds_of_images(name, epochs):
    """The accuracy is that of training: running statistics need more steps than these."""
    generator = np.random.default_rng(0)
    patterns = generator.normal(size=(3, 1, 8, 8))
    y = np.arange(12) % 3
    x = (patterns[y] + generator.normal(0, 0.1, (12, 1, 8, 8))).astype("f4")
    made = getattr(dnn, name)((1, 8, 8), 3)
    model = dnn.NeuralNetwork(made, optimizer=dnn.Adam(0.001), seed=0)
    accuracy = model.fit(x, y, epochs=epochs, batch_size=12).accuracy
    assert accuracy[0] < 0.7  # before the first step
    assert accuracy[-1] > 0.9


@pytest.mark.parametrize("name", [*PUBLISHED, "lenet5"])
@pytest.mark.parametrize("inputs", [784, (28, 28), (1, 28.5, 28), "abc", (3, 0, 8)])
def test_images_need_three_numbers(name, inputs):
    with pytest.raises(dnn.ConfigurationError, match=r"inputs must be \(channels|Input: "):
        getattr(dnn, name)(inputs)


def test_layers_inside_a_concat_keep_the_size_of_images():
    concat = Concat([Conv2D(3, 3)])
    with pytest.raises(dnn.ShapeError, match=r"concat_1: .*\(2, 8, 8\) into \(3, 6, 6\); they may"):
        dnn.summary([Input(2, 8, 8), concat])
    with pytest.raises(dnn.ConfigurationError, match="there is no layer in it"):
        Concat([])
