"""Where sums of gradients begin within a step, and which way of a step is taken."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest

from dnn import SGD, NeuralNetwork, mlp
from dnn.backend import Ops
from dnn.distributed import DataParallel, run_on_threads
from dnn.distributed import gradient_exchange as exchanging
from dnn.distributed.gradient_exchange import (
    GradientExchange,
    StepTimes,
    TimedChoice,
    buckets_of,
)
from dnn.parameters import FlatBuffer, Segment

LINE = 16  # elements of float32 in a cache line


def buffer_of(sizes: list[int]) -> FlatBuffer:
    segments, start = [], 0
    for number, size in enumerate(sizes):
        segments.append(Segment(f"layer_{number}.weight", (size,), start))
        start = -(-(start + size) // LINE) * LINE
    return FlatBuffer(segments, np.float32, Ops())


def test_buckets_cover_a_buffer_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanging, "LEAST_BUCKET_BYTES", 400)
    generator = np.random.default_rng(0)
    for _ in range(50):
        buffer = buffer_of(generator.integers(1, 300, generator.integers(1, 20)).tolist())
        buckets = buckets_of(buffer)
        assert (buckets[0].stop, buckets[-1].start) == (buffer.flat.size, 0)
        assert all(a.start == b.stop for a, b in pairwise(buckets))
        assert {b.start for b in buckets} <= {s.start for s in buffer.segments}
        assert all(4 * (b.stop - b.start) >= 400 for b in buckets[:-1])
        assert len(buckets) <= exchanging.MOST_BUCKETS + 1
    assert buckets_of(buffer_of([])) == [slice(0, 0)]
    several = FlatBuffer(buffer_of([4000]).segments, np.float32, Ops(), models=3)
    assert len(buckets_of(several)) == 1


def test_a_bucket_is_begun_behind_the_last_step_that_uses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not before one that follows it; others are polled where a layer is done."""
    monkeypatch.setattr(exchanging, "LEAST_BUCKET_BYTES", 8)

    def looked_at(comm):
        layers = mlp(4, [4] * 4, 2)
        network = NeuralNetwork(layers, parallel=DataParallel(comm), device="numpy")._network
        exchange = GradientExchange(comm, network, None, None)
        gradients, other = network.gradients, np.zeros(3, np.float32)
        names = [segment.name for segment in reversed(gradients.segments)]
        # In pairs a weight and a bias of a layer, and what else there is to do.
        steps = [(name, ([other, gradients[name]], other)) for name in names]
        steps.append(("assign", (other,)))
        found = [function for function, _ in exchange.interleaved(steps)]
        return names, found, len(exchange.buckets), exchange.start, exchange.poll

    (names, found, buckets, start, poll), _ = run_on_threads(2, looked_at)
    # From the last layer on; the bias lies behind the weight, and comes first here.
    assert [each for each in found if isinstance(each, str)] == [*names, "assign"]
    begun = 0
    for place, each in enumerate(found):
        if each == start:
            begun += 1
            assert isinstance(found[place - 1], str)
        elif each == poll:
            assert 0 < begun < buckets
    assert found.count(start) == buckets


class Alone:
    """A communicator of one rank, as far as it is asked."""

    def __init__(self) -> None:
        self.gathered = []

    def gather_values(self, value):
        self.gathered.append(value)
        return [value, [3.0, 4.0]]  # the other rank took longer


def test_the_faster_way_of_the_slower_rank_is_taken() -> None:
    done = []
    communicator = Alone()
    ways = {
        "slow": [(lambda: (done.append("slow"), time.sleep(2e-3)), ())],
        "fast": [(done.append, ("fast",))],
    }
    times = StepTimes()
    for steps in (3, 11):  # a later fit may make it anew, on some ranks alone
        way = TimedChoice(communicator, ways, times)
        for _ in range(steps):
            way()
    (own,) = communicator.gathered
    assert own[0] > 2e-3
    assert len(own) == 2
    # Of the slower rank the first one is.
    assert done == ["slow", "fast"] * 5 + ["slow"] * 4


@pytest.mark.parametrize("overlap", [True, False])
def test_sums_begin_within_the_steps_of_a_training(
    monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    calls: dict[int, list[str]] = {0: [], 1: []}

    def note(name: str) -> None:
        method = getattr(GradientExchange, name)

        def noted(self):
            calls[self._communicator.rank].append(name)
            return method(self)

        monkeypatch.setattr(GradientExchange, name, noted)

    for name in ("start", "poll", "sum"):
        note(name)

    def fit(comm):
        scheme = DataParallel(comm, overlap=overlap)
        layers = mlp(6, [600, 600, 600], 3)
        model = NeuralNetwork(layers, optimizer=SGD(0.1), parallel=scheme, device="numpy")
        model.fit(np.ones((8, 6)), [0, 1] * 4, batch_size=8, progress=False)

    run_on_threads(2, fit)
    assert calls[0] == calls[1]
    before = calls[0][: calls[0].index("sum")]
    assert before.count("start") == (2 if overlap else 0)
    assert ("poll" in before) == overlap
    assert calls[0].count("start") == 3
