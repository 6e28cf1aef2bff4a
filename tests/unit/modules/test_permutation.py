"""The shuffled order of a grid."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.space import Permutation


@given(st.integers(1, 400), st.integers(0, 2**64))
def test_every_element_comes_once(size: int, seed: int) -> None:
    permutation = Permutation(size, seed)
    assert sorted(permutation[place] for place in range(size)) == list(range(size))


@pytest.mark.parametrize("size", [2**16, 10**6, 2**61 - 1, 10**40, 3**300])
def test_the_order_of_large_grids(size: int) -> None:
    permutation = Permutation(size, 3)
    places = [*range(500), *range(size - 500, size)]
    found = {permutation[place] for place in places}
    assert len(found) == 1000
    assert all(0 <= one < size for one in found)
    # Neighbours lie anywhere, so the first few are a fair sample.
    assert 0.4 * size < sum(found) / 1000 < 0.6 * size
    rising = sum(permutation[place] < permutation[place + 1] for place in range(500))
    assert 200 < rising < 300


def test_another_seed_gives_another_order_and_the_same_the_same() -> None:
    # Journals of earlier sweeps would mean something else if these numbers moved.
    assert [Permutation(1000, 1)[place] for place in range(6)] == [175, 510, 711, 927, 774, 753]
    beyond_words = Permutation(10**40, 1)
    assert [beyond_words[place] % 10**12 for place in range(3)] == [
        955349068872,
        21769735854,
        157874276820,
    ]
    orders = {tuple(Permutation(50, seed)[place] for place in range(50)) for seed in range(200)}
    assert len(orders) == 200


def test_small_grids_get_every_order() -> None:
    orders = {tuple(Permutation(3, seed)[place] for place in range(3)) for seed in range(200)}
    assert len(orders) == 6


@pytest.mark.parametrize("place", [-1, 7])
def test_places_beyond_the_grid_are_not_there(place: int) -> None:
    with pytest.raises(IndexError, match="of 7"):
        Permutation(7, 0)[place]


def test_a_walk_is_short() -> None:
    """Outside land few: the digits' bases fit the size to within its root."""
    walks = 0
    for size in (10**3 + 1, 10**6 + 1, 2**30 + 1):
        permutation = Permutation(size, 0)
        inner = permutation._network

        def counted(index: int, inner: object = inner) -> int:
            nonlocal walks
            walks += 1
            return inner(index)  # type: ignore[operator]

        permutation._network = counted  # type: ignore[method-assign]
        for place in range(1000):
            _ = permutation[place]
    assert walks <= 3 * 1000 * 1.05
