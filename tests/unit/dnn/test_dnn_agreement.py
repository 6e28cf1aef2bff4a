"""Seeded random shapes, 2,000 in all, against PyTorch in float64: values and gradients.

A failure names its operation and seed: ``CASES["convolution"](torch, random.Random(17))`` is case
17 again.
"""

import random
from collections import Counter
from functools import partial

import numpy as np
import pytest
from support import THOROUGH, case_count

from dnn import graph
from dnn.backend import Convolution, Ops, empty, ops_for
from dnn.backend.convolution import LAYOUTS, image_view

OPS = ops_for("cpu")
ERROR = 5e-6
"""Of the largest value, in float32, for sums of up to some hundred products."""

OF_WINOGRAD = {"winograd4": 1e-4, "winograd2": 1e-5}
"""Its transforms add up and cancel."""

ROUTINES = {"direct", "direct_rows", "depthwise", "im2col", "batched_gemm", "indirect", "fft"}
ROUTINES |= set(OF_WINOGRAD)

USED: Counter[tuple[str, str]] = Counter()
"""How often each routine has computed each kind of result."""


def normal(draw, *shape):
    return np.random.default_rng(draw.getrandbits(32)).normal(size=shape).astype("f4")


def tensors(torch, *arrays):
    return [torch.tensor(x.astype("f8"), requires_grad=True) for x in arrays]


def check(found, expected, error, what):
    expected = expected.detach().numpy()
    wrong = np.abs(found - expected).max() / max(1, np.abs(expected).max())
    assert wrong < error, f"{what}: {wrong}"


def pair(draw, low, high):
    return draw.randint(low, high), draw.randint(low, high)


def convolution(torch, draw):
    """A routine that takes the problem, for every kind of result, in one of the layouts.

    Another one for each seed, so that each meets hundreds of shapes.
    """
    groups = draw.choice([1, 1, 1, 2, 3])
    window = draw.choice([(3, 3), (3, 3), (1, 1), pair(draw, 1, 5)])
    stride = draw.choice([(1, 1), (1, 1), (2, 2), pair(draw, 1, 3)])
    dilation = draw.choice([(1, 1), (1, 1), (1, 1), pair(draw, 1, 2)])
    padding = pair(draw, 0, 2)
    layout = draw.choice(LAYOUTS)
    most = 6
    if draw.random() < 0.3:  # what Winograd's convolution is for
        groups, window, stride, dilation, layout, most = 1, (3, 3), (1, 1), (1, 1), "NHWC", 35
    size = tuple(
        max(1, (taps - 1) * apart + 1 - 2 * pad) + draw.randint(0, 6 + most // 6)
        for taps, apart, pad in zip(window, dilation, padding, strict=True)
    )
    images = draw.randint(1, 4)
    # Kernels are compiled for numbers of channels: a few of them.
    numbers = (1, 3, 6) if most == 6 else (1, 3, 7, 8, 15, 16, 17, 35)
    channels, filters = draw.choice(numbers), draw.choice(numbers)
    if most == 6 and draw.random() < 0.2:  # each channel by itself
        groups, channels, filters, layout = draw.randint(2, 9), 1, 1, "NHWC"
    x = normal(draw, images, groups * channels, *size)
    w = normal(draw, groups * filters, channels, *window)
    theirs = tensors(torch, x, w)
    y = torch.nn.functional.conv2d(*theirs, None, stride, padding, dilation, groups)
    dy = normal(draw, *y.shape)
    y.backward(torch.tensor(dy.astype("f8")))
    expected = {"forward": y, "data": theirs[0].grad, "weights": theirs[1].grad}
    axes = ["NCHW".index(letter) for letter in layout]
    mine = {"x": x.transpose(axes).copy(), "w": w, "dy": dy.transpose(axes).copy()}
    for kind, names in {"forward": "x w", "data": "dy w", "weights": "x dy"}.items():
        problem = Convolution(
            *(kind, layout, "f4", None, (False, False), images, groups * channels, size),
            *(groups * filters, window, stride, dilation),
            tuple((pad, pad) for pad in padding),
            groups,
        )
        offered = OPS.convolutions(problem)
        # For each number of channels and of columns of a window this has a kernel of its own.
        if most > 6 or (kind == "weights" and (channels == 6 or window[1] not in (1, 3))):
            offered = [each for each in offered if each.name != "direct_rows"]
        routine = draw.choice(offered)
        USED[routine.name, kind] += 1
        out = empty(OPS, problem.shapes[2], "f4")
        out.fill(np.nan)
        workspace = OPS.memory(routine.workspace_bytes)
        inputs = [mine[name] for name in names.split()]
        for function, arguments in routine.steps(inputs, out, workspace):
            function(*arguments)
        found = out if kind == "weights" else image_view(out, layout)
        error = OF_WINOGRAD.get(routine.name, ERROR)
        check(found, expected[kind], error, f"{routine.name} of {problem}")


def compare(torch, draw, arrays, ours, theirs, error=ERROR):
    """Compare what a function of nodes and one of tensors return, and all gradients."""
    nodes = [graph.placeholder(x.shape, np.float32) for x in arrays]
    y = ours(*nodes)
    given = tensors(torch, *arrays)
    expected = theirs(*given)
    v = normal(draw, *y.shape)
    gradients = graph.gradients(y, nodes, graph.constant(v, np.float32))
    found = graph.run_eagerly([y, *gradients], dict(zip(nodes, arrays, strict=True)), OPS)
    expected.backward(torch.tensor(v.astype("f8")))
    for i, (one, other) in enumerate(zip(found, [expected, *(x.grad for x in given)], strict=True)):
        check(one, other, error, f"result {i} from {[x.shape for x in arrays]}")


def pooling(torch, draw):
    window, stride = pair(draw, 1, 4), pair(draw, 1, 3)
    padding = tuple(draw.randint(0, taps // 2) for taps in window)
    size = tuple(taps + draw.randint(0, 6) for taps in window)
    x = normal(draw, draw.randint(1, 4), draw.randint(1, 6), *size)
    how = {"stride": stride, "padding": padding}
    if draw.random() < 0.5:
        ours, theirs = graph.max_pool2d, torch.nn.functional.max_pool2d
    else:
        ours = graph.average_pool2d
        theirs = partial(torch.nn.functional.avg_pool2d, count_include_pad=False)
    compare(torch, draw, [x], lambda x: ours(x, window, **how), lambda x: theirs(x, window, **how))


def batch_norm(torch, draw):
    channels = draw.randint(1, 7)
    x = normal(draw, draw.randint(2, 5), channels, *pair(draw, 2, 6))
    arrays = [x, normal(draw, channels), normal(draw, channels)]
    compare(
        torch,
        draw,
        arrays,
        lambda x, scale, shift: graph.batch_norm(x, scale, shift, 1, 1e-5).values,
        lambda *given: torch.nn.functional.batch_norm(
            given[0], None, None, *given[1:], training=True
        ),
        1e-4,
    )


def upsampling(torch, draw):
    factor = pair(draw, 1, 4)
    x = normal(draw, *pair(draw, 1, 4), *pair(draw, 1, 6))

    def ours(x):
        n, c, h, w = x.shape
        wide = graph.broadcast_to(
            graph.reshape(x, (n, c, h, 1, w, 1)), (n, c, h, factor[0], w, factor[1])
        )
        return graph.reshape(wide, (n, c, h * factor[0], w * factor[1]))

    compare(torch, draw, [x], ours, torch.nn.Upsample(scale_factor=factor, mode="nearest"))


def recurrence(torch, draw):
    cell = draw.choice(["tanh", "relu", "lstm", "gru"])
    steps, batch, features, units = (draw.randint(1, 6) for _ in range(4))
    wide = units * {"lstm": 4, "gru": 3}.get(cell, 1)
    shapes = [(steps, batch, features), (wide, features), (wide, units), (wide,), (wide,)]
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(cell, torch.nn.RNN)
    options = {"nonlinearity": cell} if kind is torch.nn.RNN else {}
    module = kind(features, units, dtype=torch.float64, **options)

    def theirs(x, *weights):
        names = [name for name, _ in module.named_parameters()]
        given = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(module, given, (x,))[0]

    compare(
        torch,
        draw,
        [0.5 * normal(draw, *shape) for shape in shapes],
        lambda *nodes: graph.recurrent(*nodes, cell=cell).states,
        theirs,
        2e-5,
    )


CASES = {  # how many of each if tests are thorough, else a tenth
    convolution: 1200,
    pooling: 450,
    batch_norm: 150,
    upsampling: 140,
    recurrence: 60,
}


@pytest.fixture
def one_thread():
    """PyTorch on one thread: for such shapes others only cost."""
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=case.__name__,
            marks=[pytest.mark.slow, pytest.mark.thorough] if case is convolution else [],
        )
        for case in CASES
    ],
)
def test_random_shapes_agree_with_torch(case, one_thread):
    for seed in range(case_count(CASES[case])):
        try:
            case(one_thread, random.Random(seed))
        except Exception as error:
            raise AssertionError(f"{case.__name__}, seed {seed}: {error}") from error
    if case is convolution and THOROUGH:
        assert {name for name, _ in USED} == (ROUTINES if type(OPS) is not Ops else {"direct"})
        assert min(USED.values()) >= 10, USED
