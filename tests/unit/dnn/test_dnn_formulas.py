"""Formulas: what comes from one, in NumPy, in compiled loops and in CUDA's source."""

from __future__ import annotations

import importlib.util

import cuda_emulator
import fake_cupy
import numpy as np
import pytest
from operation_cases import FORMULAS

from dnn import graph
from dnn.backend import Formula, Ops, empty
from dnn.backend.formula import UpdateFormula
from dnn.errors import ConfigurationError, DtypeError
from dnn.graph.operation import OPERATIONS, apply, register, with_models
from dnn.graph.operations.elementwise import Elementwise
from dnn.optimizers import Rule
from dnn.parameters import FlatBuffer, Segment

DEVICES = ["numpy", "compiled", "cuda"]


@pytest.fixture(scope="module", params=DEVICES)
def ops(request):
    if request.param == "numpy":
        return Ops()
    if request.param == "compiled":
        if importlib.util.find_spec("numba") is None:
            pytest.skip("Numba is not installed: there are no compiled loops")
        from dnn.backend.cpu.ops import CpuOps

        return CpuOps()
    if cuda_emulator.COMPILER is None:
        pytest.skip("there is no C++ compiler to run CUDA kernels with")
    from dnn.backend.cuda.ops import CudaOps
    from dnn.backend.device import Device

    return CudaOps(Device("cuda"), fake_cupy, fake_cupy.Blas())


class SoftSign(Elementwise):
    """``y = x / (1 + |x|)``, ``dx = dy / (1 + |x|)^2``: all that is written for an operation."""

    formula = Formula("soft_sign", "x", "x / (1 + abs(x))")
    kinds = "f"

    def gradient(self, node, dy):
        return (dy / graph.square(graph.abs(node.inputs[0]) + 1.0),)


@pytest.fixture
def soft_sign(monkeypatch):
    monkeypatch.setitem(OPERATIONS, "soft_sign", None)  # taken away again afterwards
    register(SoftSign)
    return lambda x: apply("soft_sign", x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_new_operation_is_one_class(ops, soft_sign, dtype):
    values = np.random.default_rng(0).normal(size=(6, 7)).astype(dtype)
    x = graph.placeholder(values.shape, dtype)
    alone = soft_sign(x)
    fused = graph.tanh(soft_sign(x) * 3.0) - x
    (gradient,) = graph.gradients(graph.sum(soft_sign(x)), [x])
    found = graph.evaluate([alone, fused, gradient], {x: values}, ops)
    expected = values / (1 + np.abs(values))
    tolerance = {"float32": 1e-6, "float64": 1e-13}[dtype]
    wanted = [expected, np.tanh(3 * expected) - values, 1 / (1 + np.abs(values)) ** 2]
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)
    if ops.passes:
        plan = graph.Plan([fused], ops)
        assert [node.kind for node in plan.graph.order if node.operation] == ["fused"]


def test_a_new_operation_serves_several_models_and_refuses_integers(soft_sign):
    values = np.random.default_rng(1).normal(size=(3, 4, 2))
    x = graph.placeholder((4, 2), np.float64)
    y = soft_sign(x)
    stacked = with_models([y], 3, [x])
    (found,) = graph.evaluate([stacked[y]], {stacked[x]: values})
    np.testing.assert_array_equal(found, values / (1 + np.abs(values)))
    with pytest.raises(DtypeError, match="soft_sign"):
        soft_sign(graph.placeholder((2,), np.int64))


def larger(a, b):
    return np.where(np.isnan(a) | np.isnan(b), np.nan, np.maximum(a, b))


# Formulas that use all there is, and the same in NumPy.
DRAWN = {
    "x if a < x and x <= b else 0": lambda x, a, b: np.where((a < x) & (x <= b), x, 0),
    "a if not (x > 0 or b > 0) else b": lambda x, a, b: np.where(~((x > 0) | (b > 0)), a, b),
    "-1 if x < 0 else (2 if a == b else a * b)": lambda x, a, b: np.where(
        x < 0, -1, np.where(a == b, 2, a * b)
    ),
    "max(x, a * b) - min(x - 1, b)": lambda x, a, b: larger(x, a * b) + larger(1 - x, -b),
    "(x >= a) + b": lambda x, a, b: (x >= a) + b,
    "x != a": lambda x, a, b: (x != a).astype(x.dtype),
    "abs(x + a) ** 2.5 / (1 + exp(-abs(b)))": lambda x, a, b: (
        np.abs(x + a) ** 2.5 / (1 + np.exp(-np.abs(b)))
    ),
    "(x - a) * (a - b) * (x - b)": lambda x, a, b: (x - a) * (a - b) * (x - b),
}


@pytest.mark.parametrize("expression", DRAWN)
def test_formulas_are_what_numpy_makes_of_them(ops, expression):
    generator = np.random.default_rng(2)
    given = [np.round(generator.normal(size=(5, 9)), 1) for _ in range(3)]
    given[0][0, :3], given[1][0, 3:6], given[2][0, 6:] = np.nan, np.inf, -0.0
    formula = Formula(f"drawn_{list(DRAWN).index(expression)}", "x a b", expression)
    with np.errstate(all="ignore"):
        expected = DRAWN[expression](*given)
        for target in (None, *formula.overwrites):
            operands = [ops.asarray(x.copy()) for x in given]
            out = empty(ops, (5, 9), np.float64) if target is None else operands[target]
            workspace = [empty(ops, (5, 9), dtype) for dtype in formula.workspace(np.float64)]
            function, arguments = ops.elementwise(formula, operands, out, workspace)
            function(*arguments)
            np.testing.assert_allclose(ops.to_host(out), expected, rtol=1e-12)


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_numpy_writes_over_operands_only_where_nobody_reads_them_again(name):
    formula = FORMULAS[name]
    generator = np.random.default_rng(3)
    given = [np.abs(generator.normal(size=50)) for _ in formula.names]
    if formula.is_bool or not formula.has_one_type:
        given = [x > 1 for x in given]
    results = []
    for target in (None, *formula.overwrites):
        operands = [x.copy() for x in given]
        out = np.empty_like(given[-1]) if target is None else operands[target]
        workspace = [np.empty(50, dtype) for dtype in formula.workspace(out.dtype)]
        formula.numpy(*operands, *workspace, out)
        results.append(out)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_a_single_call_of_numpy_is_its_own_function():
    assert FORMULAS["add"].numpy is np.add
    assert FORMULAS["square"].numpy is np.square
    assert FORMULAS["maximum"].numpy is not np.maximum  # it takes `out` by its name only


UPDATES = [
    # A state that is read after it was written, one that is read before, and a value between.
    (("d", "g + rate * w"), ("s", "rate * s + d"), ("w", "w - d / (abs(s) + 1)")),
    (("c", "w > g"), ("w", "w if c and g > 0 else rate"), ("s", "w if c else s * 2")),
    (("s", "0 if s < 0 else s"), ("w", "max(min(w, 1e999), s) / rate")),
    (("s", "w"), ("w", "g * s - (s - w) * (g - w)")),
]


@pytest.mark.parametrize("statements", UPDATES)
@pytest.mark.parametrize("models", [(), (3,)])
def test_an_update_is_the_same_everywhere(ops, models, statements):
    generator = np.random.default_rng(4)
    given = {name: generator.normal(size=(*models, 21)) for name in ("w", "g", "s")}
    rate = generator.uniform(0.5, 1, (*models, 1) if models else ())
    formula = UpdateFormula(f"update_{len(statements)}", ("w", "g", "s"), ("rate",), statements)
    expected: dict[str, object] = {**given, "rate": rate}
    elementwise = {"abs": np.abs, "max": np.maximum, "min": np.minimum}
    chosen = [  # the choices by hand
        (("w", lambda v: np.where(v["c"] & (v["g"] > 0), v["w"], v["rate"])),
         ("s", lambda v: np.where(v["c"], v["w"], v["s"] * 2))),
        (("s", lambda v: np.where(v["s"] < 0, 0, v["s"])),),
    ]  # fmt: skip
    by_hand = (
        dict(chosen[UPDATES.index(statements) - 1]) if UPDATES.index(statements) in (1, 2) else {}
    )
    for target, text in statements:
        if target in by_hand:
            expected[target] = by_hand[target](expected)
        else:
            expected[target] = eval(text, elementwise, dict(expected))
    rows = [ops.asarray(x.copy()) for x in given.values()]

    def workspace(types):
        return [empty(ops, (*models, 21), dtype) for dtype in types]

    function, arguments = ops.update(formula, rows, [ops.asarray(rate)], workspace)
    function(*arguments)
    for name, row in zip(given, rows, strict=True):
        np.testing.assert_allclose(ops.to_host(row), expected[name], rtol=1e-12, err_msg=name)


def test_a_rule_computes_from_old_values_only_even_where_two_change_places():
    class Exchanged(Rule):
        state_names = ("other",)

        def rule(self, w, g, state, scalars):
            return {"w": state["other"], "other": graph.clip(w, low=0.0) + (g - g)}

    segments = [Segment("w", (9,), 0)]
    parameters, gradients = (FlatBuffer(segments, "f8", Ops()) for _ in range(2))
    values = np.linspace(-1, 1, 9)
    parameters.flat[...] = values
    update = Exchanged(0.1).bind(Ops(), parameters, gradients)
    update.run()
    np.testing.assert_array_equal(parameters.flat, 0)
    np.testing.assert_array_equal(update.state["other"].flat, np.maximum(values, 0))


def test_a_rule_that_is_not_elementwise_is_refused():
    class Mean(Rule):
        def rule(self, w, g, state, scalars):
            return {"w": w - graph.sum(g)}

    segments = [Segment("w", (9,), 0)]
    buffers = [FlatBuffer(segments, "f8", Ops()) for _ in range(2)]
    with pytest.raises(ConfigurationError, match=r"Mean\.rule: <.*> is not elementwise"):
        Mean(0.1).bind(Ops(), *buffers)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("x + y", "'y' is unknown; there are x, abs"),
        ("sin(x)", "'sin' is unknown"),
        ("x.size", r"'x\.size' is not for formulas"),
        ("x < 1 < 2", "'x < 1 < 2' is not for formulas"),
        ("'x'", "is not for formulas"),
        ("x +", "invalid syntax"),
    ],
)
def test_what_is_no_formula(expression, message):
    with pytest.raises(ValueError, match=f"^formula 'wrong': .*{message}"):
        _ = Formula("wrong", "x", expression).tree
