"""Networks as ONNX models: both sides compute the same, there and back."""

import copy

import numpy as np
import pytest

import dnn
from dnn import NeuralNetwork, nets
from dnn.errors import CheckpointError, ConfigurationError
from dnn.io.onnx_layer import OnnxGraph
from dnn.layers import (
    GRU,
    LSTM,
    RNN,
    Activation,
    AvgPool2D,
    BatchNorm,
    Concat,
    Conv1D,
    Conv2D,
    Dropout,
    Embedding,
    Flatten,
    FullyConnected,
    GlobalAvgPool2D,
    Input,
    LayerNorm,
    MaxPool2D,
    Output,
    Reshape,
    Residual,
    SpatialDropout,
    Upsample2D,
)
from dnn.training.checkpoint import read_checkpoint, write_arrays

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
helper, numpy_helper = onnx.helper, onnx.numpy_helper

FLOAT = onnx.TensorProto.FLOAT


def image_layers():
    return [
        *(Input(2, 9, 8), Conv2D(4, (3, 2), stride=(2, 1), padding=((1, 0), (0, 1)), groups=2)),
        *(BatchNorm(), Activation("relu"), SpatialDropout(0.2), Upsample2D((2, 1))),
        *(MaxPool2D(3, stride=2, padding=1), *nets.basic_block(4, 4), *nets.basic_block(4, 6, 2)),
        *(Concat([Conv2D(2, 1, dilation=2, bias=False)]), AvgPool2D(2, stride=1, padding=(1, 0))),
        *(Dropout(0.3), Flatten(), FullyConnected(5, bias=False), LayerNorm(), Output(5)),
    ]


def vector_layers():
    activations = ("elu", "gelu", "leaky_relu", "sigmoid", "softplus", "tanh", "softmax")
    activations += ("exact_gelu", "hard_sigmoid", "hard_swish", "relu6", "silu")
    made = [Input(6), FullyConnected(7), BatchNorm(epsilon=1e-3)]
    for name in activations:
        made += [Residual([FullyConnected(7), Activation(name)])]
    return made


def sequence_layers(kind, **how):
    inside = kind(4, bidirectional=True, return_sequences=True, **how)
    return [Input(5, 3), inside, kind(3, layers=2, **how), FullyConnected(2)]


NETWORKS = {
    "images": image_layers,
    "vectors": vector_layers,
    "means": lambda: [Input(3, 6, 6), Conv2D(4, 3), GlobalAvgPool2D(), FullyConnected(2)],
    "signals": lambda: [
        *(Input(24), Reshape(2, 12), Conv1D(4, 3, stride=2, padding="causal", groups=2)),
        *(Conv1D(3, 2, dilation=2, padding=(1, 0)), Flatten(), FullyConnected(2)),
    ],
    "mlp": lambda: dnn.mlp(5, [4], 3, "relu"),
    "lenet5": lambda: dnn.lenet5((1, 16, 16), 4),
    "lstm": lambda: sequence_layers(LSTM),
    "gru": lambda: sequence_layers(GRU),
    "rnn": lambda: sequence_layers(RNN, bias=False),
    "rnn of relu": lambda: sequence_layers(RNN, activation="relu"),
    "words": lambda: [Input(5, dtype=int), Embedding(7, 3, padding=0), GRU(4), FullyConnected(2)],
}


def samples(model):
    generator, shape = np.random.default_rng(0), model._network.input_shape
    if model._network.layers[0].integers:
        return generator.integers(0, 7, (4, *shape))
    return generator.normal(size=(4, *shape)).astype("f4")


def changed(made, seed=1, **how):
    """A network, whose weights and statistics are not those that it starts from, and samples."""
    model = NeuralNetwork(made, "mean_squared_error", seed=seed, **how)
    generator = np.random.default_rng(seed)
    state = model.state_dict()
    model.load_state_dict(
        {name: x + generator.uniform(0.0, 0.2, x.shape) for name, x in state.items()}
    )
    return model, samples(model)


def run_elsewhere(path, x):
    """What the reference of the format computes."""
    from onnx.reference import ReferenceEvaluator

    (found,) = ReferenceEvaluator(str(path)).run(None, {"x": x})
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_the_reference_computes_the_same_and_so_does_what_is_read_back(name, tmp_path):
    model, x = changed(NETWORKS[name]())
    path = tmp_path / "model.onnx"
    model.export_onnx(path)
    expected = model(x)
    if "relu" not in name:  # which the reference does not know in a recurrent cell
        np.testing.assert_allclose(run_elsewhere(path, x), expected, rtol=1e-4, atol=1e-5)
    back = NeuralNetwork.from_onnx(path, "mean_squared_error", seed=2)
    np.testing.assert_allclose(back(x), expected, rtol=1e-5, atol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("name", NETWORKS)
def test_onnx_runtime_computes_the_same(name, tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model, x = changed(NETWORKS[name]())
    model.export_onnx(tmp_path / "model.onnx")
    session = runtime.InferenceSession(
        str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {"x": x})
    np.testing.assert_allclose(found, model(x), rtol=1e-4, atol=1e-5)


def test_float64_and_any_number_of_samples(tmp_path):
    model, x = changed(NETWORKS["mlp"](), dtype="float64")
    model.export_onnx(tmp_path / "model.onnx")
    for rows in (x[:1], np.tile(x, (3, 1))):
        found = run_elsewhere(tmp_path / "model.onnx", rows.astype("f8"))
        np.testing.assert_allclose(found, model(rows), rtol=1e-12)


def written(path, nodes, shape, tensors=(), inputs=("x",), output="y", opsets=(("", 20),)):
    """A model of nodes of our own."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "made",
        [info(name, FLOAT, ["n", *shape]) for name in inputs],
        [info(output, FLOAT, ["n"])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in dict(tensors).items()],
    )
    opset_imports = [helper.make_opsetid(*each) for each in opsets]
    made = helper.make_model(graph, opset_imports=opset_imports, ir_version=9)
    onnx.save_model(made, str(path))
    return path


def node(kind, inputs, outputs="y", **attributes):
    return helper.make_node(kind, inputs.split(), outputs.split(), name=f"{kind}_1", **attributes)


ONES = {"w": np.ones((3, 2), "f4"), "b": np.ones(2, "f4")}


def test_other_forms_of_the_same_are_read(tmp_path):
    generator = np.random.default_rng(0)
    tensors = {
        **{
            "w": generator.normal(size=(4, 5)).astype("f4"),
            "b": generator.normal(size=5).astype("f4"),
        },
        **{
            "v": generator.normal(size=(3, 5)).astype("f4"),
            "c": generator.normal(size=3).astype("f4"),
        },
        **{"k": generator.normal(size=(4, 2, 3, 3)).astype("f4"), "axes": np.array([2, 3])},
    }
    nodes = [
        node("Conv", "x k", "1"),
        node("ReduceMean", "1 axes", "2", keepdims=0),
        node("MatMul", "2 w", "3"),
        node("Add", "b 3", "4"),
        node("Relu", "4", "5"),
        node("Gemm", "5 v c", "6", transB=1),
        node("Identity", "6", "y"),
    ]
    path = written(tmp_path / "made.onnx", nodes, (2, 5, 5), tensors)
    x = generator.normal(size=(3, 2, 5, 5)).astype("f4")
    model = NeuralNetwork.from_onnx(path, seed=1)
    np.testing.assert_allclose(model(x), run_elsewhere(path, x), rtol=1e-5, atol=1e-6)
    model.fit(x, [0, 1, 2], epochs=1)


def test_several_branches_each_of_which_starts_from_all_before_it(tmp_path):
    # As PyTorch writes a DenseNet: each layer puts together all that is there, from the first on.
    generator = np.random.default_rng(3)
    tensors = {
        name: generator.normal(size=(2, channels, 3, 3)).astype("f4")
        for name, channels in (("a", 1), ("b", 3), ("c", 5))
    }
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        *(node("Concat", "x", "0", axis=1), node("Conv", "0 a", "1", **pads)),
        *(node("Concat", "x 1", "2", axis=1), node("Tanh", "2", "3")),
        *(node("Conv", "3 b", "4", **pads), node("Concat", "x 1 4", "5", axis=1)),
        *(node("Conv", "5 c", "6", **pads), node("Relu", "6", "7")),
        *(node("Concat", "x 1 4 7", "8", axis=1), node("Flatten", "8", "y")),
    ]
    path = written(tmp_path / "made.onnx", nodes, (1, 4, 4), tensors)
    x = generator.normal(size=(3, 1, 4, 4)).astype("f4")
    model = NeuralNetwork.from_onnx(path)
    np.testing.assert_allclose(model(x), run_elsewhere(path, x), rtol=1e-5, atol=1e-6)


def as_one_layer(path, shape):
    """Whether a file becomes one layer, which computes the same and whose weights are trained."""
    model = NeuralNetwork.from_onnx(path, "mean_squared_error", seed=1)
    x = np.random.default_rng(0).normal(size=(4, *shape)).astype("f4")
    expected = run_elsewhere(path, x)
    np.testing.assert_allclose(model(x), expected, rtol=1e-5, atol=1e-6)
    weights = model._network.layers[1].parameters
    if weights:
        before = model.evaluate(x, expected + 1)["loss"]
        model.fit(x, expected + 1, epochs=3)
        assert model.evaluate(x, expected + 1)["loss"] < before
    return [type(layer) for layer in model._network.layers] == [Input, OnnxGraph]


@pytest.mark.parametrize(
    ("shape", "nodes", "tensors"),
    [
        ((3,), [node("Erf", "x")], {}),
        ((3,), [node("Elu", "x", alpha=0.5)], {}),
        ((3,), [node("Gemm", "x w", alpha=2.0)], ONES),
        ((3,), [node("Add", "x x")], {}),
        (
            (3,),
            [node("Gemm", "x w", "1"), node("Tanh", "x", "2"), node("Concat", "x 1 2", axis=1)],
            ONES,
        ),
        ((5, 3), [node("MatMul", "x w", "1"), node("Add", "1 b")], ONES),
        ((1, 4, 4), [node("GlobalAveragePool", "x", "1"), node("Softmax", "1")], {}),
        (
            (2, 4, 4),
            [node("GlobalAveragePool", "x", "1"), node("Sigmoid", "1", "2"), node("Mul", "x 2")],
            {},
        ),
    ],
)
def test_what_layers_cannot_express_is_one_layer(shape, nodes, tensors, tmp_path):
    assert as_one_layer(written(tmp_path / "made.onnx", nodes, shape, tensors), shape)


def test_a_network_with_a_graph_of_onnx_is_saved_whole(tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    nodes = [node("Gemm", "x w", "1", alpha=2.0), node("Mul", "1 x")]
    path = written(tmp_path / "made.onnx", nodes, (3,), {"w": np.ones((3, 3), "f4")})
    graphs = [NeuralNetwork.from_onnx(path)._network.layers[1] for _ in range(2)]
    layers = [Input(3), graphs[0], Residual([FullyConnected(3), graphs[1]])]
    model = NeuralNetwork(copy.deepcopy(layers), "mean_squared_error", seed=1)
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("f4")
    model.fit(x, x, epochs=2, progress=False)
    model.save(tmp_path / "model.safetensors")
    path.unlink()
    loaded = dnn.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded(x), model(x))
    again = NeuralNetwork(copy.deepcopy(layers), "mean_squared_error", seed=2)
    again.load(tmp_path / "model.safetensors")
    for each in (model, again):
        each.fit(x, x, epochs=1, progress=False)
    np.testing.assert_array_equal(again(x), model(x))
    about, arrays = read_checkpoint(tmp_path / "model.safetensors")
    for wrong, says in (({}, "'layer/0'"), ({"layer/0": arrays["layer/0"][:9]}, "no valid ONNX")):
        kept = {name: x for name, x in arrays.items() if not name.startswith("layer/")}
        write_arrays(tmp_path / "forged", {**kept, **wrong}, about)
        with pytest.raises(CheckpointError, match=says):
            dnn.load(tmp_path / "forged")


def lstm(outputs, **how):
    """Nodes of an LSTM of two units, of which the last output is read, and its tensors."""
    nodes = [
        node("Transpose", "x", "steps", perm=[1, 0, 2]),
        helper.make_node("LSTM", ["steps", "w", "r"], outputs, "LSTM_1", hidden_size=2, **how),
        node("Squeeze", f"{outputs[-1]} first"),
    ]
    w, r = np.ones((1, 8, 3), "f4"), np.ones((1, 8, 2), "f4")
    return nodes, {"w": w, "r": r, "first": np.array([0])}


def test_the_last_cell_of_an_lstm_is_one_layer(tmp_path):
    nodes, tensors = lstm(["", "", "cells"])
    assert as_one_layer(written(tmp_path / "made.onnx", nodes, (5, 3), tensors), (5, 3))


IMAGE = (1, 4, 4)


@pytest.mark.parametrize(
    ("shape", "nodes", "tensors", "says"),
    [
        ((3,), [node("MatMul", "x x")], {}, r"'MatMul_1' \(MatMul\): .* do not fit"),
        ((3,), [node("Add", "x b")], ONES, r"'Add_1' \(Add\): .* do not broadcast"),
        (
            (3,),
            [node("Gemm", "x w b")],
            {**ONES, "b": np.ones(7, "f4")},
            r"\(Gemm\): .*do not broadcast",
        ),
        (
            (3,),
            [node("Gemm", "x w b")],
            {**ONES, "b": np.ones((2, 1), "f4")},  # one for each sample
            "not a row for each",
        ),
        (
            (3,),
            [node("Conv", "x w")],
            {"w": np.ones((2, 3, 1, 1, 1), "f4")},
            r"\(Conv\): .*windows \[1, 1, 1\] over 0 axes",
        ),
        (
            IMAGE,
            [node("MaxPool", "x", kernel_shape=[2, 2], strides=[0, 1])],
            {},
            r"\(MaxPool\): .*strides .*at least 1",
        ),
        ((3,), [node("GRU", "x w w", hidden_size=2)], ONES, r"\(GRU\)"),
        ((3,), [node("Relu", "w", "y")], ONES, "not a row for each"),
        ((3,), [node("NonZero", "x")], {}, r"\(NonZero\): this operator is not supported"),
        (
            (3,),
            [node("Det", "x", "1"), node("Relu", "1")],
            {},
            r"'Det_1' \(Det\): this operator is not supported",
        ),
        (
            IMAGE,
            [node("MaxPool", "x", "1 indices", kernel_shape=[2, 2]), node("Flatten", "indices")],
            {},
            "MaxPool.*the places of the largest elements are not supported",
        ),
        (IMAGE, [node("Reshape", "x s")], {"s": np.array([2, -1])}, "not a row for each"),
        (IMAGE, [node("Reshape", "x s")], {"s": np.array([-1, -1])}, "does not fill"),
        (
            IMAGE,
            [node("Reshape", "x s", allowzero=1)],
            {"s": np.array([0, -1])},
            "does not fill",
        ),
        (
            IMAGE,
            [helper.make_node("Resize", ["x", "", "s"], ["y"], mode="nearest")],
            {"s": np.array([1, 1, np.inf, 1], "f4")},
            "Resize",
        ),
    ],
)
def test_what_cannot_be_read_names_operator_and_node(shape, nodes, tensors, says, tmp_path):
    path = written(tmp_path / "made.onnx", nodes, shape, tensors)
    with pytest.raises((CheckpointError, dnn.ShapeError), match=f"made.onnx: .*{says}"):
        NeuralNetwork.from_onnx(path)


def test_a_shape_of_vectors_must_be_that_of_the_samples(tmp_path):
    path = tmp_path / "made.onnx"
    written(path, [node("Reshape", "x s")], IMAGE, {"s": np.array([-1, 8])})
    with pytest.raises(dnn.ShapeError, match=r"the output is \(2, 8\)"):
        NeuralNetwork.from_onnx(path)
    for allowzero in (0, 1):
        nodes = [node("Reshape", "x s", allowzero=allowzero)]
        written(path, nodes, IMAGE, {"s": np.array([-1, 16])})
        x = np.arange(32, dtype="f4").reshape(2, 1, 4, 4)
        model = NeuralNetwork.from_onnx(path)
        np.testing.assert_array_equal(model(x), run_elsewhere(path, x))
        assert isinstance(model._network.layers[1], Flatten)


def test_operators_of_others_and_older_ones(tmp_path):
    path = tmp_path / "made.onnx"
    own = node("Relu", "x", domain="own")
    written(path, [own], (3,), opsets=[("", 20), ("own", 1)])
    with pytest.raises(CheckpointError, match=r"'Relu_1' \(own.Relu\): no operator of ONNX"):
        NeuralNetwork.from_onnx(path)
    written(path, [node("Softmax", "x")], (3,), opsets=[("", 11)])
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("f4")
    model = NeuralNetwork.from_onnx(path)
    np.testing.assert_allclose(model(x).sum(1), 1.0, rtol=1e-6)
    assert model._network.layers[1].function == "softmax"


ONE = {"one": np.float32(1.0), "half": np.float32(0.5), "root": np.float32(2**0.5)}
ACTIVATIONS_IN_PARTS = {
    "silu": [node("Sigmoid", "x", "1"), node("Mul", "1 x")],
    "exact_gelu": [
        *(node("Div", "x root", "1"), node("Erf", "1", "2"), node("Add", "2 one", "3")),
        *(node("Mul", "x 3", "4"), node("Mul", "4 half")),
    ],
    "relu6": [node("Clip", "x zero six")],
    "softplus": [node("Exp", "x", "1"), node("Add", "1 one", "2"), node("Log", "2")],
    "relu": [node("Max", "x zero")],
}


@pytest.mark.parametrize("name", ACTIVATIONS_IN_PARTS)
def test_nodes_that_compute_an_activation_are_that_activation(name, tmp_path):
    tensors = {**ONE, "zero": np.float32(0.0), "six": np.float32(6.0)}
    path = written(tmp_path / "made.onnx", ACTIVATIONS_IN_PARTS[name], (7,), tensors)
    model = NeuralNetwork.from_onnx(path, "mean_squared_error")
    assert [layer.function for layer in model._network.layers[1:]] == [name]


def test_branches_that_are_read_again_or_deep_are_one_layer_and_too_many_nodes_refused(tmp_path):
    """Each of the first kind would double the layers; each of the second nests them."""
    path = tmp_path / "made.onnx"

    def refused(nodes, says):
        made = [helper.make_node(kind, ends.split(), [name], name) for kind, ends, name in nodes]
        made.append(node("Identity", nodes[-1][2]))
        written(path, made, (3,))
        with pytest.raises(CheckpointError, match=says):
            NeuralNetwork.from_onnx(path)

    def whole(nodes):
        made = [helper.make_node(kind, ends.split(), [name], name) for kind, ends, name in nodes]
        made.append(node("Identity", nodes[-1][2]))
        assert as_one_layer(written(path, made, (3,)), (3,))

    doubling = [("Relu", "x", "s0"), ("Tanh", "x", "s1")]
    doubling += [("Add", f"s{i} s{i + 1}", f"s{i + 2}") for i in range(16)]
    whole(doubling)
    deep = [("Relu", "x", "s0")]
    for i in range(450):
        deep += [("Relu", f"s{i}", f"r{i}"), ("Add", f"r{i} x", f"s{i + 1}")]
    whole(deep)
    many = [("Relu", f"s{i - 1}" if i else "x", f"s{i}") for i in range(10_000)]
    refused(many, "10001 nodes, and no more than 10000")


def test_shapes_that_do_not_fit_name_the_node(tmp_path):
    path = tmp_path / "made.onnx"
    written(path, [node("Conv", "x k")], (3,), {"k": np.ones((2, 3, 1, 1))})
    with pytest.raises(CheckpointError, match=r"\(Conv\): .*windows \[1, 1\] over 0 axes"):
        NeuralNetwork.from_onnx(path)
    for features in (4, 2, 2**50):  # no memory is asked for
        written(path, [node("Gemm", "x w")], (features,), ONES)
        with pytest.raises(CheckpointError, match=rf"\(Gemm\): matmul: .*\(1, {features}\)"):
            NeuralNetwork.from_onnx(path)


def test_damaged_files_are_refused_by_errors_of_dnn(tmp_path):
    path = tmp_path / "model.onnx"
    NeuralNetwork(NETWORKS["means"]()).export_onnx(path)
    good = path.read_bytes()
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(150):
        raw = np.frombuffer(good, np.uint8).copy()
        raw[generator.integers(0, len(raw), 3)] = generator.integers(0, 256, 3)
        path.write_bytes(raw.tobytes())
        try:
            NeuralNetwork.from_onnx(path)
        except dnn.errors.DnnError:
            refused += 1
    assert 10 < refused < 150  # a changed weight is as good as another


def test_files_that_are_no_models(tmp_path):
    path = tmp_path / "made.onnx"
    with pytest.raises(CheckpointError, match="cannot be read"):
        NeuralNetwork.from_onnx(path)
    for raw in (b"", b"no model", NeuralNetwork):
        if raw is NeuralNetwork:  # truncated
            NeuralNetwork(dnn.mlp(2, [3], 2)).export_onnx(path)
            raw = path.read_bytes()[:-40]
        path.write_bytes(raw)
        with pytest.raises(CheckpointError, match="no valid ONNX model"):
            NeuralNetwork.from_onnx(path)
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(CheckpointError, match=r"PyTorch or Python wrote: torch.onnx.export"):
        NeuralNetwork.from_onnx(path)
    written(path, [node("Relu", "x")], (3,), opsets=[("", 99)])
    with pytest.raises(CheckpointError, match=r"operators of opset 99, and onnx .* at most"):
        NeuralNetwork.from_onnx(path)
    for inputs in (("x", "z"), ()):
        written(path, [node("Relu", "x" if inputs else "w")], (3,), ONES, inputs=inputs)
        with pytest.raises(CheckpointError, match=r"one input and one output.*dnn.OnnxModel"):
            NeuralNetwork.from_onnx(path)


def beside(path, location):
    """A model whose tensors lie in another file, and the array of its weights."""
    w = np.arange(6, dtype="f4").reshape(3, 2)
    made = onnx.load(str(written(path, [node("Gemm", "x w")], (3,), {"w": w})))
    (tensor,) = made.graph.initializer
    onnx.external_data_helper.set_external_data(tensor, location, 8, w.nbytes)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    path.write_bytes(made.SerializeToString())
    return b"12345678" + w.tobytes(), w


def test_tensors_in_other_files_of_the_folder_are_read(tmp_path, monkeypatch):
    (tmp_path / "inside").mkdir()
    path = tmp_path / "inside" / "made.onnx"
    raw, w = beside(path, "weights.bin")
    with pytest.raises(CheckpointError, match=r"'w' in 'weights.bin' cannot be read"):
        NeuralNetwork.from_onnx(path)
    (path.parent / "weights.bin").write_bytes(raw)
    x = np.eye(3, dtype="f4")
    for folder in (tmp_path, path.parent):  # wherever a program runs
        monkeypatch.chdir(folder)
        np.testing.assert_array_equal(NeuralNetwork.from_onnx(path)(x), w)
    (path.parent / "weights.bin").write_bytes(raw[:-1])
    with pytest.raises(CheckpointError, match=r"24 bytes from 8 on, and there are 31"):
        NeuralNetwork.from_onnx(path)


def test_tensors_outside_of_the_folder_are_not_read(tmp_path):
    (tmp_path / "inside").mkdir()
    path = tmp_path / "inside" / "made.onnx"
    for location in ("../weights.bin", str(tmp_path / "weights.bin"), "link.bin", ""):
        raw, _ = beside(path, location)
        (tmp_path / "weights.bin").write_bytes(raw)
        if location == "link.bin":
            (path.parent / location).symlink_to("../weights.bin")
        with pytest.raises(CheckpointError, match=r"outside of the folder"):
            NeuralNetwork.from_onnx(path)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: [Input(4), Activation(lambda x: x * 2), Flatten()], "activation_1: .*no equal"),
        (lambda: [Input(4, 3), BatchNorm(), Flatten()], "batch_norm_1: ONNX has channels along"),
        (lambda: [Input(4, 3), LSTM(2, initial="trained")], "lstm_1: lengths .* trained starts"),
        (
            lambda: [dnn.SequenceInput(4, 3), Flatten()],
            "sequence_input_1: a SequenceInput has no equal",
        ),
    ],
)
def test_a_layer_without_an_equal_is_named_and_nothing_is_written(made, says, tmp_path):
    model = NeuralNetwork(made(), "mean_squared_error")
    with pytest.raises(ConfigurationError, match=says):
        model.export_onnx(tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_layers_of_compact_networks_are_written(tmp_path):
    gate = [dnn.GlobalAvgPool2D(), dnn.Reshape(4, 1, 1), Conv2D(4, 1), Activation("sigmoid")]
    made = [
        *(Input(2, 5, 4), Conv2D(4, 3, padding=1), Activation("tanh"), dnn.Gate(gate)),
        dnn.Concat([dnn.ChannelSlice(2, 2), dnn.LayerNorm2D(1e-3)], [dnn.ChannelSlice(2)]),
        *(dnn.ChannelShuffle(2), Residual([dnn.LayerScale(0.5), dnn.StochasticDepth(0.3)])),
        *(GlobalAvgPool2D(), FullyConnected(3)),
    ]
    model, x = changed(made)
    model.export_onnx(tmp_path / "model.onnx")
    found = run_elsewhere(tmp_path / "model.onnx", x)
    np.testing.assert_allclose(found, model(x), rtol=1e-4, atol=1e-5)
