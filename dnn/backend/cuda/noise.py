"""Kernel of random numbers, equal to those of `dnn.backend.philox` bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnn.backend.cuda.launch import Launcher, require_contiguous
from dnn.backend.cuda.source import (
    C_TYPES,
    THREADS,
    Kernel,
    arithmetic,
    code_of,
    for_each,
    function,
    lengths,
    stored,
)

__all__ = ["uniform_noise"]

PHILOX_ROUNDS = 10


def uniform_noise_kernel(code: str) -> Kernel:
    """Return the kernel that writes floats in [0, 1) from Philox-4x32-10, see `dnn.backend.philox`.

    A thread computes one block of four words. Its parameters: seeds, step, out, stream, number
    of seeds, elements for each.
    """
    bits = 11 if code == "f2" else 24
    middle = arithmetic(code)
    value = f"({middle})(word[lane] >> {32 - bits}) * ({middle})(1.0 / {1 << bits})"
    body = for_each(
        f"""
        const long long model = i_ / blocks, block = i_ % blocks;
        unsigned int key0 = (unsigned int)seeds[model];
        unsigned int key1 = (unsigned int)(seeds[model] >> 32);
        unsigned int word[4] = {{(unsigned int)block, (unsigned int)*step,
                                (unsigned int)(*step >> 32), (unsigned int)stream}};
        for (int round = 0; round < {PHILOX_ROUNDS}; ++round) {{
            const unsigned long long p0 = 0xD2511F53ull * word[0];
            const unsigned long long p1 = 0xCD9E8D57ull * word[2];
            word[0] = (unsigned int)(p1 >> 32) ^ word[1] ^ key0;
            word[1] = (unsigned int)p1;
            word[2] = (unsigned int)(p0 >> 32) ^ word[3] ^ key1;
            word[3] = (unsigned int)p0;
            key0 += 0x9E3779B9u;
            key1 += 0xBB67AE85u;
        }}
        for (int lane = 0; lane < 4; ++lane) {{
            const long long at = 4 * block + lane;
            if (at < n) out[model * n + at] = {stored(code, value)};
        }}""",
        "_",
    )
    words = "const unsigned long long* seeds, const unsigned long long* step"
    parameters = f"{words}, {C_TYPES[code]}* out, {lengths('stream models n')}"
    blocks = "const long long blocks = (n + 3) / 4, n_ = models * blocks;"
    return function(f"uniform_noise__{code}", parameters, f"{blocks}\n    {body}")


def uniform_noise(
    launcher: Launcher, seed: Any, step: Any, stream: int, words: Any, keys: Any, out: Any
) -> None:
    """Launch the kernel that draws floats from [0, 1), equal to those of `dnn.backend.philox`."""
    require_contiguous("uniform_noise", out)
    models = max(1, seed.size)
    elements = out.size // models
    blocks = models * -(-elements // 4)
    numbers = [np.int64(stream), np.int64(models), np.int64(elements)]
    kernel = uniform_noise_kernel(code_of(out.dtype))
    if blocks:
        launcher.launch(kernel, -(-blocks // THREADS), [seed, step, out, *numbers])
