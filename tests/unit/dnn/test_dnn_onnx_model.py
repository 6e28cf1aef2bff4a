"""ONNX models that are run as they are: any graph, inputs and outputs by name."""

import importlib
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import dnn
from dnn import OnnxModel
from dnn.errors import CheckpointError, ConfigurationError, DataError, DtypeError, ShapeError

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
helper, numpy_helper = onnx.helper, onnx.numpy_helper
FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL


def info(name, shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def node(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def written(path, nodes, inputs, outputs, tensors=(), opset=20):
    arrays = {name: np.asarray(value) for name, value in dict(tensors).items()}
    graph = helper.make_graph(
        nodes,
        "made",
        inputs,
        outputs,
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    path.write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    )
    return path


def two_by_two(path):
    """``sum = a + b`` and ``scaled = a w``."""
    return written(
        path,
        [node("Add", "a b", "sum"), node("MatMul", "a w", "scaled")],
        [info("a", ["n", 3]), info("b", ["n", 3])],
        [info("sum", ["n", 3]), info("scaled", ["n", 2])],
        {"w": np.ones((3, 2), "f4")},
    )


def test_inputs_and_outputs_have_names(tmp_path):
    model = OnnxModel(two_by_two(tmp_path / "made.onnx"))
    assert list(model.inputs) == ["a", "b"]
    assert model.inputs["a"] == (("n", 3), np.dtype(np.float32))
    assert list(model.outputs) == ["sum", "scaled"]
    a, b = np.arange(6, dtype="f4").reshape(2, 3), np.ones((2, 3))
    found = model.run(b=b, a=a)
    np.testing.assert_array_equal(found["sum"], a + 1)
    np.testing.assert_array_equal(found["scaled"], np.repeat(a.sum(1), 2).reshape(2, 2))
    for same in (model(a, b), model(a, b=b)):
        np.testing.assert_array_equal(same[1], found["scaled"])
    assert "made.onnx': a, b -> sum, scaled" in repr(model)


def test_wrong_inputs_are_named(tmp_path):
    model = OnnxModel(two_by_two(tmp_path / "made.onnx"))
    a = np.ones((2, 3), "f4")
    with pytest.raises(ConfigurationError, match="input 'b' is missing"):
        model(a)
    with pytest.raises(ConfigurationError, match=r"'c'.*there are a, b|input .* 'c'"):
        model.run(a=a, b=a, c=a)
    with pytest.raises(ConfigurationError, match="3 arrays for 2 inputs"):
        model(a, a, a)
    with pytest.raises(ShapeError, match=r"input 'b': of shape \(2, 4\), and \(n, 3\) is wanted"):
        model(a, np.ones((2, 4)))
    with pytest.raises((DataError, DtypeError), match="input 'a'"):
        model("text", a)
    with pytest.raises(CheckpointError, match=r"node 'sum' \(Add\): .*do not broadcast"):
        model(a, np.ones((5, 3)))


def test_a_plan_for_each_set_of_shapes(tmp_path):
    model = OnnxModel(two_by_two(tmp_path / "made.onnx"))
    for n in (*range(1, 20), 5, 3):
        a = np.full((n, 3), n, "f4")
        assert (model(a, a)[0] == 2 * n).all()
    assert len(model._plans) == 16


def test_an_input_whose_values_decide_a_shape_or_a_branch(tmp_path):
    branch = {
        name: helper.make_graph([node(kind, "x", name)], name, [], [info(name, ["n"])])
        for name, kind in (("then", "Neg"), ("else", "Identity"))
    }
    path = written(
        tmp_path / "made.onnx",
        [
            node("If", "flag", "y", then_branch=branch["then"], else_branch=branch["else"]),
            node("ConstantOfShape", "shape", "zeros"),
        ],
        [info("x", ["n"]), info("flag", [], BOOL), info("shape", ["d"], INT64)],
        [info("y", ["n"]), info("zeros", ["a", "b"])],
    )
    model = OnnxModel(path)
    x = np.arange(4, dtype="f4")
    for flag, shape in ((True, (2, 3)), (False, (3, 1)), (True, (1, 1))):
        y, zeros = model(x, flag, shape)
        np.testing.assert_array_equal(y, -x if flag else x)
        assert zeros.shape == shape


def test_a_branch_that_many_values_decide_is_chosen_from_both(tmp_path):
    branch = {
        name: helper.make_graph([node(kind, "x", name)], name, [], [info(name, [100])])
        for name, kind in (("then", "Neg"), ("else", "Identity"))
    }
    path = written(
        tmp_path / "made.onnx",
        [
            node("ReduceSum", "x", "total", keepdims=0),
            node("Greater", "total zero", "flag"),
            node("If", "flag", "y", then_branch=branch["then"], else_branch=branch["else"]),
        ],
        [info("x", [100])],
        [info("y", [100])],
        {"zero": np.float32(0.0)},
    )
    model = OnnxModel(path)
    for x in (np.ones(100, "f4"), -np.ones(100, "f4")):
        np.testing.assert_array_equal(model(x), -np.abs(x))
    shape = written(
        tmp_path / "shape.onnx",
        [node("Cast", "x", "n", to=INT64), node("ConstantOfShape", "n", "y")],
        [info("x", [100])],
        [info("y", ["a"])],
    )
    with pytest.raises(CheckpointError, match="depends on the values of its input 'x'"):
        OnnxModel(shape)(np.ones(100))


def test_a_stated_number_of_samples_is_taken_at_a_time(tmp_path):
    path = written(
        tmp_path / "made.onnx",
        [node("Reshape", "x shape", "flat"), node("MatMul", "flat w", "y")],
        [info("x", [2, 2, 3])],
        [info("y", [2, 4])],
        {"shape": np.array([2, 6]), "w": np.arange(24, dtype="f4").reshape(6, 4)},
    )
    x = np.random.default_rng(0).normal(size=(5, 2, 3)).astype("f4")
    expected = x.reshape(5, 6) @ np.arange(24, dtype="f4").reshape(6, 4)
    model = OnnxModel(path)
    for n in (1, 2, 5):
        np.testing.assert_allclose(model(x[:n]), expected[:n], rtol=1e-5, atol=1e-5)
    network = dnn.NeuralNetwork.from_onnx(path, "mean_squared_error")
    np.testing.assert_allclose(network(x), expected, rtol=1e-5, atol=1e-5)


def test_an_index_out_of_its_range_is_an_error_and_reads_nothing_else(tmp_path):
    path = written(
        tmp_path / "made.onnx",
        [node("Gather", "w x", "y")],
        [info("x", ["n", 2], INT64)],
        [info("y", ["n", 2, 3])],
        {"w": np.arange(12, dtype="f4").reshape(4, 3)},
    )
    model = OnnxModel(path)
    np.testing.assert_array_equal(model([[3, -4]])[0], [[9, 10, 11], [0, 1, 2]])
    with pytest.raises(DataError, match=r"input 'x': 4 is not in -4 \.\. 3"):
        model([[0, 4]])
    nodes = [node("Gather", "w x", "1"), node("ReduceSum", "1 axes", "y", keepdims=0)]
    tensors = {"w": np.arange(12, dtype="f4").reshape(4, 3), "axes": np.array([1])}
    written(path, nodes, [info("x", ["n", 2], INT64)], [info("y", ["n", 3])], tensors)
    network = dnn.NeuralNetwork.from_onnx(path, "mean_squared_error")
    with pytest.raises(DataError, match=r"-5 is not in -4 \.\. 3|-5 in row 0"):
        network([[0, -5]])


def test_what_is_known_needs_no_plan(tmp_path):
    path = written(
        tmp_path / "made.onnx",
        [node("Shape", "x", "shape"), node("Gather", "shape one", "y")],
        [info("x", ["n", "m"])],
        [info("y", [], INT64)],
        {"one": np.array(1)},
    )
    assert OnnxModel(path)(np.ones((3, 7))) == 7


def test_operators_of_others_and_hostile_shapes(tmp_path):
    own = helper.make_node("FusedMatMul", ["x", "x"], ["y"], "f", domain="com.microsoft")
    path = written(tmp_path / "made.onnx", [own], [info("x", [2, 2])], [info("y", [2, 2])])
    with pytest.raises(CheckpointError, match=r"opset|com\.microsoft\.FusedMatMul"):
        OnnxModel(path)
    path = written(
        tmp_path / "made.onnx",
        [node("ConstantOfShape", "n", "1"), node("Add", "x 1", "y")],
        [info("x", [1])],
        [info("y", ["n"])],
        {"n": np.array([2**40])},
    )
    with pytest.raises(CheckpointError, match=r"\(ConstantOfShape\): a value of more than"):
        OnnxModel(path)(np.ones(1))


@pytest.mark.parametrize(
    ("nodes", "tensors"),
    [
        ([node("Pad", "x n", "y")], {"n": [2**36, 0, 0, 0]}),
        ([node("Tile", "x n", "y")], {"n": [2**20, 2**20]}),
        ([node("Expand", "x n", "y")], {"n": [2**40, 1, 4]}),
        ([node("Range", "a n b", "1"), node("Add", "x 1", "y")], {"a": 0, "n": 2**40, "b": 1}),
        ([node("HannWindow", "n", "1"), node("Add", "x 1", "y")], {"n": 2**40}),
        (
            [node("Cast", "x", "1", to=INT64), node("OneHot", "1 n ends", "y")],
            {"n": 2**40, "ends": [0.0, 1.0]},
        ),
        (
            [
                node("Reshape", "x n", "1"),
                node("LpPool", "1", "y", kernel_shape=[2**20], pads=[2**19] * 2),
            ],
            {"n": [1, 2, 4]},
        ),
    ],
)
def test_hostile_shapes_name_the_node_and_ask_for_no_memory(nodes, tensors, tmp_path):
    path = written(tmp_path / "made.onnx", nodes, [info("x", [2, 4])], [info("y", None)], tensors)
    for run in (OnnxModel(path), lambda x: dnn.NeuralNetwork.from_onnx(path)):
        with pytest.raises(CheckpointError, match=r"node '\w+' \(\w+\): .*more than \d+"):
            run(np.ones((2, 4)))


def test_a_value_of_the_file_that_only_our_operators_know_and_integers_divided_by_0(tmp_path):
    """The reference of the format has no DequantizeLinear of opset 13."""
    nodes = [
        *(node("DequantizeLinear", "q scale zero", "w"), node("Mul", "x w", "y")),
        *(node("Cast", "x", "i", to=INT64), node("Div", "i none", "z")),
    ]
    tensors = {"q": np.array([3, 5], "i1"), "scale": np.float32(0.5), "zero": np.int8(1)}
    path = written(
        tmp_path / "made.onnx",
        nodes,
        [info("x", ["n", 2])],
        [info("y", None), info("z", None, INT64)],
        {**tensors, "none": np.array(0)},
        13,
    )
    y, _ = OnnxModel(path)(np.ones((1, 2)))
    np.testing.assert_array_equal(y, [[1.0, 2.0]])


def test_operators_of_values_that_decide_shapes_are_computed_for_small_inputs(tmp_path):
    nodes = [node("TopK", "x k", "y at"), node("NonZero", "x", "where")]
    outputs = [info("y", None), info("at", None, INT64), info("where", None, INT64)]
    path = written(tmp_path / "made.onnx", nodes, [info("x", ["n"])], outputs, {"k": [2]})
    model = OnnxModel(path)
    assert model.outputs["y"].shape is None
    for x in ([1.0, 0.0, 3.0], [0.0, 2.0, 1.0]):
        y, at, where = model(x)
        assert y.tolist() == sorted(x)[:0:-1]
        assert at.tolist() == np.argsort(x)[:0:-1].tolist()
        assert where.tolist() == [np.nonzero(x)[0].tolist()]
    with pytest.raises(CheckpointError, match=r"\(TopK\): this operator .*values of its input 'x'"):
        OnnxModel(path)(np.ones(100))


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 18, 20])
def test_the_same_in_several_opsets(opset, tmp_path):
    """Axes are attributes in older opsets and inputs in newer ones; a softmax flattened before."""
    tensors = {}
    if opset < 13:
        nodes = [node("Unsqueeze", "x", "1", axes=[1]), node("Squeeze", "1", "2", axes=[1])]
    else:
        tensors["axes"] = np.array([1])
        nodes = [node("Unsqueeze", "x axes", "1"), node("Squeeze", "1 axes", "2")]
    if opset < 10:
        nodes += [node("Slice", "2", "3", starts=[1], ends=[9], axes=[1])]
    else:
        tensors |= {"start": np.array([1]), "end": np.array([9]), "at": np.array([1])}
        nodes += [node("Slice", "2 start end at", "3")]
    if opset < 11:
        nodes += [node("Clip", "3", "4", min=-1.0, max=1.0)]
    else:
        tensors |= {"low": np.float32(-1.0), "high": np.float32(1.0)}
        nodes += [node("Clip", "3 low high", "4")]
    nodes += [node("Softmax", "4", "y")]
    path = written(
        tmp_path / "made.onnx",
        nodes,
        [info("x", [2, 3, 4])],
        [info("y", [2, 2, 4])],
        tensors,
        opset,
    )
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("f4")
    z = np.exp(np.clip(x[:, 1:], -1, 1))
    expected = z / z.sum((1, 2) if opset < 13 else 2, keepdims=True)
    np.testing.assert_allclose(OnnxModel(path)(x), expected, rtol=1e-5)


# -- the cases that come with onnx -----------------------------------------------------------------

OPERATORS = (
    *("Abs", "Add", "And", "ArgMax", "ArgMin", "AveragePool", "BatchNormalization", "Cast", "Ceil"),
    *(
        "Celu",
        "Clip",
        "Concat",
        "Constant",
        "ConstantOfShape",
        "Conv",
        "ConvInteger",
        "Cos",
        "Cosh",
    ),
    *("ConvTranspose", "CumSum", "DepthToSpace", "DequantizeLinear", "Div", "Einsum", "Elu", "Erf"),
    *("DynamicQuantizeLinear", "Equal", "Exp", "Expand", "EyeLike", "Flatten", "Floor", "GRU"),
    *("Gather", "GatherElements", "GatherND", "Gelu", "Gemm", "GlobalAveragePool", "HardSigmoid"),
    *("GlobalMaxPool", "Greater", "GreaterOrEqual", "GroupNormalization", "HardSwish", "Hardmax"),
    *("Identity", "InstanceNormalization", "IsInf", "IsNaN", "LRN", "LSTM", "LayerNormalization"),
    *("LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "LpNormalization", "LpPool", "Max"),
    *("MatMul", "MatMulInteger", "MaxPool", "Mean", "MeanVarianceNormalization", "Min", "Mish"),
    *("Mod", "Mul", "Neg", "Not", "OneHot", "Or", "PRelu", "Pad", "Pow", "QLinearConv", "RNN"),
    *("QLinearMatMul", "QuantizeLinear", "RMSNormalization", "Range", "Reciprocal", "ReduceL1"),
    *("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin"),
    *("ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Resize", "Round", "Selu"),
    *("ReverseSequence", "ScatterElements", "ScatterND", "Shape", "Shrink", "Sigmoid", "Sign"),
    *("Sin", "Sinh", "Size", "Slice", "Softmax", "Softplus", "Softsign", "SpaceToDepth", "Split"),
    *("Sqrt", "Squeeze", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Tile", "Xor"),
    *("Transpose", "Trilu", "Unsqueeze", "Upsample", "Where", "DFT", "STFT", "Scan"),
    *("Attention", "If", "Loop", "RotaryEmbedding", "CenterCropPad", "AffineGrid", "TopK"),
)

UNREAD = (
    *("is no tensor", " is of ", "type of its value", "the places of the largest elements"),
    *("antialias", "reduction = ", "have no elements along", "has no elements along"),
    *("transposed convolutions of volumes", "diagonals", "do not broadcast", "of one side is not"),
    *(
        "with coordinates",
        "after the mask",
        "a mask that is shorter",
        "attribute '",
        "before opset 9",
    ),
)
"""What is not supported of these operators: types, empty reductions, blocks of quantised values."""


def cases_of(operator):
    """The cases of an operator that come with onnx."""
    from onnx.backend.test.case import node

    for file in sorted(Path(node.__file__).parent.glob("*.py")):
        if re.search(rf"class {operator}\(Base\)", file.read_text(encoding="utf-8")):
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                importlib.import_module(f"{node.__name__}.{file.stem}")
    cases = [case for case in node._NodeTestCases if "float_edge_cases" not in case.name]
    return [case for case in cases if {x.op_type for x in case.model.graph.node} == {operator}]


def array_of(value):
    is_tensor = isinstance(value, onnx.TensorProto)
    return numpy_helper.to_array(value) if is_tensor else np.asarray(value)


@pytest.mark.sample(12)
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_cases_of_onnx(operator, tmp_path):
    path, refused, cases = tmp_path / "made.onnx", [], cases_of(operator)
    for case in cases:
        path.write_bytes(case.model.SerializeToString())
        ((given, expected),) = case.data_sets
        try:
            model = OnnxModel(path)
            found = model(*map(array_of, given))
        except dnn.errors.DnnError as error:
            refused.append(str(error))
            continue
        several = found if isinstance(found, tuple) else (found,)
        for value, wanted in zip(several, map(array_of, expected), strict=True):
            assert (value.shape, value.dtype) == (wanted.shape, wanted.dtype), case.name
            error = 2e-3 if value.dtype == np.float16 else 1e-5
            np.testing.assert_allclose(
                value.astype(float), wanted.astype(float), 1e-3, error, err_msg=case.name
            )
    assert [each for each in refused if not any(text in each for text in UNREAD)] == []
    assert len(refused) < len(cases)
