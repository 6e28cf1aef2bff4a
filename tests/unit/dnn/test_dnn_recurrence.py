"""Recurrent cells against PyTorch's, on every kind of processor there is; what they refuse."""

import importlib.util
import itertools

import numpy as np
import pytest

from dnn import graph
from dnn.backend import Ops, ops_for
from dnn.errors import ConfigurationError, DtypeError, ShapeError
from dnn.graph.operation import with_models

CELLS = {"tanh": 1, "relu": 1, "lstm": 4, "gru": 3}
STEPS, BATCH, FEATURES, UNITS = 5, 4, 3, 6
LENGTHS = [5, 2, 1, 3]
DEVICES = ["numpy", "cpu"] if importlib.util.find_spec("numba") else ["numpy"]


def values_of(cell, dtype, seed=0):
    """Inputs, weights, biases, first state and cell."""
    generator = np.random.default_rng(seed)
    wide = CELLS[cell] * UNITS
    shapes = [(STEPS, BATCH, FEATURES), (wide, FEATURES), (wide, UNITS), (wide,), (wide,)]
    shapes += [(BATCH, UNITS)] * (2 if cell == "lstm" else 1)
    return [(0.5 * generator.normal(size=shape)).astype(dtype) for shape in shapes]


def composed(cell, values, lengths, reverse):
    """Return placeholders, outputs, and a loss of all outputs with the factors in it."""
    dtype = values[0].dtype
    nodes = [graph.placeholder(x.shape, dtype) for x in values]
    of_length = None if lengths is None else graph.constant(lengths, np.intp)
    first_cell = {"first_cell": nodes[6]} if cell == "lstm" else {}
    found = graph.recurrent(
        *nodes[:5], cell=cell, first=nodes[5], lengths=of_length, reverse=reverse, **first_cell
    )
    outputs = [found.states, found.last, *([found.last_cell] if cell == "lstm" else [])]
    generator = np.random.default_rng(7)
    factors = [generator.normal(size=y.shape).astype(dtype) for y in outputs]
    products = [graph.sum(y * factor) for y, factor in zip(outputs, factors, strict=True)]
    return nodes, outputs, sum(products[1:], products[0]), factors


def theirs(torch, cell, values, lengths, reverse, factors):
    """Outputs and gradients of PyTorch in float64."""
    x, *weights, first = (torch.tensor(v.astype("f8"), requires_grad=True) for v in values[:6])
    of_first = [first]
    if cell == "lstm":
        of_first.append(torch.tensor(values[6].astype("f8"), requires_grad=True))
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(cell, torch.nn.RNN)
    options = {"nonlinearity": cell} if kind is torch.nn.RNN else {}
    module = kind(FEATURES, UNITS, bidirectional=reverse, dtype=torch.float64, **options)
    end = "_reverse" if reverse else ""
    names = [f"{name}_l0{end}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    for name, weight in zip(names, weights, strict=True):
        with torch.no_grad():
            getattr(module, name).copy_(weight)

    def both(state):
        return torch.stack([torch.zeros_like(state), state]) if reverse else state[None]

    starts = tuple(map(both, of_first))
    utilities = torch.nn.utils.rnn
    given = x
    if lengths is not None:
        given = utilities.pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    states, last = module(given, starts if cell == "lstm" else starts[0])
    if lengths is not None:
        states, _ = utilities.pad_packed_sequence(states, total_length=STEPS)
    outputs = [states[..., -UNITS:], *(s[-1] for s in (last if cell == "lstm" else [last]))]
    sum((y * torch.tensor(f)).sum() for y, f in zip(outputs, factors, strict=True)).backward()
    gradients = [
        x.grad,
        *(getattr(module, name).grad for name in names),
        *(s.grad for s in of_first),
    ]
    return [y.detach().numpy() for y in (*outputs, *gradients)]


@pytest.mark.sample(3)
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("device", DEVICES)
def test_outputs_and_all_gradients_against_torch(device, cell):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    dtypes = ("f4", "f8") if device == "numpy" or cell == "tanh" else ("f4",)
    for dtype, lengths, reverse in itertools.product(dtypes, (None, LENGTHS), (False, True)):
        values = values_of(cell, dtype)
        nodes, outputs, loss, factors = composed(cell, values, lengths, reverse)
        wanted = [*outputs, *graph.gradients(loss, nodes)]
        found = graph.evaluate(wanted, dict(zip(nodes, values, strict=True)), ops_for(device))
        expected = theirs(torch, cell, values, lengths, reverse, factors)
        tolerance = 1e-5 if dtype == "f4" else 1e-13
        for mine, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps", [1, STEPS])
@pytest.mark.parametrize("device", DEVICES)
def test_a_start_that_is_left_out_is_one_of_zeros(device, steps, reverse):
    for cell in CELLS:
        values = values_of(cell, "f4")
        values = [values[0][:steps], *values[1:5], np.zeros((BATCH, UNITS), "f4")]
        nodes = [graph.placeholder(x.shape) for x in values]
        feeds = dict(zip(nodes, values, strict=True))
        found = []
        for start in ({}, {"first": nodes[5]}):
            states = graph.recurrent(*nodes[:5], cell=cell, reverse=reverse, **start).states
            gradients = graph.gradients(graph.sum(states * states), nodes[:5])
            found.append(graph.evaluate([states, *gradients], feeds, ops_for(device)))
        for left_out, given in zip(*found, strict=True):
            np.testing.assert_allclose(left_out, given, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_past_its_end_a_sequence_keeps_its_state_and_puts_out_0(device):
    values = values_of("gru", "f4")
    _, outputs, _, _ = nodes = composed("gru", values, LENGTHS, False)
    feeds = dict(zip(nodes[0], values, strict=True))
    states, last = graph.evaluate(outputs, feeds, ops_for(device))
    for n, length in enumerate(LENGTHS):
        assert not states[length:, n].any()
        np.testing.assert_array_equal(states[length - 1, n], last[n])
    values[0][2:, 1] = 1e9  # what stands behind the end is not read
    feeds = dict(zip(nodes[0], values, strict=True))
    np.testing.assert_array_equal(graph.evaluate(outputs, feeds, ops_for(device))[1], last)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("device", DEVICES)
def test_several_networks_have_the_bits_of_each_alone(device, cell):
    ops = ops_for(device)
    each = [values_of(cell, "f4", seed) for seed in range(3)]
    nodes, outputs, loss, _ = composed(cell, each[0], LENGTHS, True)
    wanted = [*outputs, *graph.gradients(loss, nodes)]
    alone = [graph.evaluate(wanted, dict(zip(nodes, x, strict=True)), ops) for x in each]
    now = with_models(wanted, 3, set(nodes))
    feeds = {now[node]: np.stack(x) for node, x in zip(nodes, zip(*each, strict=True), strict=True)}
    together = graph.evaluate([now[y] for y in wanted], feeds, ops)
    for mine, parts in zip(together, zip(*alone, strict=True), strict=True):
        np.testing.assert_array_equal(mine, np.stack(parts))


def test_blocks_of_products_compute_least_twice():
    pytest.importorskip("numba", reason="kernels are compiled by Numba, which is not installed")
    from dnn.backend.cpu.recurrence import _block_of
    from dnn.backend.cpu.registers import registers

    few, more = registers().rows, registers().more_rows
    assert few < more
    assert [_block_of(True, rows) for rows in (2 * few, 3 * more, 5 * more)] == [few, more, more]
    assert _block_of(False, 3 * more) == 0


# Blocks of one size or the other, on any threads; so many rows that weights have a kernel too.
@pytest.mark.parametrize(("cell", "rows", "reverse"), [("lstm", 101, True), ("gru", 100, False)])
def test_a_large_batch_on_several_threads_is_the_oracles_to_rounding(cell, rows, reverse):
    pytest.importorskip("numba", reason="kernels are compiled by Numba, which is not installed")
    generator = np.random.default_rng(3)
    wide = CELLS[cell] * 64
    shapes = [(6, rows, 17), (wide, 17), (wide, 64), (wide,), (wide,)]
    values = [(0.1 * generator.normal(size=shape)).astype("f4") for shape in shapes]
    nodes = [graph.placeholder(x.shape) for x in values]
    last = graph.recurrent(*nodes, cell=cell, reverse=reverse).last
    wanted = [last, *graph.gradients(graph.sum(last), nodes)]
    feeds = dict(zip(nodes, values, strict=True))
    compiled = graph.evaluate(wanted, feeds, ops_for("cpu"))
    for mine, oracle in zip(compiled, graph.evaluate(wanted, feeds, Ops()), strict=True):
        np.testing.assert_allclose(mine, oracle, rtol=2e-4, atol=2e-5)


def test_what_does_not_fit_says_so():
    x, w = graph.placeholder((5, 2, 3)), graph.placeholder((8, 3))
    v, lengths = graph.placeholder((8, 2)), graph.placeholder((3,), np.intp)
    with pytest.raises(ShapeError, match=r"placeholder \(5, 3\) has not the shape \(steps, batch"):
        graph.recurrent(graph.placeholder((5, 3)), w, v, cell="lstm")
    with pytest.raises(ShapeError, match=r"\(0, 2, 3\) has no time steps"):
        graph.recurrent(graph.placeholder((0, 2, 3)), w, v, cell="lstm")
    with pytest.raises(ShapeError, match=r"\(8, 3\) has not the shape \(6, 3\) that a cell 'gru'"):
        graph.recurrent(x, w, v, cell="gru")
    with pytest.raises(ShapeError, match=r"lengths .*\(3,\) are not of shape \(2,\)"):
        graph.recurrent(x, w, v, cell="lstm", lengths=lengths)
    with pytest.raises(ConfigurationError, match="did you mean 'lstm'"):
        graph.recurrent(x, w, v, cell="lsmt")
    with pytest.raises(ConfigurationError, match="first_cell is for an LSTM"):
        graph.recurrent(x, w[:2], v[:2], first_cell=graph.placeholder((2, 2)))
    with pytest.raises(DtypeError):
        graph.recurrent(x, w, graph.placeholder((8, 2), np.float64), cell="lstm")
    found = graph.recurrent(x, w, v, cell="lstm")
    (slope,) = graph.gradients(graph.sum(found.last), [v])
    with pytest.raises(ConfigurationError, match="no second derivatives"):
        graph.gradients(graph.sum(slope), [v])


def test_what_arrives_at_the_states_may_be_a_part_of_an_array_or_repeated():
    pytest.importorskip("numba", reason="kernels are compiled by Numba, which is not installed")
    values = values_of("gru", "f4")
    nodes = [graph.placeholder(x.shape) for x in values]
    ends = [graph.recurrent(*nodes[:5], cell="gru", reverse=way).states for way in (False, True)]
    both = graph.concat(ends, -1)
    feeds = dict(zip(nodes, values, strict=True))
    for loss in (graph.sum(both * both), graph.sum(both)):
        wanted = graph.gradients(loss, nodes)
        found = graph.evaluate(wanted, feeds, ops_for("cpu"))
        for mine, oracle in zip(found, graph.evaluate(wanted, feeds, Ops()), strict=True):
            np.testing.assert_allclose(mine, oracle, rtol=1e-4, atol=1e-5)
