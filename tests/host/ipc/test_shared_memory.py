"""Blocks of shared memory are reused, and no more are kept than recently needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cotswold.host.ipc.shared_memory import (
    BLOCK_BYTES_MIN,
    BOUND,
    NAME,
    PERIOD,
    BlockPool,
    MemoryBlock,
    block_size,
    is_supported,
)

pytestmark = pytest.mark.skipif(not is_supported(), reason="memory without a name is Linux's")
MIB = 1 << 20


def _send(pool: BlockPool, count: int) -> None:
    """Send a message that its receiver has read."""
    block, descriptor = pool.acquire(count)
    if descriptor is not None:
        os.close(descriptor)
    pool.release(block.number)
    pool.drop_surplus()


def test_two_mappings_of_a_block_are_the_same_memory_which_ends_with_the_last() -> None:
    before = Path("/proc/self/maps").read_text().count(NAME)
    block, descriptor = MemoryBlock.new(3, BLOCK_BYTES_MIN)
    again = MemoryBlock.map(3, descriptor, BLOCK_BYTES_MIN)
    os.close(descriptor)
    block.memory[7] = 42
    assert again.memory[7] == 42 and again.size == BLOCK_BYTES_MIN
    piece = again.memory[:100]
    del block, again
    assert piece[7] == 42, "a view keeps it"
    del piece
    assert Path("/proc/self/maps").read_text().count(NAME) == before


def test_a_smaller_message_takes_a_larger_block() -> None:
    pool = BlockPool()
    for size in (16, 8, 4, 2, 1):
        _send(pool, size * MIB)
    assert pool.allocated_bytes == 16 * MIB


@pytest.mark.parametrize("sizes", [(1, 2, 4, 8, 16), (16, 8, 4, 2, 1), (3, 16, 1, 9, 5)], ids=str)
def test_sizes_that_come_by_turns_keep_no_more_than_the_bound_and_make_no_new_blocks_for_ever(
    sizes: tuple[int, ...],
) -> None:
    pool = BlockPool()
    for _ in range(3):
        for size in sizes:
            _send(pool, size * MIB)
    made = pool._created
    for size in 10 * sizes:
        _send(pool, size * MIB)
    assert pool._created == made and pool.allocated_bytes <= BOUND * 16 * MIB


def test_what_was_not_needed_for_two_periods_is_given_back() -> None:
    pool = BlockPool()
    for _ in range(5):
        _send(pool, 64 * MIB)
    for _ in range(2 * PERIOD):
        _send(pool, 10)
    assert pool.allocated_bytes == BLOCK_BYTES_MIN


def test_blocks_under_way_at_once_are_all_kept() -> None:
    pool = BlockPool()
    for _ in range(3):
        lent = [pool.acquire(size * MIB) for size in (1, 2, 3)]
        for block, descriptor in lent:
            if descriptor is not None:
                os.close(descriptor)
            pool.release(block.number)
        assert not pool.drop_surplus()
    assert pool._created == 3


def test_a_block_is_at_most_a_quarter_larger_than_its_message() -> None:
    for count in (*range(BLOCK_BYTES_MIN, 3 * BLOCK_BYTES_MIN, 997), 10**6, 10**7, 10**9):
        assert count <= block_size(count) <= 1.25 * count
