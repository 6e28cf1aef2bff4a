"""Random streams."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from dnn.errors import ConfigurationError
from dnn.seeds import stream


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
