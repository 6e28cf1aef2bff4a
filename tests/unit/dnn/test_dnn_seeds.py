"""Random streams: what they depend on, and that they stay what they are."""

import numpy as np
import pytest

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
