"""What data parallelism promises, as functions of a communicator: on threads, and under MPI."""

import copy
import hashlib
import tempfile
from pathlib import Path

import numpy as np

from dnn import (
    LARS,
    SGD,
    Adam,
    AdamW,
    BatchNorm,
    BinaryCrossEntropy,
    Ensemble,
    Flatten,
    FullyConnected,
    Input,
    MeanSquaredError,
    Muon,
    NeuralNetwork,
    Residual,
    load_checkpoint,
    mlp,
    save_checkpoint,
)
from dnn.distributed import DataParallel, gradient_exchange
from dnn.distributed.communicator import Communicator
from dnn.distributed.threads import ThreadCommunicator
from dnn.optimizers.schedules import Cosine

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(43, 6)).astype("f4")
Y = GENERATOR.integers(0, 3, 43)
FIT = {"epochs": 2, "batch_size": 10, "progress": False}


def make_buckets_small(monkeypatch) -> None:
    """Have gradients summed in buckets of 64 KiB."""
    monkeypatch.setattr(gradient_exchange, "LEAST_BUCKET_BYTES", 1 << 16)


def bits(model: NeuralNetwork | Ensemble) -> str:
    return hashlib.sha256(model._network.parameters.flat).hexdigest()


def check_alike(model: NeuralNetwork, history, comm: Communicator) -> None:
    """All ranks have the same bits, and the same history but for times."""
    seen = [bits(model), [x.hex() for x in history.loss], history.tallies, history.validation]
    assert all(each == seen for each in comm.gather_values(seen))


def check_equal(model, history, single, expected) -> None:
    """A network equals one that was trained in one process, to rounding."""
    flat, other = (each._network.parameters.flat for each in (model, single))
    np.testing.assert_allclose(flat, other, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(history.loss, expected.loss, rtol=1e-5)
    assert history.steps == expected.steps
    assert [each[0] for each in history.tallies] == [each[0] for each in expected.tallies]
    for mine, theirs in zip(history.validation, expected.validation, strict=True):
        for name, value in theirs.items():
            np.testing.assert_allclose(mine[name], value, rtol=1e-4, atol=1e-6)


def check_joined_batch(comm: Communicator) -> None:
    """Trained on any number of ranks, a network is what one process makes on the whole batch."""
    weights = np.linspace(0.5, 1.5, 43)
    cases = [
        ({"optimizer": SGD(0.1, momentum=0.9)}, {"validation": (X[:7], Y[:7])}),
        ({"optimizer": Adam(0.01, average=0.9)}, {"sample_weight": weights, "accumulate": 2}),
        ({"optimizer": SGD(0.1, clip_norm=0.05)}, {"validation": 0.25, "batch_size": 3}),
        # A last batch of one row, which one rank has whole.
        ({"optimizer": SGD(0.1)}, {"batch_size": 6}),
    ]
    for made, given in cases:
        options = {**FIT, **given}
        single = NeuralNetwork(mlp(6, [8], 3), seed=1, **made)
        before = bits(single)
        expected = single.fit(X, Y, **options)
        for _ in range(2):  # the second time has the same bits
            model = NeuralNetwork(mlp(6, [8], 3), seed=1, parallel=DataParallel(comm), **made)
            history = model.fit(X, Y, **options)
            check_alike(model, history, comm)
            check_equal(model, history, single, expected)
            assert bits(model) != before
        assert (model.predict(X) == single.predict(X)).mean() > 0.95
        # Ranks that had not spoken would have visited a part of the samples.
        assert sum(history.tallies[0][1][:-1]) == sum(expected.tallies[0][1][:-1])


def check_wire(comm: Communicator) -> None:
    """Gradients sent in float16 are rounded, alike on all ranks."""
    results = []
    for wire in (None, "float16"):
        scheme = DataParallel(comm, wire=wire)
        model = NeuralNetwork(mlp(6, [8], 3), optimizer=SGD(0.1), seed=1, parallel=scheme)
        history = model.fit(X, Y, **FIT)
        check_alike(model, history, comm)
        results.append((bits(model), history.loss, history.exchange[0]["bytes_sent"]))
    (exact, losses, sent), (rounded, others, fewer) = results
    np.testing.assert_allclose(losses, others, rtol=1e-3)
    assert (exact != rounded) == (comm.size > 1)
    assert fewer == sent // 2


def check_batch_norm_together(comm: Communicator) -> None:
    """Normalised over the whole batch, a network is that of one process; images too."""
    images = X[:42].reshape(-1, 2, 3, 1)
    for x, made in (
        (X[:42], [Input(6), FullyConnected(8), BatchNorm(), FullyConnected(3)]),
        (images, [Input(2, 3, 1), Residual([BatchNorm()]), Flatten(), FullyConnected(3)]),
    ):
        single = NeuralNetwork(copy.deepcopy(made), optimizer=SGD(0.1), seed=1)
        expected = single.fit(x, Y[:42], **{**FIT, "batch_size": 14})
        scheme = DataParallel(comm, batch_norm="together")
        model = NeuralNetwork(copy.deepcopy(made), optimizer=SGD(0.1), seed=1, parallel=scheme)
        history = model.fit(x, Y[:42], **{**FIT, "batch_size": 14})
        check_alike(model, history, comm)
        check_equal(model, history, single, expected)
        states = [each._network.state_buffer.flat for each in (model, single)]
        np.testing.assert_allclose(*states, rtol=1e-4, atol=1e-6)
        assert copy.deepcopy(model).predict(x).shape == (42,)


def check_own_rows(comm: Communicator) -> None:
    """Each rank brings rows of its own, uneven ones: all count alike."""
    bounds = [0, *(43 * (rank + 1) ** 2 // comm.size**2 for rank in range(comm.size))]
    mine = slice(bounds[comm.rank], bounds[comm.rank + 1])
    # One step an epoch: its order does not matter then.
    options = {**FIT, "batch_size": 43}
    single = NeuralNetwork(mlp(6, [8], 3), optimizer=SGD(0.2), seed=1)
    expected = single.fit(X, Y, **options, validation=(X, Y))
    scheme = DataParallel(comm, rows="own")
    model = NeuralNetwork(mlp(6, [8], 3), optimizer=SGD(0.2), seed=1, parallel=scheme)
    history = model.fit(X[mine], Y[mine], **options, validation=(X[mine], Y[mine]))
    check_alike(model, history, comm)
    check_equal(model, history, single, expected)
    assert model.fit(X[mine], Y[mine], **FIT).steps == 2 * 5


def check_networks_at_once(comm: Communicator) -> None:
    """K networks, of which one ends early."""
    made = {"optimizer": SGD([0.1, 0.3], momentum=0.9), "seeds": [1, 2]}
    given = {"epochs": [1, 3], "batch_size": 10}
    singles = Ensemble(mlp(6, [8], 3), **made)
    expected = singles.fit(X, Y, **given)
    networks = Ensemble(mlp(6, [8], 3), parallel=DataParallel(comm), **made)
    for mine, theirs in zip(networks.fit(X, Y, **given), expected, strict=True):
        np.testing.assert_allclose(mine.loss, theirs.loss, rtol=1e-5)
    assert len(set(comm.gather_values(bits(networks)))) == 1


def check_other_losses(comm: Communicator) -> None:
    """Values, two classes, and float16 whose scale is one for all ranks."""
    for outputs, loss, y in (
        (2, MeanSquaredError(), X[:, :2]),
        (1, BinaryCrossEntropy(), Y.clip(0, 1)),
    ):
        losses = []
        for parallel in (None, DataParallel(comm)):
            model = NeuralNetwork(mlp(6, [8], outputs), loss, SGD(0.1), seed=1, parallel=parallel)
            losses.append(model.fit(X, y, **FIT, validation=(X, y)).validation_loss)
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    scheme = DataParallel(comm)
    model = NeuralNetwork(mlp(6, [8], 3), seed=1, dtype="float16", parallel=scheme)
    model._update._counts[...] = 0
    network = model._network
    network.ops.load(np.array(2.0**24, "f4"), network.gradient_scale)
    history = model.fit(X * 100, Y, **FIT)
    check_alike(model, history, comm)
    assert history.skipped_steps
    first, *others = comm.gather_values([history.skipped_steps, float(model._update.scale)])
    assert all(each == first for each in others)


def check_running_statistics(comm: Communicator) -> None:
    """Each rank normalises its part; afterwards all predict alike."""
    layers = [Input(6), FullyConnected(8), BatchNorm(), FullyConnected(3)]
    model = NeuralNetwork(layers, seed=1, parallel=DataParallel(comm))
    history = model.fit(X, Y, **FIT, validation=(X, Y))
    check_alike(model, history, comm)
    states = model._network.state_buffer.flat
    assert states.any()
    assert len(set(comm.gather_values(states.tobytes().hex()))) == 1


def check_overlap(comm: Communicator) -> None:
    """Summed while they are computed, gradients have the bits that they have when summed at last.

    Also where ranks have no row of the last batch; and when both ways have been timed. It is called
    after `make_buckets_small`.
    """
    # Compiled kernels of several threads of one process share BLAS's threads, and roundings vary.
    device = "numpy" if isinstance(comm, ThreadCommunicator) else "cpu"
    made = {"optimizer": SGD(0.003, momentum=0.9), "seed": 1, "device": device}
    sizes = 6, [128, 128, 128], 3

    def trained(epochs: int, scheme: DataParallel | None = None) -> tuple:
        options = {**FIT, "batch_size": 7}  # and a last one of a single row
        model = NeuralNetwork(mlp(*sizes), parallel=scheme, **made)
        return model, model.fit(X, Y, **{**options, "epochs": epochs})

    alone = {epochs: trained(epochs) for epochs in (1, 2)}
    assert len(gradient_exchange.buckets_of(alone[1][0]._network.gradients)) == 3
    for given in ({}, {"sharded": True}, {"on_nan": "skip"}, {"wire": "float16"}):
        found = set()
        for overlap in (False, True) if given else (False, True, None):
            epochs = 1 if given else 2  # which is enough to time both ways
            model, history = trained(epochs, DataParallel(comm, overlap=overlap, **given))
            check_alike(model, history, comm)
            if not (found or "wire" in given):
                check_equal(model, history, *alone[epochs])
            found.add((bits(model), tuple(history.loss), history.exchange[0]["bytes_sent"]))
        assert len(found) == 1


def check_sharded(comm: Communicator) -> None:
    """A rank has an N-th of the optimizer's state, and all make the steps of one process."""
    cases = [
        (SGD(0.1, momentum=0.9), {"validation": (X[:7], Y[:7])}),
        (Adam(0.01, average=0.9), {"accumulate": 2}),
        (AdamW(0.01, 0.1, no_decay=["bias"], schedule=Cosine(20)), {"batch_size": 6}),
        (SGD(0.1, momentum=0.9, clip_norm=0.05), {"batch_size": 3}),
        (LARS(0.5, weight_decay=0.1), {}),
        (Muon(0.02, leave_out=["fully_connected_2"]), {}),
    ]
    for optimizer, given in cases:
        options = {**FIT, **given}
        models, histories = [], []
        for parallel in (None, DataParallel(comm), DataParallel(comm, sharded=True)):
            models.append(
                NeuralNetwork(mlp(6, [8], 3), optimizer=optimizer, seed=1, parallel=parallel)
            )
            histories.append(models[-1].fit(X, Y, **options))
        single, whole, sharded = models
        check_alike(sharded, histories[2], comm)
        check_equal(sharded, histories[2], single, histories[0])
        np.testing.assert_array_equal(sharded.predict(X), whole.predict(X))
        if "clip_norm" not in optimizer.hyperparameters:  # whose sum over ranks has another order
            assert bits(sharded) == bits(whole)
        for name, buffer in sharded._update.state.items():
            sizes = comm.gather_values(buffer.flat.size)
            complete = single._update.state[name].flat.size
            if complete == 1 or name == "average":
                assert sizes == [complete] * comm.size
                continue
            # There may be nothing between two segments but a few elements for alignment.
            assert complete - 16 * comm.size < sum(sizes) <= complete
            if optimizer.is_elementwise:
                assert max(sizes) <= complete / comm.size + 16


def check_sharded_checkpoint(comm: Communicator) -> None:
    """A checkpoint has the whole state: as many ranks, or another number of them, go on from it."""

    def made(parallel: DataParallel | None) -> NeuralNetwork:
        optimizer = Adam(0.01, average=0.9)
        return NeuralNetwork(mlp(6, [8], 3), optimizer=optimizer, seed=1, parallel=parallel)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(comm.gather_values(folder)[0]) / "checkpoint.safetensors"
        model = made(DataParallel(comm, sharded=True))
        model.fit(X, Y, **FIT)
        save_checkpoint(model, path)
        comm.gather_values(None)  # it is written
        again, alone = made(DataParallel(comm, sharded=True)), made(None)
        for each in (again, alone):
            load_checkpoint(each, path)
        comm.gather_values(None)  # all have read it
    whole = model.gathered()
    for each in (model, again, alone, whole):
        each.fit(X, Y, **FIT)
    assert bits(again) == bits(model)
    assert bits(whole) == bits(alone)
    np.testing.assert_allclose(
        model._network.parameters.flat, alone._network.parameters.flat, rtol=2e-5, atol=2e-6
    )


CASES = [
    check_joined_batch,
    check_wire,
    check_batch_norm_together,
    check_own_rows,
    check_networks_at_once,
    check_other_losses,
    check_running_statistics,
    check_overlap,
    check_sharded,
    check_sharded_checkpoint,
]
