"""Random streams: what they depend on, and that they stay what they are."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dnn.errors import ConfigurationError
from dnn.seeds import epoch_order, epoch_orders, stream, streams


@pytest.mark.parametrize(
    ("seed", "purpose", "first"),
    [
        (0, ("order", 0), 7810127608723112746),
        (2**32 - 1, ("initialise", "output.weight"), 7565585350914972676),
        (2**32, ("order", 0), 2643234866071293619),
        (2**70 + 5, ("noise",), 5901268834842681753),
    ],
)
def test_streams_stay_the_same_from_version_to_version(seed, purpose, first):
    assert stream(seed, *purpose).integers(2**63) == first
    assert stream(seed, *purpose).integers(2**63) == first


def test_every_purpose_and_seed_has_a_stream_of_its_own():
    purposes = [("order", 1), ("order", 2), ("order", True), ("order", "1"), ("order",), ()]
    seeds = [0, 1, 2**32, 2**32 + 1]
    drawn = {stream(seed, *purpose).integers(2**63) for seed in seeds for purpose in purposes}
    assert len(drawn) == len(seeds) * len(purposes)


def test_an_integer_of_numpy_is_a_seed():
    assert stream(np.int64(7), "a").random() == stream(7, "a").random()


@pytest.mark.parametrize("seed", [0, 1, 7, 2**31, 2**32 - 1, 2**32, 2**63 + 5, 2**70 + 3])
def test_a_stream_is_that_of_numpy_from_the_seed_and_a_digest(seed: int) -> None:
    digest = hashlib.sha256(repr(("order", 3)).encode()).digest()
    words = [int(word) for word in np.frombuffer(digest[:16], "<u4")]
    expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *words])))
    assert (stream(seed, "order", 3).permutation(99) == expected.permutation(99)).all()
    assert stream(np.int64(seed % 2**62), "x").random() == stream(seed % 2**62, "x").random()


@pytest.mark.parametrize("purpose", [(), ("order",), ("initialise", "output.weight"), ("x", 3)])
@pytest.mark.parametrize("more", [[], [2**32], [2**70]])
@pytest.mark.parametrize("count", [0, 1, 200])
def test_streams_of_many_seeds_are_those_of_each(
    count: int, more: list[int], purpose: tuple[str | int, ...]
) -> None:
    drawn = np.random.default_rng(1).integers(2**32, size=count).tolist()
    seeds = [0, 1, 2**32 - 1, np.int64(5), *more, *drawn]
    together = [each.bit_generator.state for each in streams(seeds, *purpose)]
    assert together == [stream(seed, *purpose).bit_generator.state for seed in seeds]


@pytest.mark.parametrize("seed", [-1, 1.0, True, "1"])
def test_what_is_no_seed(seed: object) -> None:
    with pytest.raises(ConfigurationError, match="seed"):
        stream(seed)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="seed"):
        next(streams([*range(100), seed]))  # type: ignore[list-item]


@pytest.mark.parametrize("seed", [0, 7, 2**32, 2**70 + 5])
@pytest.mark.parametrize("samples", [1, 2, 242, 4096])
def test_the_order_of_an_epoch_is_that_of_philox_words(seed: int, samples: int) -> None:
    key = stream(seed, "order").integers(2**64, size=2, dtype=np.uint64)
    for epoch in (0, 1, 5):
        blocks = -(-samples // 4)
        counter = [epoch * blocks, 0, 0, 0]
        words = np.random.Philox(key=key, counter=counter).random_raw(samples)
        words = np.atleast_1d(words)
        expected = np.lexsort((np.arange(samples), words >> np.uint64(32)))
        order = epoch_order(samples, seed, epoch)
        assert order.dtype == np.intp
        assert (order == expected).all()


def test_orders_stay_the_same_from_version_to_version() -> None:
    assert epoch_order(8, 0, 0).tolist() == [7, 2, 6, 1, 3, 5, 0, 4]
    assert epoch_order(8, 2**40, 3).tolist() == [1, 5, 0, 2, 6, 3, 4, 7]


def test_orders_of_many_networks_and_epochs_are_those_of_each() -> None:
    samples, seeds = 300, [3, 2**33, 5, 3, *range(100, 180)]
    drawn = list(epoch_orders(samples, seeds, 2, 13))  # more than are drawn at a time
    many = epoch_orders(samples, [*range(1000)], 2, 13)
    assert [orders[105].tolist() for orders in many] == [orders[9].tolist() for orders in drawn]
    assert len(drawn) == 11
    for epoch, orders in enumerate(drawn, 2):
        assert orders.shape == (len(seeds), samples)
        for seed, order in zip(seeds, orders, strict=True):
            assert (order == epoch_order(samples, seed, epoch)).all()
    assert len({order.tobytes() for orders in drawn for order in orders}) == 11 * (len(seeds) - 1)


def test_every_row_comes_first_as_often() -> None:
    firsts = [epoch_order(10, 1, epoch)[0] for epoch in range(4000)]
    counts = np.bincount(firsts, minlength=10)
    assert ((counts - 400) ** 2 / 400).sum() < 27.9  # chi squared, 9 degrees, p = 0.001


def test_threads_draw_the_same_orders() -> None:
    expected = [epoch_order(50, seed, 1).tolist() for seed in range(200)]
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda seed: epoch_order(50, seed, 1).tolist(), range(200)))
    assert drawn == expected
