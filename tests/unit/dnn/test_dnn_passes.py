"""Passes over graphs: what each leaves out, and that it can be switched and printed alone."""

import numpy as np
import pytest

from dnn import graph
from dnn.backend import Ops
from dnn.errors import ConfigurationError
from dnn.graph.passes import PASSES, default_passes, explain, graph_of, optimise, rewrite

F8 = np.float64


def kinds(found):
    return [node.kind for node in found.order if node.operation is not None]


def test_constants_are_folded_and_factors_of_one_left_out():
    x = graph.placeholder((2, 3), F8, "x")
    y = (x * 1.0) / 1.0 + (graph.constant(2.0, F8) + graph.constant([1.0, 2.0, 3.0], F8))
    found = optimise([y], ["constant_folding", "dead_code"])
    assert kinds(found) == ["add"]
    values = np.arange(6.0).reshape(2, 3)
    for passes in (["constant_folding"], []):
        (got,) = graph.evaluate([y], {x: values}, passes=passes)
        np.testing.assert_array_equal(got, values + np.array([3, 4, 5]))


def test_a_factor_of_one_that_broadcasts_stays():
    x = graph.placeholder((3,), F8)
    y = x * graph.constant(np.ones((1, 1)), F8)
    (got,) = graph.evaluate([y], {x: np.arange(3.0)}, passes=["constant_folding"])
    np.testing.assert_array_equal(got, [[0, 1, 2]])


def test_a_large_expansion_of_a_constant_is_not_stored():
    y = graph.broadcast_to(graph.constant(2.0), (100, 100))
    assert kinds(optimise([y], ["constant_folding"])) == ["broadcast_to"]


def test_common_subexpressions_are_computed_once():
    x = graph.placeholder((2, 2), F8, "x")
    first = graph.exp(x * 2.0) + 1.0
    second = graph.exp(x * 2.0) - 1.0
    found = optimise([first, second], ["common_subexpressions", "dead_code"])
    assert sorted(kinds(found)) == ["add", "exp", "multiply", "subtract"]
    values = np.array([[0.0, 1.0], [-1.0, 2.0]])
    got = graph.evaluate([first, second], {x: values}, passes=["common_subexpressions"])
    np.testing.assert_array_equal(got[0], np.exp(values * 2) + 1)
    np.testing.assert_array_equal(got[1], np.exp(values * 2) - 1)


def test_what_differs_is_not_merged():
    x = graph.placeholder((2, 3), F8, "x")
    nodes = [x + 1.0, x + 2.0, x + 0.0, x + -0.0, graph.sum(x, 0), graph.sum(x, 1)]
    nodes += [graph.reshape(x, (3, 2)), graph.reshape(x, (6, 1)), x * 1.0 - x, x - x * 1.0]
    found = optimise(nodes, ["common_subexpressions"])
    assert len(set(found.outputs)) == len(nodes)


def test_constants_of_the_same_bytes_and_another_type_are_not_merged():
    x, n = graph.placeholder((2,), np.float32), graph.placeholder((2,), np.int32)
    y = [x + graph.constant([0, 0], np.float32), n + graph.constant([0, 0], np.int32)]
    found = optimise(y, ["common_subexpressions"])
    assert [node.inputs[1].dtype for node in found.outputs] == [np.float32, np.int32]


def test_products_that_nobody_reads_on_are_all_computed_though_each_shares_an_input():
    p, q, r, s = (graph.placeholder((3, 3), F8, name) for name in "pqrs")
    products = [p @ q, q @ r, r @ s]
    found = optimise(products, ["products_last"])
    assert set(products) <= set(found.order)
    assert found.order.index(products[0]) < found.order.index(products[1])


def test_products_of_one_shape_stand_together_behind_what_the_last_one_needs():
    x, w, v = (graph.placeholder((3, 3), F8, name) for name in "xwv")
    first = graph.exp(x)
    second = graph.exp(first)
    wide = graph.placeholder((3, 4), F8)
    products = [w @ first, first @ wide, v @ second]
    found = optimise([*products, second @ v + 1.0], ["products_together"])
    at = [found.order.index(node) for node in products]
    assert at[0] + 1 == at[2]
    assert found.order.index(second) < at[0]
    assert at[1] < at[0]
    assert len(found.order) == len(graph_of(found.outputs).order)


def test_parameters_are_converted_before_anything_else():
    x, w = graph.placeholder((2, 3), np.float32), graph.variable((3, 3), np.float32, "w")
    y = graph.tanh(x) @ w @ graph.transpose(w)
    found = optimise([y], ["bfloat16"])
    before = [node.kind for node in found.order]
    after = [node.kind for node in PASSES["conversions_first"].run(found).order]
    assert sorted(before) == sorted(after)
    assert before.index("rounded_chain") < before.index("convert")
    assert after.index("convert") < after.index("rounded_chain")


def test_two_outputs_that_are_the_same_can_both_be_had():
    x = graph.placeholder((2,), F8)
    a, b = graph.exp(x), graph.exp(x)
    first, second = np.empty(2), np.empty(2)
    plan = graph.Plan([x, a, b], Ops(), {}, [(a, first), (b, second)])
    plan[x][...] = [0, 1]
    plan.run()
    for array in (first, second, plan[a], plan[b]):
        np.testing.assert_array_equal(array, np.exp([0.0, 1.0]))


def test_dead_code_is_what_other_passes_leave_behind():
    x = graph.placeholder((2,), F8)
    y = graph.exp(x * 1.0)

    def forget_exp(node, inputs):
        return inputs[0] if node.kind == "exp" else None

    left = rewrite(graph_of([y + graph.log(y)]), forget_exp)
    assert kinds(left) == ["multiply", "log", "add"]
    dead = rewrite(graph_of([y]), lambda node, inputs: x if node.kind == "exp" else None)
    assert kinds(dead) == ["multiply"]
    assert kinds(PASSES["dead_code"].run(dead)) == []
    assert dead[y] is x


def test_buffers_are_used_again_only_with_the_pass():
    x = graph.placeholder((1000,))
    y = x
    for _ in range(10):
        y = graph.exp(y)
    without = graph.Plan([y], Ops(), passes=[])
    assert without.size_bytes == 11 * 4032
    assert graph.Plan([y], Ops(), passes=["buffer_reuse"]).size_bytes == 2 * 4032


def layer():
    x, w, b = (graph.placeholder(shape, F8, name) for shape, name in
               (((5, 4), "x"), ((4, 3), "w"), ((3,), "b")))  # fmt: skip
    return x, w, b, graph.tanh(x @ w + b)


def test_product_bias_and_activation_are_one_node():
    x, w, b, y = layer()
    without = ("elementwise_fusion", "buffer_reuse")
    passes = ("elementwise_fusion", "matmul_bias_activation", "buffer_reuse")
    assert kinds(optimise([y], passes)) == ["product_chain"]
    assert kinds(optimise([y], without)) == ["matmul", "fused"]
    assert kinds(optimise([y], ["matmul_bias_activation"])) == ["product_chain", "tanh"]
    assert "product_chain(x, w, b" in explain([y], passes)
    generator = np.random.default_rng(1)
    values = {node: generator.normal(size=node.shape) for node in (x, w, b)}
    for outputs in ([y], graph.grad(graph.sum(y), [x, w, b])):
        results = [graph.evaluate(outputs, values, passes=names) for names in (passes, without)]
        for got, expected in zip(*results, strict=True):
            np.testing.assert_array_equal(got, expected)


def test_a_product_that_somebody_else_reads_or_that_is_broadcast_stays_alone():
    x, w, b, _ = layer()
    product = x @ w
    wide = graph.placeholder((2, 5, 3), F8)
    for outputs in ([product, product + b], [product + b, product * 2.0], [product + wide]):
        assert "product_chain" not in kinds(optimise(outputs, ["matmul_bias_activation"]))


@pytest.mark.parametrize("bias_shape", [(3,), (1, 3)])
def test_product_bias_takes_a_bias_and_the_relu_with_the_bits_and_gradients_they_had(bias_shape):
    generator = np.random.default_rng(0)
    given = [generator.normal(size=shape) for shape in [(5, 4), (4, 3), bias_shape]]

    def outputs(dtype):
        x, w, b = (graph.placeholder(each.shape, dtype) for each in given)
        loss = graph.sum(graph.square(graph.relu(b + x @ w)))
        values = {node: each.astype(dtype) for node, each in zip((x, w, b), given, strict=True)}
        return [loss, *graph.gradients(loss, [x, w, b])], values

    single, values = outputs("f4")
    found = optimise(single, ["product_bias"])
    (joined,) = [node for node in found.order if node.kind == "biased_product"]
    assert joined.attributes["relu"]
    assert not {"add", "relu"} & {*kinds(found)}
    got = graph.evaluate(single, values, passes=["product_bias"])
    for mine, before in zip(got, graph.evaluate(single, values, passes=[]), strict=True):
        assert mine.tobytes() == before.tobytes()
    double, values = outputs("f8")
    for mine, exact in zip(got, graph.evaluate(double, values), strict=True):
        np.testing.assert_allclose(mine, exact, rtol=1e-5, atol=1e-5)


def test_product_bias_leaves_what_is_no_bias_or_is_read_elsewhere():
    x, w = graph.placeholder((5, 4)), graph.placeholder((4, 3))
    product = x @ w
    for shape in [(5, 3), (5, 1), (), (1,), (2, 5, 3)]:
        found = optimise([product + graph.placeholder(shape)], ["product_bias"])
        assert kinds(found) == ["matmul", "add"]
    y = product + graph.placeholder((3,))
    assert kinds(optimise([y, product * 2.0], ["product_bias"])).count("matmul") == 1
    assert kinds(optimise([graph.relu(y), y], ["product_bias"])) == ["biased_product", "relu"]


def test_a_pass_of_ones_own_and_its_report():
    x = graph.placeholder((2,), F8, "x")
    y = graph.exp(x) * 3.0
    seen = []
    optimise([y], None, None, lambda done, before, after: seen.append(done.name))
    assert tuple(seen) == default_passes(Ops())
    text = explain([y], ["dead_code"])
    assert "# before" in text
    assert "# dead_code: Leave out what no output needs." in text
    assert "multiply(" in text
    assert "3)" in text
    last = text.splitlines()[-1]
    assert last.startswith("# not run: constant_folding, ")
    assert "elementwise_fusion" in last
    assert "dead_code" not in last
    assert "ops_for" not in last  # it was not left to the default
    assert explain([y]).endswith('; ops=dnn.ops_for("cpu") adds those of networks on the CPU')


def test_passes_that_pay_with_a_class_come_before_memory_is_laid_out():
    class Special(Ops):
        passes = ("dead_code",)

    assert default_passes(Special())[-2:] == ("dead_code", "buffer_reuse")


def test_an_unknown_pass():
    with pytest.raises(ConfigurationError, match="did you mean 'dead_code'"):
        optimise([graph.placeholder((2,))], ["dead_cod"])


def test_a_cross_entropy_written_as_a_formula_becomes_stable():
    x, target = graph.placeholder((2, 3), name="x"), graph.placeholder((2, 3), name="target")
    loss = -graph.sum(target * graph.log(graph.softmax(x))) * 0.5
    slope = graph.grad(loss, x)
    names = ["common_subexpressions", "softmax_cross_entropy", "dead_code"]
    assert not {"log", "divide"} & set(kinds(optimise([slope], names)))
    own = graph.softmax_cross_entropy(x, target)
    rows = np.eye(3)[[2, 0]]
    for values in ([[1.0, 2.0, -3.0], [0.5, 0.0, 0.25]], [[500.0, 0.0, -500.0], [0.0, 300.0, 1.0]]):
        feeds = {x: values, target: rows}
        expected = graph.evaluate([own, graph.grad(own, x)], feeds)
        for got, wanted in zip(
            graph.evaluate([loss, slope], feeds, passes=names), expected, strict=True
        ):
            assert np.isfinite(got).all()
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_other_quotients_and_logarithms_stay():
    x, y = graph.placeholder((2, 3), name="x"), graph.placeholder((2, 3), name="y")
    p = graph.softmax(x)
    for expression in (graph.log(graph.exp(x)), y / p * x, y / x * x, graph.log(p * y)):
        before = kinds(graph_of([expression]))
        assert kinds(optimise([expression], ["softmax_cross_entropy", "dead_code"])) == before
