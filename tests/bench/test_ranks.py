"""Ranks that wait for work and are timed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from cotswold.bench.ranks.pool import RankPool, Stopwatch
from cotswold.bench.ranks.rank import PoolRank
from cotswold.errors import MachineError


def place(rank: PoolRank) -> tuple[int, int]:
    return rank.number, rank.count


def fail_beside_one_that_waits(rank: PoolRank) -> None:
    if rank.number == 1:
        raise ValueError("the second is at fault")
    dist.barrier()


def die(rank: PoolRank) -> None:
    os._exit(3)


def hold_clock(rank: PoolRank) -> None:
    rank.actions["wait"] = lambda: time.sleep(0.05 * rank.number)


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2) as two:
        yield two


def test_ranks_of_a_pool_know_their_places(pool: RankPool) -> None:
    assert pool.call(place) == [(0, 2), (1, 2)]
    assert pool.call(place, only=[1]) == [(1, 2)]


def test_the_clock_goes_on_by_the_seconds_of_the_slowest_rank(pool: RankPool) -> None:
    pool.call(hold_clock)
    clock = Stopwatch()
    pool.action("wait", clock)()
    assert 0.05 <= clock() < 5


def test_a_rank_that_fails_is_told_of_while_another_waits_for_it() -> None:
    with (
        RankPool(2) as pool,
        pytest.raises(MachineError, match="rank 1 of 2 failed with ValueError: the second"),
    ):
        pool.call(fail_beside_one_that_waits)


def test_a_rank_that_dies_is_told_of() -> None:
    with RankPool(1) as pool, pytest.raises(MachineError, match="rank 0 of 1 ended with exit code 3"):
        pool.call(die)
