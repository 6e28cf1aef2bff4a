"""Importances of parameters, against functions whose shares are known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from modules.report.importance import (
    FEWEST_TRIALS,
    MOST_BINS,
    Importance,
    bin_values,
    importance,
)
from modules.report.markup import NOT_SET


def draw(trials: int, names: str, seed: int = 1) -> tuple[Any, list[dict[str, Any]]]:
    x = np.random.default_rng(seed).uniform(size=(trials, len(names)))
    return x, [dict(zip(names, map(float, row), strict=True)) for row in x]


def shares(found: Importance | None) -> tuple[dict[str, float], dict[frozenset[str], float]]:
    assert found is not None
    alone = {effect.name: effect.alone for effect in found.effects}
    return alone, {frozenset(pair[:2]): pair[2] for pair in found.pairs}


def test_a_sum_is_divided_as_the_squares_of_its_factors() -> None:
    """Of x + 2 y the variance is 1/12 + 4/12."""
    x, points = draw(1500, "xyz")
    found = importance(points, x[:, 0] + 2 * x[:, 1], maximise=True)
    alone, pairs = shares(found)
    assert alone["x"] == pytest.approx(0.2, abs=0.04)
    assert alone["y"] == pytest.approx(0.8, abs=0.04)
    assert alone["z"] < 0.01
    assert max(pairs.values()) < 0.02
    assert found is not None
    assert [effect.name for effect in found.effects] == ["y", "x", "z"]
    assert found.explained > 0.95


def test_ishigami() -> None:
    """The usual test of sensitivity analysis: Ishigami and Homma, 1990, with a = 7, b = 0.1."""
    x, points = draw(2000, "xyz")
    angle = (2 * x - 1) * math.pi
    y = np.sin(angle[:, 0]) * (1 + 0.1 * angle[:, 2] ** 4) + 7 * np.sin(angle[:, 1]) ** 2
    alone, pairs = shares(importance(points, y, maximise=True))
    assert alone["x"] == pytest.approx(0.314, abs=0.06)
    assert alone["y"] == pytest.approx(0.442, abs=0.09)
    assert alone["z"] < 0.02
    assert pairs[frozenset("xz")] == pytest.approx(0.244, abs=0.06)
    assert pairs[frozenset("xy")] < 0.05


def test_parameters_that_matter_together_only() -> None:
    x, points = draw(1500, "abcd")
    y = ((x[:, 0] > 0.5) != (x[:, 1] > 0.5)).astype(float)
    alone, pairs = shares(importance(points, y, maximise=True))
    assert max(alone.values()) < 0.02
    assert pairs[frozenset("ab")] > 0.7
    assert max(share for pair, share in pairs.items() if pair != frozenset("ab")) < 0.03


def test_a_grid_with_words_and_lists() -> None:
    """Every effect of a full grid is known exactly: words -1, 0, 1 and numbers 0, 1."""
    points = [
        {"word": word, "number": number, "layers": layers}
        for word in ("b", "a", "c")
        for number in (16, 32)
        for layers in ([32], [64, 32])
    ]
    gain = {"a": -1.0, "b": 0.0, "c": 1.0}
    y = [gain[str(point["word"])] + (point["number"] == 32) for point in points]
    found = importance(points * 6, y * 6, maximise=True)
    alone, _ = shares(found)
    # Variances: 2/3 of the words, 1/4 of the numbers.
    assert alone["word"] == pytest.approx((2 / 3) / (2 / 3 + 1 / 4), abs=0.02)
    assert alone["number"] == pytest.approx((1 / 4) / (2 / 3 + 1 / 4), abs=0.02)
    assert alone["layers"] < 0.01
    assert found is not None
    words = next(effect for effect in found.effects if effect.name == "word")
    assert words.labels == ["a", "b", "c"]
    np.testing.assert_allclose(words.mean, [-0.5, 0.5, 1.5], atol=0.05)


def test_where_nothing_decides_the_forest_says_that_it_knows_nothing() -> None:
    for trials in (40, 400):
        _, points = draw(trials, "abc")
        noise = np.random.default_rng(5).normal(size=trials)
        found = importance(points, noise, maximise=True)
        assert found is not None
        assert found.explained < 0.1


def test_a_logarithmic_parameter_needs_no_logarithm() -> None:
    x, points = draw(500, "ab")
    stretched = [{**point, "a": 10.0 ** (8 * point["a"] - 8)} for point in points]
    assert shares(importance(points, x[:, 0], True)) == shares(importance(stretched, x[:, 0], True))


def test_the_same_trials_give_the_same_numbers() -> None:
    x, points = draw(60, "abc")
    assert importance(points, x[:, 1], True) == importance(points, x[:, 1], True)


def test_parameters_that_some_trials_do_not_have() -> None:
    x, points = draw(600, "ab")
    y = np.where(x[:, 0] > 0.7, x[:, 1], 0.0)
    some = [
        {"a": point["a"], **({"b": point["b"]} if point["a"] > 0.7 else {})} for point in points
    ]
    found = importance(some, y, maximise=True)
    alone, pairs = shares(found)
    # y has the variance 0.0775: 0.0525 of whether there is a b, which a decides, and 0.025 of b.
    assert alone["a"] == pytest.approx(0.68, abs=0.08)
    assert alone["b"] == pytest.approx(0.32, abs=0.08)
    assert sum(share for share in pairs.values()) < 0.05
    assert found is not None
    effect = next(one for one in found.effects if one.name == "b")
    assert NOT_SET not in effect.labels
    # What it does where it exists, and not half of it.
    assert effect.mean[-1] - effect.mean[0] == pytest.approx(1.0, abs=0.15)


def test_branches_that_never_meet_are_judged_each_by_its_own_trials() -> None:
    random = np.random.default_rng(3)
    kinds = random.integers(0, 2, 900)
    x = random.random((900, 3))
    points = [
        {"kind": "ab"[kind], "rate": rate, ("of_a" if kind == 0 else "of_b"): own}
        for kind, (rate, own, _) in zip(kinds, x, strict=True)
    ]
    # Of a: twice its own; of b: nothing of its own; of both: the rate. The variances of the parts,
    # those of one branch by half, since half of the trials are in it, are all that there is.
    y = x[:, 0] + np.where(kinds == 0, 2 * x[:, 1], 0.3)
    alone, _ = shares(importance(points, y, maximise=True))
    parts = {
        "kind": (1.0 - 0.3) ** 2 / 4,
        "rate": 1 / 12,
        "of_a": 0.5 * 4 / 12,
        "of_b": 0.0,
    }
    whole = sum(parts.values())
    for name, part in parts.items():
        assert alone[name] == pytest.approx(part / whole, abs=0.07), name


@pytest.mark.parametrize("worst", [-1e9, -math.inf])
@pytest.mark.parametrize("maximise", [True, False])
def test_a_trial_that_diverged_is_not_all_there_is(worst: float, maximise: bool) -> None:
    x, points = draw(400, "ab")
    y = x[:, 0].copy()
    y[[3, 50]] = worst
    alone, _ = shares(importance(points, y if maximise else -y, maximise))
    assert alone["a"] > 0.8


@pytest.mark.parametrize(
    ("points", "y"),
    [
        ([{"a": one} for one in range(FEWEST_TRIALS - 1)], list(range(FEWEST_TRIALS - 1))),
        ([{"a": one} for one in range(20)], [0.5] * 20),
        ([{"a": 1}] * 20, list(range(20))),
        ([{}] * 20, list(range(20))),
        ([{"a": one} for one in range(20)], [-math.inf] * 20),
    ],
)
def test_where_there_is_nothing_to_divide(points: Any, y: Any) -> None:
    assert importance(points, y, maximise=True) is None


def test_many_values_share_bins_and_names_that_never_repeat_are_grouped() -> None:
    y = np.arange(1000.0)
    numbers = bin_values([float(one) for one in range(1000)], y)
    assert numbers.count == MOST_BINS
    counts = np.bincount(numbers.bins)
    assert counts.max() - counts.min() <= 2
    assert (np.diff(numbers.bins) >= 0).all()
    names = bin_values([f"run {one}" for one in range(1000)], y)
    assert names.count <= 4 * MOST_BINS
    assert (np.diff(names.bins) >= 0).all()


def test_numbers_and_words_in_one_column_are_words() -> None:
    binned = bin_values([1, "auto", 2.0, True, None], np.arange(5.0))
    assert binned.labels == ["1", "auto", "2", "true"]
    assert binned.is_set.tolist() == [True] * 4 + [False]
