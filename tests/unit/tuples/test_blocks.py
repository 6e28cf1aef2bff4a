"""Blocks for large payloads: used again, and never while somebody refers to them."""

from __future__ import annotations

import numpy as np

from diel.tuples.server import BlockPool


def address(memory: memoryview) -> int:
    return np.frombuffer(memory, np.uint8).ctypes.data


def test_a_block_that_nothing_refers_to_is_used_again() -> None:
    pool = BlockPool()
    block = pool.take(1_000_000)
    first = address(block)
    del block
    assert len(pool) == 1
    assert address(pool.take(1_000_100)) == first  # about one size
    assert len(pool) == 1


def test_a_block_that_a_view_refers_to_is_not_used_again() -> None:
    pool = BlockPool()
    block = pool.take(1000)
    part = block[10:20]
    del block
    assert len(pool) == 0
    part[:] = b"0123456789"
    other = pool.take(1000)
    other[:] = bytes(1000)
    assert bytes(part) == b"0123456789"
    del part
    assert len(pool) == 1


def test_a_pool_keeps_no_more_than_it_may() -> None:
    pool = BlockPool(idle_bytes=2_500_000)
    blocks = [pool.take(1_000_000) for _ in range(4)]
    assert [len(block) for block in blocks] == [1_000_000] * 4
    blocks.clear()
    assert len(pool) == 2


def test_the_pool_may_be_gone_before_its_blocks() -> None:
    pool = BlockPool()
    block = pool.take(1000)
    del pool
    block[:] = b"x" * 1000
    assert bytes(block) == b"x" * 1000
