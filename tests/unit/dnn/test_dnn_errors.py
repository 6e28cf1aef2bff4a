"""The error tree: builtins, pickling, names that were probably meant."""

import pickle

import pytest

import dnn
import dnn.graph
from dnn import errors

EXAMPLES = [
    errors.CheckpointError("f"),
    errors.DnnError("a"),
    errors.ShapeError("matmul", "x (1, 2) and w (3, 4) do not fit", (1, 2), (3, 4)),
    errors.DtypeError("b"),
    errors.ConfigurationError("c"),
    errors.DataError("d"),
    errors.LabelError("label 3 in row 7", 7),
    errors.DeviceError("no GPU", "cuda:1"),
    errors.OutOfDeviceMemory("cuda:0", 1288490189, 322122547, 150_000_000_000),
    errors.OutOfRangeError("index 3"),
    errors.MissingDependencyError("e"),
    errors.CommunicationError("no answer"),
    errors.PeerError(2, "ValueError: f"),
    errors.DisagreementError("ranks 0 and 1 differ in g", 1, "g"),
    errors.NonFiniteError("log of x (2, 3)", "log"),
    errors.MixedPrecisionWarning("the loss is nan"),
]


def test_every_class_has_an_example():
    assert {type(error).__name__ for error in EXAMPLES} == set(errors.__all__)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_pickle_keeps_class_message_and_fields(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.CheckpointError, ValueError),
        (errors.ShapeError, ValueError),
        (errors.DtypeError, TypeError),
        (errors.ConfigurationError, ValueError),
        (errors.NonFiniteError, ArithmeticError),
        (errors.DataError, ValueError),
        (errors.LabelError, errors.DataError),
        (errors.DeviceError, RuntimeError),
        (errors.OutOfDeviceMemory, errors.DeviceError),
        (errors.OutOfDeviceMemory, MemoryError),
        (errors.OutOfRangeError, IndexError),
        (errors.MissingDependencyError, ImportError),
        (errors.CommunicationError, RuntimeError),
        (errors.PeerError, errors.CommunicationError),
        (errors.DisagreementError, errors.CommunicationError),
        (errors.DisagreementError, ValueError),
    ],
)
def test_each_is_a_dnn_error_and_a_fitting_builtin(kind, builtin):
    assert issubclass(kind, errors.DnnError)
    assert issubclass(kind, builtin)


def test_unknown_name_names_the_one_probably_meant():
    message = str(errors.unknown_name("activation", "Sigmod", ["tanh", "sigmoid"]))
    assert message == (
        "unknown activation 'Sigmod'; did you mean 'sigmoid'? (known: sigmoid, tanh)"
    )
    assert "mean" not in str(errors.unknown_name("activation", "zzz", ["tanh"]))


def test_rows_that_differ_in_length_are_no_array():
    ragged, model = [[1, 2], [3]], dnn.NeuralNetwork(dnn.mlp(2, [], 2))
    x = dnn.graph.placeholder((2, 2), name="x")
    for name, call in {
        "x": lambda: model.fit(ragged, [0, 1]),
        "labels": lambda: model.fit([[1, 2], [3, 4]], [[0], [0, 1]]),
        "tensor": lambda: dnn.Tensor.from_array(ragged),
        "evaluate: <placeholder 'x'": lambda: x.eval({x: ragged}),
    }.items():
        with pytest.raises(dnn.DataError, match=f"{name}.*: rows that differ in length"):
            call()
    with pytest.raises(dnn.DtypeError, match="must be real numbers"):
        x.eval({x: [["a", "b"], ["c", "d"]]})
    with pytest.raises(dnn.ShapeError, match="negative"):
        dnn.graph.placeholder((2, -1))
