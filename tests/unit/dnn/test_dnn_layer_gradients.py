"""Every layer and loss: vector-Jacobian products against central differences in float64."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_cases import F8, IMAGES, LAYERS, SEQUENCES_ONLY, VECTORS_ONLY, Alone
from support import case_count

import dnn.layers
from dnn import graph
from dnn.graph.operations.activations import RECTIFIERS
from dnn.layers import EmbedColumns, Embedding, Layer, SequenceInput
from dnn.losses import LOSSES, SoftmaxCrossEntropy

STEP = 1e-6
# Tested with networks, in test_dnn_sequences and test_dnn_embed_columns.
OF_INTEGERS = {EmbedColumns, Embedding, SequenceInput}


def agree(function, gradients, values, v, generator):
    """Compare gradients with differences along one random direction for each value."""
    for node, slope in gradients.items():
        x = np.asarray(values[node])
        assert slope.shape == x.shape
        u = generator.normal(size=x.shape)
        sides = [
            float((v * function(values | {node: x + sign * STEP * u})).sum()) for sign in (1, -1)
        ]
        expected = (sides[0] - sides[1]) / (2 * STEP)
        np.testing.assert_allclose((slope * u).sum(), expected, rtol=1e-5, atol=1e-6)


def test_every_layer_is_in_the_table():
    kinds = [getattr(dnn.layers, name) for name in dnn.layers.__all__]
    layers = {kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Layer)}
    made = {type(make((3,) * (3 if case in IMAGES else 1))) for case, make in LAYERS.items()}
    assert made == layers - {Layer, *OF_INTEGERS}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", LAYERS)
@given(data=st.data())
@settings(max_examples=case_count(4), deadline=None)
def test_gradients_of_layers(case, training, data):
    most = 1 if case in VECTORS_ONLY else 2
    least = 2 if case in SEQUENCES_ONLY else 1
    least, most = (3, 3) if case in IMAGES else (least, most)
    shape = data.draw(hnp.array_shapes(min_dims=least, max_dims=most, max_side=4))
    batch = data.draw(st.integers(1, 5))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    x = generator.normal(size=(batch, *shape))
    if case.startswith("Activation ") and case.removeprefix("Activation ") in RECTIFIERS:
        x = np.where(np.abs(x) < 0.1, 0.3, x)  # away from the kink
    alone = Alone(LAYERS[case](shape), x, training, seed=int(generator.integers(2**32)))
    for parameter in alone.layer.parameters:
        alone.values[parameter.node] = generator.normal(size=parameter.node.shape)
    for state in alone.layer.states:
        if state.node.name.endswith(("mean", "variance")):
            alone.values[state.node] = generator.uniform(0.5, 1.5, state.node.shape)
    v = generator.normal(size=alone.y.shape)
    gradients = graph.gradients(alone.y, alone.trained, graph.constant(v, F8))
    found = dict(zip(alone.trained, alone(*gradients), strict=True))
    agree(lambda values: graph.evaluate([alone.y], values)[0], found, alone.values, v, generator)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", [*LOSSES, "class weights"])
@given(data=st.data())
@settings(max_examples=case_count(8), deadline=None)
def test_gradients_of_losses(name, weighted, data):
    batch, outputs = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    loss = (
        SoftmaxCrossEntropy(generator.uniform(0.5, 2, outputs))
        if name == "class weights"
        else LOSSES[name]()
    )
    outputs = loss.output_count(outputs)
    x = graph.placeholder((batch, outputs), F8)
    target, weight = loss.target(x), graph.placeholder(loss.weight_shape((batch, outputs)), F8)
    drawn = {
        "classes": lambda: generator.integers(0, loss.class_count((outputs,)), batch),
        "counts": lambda: generator.poisson(2.0, target.shape),
        "distributions": lambda: generator.dirichlet([1.0] * outputs, batch),
        "labels": lambda: generator.integers(0, 2, target.shape).astype(F8),
        "values": lambda: generator.normal(size=target.shape),
    }
    values = {
        x: generator.normal(size=x.shape) * 3,
        target: drawn[loss.takes](),
        weight: generator.uniform(0, 2, weight.shape),
    }
    if loss.needs:
        values[x] = generator.uniform(0.05, 1, x.shape)
    y = loss.weighted_value(x, target, weight) if weighted else loss.value(x, target)
    gradients = graph.gradients(y, [x])
    found = {x: graph.evaluate(gradients, values)[0]}
    agree(lambda fed: graph.evaluate([y], fed)[0], found, values, 1.0, generator)
