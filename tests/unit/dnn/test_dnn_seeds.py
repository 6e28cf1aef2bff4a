"""Random streams: what they depend on, and that they stay what they are."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from dnn.errors import ConfigurationError
from dnn.seeds import stream


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


@pytest.mark.parametrize("seed", [-1, 1.0, True, "1"])
def test_what_is_no_seed(seed: object) -> None:
    with pytest.raises(ConfigurationError, match="seed"):
        stream(seed)  # type: ignore[arg-type]
