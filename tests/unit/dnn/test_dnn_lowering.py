"""Kernels that LLVM compiles without Numba: the same bits as with it, and what is left to Numba."""

import ctypes
import random
import re

import numpy as np
import pytest

pytest.importorskip("numba")

import llvmlite.binding as llvm

from dnn.backend.cpu import cache, chains, lowering, updates
from dnn.backend.cpu.cache import compiled_by_numba
from dnn.backend.formula import MULTIPLY, SIGMOID, Formula, UpdateFormula

N = 1001
ALONG = chains.Access.ALONG
EVERYTHING = Formula(
    "everything",
    "x y",
    "expm1(-abs(x)) * log(y) + tanh(x) ** 3 / sqrt(y) if x > y and not y <= 0.5 or x != x"
    " else max(log1p(y), min(x, 0.1)) - exp(x)",
)


def run(code, symbol, words):
    engine = cache._engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    ctypes.CFUNCTYPE(None, ctypes.c_int64)(engine.get_function_address(symbol))(words.ctypes.data)


def rows(code, count):
    return list(np.random.default_rng(1).uniform(0.1, 2, (count, N)).astype(code))


def chain(formula, code):
    x, y = rows(code, 2)
    x -= 1
    x[:3] = np.inf, -np.inf, np.nan
    out = np.empty_like(x)
    shape = [1, 1, N, out.ctypes.data, 0, 0, x.ctypes.data, 0, 0, y.ctypes.data, 0, 0]
    inputs = range(len(formula.names))
    source = chains.chain_source(((formula, *inputs),), (ALONG, ALONG), (code,) * 3)
    return source, shape, out, (x, y)


def column_sums(code):
    x, y = (each[:900].reshape(150, 6) for each in rows(code, 2))
    out = np.empty(6, code)
    step = 6 * out.itemsize
    shape = [1, 150, 6, out.ctypes.data, 0, x.ctypes.data, 0, step, y.ctypes.data, 0, step]
    return chains._sum_source(((MULTIPLY, 0, 1),), (True, True), code, False), shape, out, (x, y)


def update(code):
    formula = UpdateFormula(
        "adam",
        ("w", "g", "m", "v"),
        ("rate", "beta"),
        (
            ("m", "beta * m + (1 - beta) * g"),
            ("v", "v + g * g"),
            ("size", "sqrt(v) / rate"),
            ("w", "w - m / (size + 1e-8)"),
        ),
    )
    arrays = rows(code, len(formula.rows) + len(formula.scalars))
    shape = [1, N]
    for x in arrays:
        shape += [x.ctypes.data, 0]
    return updates._update_source(formula, code), shape, arrays[0], arrays


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "case",
    [
        lambda: chain(EVERYTHING, "f4"),
        lambda: chain(EVERYTHING, "f8"),
        lambda: chain(SIGMOID, "f4"),
        lambda: column_sums("f4"),
        lambda: update("f4"),
    ],
    ids=["everything f4", "everything f8", "sigmoid", "sums", "update"],
)
def test_the_bits_are_those_of_numba(case):
    source, words, out, kept = case()
    words, before = np.array(words, np.int64), [each.copy() for each in (out, *kept)]
    symbol = f"lowered_{id(words)}"
    code = lowering.machine_code(source, symbol, cache.target_machine(), cache.FLAGS)
    assert code is not None, source
    run(code, symbol, words)
    found = out.copy()
    for each, earlier in zip((out, *kept), before, strict=True):
        each[...] = earlier
    _, code = compiled_by_numba(source, f"{symbol}_numba")
    run(code, f"{symbol}_numba", words)
    np.testing.assert_array_equal(found, out)
    assert not np.array_equal(found, before[0])


def drawn(draw, depth):
    """Return a random expression of x and y."""
    if not depth:
        return draw.choice("xy")
    a, b = (f"({drawn(draw, draw.randrange(depth))})" for _ in range(2))
    number = repr(round(draw.uniform(-2, 2), 2))
    kind = draw.choice(["binary", "call", "extreme", "choice", "number", "power", "negative"])
    if kind == "binary":
        return f"{a} {draw.choice('+-*/')} {b}"
    if kind == "call":
        return f"{draw.choice(['abs', 'exp', 'expm1', 'log', 'log1p', 'sqrt', 'tanh'])}{a}"
    if kind == "extreme":
        return f"{draw.choice(['max', 'min'])}({a}, {draw.choice([b, number])})"
    if kind == "choice":
        condition = f"{a} {draw.choice(['>', '>=', '<', '<=', '==', '!='])} {b}"
        if draw.random() < 0.5:
            condition = f"{condition} {draw.choice(['and', 'or'])} not x < {number}"
        return f"{a} if {condition} else {b}"
    if kind == "number":
        return f"{number} {draw.choice('+-*/')} {a}"
    return f"-{a}" if kind == "negative" else f"{a} ** {draw.choice([2, 3])}"


@pytest.mark.thorough
@pytest.mark.parametrize(("code", "seeds"), [("f4", range(8)), ("f8", range(8, 30))])
def test_random_formulas_have_the_bits_of_numba_and_the_values_of_numpy(code, seeds):
    """In one kernel, and by Numba in float32 alone, since it takes ten times as long."""
    formulas = [Formula(f"drawn_{seed}", "x y", drawn(random.Random(seed), 3)) for seed in seeds]
    words, results, bodies = [], [], []
    for formula in formulas:
        source, shape, out, inputs = chain(formula, code)
        at = len(words)
        body = source.removeprefix(chains._HEADER)
        bodies.append(re.sub(r"\br\[(\d+)\]", lambda m, at=at: f"r[{int(m[1]) + at}]", body))
        words += shape
        results.append((formula, inputs, out))
    source, words = chains._HEADER + "\n".join(bodies), np.array(words, np.int64)
    machine = cache.target_machine()
    code_of_llvm = lowering.machine_code(source, f"drawn_{code}", machine, cache.FLAGS)
    assert code_of_llvm is not None, source
    run(code_of_llvm, f"drawn_{code}", words)
    found = [out.copy() for *_, out in results]
    if code == "f4":
        for *_, out in results:
            out.fill(0)
        run(compiled_by_numba(source, "drawn_by_numba")[1], "drawn_by_numba", words)
        for mine, (formula, _, out) in zip(found, results, strict=True):
            np.testing.assert_array_equal(mine, out, formula.expression)
    for mine, (formula, inputs, out) in zip(found, results, strict=True):
        space = [np.empty(N, kind) for kind in formula.workspace(code)]
        with np.errstate(all="ignore"):
            formula.numpy(*inputs, *space, out)
        tolerance = {"f4": 1e-4, "f8": 1e-12}[code]
        what = f"{formula.name}: {formula.expression}"
        np.testing.assert_allclose(mine, out, tolerance, tolerance, err_msg=what)


@pytest.mark.parametrize(
    "body",
    [
        "    intrinsics.walk(r)\n",
        "    carray(pointer(r[0]), (r[1], 2), f4)[0, 0] = f4(1)\n",
        "    carray(pointer(r[0]), (1,), f4)[0] = f4(1) + r[1]\n",
        "    for i in range(3, 0, -1):\n        r[0] = i\n",
        "    while r[0] > 0:\n        r[0] = r[0] - 1\n",
        "    x = r[0]\n    x = f4(x)\n",
        "    r[0] = r[1] // 2\n",
        "    r[0] = vector_math.of_nobody(r[1])\n",
        "    carray(pointer(r[0]), (1,), u8)[0] = u8(-1)\n",
        "    r[0] = i8(i4(3000000000))\n",
        "    r[0] = 9223372036854775808\n",
        "    x = f4('a')\n",
        "    x = f4()\n",
        "    x = f4(r[0], r[1])\n",
        "    x = carray(pointer(r[0]), (1,))\n",
        "    a, b = (r[0], r[1], r[2])\n",
        "    x = vector_math.exp_f4(f4(1), f4(2))\n",
        "    for i in range():\n        r[0] = i\n",
        "    for i in range(3):\n        r[1] = i\n    r[0] = i\n",
        "    for i in range(3):\n        x = carray(pointer(r[i]), (1,), i8)\n    r[0] = x[0]\n",
        "    x = r\n    for i in range(3):\n        r[i] = x[0]\n"
        "        x = carray(pointer(r[3]), (1,), i8)\n",
        "    x = carray(pointer(r[0]), (4,), f4)\n    x[0] = x[-1]\n",
    ],
)
def test_what_it_does_not_know_is_left_to_numba(body):
    source = f"{cache.HEADER}{body}"
    assert lowering.machine_code(source, "none", cache.target_machine(), cache.FLAGS) is None
