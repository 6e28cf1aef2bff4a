"""The table of routines: measured, kept as text, taken again; results follow from it alone."""

from xml.etree import ElementTree

import numpy as np
import pytest
from support import ROOT

from dnn.backend import Ops
from dnn.backend.routines import CANDIDATES, RoutineTable
from dnn.errors import ConfigurationError


def test_sizes_choose():
    table = RoutineTable({"sum": [(0, "loop"), (100, "numpy"), (5000, "ones")]})
    found = [table("sum", size) for size in (0, 99, 100, 4999, 5000, 10**9)]
    assert found == ["loop", "loop", "numpy", "numpy", "ones", "ones"]
    assert table("product", 7) is None


def test_text_and_back():
    table = RoutineTable({"sum": [(0, "loop"), (100, "numpy")], "product": [(0, "whole")]})
    assert RoutineTable.from_json(table.to_json()) == table


@pytest.mark.parametrize(
    "text",
    ["", "[1]", '{"sum": 3}', '{"sum": [[0]]}', '{"sum": [[5, "loop"]]}', '{"sum": []}',
     '{"sum": [[0, "abacus"]]}', '{"sort": [[0, "loop"]]}', '{"sum": [[0, "loop"], [0, "numpy"]]}'],
)  # fmt: skip
def test_text_that_is_no_table(text):
    with pytest.raises(ConfigurationError, match="routines"):
        RoutineTable.from_json(text)


def test_the_oracle_has_no_choice():
    assert RoutineTable.measure(Ops()).choices == {}


def test_measuring_takes_the_fastest_at_each_size():
    now = [0.0]
    costs = {"loop": (1.0, 9.0), "numpy": (2.0, 2.0)}

    class Known(Ops):
        def candidates(self):
            for at, size in enumerate((10, 1000)):
                yield "sum", size, {name: spend(cost[at]) for name, cost in costs.items()}

    def spend(seconds):
        def call():
            now[0] += seconds

        return call

    table = RoutineTable.measure(Known(), clock=lambda: now[0])
    assert table.choices == {"sum": [(0, "loop"), (1000, "numpy")]}


def test_a_measured_table_is_followed_and_every_routine_is_right():
    pytest.importorskip("numba", reason="Numba is not installed: there is no choice")
    from dnn.backend.cpu.ops import CpuOps

    measured = RoutineTable.measure(CpuOps())
    assert set(measured.choices) == {"sum", "product"}
    x = np.random.default_rng(1).normal(size=(100, 60)).astype("f4")
    for name in CANDIDATES["sum"]:
        ops = CpuOps(RoutineTable({"sum": [(0, name)], "product": [(0, "whole")]}))
        out, product = np.empty((1, 60), "f4"), np.empty((60, 60), "f4")
        for function, arguments in ops.link(
            [(ops.sum, (x, (0,), out)), (ops.gemm, (x.T, x, product))]
        ):
            function(*arguments)
        np.testing.assert_allclose(out, x.sum(0, keepdims=True), atol=1e-4)
        np.testing.assert_allclose(product, x.T @ x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CANDIDATES["sum"])
def test_each_of_k_networks_gets_the_routine_that_it_gets_alone(name):
    pytest.importorskip("numba", reason="Numba is not installed: there is no choice")
    from dnn.backend.cpu.ops import CpuOps

    # By the size of all together another routine would be chosen.
    others = [other for other in CANDIDATES["sum"] if other != name]
    x = np.random.default_rng(1).normal(size=(5, 33, 20)).astype("f4")
    for other in others:
        ops = CpuOps(RoutineTable({"sum": [(0, name), (1000, other)]}))
        together, alone = np.empty((5, 1, 20), "f4"), np.empty((5, 1, 20), "f4")
        steps = [(ops.sum, (x, (1,), together))]
        steps += [(ops.sum, (x[k], (0,), alone[k])) for k in range(5)]
        for function, arguments in ops.link(steps):
            function(*arguments)
        np.testing.assert_array_equal(together, alone)


def test_routines_are_drawn_against_sizes(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import reductions

    curves = {"kernel on cuda": {16: 3.0, 64: 4.0, 256: 90.0}, "gemv on cuda": {16: 6.0, 64: 6.5}}
    drawn = ElementTree.fromstring(reductions.figure(curves))
    svg = "{http://www.w3.org/2000/svg}"
    lines = [
        [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        for line in drawn.iter(f"{svg}polyline")
    ]
    assert [len(line) for line in lines] == [3, 2]
    assert lines[0][0][0] == lines[1][0][0] < lines[0][1][0] < lines[0][2][0]  # by size
    assert lines[0][0][1] > lines[0][1][1] > lines[0][2][1]  # more is further up
    assert set(curves) <= {text.text for text in drawn.iter(f"{svg}text")}
