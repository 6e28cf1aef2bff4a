"""One network on a mesh of ranks equals that of one process; ranks are threads here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnn import (
    L1,
    L2,
    LSTM,
    SGD,
    Activation,
    Adam,
    BatchNorm,
    Callback,
    Conv2D,
    Dropout,
    Embedding,
    Ensemble,
    Flatten,
    FullyConnected,
    Images,
    Input,
    MaxPool2D,
    Muon,
    NeuralNetwork,
    Output,
    Penalty,
    Residual,
    Shift,
    SoftmaxCrossEntropy,
    SpatialDropout,
    graph,
    mlp,
)
from dnn.distributed import Mesh, run_on_threads
from dnn.distributed.model_parallel import pairs_of
from dnn.distributed.partition import measured_costs
from dnn.errors import ConfigurationError, DisagreementError, PeerError
from dnn.layers import Layer

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((50, 12)).astype(np.float32)
Y = RANDOM.integers(0, 3, 50)

Layers = Callable[[], list[Layer]]


def tanh_layers() -> list[Layer]:
    return mlp(12, [9, 7, 5], 3, "tanh")


def of(layers: Layers, **options: Any) -> NeuralNetwork:
    options = {"optimizer": SGD(0.3, momentum=0.9), "seed": 3, "device": "numpy", **options}
    return NeuralNetwork(layers(), **options)


def outcome(network: NeuralNetwork, x: Any = X, y: Any = Y, **fit: Any) -> dict[str, Any]:
    """Train, and return all that can be seen of it on a rank."""
    fit = {"epochs": 2, "batch_size": 16, "progress": False, **fit}
    history = network.fit(x, y, **fit)
    return {
        "loss": history.loss,
        "accuracy": history.accuracy,
        "validation": history.validation,
        "parameters": {name: np.array(p) for name, p in network.parameters.items()},
        "outputs": network(x),
        "evaluation": network.evaluate(x, y),
    }


def on_mesh(ranks: int, layers: Layers, mesh: dict[str, Any], **options: Any) -> list[Any]:
    fit = {name: options.pop(name) for name in ("x", "y", "validation") if name in options}
    return run_on_threads(
        ranks, lambda comm: outcome(of(layers, parallel=Mesh(comm, **mesh), **options), **fit)
    )


def assert_equal_to(one: dict[str, Any], ranks: Sequence[dict[str, Any]], rtol: float) -> None:
    held: set[str] = set()
    for rank in ranks:
        for name in ("loss", "accuracy", "outputs"):
            np.testing.assert_allclose(rank[name], one[name], rtol, 1e-5, err_msg=name)
        for mine, theirs in zip(rank["validation"], one["validation"], strict=True):
            assert mine == pytest.approx(theirs, rtol)
        assert rank["evaluation"] == pytest.approx(one["evaluation"], rtol)
        for name, value in rank["parameters"].items():
            np.testing.assert_allclose(value, one["parameters"][name], rtol, 1e-5, err_msg=name)
        held |= set(rank["parameters"])
    assert held == set(one["parameters"])


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return outcome(of(tanh_layers), validation=(X[:20], Y[:20]))


@pytest.mark.parametrize(
    ("ranks", "mesh"),
    [
        (1, {}),
        (2, {"pipeline": 2}),
        (2, {"pipeline": 2, "schedule": "gpipe", "micro_batches": 3}),
        (3, {"pipeline": 3, "split": (3, 5)}),
        (3, {"data": 3}),
        (4, {"data": 2, "pipeline": 2}),
        (4, {"pipeline": 4, "split": "multiply_adds"}),
    ],
)
def test_a_mesh_trains_as_one_process_does(
    alone: dict[str, Any], ranks: int, mesh: dict[str, Any]
) -> None:
    results = on_mesh(ranks, tanh_layers, mesh, validation=(X[:20], Y[:20]))
    assert_equal_to(alone, results, 1e-4)
    again = on_mesh(ranks, tanh_layers, mesh, validation=(X[:20], Y[:20]))
    for rank, other in zip(results, again, strict=True):
        for name, value in rank["parameters"].items():
            assert value.tobytes() == other["parameters"][name].tobytes()


def test_gradients_are_clipped_by_the_norm_of_all_stages() -> None:
    options = {"optimizer": SGD(0.3, clip_norm=0.05)}
    one = outcome(of(tanh_layers, **options))
    free = outcome(of(tanh_layers, optimizer=SGD(0.3)))
    assert one["loss"][1] != pytest.approx(free["loss"][1], 1e-3)
    assert_equal_to(one, on_mesh(4, tanh_layers, {"data": 2, "pipeline": 2}, **options), 1e-4)


def test_ranks_that_make_different_meshes_are_told_so() -> None:
    def make(comm: Any) -> None:
        with pytest.raises(DisagreementError, match=r"rank 1 has Mesh\(data=1.*rank 0 has M"):
            Mesh(comm, pipeline=1 + comm.rank)

    run_on_threads(2, make)


def test_ranks_that_train_different_layers_are_told_which() -> None:
    def train(comm: Any) -> None:
        widths = [9, 7 + comm.rank, 5]
        network = of(lambda: mlp(12, widths, 3), parallel=Mesh(comm, pipeline=2, split=(3,)))
        with pytest.raises(DisagreementError, match=r"layer fully_connected_2: rank 1 has .*8"):
            network.fit(X, Y, progress=False)

    run_on_threads(2, train)


def test_each_stage_has_its_own_parameters_alone() -> None:
    results = on_mesh(2, tanh_layers, {"pipeline": 2, "split": (3,)})
    first, second = (list(rank["parameters"]) for rank in results)
    assert first == ["fully_connected_1.weight", "fully_connected_1.bias"]
    assert second[0] == "fully_connected_2.weight"
    assert len(second) == 6


def image_layers() -> list[Layer]:
    inside: list[Layer] = [Conv2D(4, 3, padding=1), Activation("relu")]
    chain: list[Layer] = [Input(1, 6, 6), Conv2D(4, 3, padding=1), Residual(inside), Flatten()]
    return [*chain, FullyConnected(3, bias=False), Output(3)]


def embedding_layers() -> list[Layer]:
    return [Input(5, dtype=int), Embedding(11, 4), Flatten(), FullyConnected(3)]


@pytest.mark.parametrize("weighted", [False, True])
def test_images_and_weights_of_samples_go_through_a_pipeline(weighted: bool) -> None:
    x = RANDOM.random((30, 1, 6, 6)).astype(np.float32)
    weight = {"sample_weight": RANDOM.random(30)} if weighted else {}

    def run(parallel: Mesh | None) -> dict[str, Any]:
        data = x if weighted else Images(x, [Shift(1)])
        network = of(image_layers, optimizer=Adam(0.01, average=0.9), parallel=parallel)
        return outcome(network, data, Y[:30], **weight)

    split = {"pipeline": 2, "split": (2,), "micro_batches": 3}
    assert_equal_to(run(None), run_on_threads(2, lambda comm: run(Mesh(comm, **split))), 2e-4)


def behind_a_convolution() -> list[Layer]:
    first, second = Conv2D(4, 3, padding=1), Conv2D(2, 3)
    return [Input(1, 6, 6), first, Activation("relu"), second, Flatten(), FullyConnected(3)]


def behind_a_sequence() -> list[Layer]:
    return [Input(4, 3), LSTM(5, return_sequences=True), LSTM(4), FullyConnected(3)]


@pytest.mark.parametrize(
    ("layers", "split"), [(behind_a_convolution, (3,)), (behind_a_sequence, (2,))]
)
@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_a_stage_ends_with_outputs_that_stand_in_another_order(
    layers: Layers, split: tuple[int, ...], device: str
) -> None:
    shape = layers()[0].shape
    x = RANDOM.standard_normal((30, *shape)).astype(np.float32)
    one = outcome(of(layers, device=device), x, Y[:30])
    mesh = {"pipeline": 2, "split": split}
    assert_equal_to(one, on_mesh(2, layers, mesh, device=device, x=x, y=Y[:30]), 1e-3)


def test_integers_go_into_the_first_stage() -> None:
    x = RANDOM.integers(0, 11, (30, 5))

    def run(parallel: Mesh | None) -> dict[str, Any]:
        return outcome(of(embedding_layers, parallel=parallel), x, Y[:30])

    assert_equal_to(run(None), run_on_threads(2, lambda comm: run(Mesh(comm, pipeline=2))), 1e-4)


def test_outputs_of_a_product_without_bias_leave_a_stage_before_the_backward_half() -> None:
    def layers() -> list[Layer]:
        return [Input(12), FullyConnected(8, bias=False), FullyConnected(3, bias=False)]

    one = outcome(of(layers))
    assert_equal_to(one, on_mesh(2, layers, {"pipeline": 2}), 1e-4)


def test_noise_depends_on_rows_and_neither_on_stages_nor_on_their_order() -> None:
    def layers() -> list[Layer]:
        return [Input(12), FullyConnected(8), Dropout(0.4), FullyConnected(6), FullyConnected(3)]

    one = on_mesh(1, layers, {"micro_batches": 4})
    for ranks, mesh in (
        (2, {"pipeline": 2, "split": (2,)}),
        (3, {"pipeline": 3, "split": (2, 4), "schedule": "gpipe"}),
    ):
        assert_equal_to(one[0], on_mesh(ranks, layers, {**mesh, "micro_batches": 4}), 1e-4)
    whole = outcome(of(layers))
    assert_equal_to(whole, on_mesh(2, layers, {"pipeline": 2, "micro_batches": 1}), 1e-4)
    assert one[0]["loss"] != pytest.approx(whole["loss"], 1e-3)


def test_replicas_end_with_the_mean_of_their_running_statistics() -> None:
    def layers() -> list[Layer]:
        return [Input(12), FullyConnected(8), BatchNorm(), FullyConnected(3)]

    def statistics(comm: Any) -> Any:
        network = of(layers, parallel=Mesh(comm, data=2))
        result = outcome(network)
        return np.array(network.trained_arrays()["state/batch_norm_1.mean"]), result["outputs"]

    (mean, outputs), (other_mean, other_outputs) = run_on_threads(2, statistics)
    assert mean.any()
    assert mean.tobytes() == other_mean.tobytes()
    assert outputs.tobytes() == other_outputs.tobytes()


def wide_layers() -> list[Layer]:
    inside: list[Layer] = [FullyConnected(6), Activation("relu"), FullyConnected(5)]
    ends: list[Layer] = [FullyConnected(4, bias=False), Activation("gelu"), FullyConnected(3)]
    chain = [Input(12), FullyConnected(9), Activation("tanh"), Dropout(0.3), FullyConnected(5)]
    return [*chain, Residual(inside), *ends]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_wide_layers_cut_over_ranks_train_as_whole_ones_do(dtype: str) -> None:
    one = outcome(of(wide_layers, dtype=dtype))
    tolerance = 1e-4 if dtype == "float32" else 0.05

    def compare(ranks: int, **mesh: Any) -> list[dict[str, Any]]:
        results = on_mesh(ranks, wide_layers, {"micro_batches": 1, **mesh}, dtype=dtype)
        for rank in results:
            for name in ("loss", "outputs"):
                np.testing.assert_allclose(rank[name], one[name], tolerance, tolerance)
        return results

    uneven = [rank["parameters"] for rank in compare(2, model=2)]
    assert [p["fully_connected_1.weight"].shape for p in uneven] == [(12, 5), (12, 4)]
    assert [p["fully_connected_2.weight"].shape for p in uneven] == [(5, 5), (4, 5)]
    assert [p["residual_1.fully_connected_1.bias"].shape for p in uneven] == [(3,), (3,)]
    for name in ("fully_connected_2.bias", "residual_1.fully_connected_2.bias"):
        assert uneven[0][name].tobytes() == uneven[1][name].tobytes()
    compare(4, model=2, pipeline=2)


def deep_image_layers() -> list[Layer]:
    between: list[Layer] = [BatchNorm(), Activation("relu"), SpatialDropout(0.2), MaxPool2D(2)]
    first: list[Layer] = [Input(1, 6, 6), Conv2D(5, 3, padding=1), *between, Conv2D(4, 2)]
    wide: list[Layer] = [FullyConnected(7), BatchNorm(), Activation("tanh"), FullyConnected(3)]
    return [*first, Flatten(), *wide]


def test_convolutions_and_what_is_between_them_are_cut_by_channels() -> None:
    x = RANDOM.random((30, 1, 6, 6)).astype(np.float32)

    def run(parallel: Mesh | None) -> tuple[dict[str, Any], NeuralNetwork, NeuralNetwork]:
        network = of(deep_image_layers, parallel=parallel)
        result = outcome(network, x, Y[:30])
        return result, network, network.gathered()

    one, _, alone = run(None)
    for result, network, whole in run_on_threads(2, lambda comm: run(Mesh(comm, model=2))):
        np.testing.assert_allclose(result["loss"], one["loss"], 1e-4)
        np.testing.assert_allclose(result["outputs"], one["outputs"], 1e-3, 1e-4)
        for name, array in alone.trained_arrays().items():
            found = whole.trained_arrays()[name]
            np.testing.assert_allclose(found, array, 1e-3, 1e-4, err_msg=name)
        cut = network.trained_arrays()
        assert cut["parameter/conv2d_1.weight"].shape[0] in (2, 3)
        assert cut["parameter/conv2d_2.weight"].shape[1] in (2, 3)
        assert cut["state/batch_norm_2.mean"].shape[0] in (3, 4)
    groups: list[Layer] = [Conv2D(4, 1, groups=2), Conv2D(4, 1)]
    assert pairs_of(groups, 2) == pairs_of([Conv2D(4, 1), Flatten(), FullyConnected(3)], 2) == []


def test_what_is_cut_are_pairs_of_layers_with_elementwise_ones_between() -> None:
    softmax: list[Layer] = [FullyConnected(8), Activation("softmax"), FullyConnected(4)]
    own: list[Layer] = [FullyConnected(8), Activation(lambda x: x), FullyConnected(4)]
    assert pairs_of(wide_layers(), 2) == [(1, 4), (6, 8)]
    assert pairs_of(wide_layers(), 5) == [(1, 4)]
    assert pairs_of(wide_layers(), 1) == []
    assert pairs_of(softmax, 2) == pairs_of(own, 2) == []
    assert pairs_of([FullyConnected(8), FullyConnected(4), FullyConnected(4)], 2) == [(0, 1)]
    problem = Mesh.problem(8, pipeline=4, model=2, layers=wide_layers())
    assert problem is not None
    assert "layers make 3 at most" in problem


def test_shards_rows_and_stages_together() -> None:
    mesh = {"data": 2, "pipeline": 2, "model": 2, "schedule": "gpipe"}
    one = outcome(of(tanh_layers))
    for rank in on_mesh(8, tanh_layers, mesh):
        np.testing.assert_allclose(rank["loss"], one["loss"], 1e-4)
        np.testing.assert_allclose(rank["outputs"], one["outputs"], 1e-4, 1e-5)


@pytest.mark.parametrize(
    "mesh", [{"model": 2, "pipeline": 2}, {"data": 2, "pipeline": 2}, {"pipeline": 3}, {"model": 3}]
)
def test_a_checkpoint_of_a_mesh_goes_on_in_one_process_and_on_another_mesh(
    mesh: dict[str, int], tmp_path: Path
) -> None:
    options = {"optimizer": Adam(0.01, average=0.9)}
    path = tmp_path / "model.safetensors"

    def first_half(comm: Any) -> tuple[NeuralNetwork, dict[str, Any]]:
        network = of(wide_layers, **options, parallel=Mesh(comm, **mesh, micro_batches=1))
        network.fit(X, Y, epochs=1, batch_size=16, progress=False)
        network.save(path)
        with pytest.raises(ConfigurationError, match=r"state_dict: .* gathered\(\) on all ranks"):
            network.state_dict()
        return network.gathered(), outcome(network, epochs=1)

    def second_half(comm: Any) -> dict[str, Any]:
        network = of(wide_layers, **options, parallel=Mesh(comm, model=2, micro_batches=1))
        network.load(path)
        return outcome(network, epochs=1)

    results = run_on_threads(math.prod(mesh.values()), first_half)
    whole, expected = results[0]
    loaded = of(wide_layers, **options)
    loaded.load(path)
    for name, array in loaded.trained_arrays().items():
        for other, _ in results:
            np.testing.assert_array_equal(other.trained_arrays()[name], array, err_msg=name)
    # Replicas draw noise of their own, which one process does not.
    tolerance = 0.2 if "data" in mesh else 1e-4
    for network in (whole, loaded):
        assert outcome(network, epochs=1)["loss"] == pytest.approx(expected["loss"], tolerance)
    for rank in run_on_threads(2, second_half):
        assert rank["loss"] == pytest.approx(expected["loss"], tolerance)


def sequence_layers() -> list[Layer]:
    return [Input(5, dtype=int), Embedding(11, 4), LSTM(6), FullyConnected(3)]


@pytest.mark.parametrize(
    "layers", [tanh_layers, image_layers, deep_image_layers, embedding_layers, sequence_layers]
)
def test_every_layer_is_timed_and_counted(layers: Layers) -> None:
    network = of(layers)._network
    before = network.parameters.flat.copy()
    costs = measured_costs(network)
    assert len(costs) == len(network.layers)
    assert all(0 < cost < 10 for cost in costs)
    assert (network.parameters.flat == before).all()
    counts = [row.multiply_adds for row in network.summaries]
    assert [bool(count) for count in counts] == [
        isinstance(layer, FullyConnected | Conv2D | Residual | LSTM) for layer in network.layers
    ]


class Failing(Callback):
    """It fails after the first epoch."""

    def on_epoch_end(self, *_: Any) -> None:
        raise ZeroDivisionError("in the callback")


def test_a_failure_of_one_rank_ends_all() -> None:
    seen = []

    def run(comm: Any) -> None:
        network = of(tanh_layers, parallel=Mesh(comm, pipeline=2))
        try:
            network.fit(X, Y, epochs=2, progress=False, callbacks=[Failing()] if comm.rank else ())
        except PeerError as error:
            seen.append(str(error))
            raise

    with pytest.raises(ZeroDivisionError, match="in the callback"):
        run_on_threads(2, run)
    assert seen == ["rank 1: ZeroDivisionError: in the callback"]


PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"ranks": 4, "data": 3}, r"data 3 x pipeline 1 x model 1 = 3 ranks, and there are 4"),
    ({"ranks": 3, "pipeline": 2}, r"pipeline 2 x model 1 = 2 ranks, and there are 3"),
    ({"ranks": 1, "pipeline": 0}, "pipeline must be at least 1, not 0"),
    ({"ranks": 1, "model": 1.5}, "model must be an integer of at least 1, not 1.5"),
    ({"ranks": 1, "schedule": "1b1f"}, "unknown schedule '1b1f'.*1f1b"),
    ({"ranks": 2, "model": 2, "layers": embedding_layers()}, "no two layers can be cut over 2"),
    ({"ranks": 5, "pipeline": 5, "layers": tanh_layers()}, "5 pipeline stages, and .* 4 at most"),
]


@pytest.mark.parametrize(("arguments", "message"), PROBLEMS)
def test_a_mesh_that_does_not_fit_is_explained_without_ranks(
    arguments: dict[str, Any], message: str
) -> None:
    problem = Mesh.problem(**arguments)
    assert problem is not None
    with pytest.raises(ConfigurationError, match=message):
        raise ConfigurationError(problem)
    assert Mesh.problem(4, data=2, pipeline=2, layers=tanh_layers()) is None


@pytest.mark.parametrize(
    ("ranks", "mesh"),
    [
        (2, {"pipeline": 2, "micro_batches": 3}),
        (2, {"data": 2}),
        (2, {"model": 2}),
        (4, {"pipeline": 2, "model": 2}),
    ],
)
def test_penalties_count_once(ranks: int, mesh: dict[str, Any]) -> None:
    """Of micro-batches, replicas and shards; on some stages there may be no such parameter."""
    loss = SoftmaxCrossEntropy() + L2(0.05) + L1(0.01, of=["bias"])
    one = outcome(of(tanh_layers, loss=loss))
    assert one["loss"][0] > 1.2 * outcome(of(tanh_layers))["loss"][0]
    for rank in on_mesh(ranks, tanh_layers, mesh, loss=loss):
        for name in ("loss", "outputs"):  # which depend on every parameter
            np.testing.assert_allclose(rank[name], one[name], 1e-4, 1e-5, err_msg=name)


def refused(make: Callable[[Any], object], message: str) -> None:
    def run(comm: Any) -> None:
        with pytest.raises(ConfigurationError, match=message):
            make(comm)

    run_on_threads(2, run)


def test_what_a_mesh_cannot_do_is_refused_with_what_to_do_instead() -> None:
    def pipeline(comm: Any) -> Mesh:
        return Mesh(comm, pipeline=2)

    refused(lambda comm: Mesh(comm, data=1), "data 1 x pipeline 1 x model 1 = 1 ranks")
    refused(lambda comm: Mesh(comm, split="evenly"), "unknown split 'evenly'")
    refused(
        lambda comm: of(tanh_layers, parallel=Mesh(comm, pipeline=2, split=(2,))),
        r"split is \(2,\) for 2 stages: 1 numbers of 3, 5, 7 are wanted",
    )
    refused(lambda comm: of(lambda: [Input(3)], parallel=pipeline(comm)), "2 pipeline stages")
    refused(lambda comm: of(tanh_layers, dtype="float16", parallel=pipeline(comm)), "float16")
    refused(
        lambda comm: of(
            tanh_layers, optimizer=SGD(0.1, clip_norm=1.0), parallel=Mesh(comm, model=2)
        ),
        "take clip_value",
    )
    refused(lambda comm: Mesh(comm, micro_batches=0), "micro_batches must be")
    refused(lambda comm: Mesh(comm, micro_batches=10000), "at most 8192, not 10000")
    refused(
        lambda comm: of(tanh_layers, optimizer=Muon(), parallel=Mesh(comm, model=2)),
        "Muon needs whole parameters",
    )
    norm = Penalty(lambda w: graph.sqrt(graph.sum(w * w)), 0.1)
    refused(
        lambda comm: of(
            tanh_layers, loss=SoftmaxCrossEntropy() + norm, parallel=Mesh(comm, model=2)
        ),
        "take L1, L2 or model=1",
    )
    missing = SoftmaxCrossEntropy() + L1(0.1, of=["scale"])
    refused(lambda comm: of(tanh_layers, loss=missing, parallel=pipeline(comm)), "no parameter")
    refused(lambda comm: Ensemble(tanh_layers(), seeds=[1], parallel=pipeline(comm)), "Ensemble")
    refused(
        lambda comm: of(tanh_layers, check_finite=True, parallel=pipeline(comm)).fit(X, Y),
        "check_finite",
    )
