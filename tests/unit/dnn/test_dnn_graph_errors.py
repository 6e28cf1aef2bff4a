"""What does not fit ends in an error that names the operation, and in no traceback of NumPy."""

import numpy as np
import pytest

import dnn
from dnn import graph
from dnn.backend import Ops
from dnn.errors import ConfigurationError, DataError, DtypeError, ShapeError
from dnn.graph.operation import apply

F8 = np.float64

x = graph.placeholder((2, 3), name="x")
vector = graph.placeholder((3,), name="vector")
scalar = graph.placeholder((), name="scalar")
empty = graph.placeholder((0, 3), name="empty")
integers = graph.placeholder((2, 3), np.intp, name="integers")
bools = graph.placeholder((2, 3), bool, name="bools")
unsigned = graph.placeholder((), np.uint64, name="unsigned")
weight = graph.variable((2, 3), name="weight")


def test_shapes_that_do_not_fit_name_operation_and_both_shapes():
    x, w = graph.placeholder((4, 3), name="x"), graph.variable((5, 2), name="w")
    with pytest.raises(ShapeError, match=r"matmul: x \(4, 3\) and w \(5, 2\) do not fit") as caught:
        x @ w
    assert caught.value.shapes == ((4, 3), (5, 2))
    with pytest.raises(ShapeError, match=r"add: x \(4, 3\) and w \(5, 2\) do not broadcast"):
        x + w
    with pytest.raises(ShapeError, match="matmul"):
        x @ graph.placeholder((3,))
    with pytest.raises(ShapeError, match=r"reshape.*\(5,\)"):
        graph.reshape(x, (5,))
    with pytest.raises(ShapeError, match="transpose"):
        graph.transpose(graph.placeholder((3,)))
    with pytest.raises(ShapeError, match="broadcast_to"):
        graph.broadcast_to(x, (4, 4))
    with pytest.raises(ShapeError, match="sum_to"):
        apply("sum_to", x, shape=(5,))
    with pytest.raises(ShapeError, match="no axis 2"):
        graph.sum(x, 2)
    with pytest.raises(ShapeError, match="log_softmax"):
        graph.log_softmax(graph.placeholder(()))
    with pytest.raises(ShapeError, match="softmax_cross_entropy"):
        graph.softmax_cross_entropy(x, graph.constant(np.ones((4, 2))))
    with pytest.raises(ShapeError, match="scalar"):
        graph.gradients(x, [x])
    with pytest.raises(ShapeError, match="dy"):
        graph.gradients(x, [x], graph.constant(1.0))


def test_shapes_that_do_not_fit_further_operations():
    x, w = graph.placeholder((4, 3), name="x"), graph.variable((5, 2), name="w")
    with pytest.raises(
        ShapeError, match=r"concat: x \(4, 3\) and w \(5, 2\) do not fit along axis 0"
    ):
        graph.concat([x, w])
    with pytest.raises(ShapeError, match="no axis 2"):
        graph.concat([x, x], 2)
    with pytest.raises(ShapeError, match="nothing"):
        graph.concat([])
    with pytest.raises(ShapeError, match=r"dot: x \(4, 3\) and w \(5, 2\) do not fit"):
        graph.dot(x, w)
    with pytest.raises(ShapeError, match=r"bias_add: x \(4, 3\) and w \(5, 2\) do not fit"):
        graph.bias_add(x, w)
    with pytest.raises(ShapeError, match=r"where: .*\(2,\).*x \(4, 3\)"):
        graph.where(graph.constant([True, False], bool), x, 0.0)
    with pytest.raises(DtypeError, match=r"where: .*bool"):
        graph.where(x, x, 0.0)
    with pytest.raises(ShapeError, match=r"max: x .* no axis 2"):
        graph.max(x, 2)
    with pytest.raises(ShapeError, match=r"min: .* no elements"):
        graph.min(x[:0])
    with pytest.raises(ShapeError, match="argmax: x"):
        graph.argmax(x, -3)
    with pytest.raises(ShapeError, match=r"x \(4, 3\) has no element 4"):
        x[4]
    with pytest.raises(ShapeError, match="fewer axes"):
        x[0, 0, 0]
    with pytest.raises(ShapeError, match="integers and slices"):
        x[1.5]
    with pytest.raises(ShapeError, match="squeeze: x"):
        graph.squeeze(x, 0)
    with pytest.raises(ShapeError, match="expand_dims: x"):
        graph.expand_dims(x, 3)
    with pytest.raises(ShapeError, match="tile: x"):
        graph.tile(x, (2,))
    with pytest.raises(ShapeError, match="transpose: x"):
        graph.transpose(x, (0, 0))
    with pytest.raises(ShapeError, match="reshape: x"):
        graph.reshape(x, (5, -1))
    with pytest.raises(DtypeError, match="take_rows"):
        graph.take_rows(x, w)
    with pytest.raises(DtypeError, match="concat"):
        graph.concat([x, graph.cast(x, F8)])
    with pytest.raises(DtypeError, match="truth"):
        bool(x > 0.0)


def test_types_that_do_not_fit():
    x, y = graph.placeholder((2, 2), np.float32), graph.placeholder((2, 2), np.float64)
    with pytest.raises(DtypeError, match="add"):
        x + y
    with pytest.raises(DtypeError, match="matmul"):
        x @ y
    with pytest.raises(DtypeError, match="labels"):
        graph.one_hot(x, 3)
    with pytest.raises(DtypeError, match="real"):
        x * np.array(["a"])


WRONG_SHAPES = {
    "reshape: x (2, 3) does not fill (-2, -3)": lambda: graph.reshape(x, (-2, -3)),
    "reshape: a shape is a sequence of integers, not 6": lambda: graph.reshape(x, 6),
    "reshape: a shape is a sequence of integers, not (2.0, 3)": lambda: graph.reshape(x, (2.0, 3)),
    "broadcast_to: a length in (-2, 3) is negative": lambda: graph.broadcast_to(x, (-2, 3)),
    "broadcast_to: a shape is": lambda: graph.broadcast_to(x, (4.0, 2, 3)),
    "placeholder: a shape is": lambda: graph.placeholder((2, 2.5)),
    "placeholder: a length in (-1,) is negative": lambda: graph.placeholder((-1,)),
    "variable: a length in (-1,) is negative": lambda: graph.variable((-1,)),
    "variable: a value (3,) was given for a variable (2,)": lambda: graph.variable(
        (2,), value=[1, 2, 3]
    ),
    "uniform_noise: a length": lambda: graph.uniform_noise(unsigned, unsigned, 0, (2, -3)),
    "dropout: noise vector (3,) does not broadcast to scalar ()": lambda: graph.dropout(
        scalar, vector, 0.5
    ),
    "tile: what x (2, 3) is repeated by": lambda: graph.tile(x, 2),
    "tile: x (2, 3) cannot be repeated (2, 0)": lambda: graph.tile(x, (2, 0)),
    "stack: x (2, 3) and vector (3,) differ in shape": lambda: graph.stack([x, vector]),
    "stack: there is nothing": lambda: graph.stack([]),
    "softmax_cross_entropy: scalar ()": lambda: graph.softmax_cross_entropy(scalar, scalar),
    "softmax_cross_entropy: logits (0, 3) have no rows": lambda: graph.softmax_cross_entropy(
        empty, empty
    ),
    "log_softmax: transpose (3, 0) has no classes": lambda: graph.log_softmax(empty.T),
    "len: <placeholder 'scalar'": lambda: len(scalar),
    # Axes.
    "mean: x (2, 3) has no axis 5": lambda: graph.mean(x, 5),
    "normalise: x (2, 3) has no axis -3": lambda: graph.normalise(x, -3, 1e-5),
    "sum: an axis of x (2, 3) is an integer, not 1.0": lambda: graph.sum(x, 1.0),
    "argmax: an axis of x (2, 3) is an integer, not (0, 1)": lambda: graph.argmax(x, (0, 1)),
    "argmax: an axis of x (2, 3) is an integer, not None": lambda: graph.argmax(x, None),
    "squeeze: an axis of x (2, 3) is an integer": lambda: graph.squeeze(x, 1.5),
    "expand_dims: an axis of x (2, 3) is an integer": lambda: graph.expand_dims(x, 1.5),
    "concat: an axis of x (2, 3) is an integer": lambda: graph.concat([x, x], 0.0),
    "stack: x (2, 3) has no place 3": lambda: graph.stack([x, x], 3),
    "transpose: an order of the axes of x (2, 3)": lambda: graph.transpose(x, 1),
    "transpose: x (2, 3) has no order of axes (0, 5)": lambda: graph.transpose(x, (0, 5)),
    "slice: x (2, 3) takes no slice(None, None, 0)": lambda: x[::0],
    "slice: x (2, 3) takes no slice(0, 'a', None)": lambda: x[0:"a"],
    # No elements.
    "mean: empty (0, 3) has no elements along [0]": lambda: graph.mean(empty, 0),
    "normalise: empty (0, 3) has no elements": lambda: graph.normalise(empty, 0, 1e-5),
    "max: empty (0, 3) has no elements": lambda: graph.max(empty),
    "argmax: empty (0, 3) has no elements along 0": lambda: graph.argmax(empty, 0),
}


@pytest.mark.parametrize("message", WRONG_SHAPES)
def test_shapes_and_axes(message):
    with pytest.raises(ShapeError) as caught:
        WRONG_SHAPES[message]()
    assert str(caught.value).startswith(message)


WRONG_TYPES = {
    "cast: 'half a float' is no type": lambda: graph.cast(x, "half a float"),
    "cast: elements must be real numbers": lambda: graph.cast(x, np.complex64),
    "placeholder: elements must be real numbers": lambda: graph.placeholder((2,), object),
    "variable: values must be real numbers": lambda: graph.variable(value=1 + 1j),
    "one_hot: elements must be": lambda: graph.one_hot(integers, 3, np.complex64),
    "uniform_noise: numbers from": lambda: graph.uniform_noise(unsigned, unsigned, 0, (2,), int),
    "constant: int64 cannot hold 0.5": lambda: graph.constant(0.5, np.int64),
    "multiply: int64 cannot hold 0.5": lambda: integers * 0.5,
    "add: int64 cannot hold values (3,) of float64": lambda: integers + np.full(3, np.nan),
    "subtract: uint64 cannot hold -1": lambda: unsigned - (-1),
    "multiply: bool cannot hold 2": lambda: bools * 2,
    "add: values must be real numbers": lambda: x + "a",
    "add: no operand is a node": lambda: graph.add(1.0, 2.0),
    "relu: an array is no node": lambda: graph.relu(np.ones(3)),
    "binary_cross_entropy: 1.0 is no node": lambda: graph.binary_cross_entropy(x, 1.0),
    "concat: 3 is no node": lambda: graph.concat([x, 3]),
    "concat: <placeholder 'x' (2, 3) float32> is one node": lambda: graph.concat(x),
    "where: an array is no node": lambda: graph.where(np.ones(3, bool), x, 0.0),
    "assign: 0.0 is no node": lambda: graph.assign(weight, 0.0),
    "mean: integers (2, 3) of int64 is not of floats": lambda: graph.mean(integers),
    "normalise: integers (2, 3) of int64": lambda: graph.normalise(integers, 1, 1e-5),
    "power: an exponent of integers (2, 3) of int64": lambda: integers**-1,
    "gradients: dy of float64": lambda: graph.gradients(
        scalar, [scalar], graph.placeholder((), F8)
    ),
    "gradients: 3 is no node": lambda: graph.gradients(scalar, [3]),
    "gradients: <placeholder 'x' (2, 3) float32> is one node": lambda: graph.gradients(scalar, x),
    "graph_of: <placeholder 'x' (2, 3) float32> is one node": lambda: graph.graph_of(x),
    "evaluate: <placeholder 'x' (2, 3) float32> is one node": lambda: graph.evaluate(x, {}),
    "eager: 3 is no node": lambda: graph.run_eagerly([3], {}),
    "plan: a list, no array": lambda: graph.Plan([weight], dnn.ops_for("cpu"), {weight: [[1.0]]}),
}


@pytest.mark.skipif(np.intp != np.int64, reason="the messages are those of 64 bits")
@pytest.mark.parametrize("message", WRONG_TYPES)
def test_types_of_elements(message):
    with pytest.raises(DtypeError) as caught:
        WRONG_TYPES[message]()
    assert str(caught.value).startswith(message)


FLOATS_ONLY = [
    "divide", "exp", "log", "log1p", "sqrt", "relu", "sigmoid", "tanh", "elu", "softplus", "gelu",
    "leaky_relu", "log_softmax", "softmax", "softmax_cross_entropy", "binary_cross_entropy", "mean",
    "exact_gelu", "hard_sigmoid", "hard_swish", "normal_cdf", "relu6", "silu",
]  # fmt: skip
NUMBERS_ONLY = ["subtract", "negative", "square", "power"]
ANY_TYPE = [
    "add", "multiply", "abs", "maximum", "minimum", "max", "min", "prod", "sum", "positive",
    "greater", "greater_equal", "equal", "argmax", "matmul", "dot", "transpose", "flatten",
]  # fmt: skip
BINARY = {
    "add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "greater", "equal",
    "greater_equal", "matmul", "dot", "softmax_cross_entropy", "binary_cross_entropy",
}  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [bool, np.int32, np.intp, np.uint64])
@pytest.mark.parametrize("name", [*FLOATS_ONLY, *NUMBERS_ONLY, *ANY_TYPE])
def test_an_operation_refuses_a_type_at_once_or_computes_with_it(name, dtype, compiled):
    """So that nobody meets NumPy's casting rules in the middle of a plan."""
    a = graph.placeholder((3, 3), dtype, "a")
    operands = [a, a] if name in BINARY else [a]
    if name == "power" and dtype in (np.int32, np.intp):
        operands[1] = graph.constant(3, dtype)
    if name in FLOATS_ONLY or (name in NUMBERS_ONLY and dtype is bool):
        with pytest.raises(DtypeError, match=r"\(3, 3\)|cannot hold"):
            getattr(graph, name)(*operands)
        return
    y = getattr(graph, name)(*operands)
    values = np.array([[0, 1, 1], [1, 1, 0], [1, 0, 1]]).astype(dtype)
    ops = dnn.ops_for("cpu") if compiled else Ops()
    (found,) = graph.evaluate([y], {a: values}, ops)
    assert (found.shape, found.dtype) == (y.shape, y.dtype)


def test_numbers_that_are_out_of_range():
    noise = graph.placeholder((2, 3), name="noise")
    for rate in (1.0, 1, -0.5, "a", float("nan")):
        with pytest.raises(ConfigurationError, match="dropout: the rate"):
            graph.dropout(x, noise, rate)
    for stream in (-1, 2**32, 1.5):
        with pytest.raises(ConfigurationError, match="uniform_noise: stream"):
            graph.uniform_noise(unsigned, unsigned, stream, (2,))
    for classes in (0, -1, 2.5):
        with pytest.raises(ConfigurationError, match="one_hot: classes"):
            graph.one_hot(integers, classes)


def test_rows_that_differ_in_length():
    for make in (graph.constant, lambda rows: graph.variable(value=rows), lambda rows: x + rows):
        with pytest.raises(DataError, match="rows that differ in length"):
            make([[1], [1, 2]])


@pytest.mark.parametrize("compute", [graph.evaluate, graph.run_eagerly])
def test_values_that_a_node_cannot_take(compute):
    doubled = integers * 2
    for value in (np.full((2, 3), 0.5), np.full((2, 3), np.nan)):
        with pytest.raises(DtypeError, match=r"'integers'.* cannot hold"):
            compute([doubled], {integers: value})
    (found,) = compute([doubled], {integers: np.ones((2, 3))})  # floats that are integers
    assert found.tolist() == [[2, 2, 2]] * 2
    for wrong in (doubled, graph.constant(1.0), "integers"):
        with pytest.raises(ConfigurationError, match="neither a placeholder nor a variable"):
            compute([doubled], {integers: np.ones((2, 3)), wrong: 1.0})


def test_an_empty_slice_that_begins_before_the_beginning():
    values = np.arange(6.0).reshape(2, 3)
    (found,) = graph.evaluate([x[-10::-1]], {x: values})
    assert found.shape == values[-10::-1].shape == (0, 3)


def test_a_mean_over_an_axis_beside_an_empty_one_is_empty():
    assert graph.mean(empty, 1).eval({empty: np.ones((0, 3))}).shape == (0,)
    values = graph.normalise(empty, 1, 1e-5).values
    (slope,) = graph.gradients(graph.sum(values), [empty])
    assert slope.eval({empty: np.ones((0, 3))}).shape == (0, 3)


def test_an_array_may_stand_on_the_left_of_a_product():
    values = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    left = np.array([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_allclose((left @ x).eval({x: values}), left @ values)


def test_a_number_that_a_type_of_floats_cannot_hold():
    x = graph.placeholder((2,))
    for values in (1e39, [0.0, -1e39]):
        with pytest.raises(DtypeError, match=r"float32 cannot hold .*: it ends at 3\.403e"):
            x * np.array(values)
    with pytest.raises(DtypeError, match="cannot hold"):
        graph.evaluate([x + 1.0], {x: np.array([1.0, 1e39])})
    assert np.isinf(graph.constant(np.inf).attributes["value"])
