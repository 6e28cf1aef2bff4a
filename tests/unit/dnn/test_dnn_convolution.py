"""Convolution: the direct routine against the definition and torch, layouts, K models, errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import case_count

from dnn import graph
from dnn.backend import Convolution, Ops, empty, ops_for
from dnn.backend.convolution import LAYOUTS, image_view
from dnn.errors import ConfigurationError, DtypeError, ShapeError
from dnn.graph.layout import lay_out

DEVICES = [Ops(), ops_for("cpu")]
KINDS = ("forward", "data", "weights")


@st.composite
def problems(draw, models=False):
    groups = draw(st.integers(1, 3))
    window = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dilation = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    side = st.tuples(st.integers(0, 3), st.integers(0, 3))
    padding = draw(st.tuples(side, side))
    reach = [(n - 1) * d + 1 - sum(p) for n, d, p in zip(window, dilation, padding, strict=True)]
    size = tuple(max(1, n) + draw(st.integers(0, 4)) for n in reach)
    return Convolution(
        draw(st.sampled_from(KINDS)),
        draw(st.sampled_from(LAYOUTS)),
        "f8",
        draw(st.integers(1, 3)) if models else None,
        draw(st.sampled_from([(True, True), (True, False), (False, True)]))
        if models
        else (False, False),
        draw(st.integers(1, 5)),
        groups * draw(st.integers(1, 3)),
        size,
        groups * draw(st.integers(1, 3)),
        window,
        draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        dilation,
        padding,
        groups,
    )


def run(routine, problem, inputs):
    """Compute with a routine of NumPy's arrays, whose memory holds NaN at first."""
    out = np.full(problem.shapes[2], np.nan, problem.dtype)
    space = None
    if routine.workspace_bytes:
        space = empty(Ops(), (routine.workspace_bytes,), np.uint8)
        space.fill(255)
    for function, arguments in routine.steps(inputs, out, space):
        function(*arguments)
    return out


def inputs_of(problem, generator):
    return [generator.normal(size=shape).astype(problem.dtype) for shape in problem.shapes[:2]]


def taps(problem):
    """Return (filter, channel of its group, channel, r, s, part of the padded x) for each tap."""
    height, width = problem.out_size
    per_group = problem.channels // problem.groups
    for f in range(problem.filters):
        first = f // (problem.filters // problem.groups) * per_group
        for c in range(per_group):
            for r in range(problem.window[0]):
                for s in range(problem.window[1]):
                    down, right = r * problem.dilation[0], s * problem.dilation[1]
                    part = (
                        slice(down, down + height * problem.stride[0], problem.stride[0]),
                        slice(right, right + width * problem.stride[1], problem.stride[1]),
                    )
                    yield f, c, first + c, r, s, part


def by_definition(problem, first, second):
    """Compute a convolution tap by tap, with plain loops."""
    height, width = problem.out_size
    grown = [n + sum(pad) for n, pad in zip(problem.size, problem.padding, strict=True)]
    # What a stride leaves over at the lower and right border is not met; room for whole slices.
    room = [n + step for n, step in zip(grown, problem.stride, strict=True)]
    padded = np.zeros((problem.images, problem.channels, *room))
    (top, _), (left, _) = problem.padding
    inside = padded[:, :, top : top + problem.size[0], left : left + problem.size[1]]
    y = np.zeros((problem.images, problem.filters, height, width))
    w = np.zeros(problem.w_shape)
    if problem.kind == "data":
        y[...], w[...] = image_view(first, problem.layout), second
    elif problem.kind == "weights":
        inside[...], y[...] = (image_view(x, problem.layout) for x in (first, second))
    else:
        inside[...], w[...] = image_view(first, problem.layout), second
    for f, c, channel, r, s, (rows, columns) in taps(problem):
        met = padded[:, channel, rows, columns][:, :height, :width]
        if problem.kind == "forward":
            y[:, f] += met * w[f, c, r, s]
        elif problem.kind == "data":
            met += y[:, f] * w[f, c, r, s]
        else:
            w[f, c, r, s] = np.sum(met * y[:, f])
    result = {"forward": y, "data": inside, "weights": w}[problem.kind]
    if problem.kind == "weights":
        return result
    return result.transpose(["NCHW".index(letter) for letter in problem.layout])


@given(problem=problems(), seed=st.integers(0, 2**32 - 1), chunk=st.booleans())
@settings(max_examples=case_count(80), deadline=None)
def test_direct_convolution_is_the_definition(problem, seed, chunk):
    inputs = inputs_of(problem, np.random.default_rng(seed))
    expected = by_definition(problem, *inputs)
    with pytest.MonkeyPatch.context() as patch:
        if chunk:  # two images at once
            each = np.prod(problem.w_shape[1:]) * problem.groups * np.prod(problem.out_size) * 8
            patch.setattr("dnn.backend.convolution.COLUMNS_BYTES", int(2 * each))
        for ops in DEVICES:
            (*_, routine) = ops.convolutions(problem)
            assert routine.name == "direct"
            found = run(routine, problem, inputs)
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@given(problem=problems(models=True), seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from("48"))
@settings(max_examples=case_count(40), deadline=None)
def test_direct_convolutions_of_models_are_those_of_each_alone(problem, seed, dtype):
    problem = problem._replace(dtype=f"f{dtype}")
    inputs = inputs_of(problem, np.random.default_rng(seed))
    alone = problem._replace(models=None, stacked=(False, False))
    for ops in DEVICES:
        together = run(ops.convolutions(problem)[-1], problem, inputs)
        for k, found in enumerate(together):
            of_model = [x[k] if has else x for x, has in zip(inputs, problem.stacked, strict=True)]
            expected = run(ops.convolutions(alone)[-1], alone, of_model)
            np.testing.assert_array_equal(found, expected)


@given(problem=problems(), seed=st.integers(0, 2**32 - 1), models=st.sampled_from([None, 2]))
@settings(max_examples=case_count(40), deadline=None)
def test_bias_and_relu(problem, seed, models):
    generator = np.random.default_rng(seed)
    bare = problem._replace(kind="forward", models=models, stacked=(models is not None,) * 2)
    x, w = inputs_of(bare, generator)
    bias = generator.normal(size=(*(() if models is None else (models,)), problem.filters))
    y = image_view(run(Ops().convolution(bare), bare, [x, w]), problem.layout)
    whole = bare._replace(bias=True, relu=True)
    found = image_view(run(Ops().convolution(whole), whole, [x, w, bias]), problem.layout)
    spread = bias[..., None, :, None, None]
    np.testing.assert_array_equal(found, np.maximum(y + spread, 0))


@pytest.mark.parametrize("seed", range(6))
def test_values_and_gradients_against_torch(seed):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    generator = np.random.default_rng(seed)
    groups, stride, dilation = (int(n) for n in generator.integers(1, 4, 3))
    pad = tuple(int(n) for n in generator.integers(0, 3, 2))
    x = generator.normal(size=(3, 2 * groups, 11, 10))
    w = generator.normal(size=(groups, 2, 3, 2))
    b = generator.normal(size=groups)
    nodes = [graph.placeholder(each.shape, np.float64) for each in (x, w, b)]
    how = {"stride": stride, "dilation": dilation, "padding": pad, "groups": groups}
    y = graph.conv2d(*nodes, **how)
    gradients = graph.gradients(graph.sum(y * y), nodes)
    found = graph.evaluate([y, *gradients], dict(zip(nodes, (x, w, b), strict=True)))
    theirs = [torch.tensor(each, requires_grad=True) for each in (x, w, b)]
    of_torch = torch.nn.functional.conv2d(*theirs, **how)
    (of_torch * of_torch).sum().backward()
    expected = [of_torch.detach(), *(each.grad for each in theirs)]
    for ours, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, other.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_three_layouts_agree(layout):
    generator = np.random.default_rng(0)
    x, w = generator.normal(size=(2, 3, 6, 5)), generator.normal(size=(4, 3, 3, 3))
    node, weight = (graph.placeholder(each.shape, np.float64) for each in (x, w))
    (expected,) = graph.evaluate([graph.conv2d(node, weight)], {node: x, weight: w})
    axes = ["NCHW".index(letter) for letter in layout]
    there = graph.transpose(node, axes)
    y = graph.conv2d(there, weight, layout=layout)
    back = graph.transpose(y, [layout.index(letter) for letter in "NCHW"])
    assert there not in lay_out([y], external=[]).views  # it is copied, since routines want it so
    for ops in DEVICES:
        (found,) = graph.evaluate([back], {node: x, weight: w}, ops)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_a_second_derivative_against_differences():
    generator = np.random.default_rng(1)
    x, w = generator.normal(size=(2, 2, 5, 4)), generator.normal(size=(2, 1, 2, 2))
    nodes = [graph.placeholder(each.shape, np.float64) for each in (x, w)]
    y = graph.conv2d(*nodes, stride=2, padding=1, groups=2)
    slope = graph.gradients(graph.sum(y * y * y), nodes)
    total = graph.sum(slope[0] * slope[0]) + graph.sum(slope[1])
    twice = graph.gradients(total, nodes)
    found = graph.evaluate(twice, dict(zip(nodes, (x, w), strict=True)))
    for i, (value, gradient) in enumerate(zip((x, w), found, strict=True)):
        u = generator.normal(size=value.shape)
        sides = []
        for sign in (1, -1):
            moved = [x, w]
            moved[i] = value + sign * 1e-6 * u
            sides.append(graph.evaluate([total], dict(zip(nodes, moved, strict=True)))[0])
        difference = (sides[0] - sides[1]) / 2e-6
        assert np.sum(gradient * u) == pytest.approx(difference, rel=1e-6)


def nodes(x=(2, 4, 6, 6), w=(8, 4, 3, 3), dtype=np.float32):
    return graph.placeholder(x, dtype, "x"), graph.placeholder(w, dtype, "w")


@pytest.mark.parametrize(
    ("shapes", "how", "error", "says"),
    [
        ({}, {"stride": 0}, ConfigurationError, "stride must be an integer of at least 1"),
        ({}, {"dilation": (1, 0)}, ConfigurationError, "dilation must be"),
        ({}, {"padding": -1}, ConfigurationError, "padding must be an integer of at least 0"),
        ({}, {"stride": (1, 2, 3)}, ConfigurationError, "one integer or two"),
        ({}, {"groups": 3}, ConfigurationError, "groups = 3 does not divide 4 channels and 8"),
        ({}, {"layout": "HWCN"}, ConfigurationError, "unknown layout 'HWCN'"),
        ({"w": (8, 3, 3, 3)}, {}, ShapeError, "x (2, 4, 6, 6) has 4 channels, but w"),
        ({"w": (8, 4, 7, 3)}, {}, ShapeError, "a window of 7 x 3 is larger than an image of 6 x 6"),
        (
            {},
            {"dilation": 4, "padding": 1},
            ShapeError,
            "3 x 3, 9 x 9 with its dilation, is larger than an image of 6 x 6, 8 x 8 with its pad",
        ),
        ({"x": (2, 4, 6)}, {}, ShapeError, "has not the four axes NCHW"),
        ({"w": (8, 4)}, {}, ShapeError, "has not the axes of filters, channels"),
        ({"dtype": np.int64}, {}, DtypeError, "float32 or float64, not int64"),
    ],
)
def test_what_does_not_fit_is_named(shapes, how, error, says):
    with pytest.raises(error) as caught:
        graph.conv2d(*nodes(**shapes), **how)
    assert str(caught.value).startswith("conv2d") or "layout" in str(caught.value)
    assert says in str(caught.value)


def test_a_gradient_says_which_window_does_not_fit():
    x, w = nodes(w=(8, 4, 9, 9))
    dy = graph.placeholder((2, 8, 1, 1), np.float32)
    says = "a window of 9 x 9 is larger than an image of 6 x 6"
    with pytest.raises(ShapeError, match=says):
        graph.conv2d_data_gradient(dy, w, size=(6, 6))
    with pytest.raises(ShapeError, match=says):
        graph.conv2d_weight_gradient(x, dy, window=(9, 9))
    with pytest.raises(ConfigurationError, match="groups must be an integer"):
        graph.conv2d_data_gradient(dy, w, size=(12, 12), groups=None)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_images_no_routine_fails_and_the_gradient_of_weights_is_zero(layout):
    for kind, groups in ((kind, groups) for kind in KINDS for groups in (1, 4)):
        problem = Convolution(
            *(kind, layout, "f4", None, (False, False), 0, 4, (5, 6), 4),
            *((3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), groups),
        )
        for ops in DEVICES:
            for routine in ops.convolutions(problem):
                found = run(routine, problem, inputs_of(problem, np.random.default_rng(0)))
                np.testing.assert_array_equal(found, np.zeros(problem.shapes[2]))


def test_a_bias_that_does_not_fit_is_named():
    bias = graph.placeholder((4,), np.float32, "bias")
    with pytest.raises(ShapeError, match=r"bias \(4,\).*\(8,\)"):
        graph.conv2d(*nodes(), bias)
