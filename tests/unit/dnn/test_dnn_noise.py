"""Philox against its published vectors; noise that depends on seed, step, stream and element."""

import tracemalloc

import numpy as np
import pytest

from dnn import graph
from dnn.backend import Ops, ops_for, philox
from dnn.errors import DtypeError, ShapeError

# counter, key, result: Random123's kat_vectors for philox4x32 with 10 rounds.
KNOWN_ANSWERS = [
    ("00000000 " * 4, "00000000 " * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff " * 4, "ffffffff " * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def words_of(text):
    return [int(word, 16) for word in text.split()]


def test_known_answers():
    words = np.zeros((6, len(KNOWN_ANSWERS)), np.uint64)
    for column, (counter, key, answer) in enumerate(KNOWN_ANSWERS):
        words = np.zeros((6, 1), np.uint64)
        words[:4, 0] = words_of(counter)
        philox.rounds(words, np.array(words_of(key), np.uint64)[:, None])
        assert words[:4, 0].tolist() == words_of(answer), column


def drawn(seed, step, stream, shape, dtype=np.float32):
    seed = np.asarray(seed, np.uint64)
    nodes = graph.variable(seed.shape, np.uint64, "seed"), graph.variable((), np.uint64, "step")
    noise = graph.uniform_noise(*nodes, stream, shape, dtype)
    return graph.evaluate([noise], {nodes[0]: seed, nodes[1]: step})[0]


def plain_philox(counter, key):
    """One block in Python's integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 % 2**32, (p0 >> 32) ^ c[3] ^ k[1], p0 % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def test_an_element_is_a_word_of_its_counter():
    seed, step, stream = 0x123456789ABCDEF0, 2**40 + 7, 0xFEDCBA98
    found = drawn(seed, step, stream, (5, 3))
    key = (seed % 2**32, seed >> 32)
    for i, value in enumerate(found.ravel()):
        counter = (i // 4, step % 2**32, step >> 32, stream)
        assert value == (plain_philox(counter, key)[i % 4] >> 8) / 2**24


def test_an_element_is_the_same_whatever_the_shape():
    # More than one piece of BLOCKS blocks, and a last block of which a part is used.
    whole = drawn(3, 5, 7, (4 * philox.BLOCKS + 17,))
    np.testing.assert_array_equal(drawn(3, 5, 7, (6, 11)).ravel(), whole[:66])
    np.testing.assert_array_equal(drawn(3, 5, 7, ()), whole[0])
    for at in (4 * philox.BLOCKS - 1, 4 * philox.BLOCKS, 4 * philox.BLOCKS + 16):
        counter = (at // 4, 5, 0, 7)
        assert whole[at] == (plain_philox(counter, (3, 0))[at % 4] >> 8) / 2**24


def test_k_seeds_give_the_noise_of_k_networks():
    seeds = [1, 2**63, 7]
    together = drawn(seeds, 4, 2, (33, 70))
    for k, seed in enumerate(seeds):
        np.testing.assert_array_equal(together[k], drawn(seed, 4, 2, (33, 70)))


def test_seed_step_and_stream_each_change_everything():
    base = drawn(1, 1, 1, (1000,))
    for other in [(2, 1, 1), (1 + 2**32, 1, 1), (1, 2, 1), (1, 1 + 2**32, 1), (1, 1, 2)]:
        assert (drawn(*other, (1000,)) == base).mean() < 0.01
    np.testing.assert_array_equal(drawn(1, 1, 1, (1000,)), base)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_uniform(dtype):
    drawn_ = drawn(11, 0, 0, (200, 1000), dtype)
    assert drawn_.dtype == dtype
    u = drawn_.astype(np.float64).ravel()
    assert u.min() >= 0
    assert u.max() < 1
    counts = np.histogram(u, 64, (0, 1))[0]
    expected = u.size / 64
    # 63 degrees of freedom: 99.99% of all tables lie between 25 and 115.
    assert 25 < ((counts - expected) ** 2 / expected).sum() < 115
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.01
    assert abs(np.corrcoef(drawn(11, 1, 0, u.shape), u)[0, 1]) < 0.01


def test_float32_and_float64_are_the_same_numbers():
    np.testing.assert_array_equal(drawn(1, 2, 3, (99,)), drawn(1, 2, 3, (99,), np.float64))


def test_eager_and_compiled_are_the_same_bits_and_a_replay_allocates_nothing():
    seed, step = graph.variable((), np.uint64), graph.variable((), np.uint64)
    noise = graph.uniform_noise(seed, step, 5, (100, 52))
    arrays = {seed: np.array(9, np.uint64), step: np.array(0, np.uint64)}
    plan = graph.Plan([noise], Ops(), arrays)
    plan.run()
    first = plan[noise].copy()
    from dnn.graph import run_eagerly

    np.testing.assert_array_equal(run_eagerly([noise], arrays)[0], first)
    arrays[step][...] = 1
    plan.run()
    assert (plan[noise] != first).mean() > 0.99
    tracemalloc.start()
    try:
        plan.run()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        plan.run()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 4096


@pytest.mark.parametrize("seeds", [5, [2**40, 7, 0]])
def test_compiled_kernels_draw_the_bits_of_the_oracle(seeds):
    fast = ops_for("cpu")  # the oracle itself where Numba is not installed
    seeds = np.asarray(seeds, np.uint64)
    seed, step = graph.variable(seeds.shape, np.uint64), graph.variable((), np.uint64)
    noise = graph.uniform_noise(seed, step, 2**32 - 1, (7, 333))
    feeds = {seed: seeds, step: 2**33 + 1}
    (expected,) = graph.evaluate([noise], feeds, Ops())
    assert graph.evaluate([noise], feeds, fast)[0].tobytes() == expected.tobytes()
    # Fused with what follows, or not.
    masked = graph.positive(0.5 - noise) * 2.0
    found = graph.evaluate([masked], feeds, fast)[0]
    np.testing.assert_array_equal(found, (expected < 0.5) * 2.0)


def test_noise_for_what_is_no_seed():
    good = graph.variable((), np.uint64, "step")
    with pytest.raises(DtypeError, match=r"uniform_noise: seed .*float32.*uint64"):
        graph.uniform_noise(graph.variable((), np.float32, "seed"), good, 0, (3,))
    with pytest.raises(ShapeError, match=r"uniform_noise: seed \(2, 2\)"):
        graph.uniform_noise(graph.variable((2, 2), np.uint64, "seed"), good, 0, (3,))
