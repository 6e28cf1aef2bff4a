"""Pooling: against torch in all layouts, ties and NaN, errors."""

import numpy as np
import pytest

from dnn import graph
from dnn.backend import Ops, ops_for
from dnn.backend.convolution import LAYOUTS
from dnn.errors import ConfigurationError, DtypeError, ShapeError

DEVICES = [Ops(), ops_for("cpu")]


def both_ways(x, pool, layout, ops):
    """Evaluate a pooling and the gradient of the sum of its squares, in NCHW."""
    axes = ["NCHW".index(letter) for letter in layout]
    back = [layout.index(letter) for letter in "NCHW"]
    node = graph.placeholder(x.shape, x.dtype)
    y = graph.transpose(pool(graph.transpose(node, axes)), back)
    (slope,) = graph.gradients(graph.sum(y * y), [node])
    return graph.evaluate([y, slope], {node: x}, ops)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(3))
def test_values_and_gradients_against_torch(layout, seed):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    pools = torch.nn.functional
    generator = np.random.default_rng(seed)
    window = tuple(int(n) for n in generator.integers(1, 4, 2))
    stride = tuple(int(n) for n in generator.integers(1, 4, 2))
    pad = tuple(int(n) // 2 for n in window)
    # Few different values, so that windows have several largest elements.
    x = generator.integers(-3, 4, (2, 3, 8, 7)).astype(generator.choice(["f4", "f8"]))
    tensor = torch.tensor(x, requires_grad=True)
    cases = [
        (
            lambda node: graph.max_pool2d(node, window, stride=stride, padding=pad, layout=layout),
            pools.max_pool2d(tensor, window, stride, pad),
        ),
        *(
            (
                lambda node, counts=counts: graph.average_pool2d(
                    node,
                    window,
                    stride=stride,
                    padding=pad,
                    layout=layout,
                    counts_padding=counts,
                ),
                pools.avg_pool2d(tensor, window, stride, pad, count_include_pad=counts),
            )
            for counts in (False, True)
        ),
    ]
    for pool, theirs in cases:
        tensor.grad = None
        (theirs * theirs).sum().backward(retain_graph=True)
        for ops in DEVICES:
            y, slope = both_ways(x, pool, layout, ops)
            np.testing.assert_allclose(y, theirs.detach().numpy(), rtol=1e-5)
            np.testing.assert_allclose(slope, tensor.grad.numpy(), rtol=1e-5, atol=1e-5)


def test_the_first_of_several_largest_elements_has_the_gradient():
    x = np.zeros((1, 1, 2, 4), np.float32)
    x[0, 0, 1, 3] = np.nan  # is the largest of its window
    node = graph.placeholder(x.shape)
    (slope,) = graph.gradients(graph.sum(graph.max_pool2d(node, 2)), [node])
    for ops in DEVICES:
        (found,) = graph.evaluate([slope], {node: x}, ops)
        np.testing.assert_array_equal(found[0, 0], [[1, 0, 0, 0], [0, 0, 0, 1]])


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ({"window": 0}, ConfigurationError, "window must be an integer of at least 1"),
        ({"window": 2, "stride": 0}, ConfigurationError, "stride must be"),
        ({"window": 2, "padding": 2}, ConfigurationError, "padding 2 must be less than the window"),
        ({"window": 5}, ShapeError, "a window of 5 x 5 is larger than an image of 4 x 4"),
    ],
)
@pytest.mark.parametrize("pool", [graph.max_pool2d, graph.average_pool2d])
def test_what_does_not_fit_is_named(pool, how, error, says):
    with pytest.raises(error, match=says) as caught:
        pool(graph.placeholder((2, 3, 4, 4)), **how)
    assert str(caught.value).startswith(pool.__name__)


def test_pooling_is_of_floats():
    with pytest.raises(DtypeError, match="float32 or float64, not int64"):
        graph.max_pool2d(graph.placeholder((2, 3, 4, 4), np.int64), 2)
